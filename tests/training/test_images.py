"""Images from one file: read by a sense, trained, stopped, resumed bit for bit, shared by ranks, scored and shown."""

import json

import pytest
import torch
from sizes import in_full
from torch.testing import assert_close
from training.builders import advanced, assert_same, bits, lines
from training.launcher import Launcher

import regard
from regard import config, zoo
from regard.doctor import examine_run
from regard.evaluation.evaluator import evaluate
from regard.training.api import fit, resume_fit
from regard.training.run import Run

RECIPE = """
[data]
source = "shapes.jsonl"
validation = 0.2
[task]
kind = "classification"
[model]
dim = 12
depth = 2
heads = 3
hidden = 20
position = {kind = "learned"}
embed = {kind = "patches", patch_size = 2, image_size = 6, channels = 1}
[train]
steps = 6
batch_size = 5
device = "cpu"
compile = false
eval_every = 3
save_every = "none"
[train.schedule]
warmup = 2
"""
WAYS = {
    "plain": [],
    "accumulated": ["train.gradient_accumulation=2"],
    "by tokens": ["train.batch_tokens=70"],
    "averaged": ["train.ema_decay=0.9"],
    "augmented": ["train.augment={flip=true, crop=1, mixup=0.4}"],
    "numbers": ["task.kind=regression", "task.label=size"],
    "on a grid": ["model.embed.cls_tokens=false", "model.position={kind='sinusoidal', axes=2}"],
}


def shapes(count=61):
    """Rows or columns of light, somewhere, in some noise."""
    luck = torch.Generator().manual_seed(3)
    for n in range(count):
        image = torch.randint(0, 90, (6, 6), generator=luck)
        place = int(torch.randint(0, 6, (), generator=luck))
        (image[place] if n % 2 else image[:, place]).fill_(255)
        yield {"image": image.tolist(), "label": "row" if n % 2 else "column", "size": place / 5}


@pytest.fixture
def recipe(desk):
    (desk / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shapes()))
    (desk / "shapes.toml").write_text(RECIPE)
    return lambda *changes: zoo.read_recipe("shapes.toml", changes)


# ---------------------------------------------------------------- what a recipe leaves open


def test_what_a_recipe_leaves_open_is_filled_in_from_the_front_end_and_the_data(recipe):
    run = Run.from_recipe(recipe())
    c = run.recipe

    assert (c.task.input, c.task.classes) == ("image", ("column", "row"))
    assert c.model.head == config.PoolingHead(pooling="cls", out=2) and c.model.trunk.mask == "full"
    assert c.model.trunk.position.length == c.train.context == 10
    assert run.tokenizer is None and run.model.tokenizer is None and run.model.context is None


@pytest.mark.parametrize(("change", "message"), [
    ("train.pack=true", "train.pack: it packs texts, and model.embed.kind is 'patches'; leave it out"),
    ("train.loss_chunk=9", "train.loss_chunk: it is for a vocabulary"),
    ("train.context=99", "train.context: 99, and a row is at most 10 tokens here"),
    ("tokenizer.kind=byte", "tokenizer: none reads what model.embed.kind 'patches' takes"),
    ("task.input_pair=other", "task.input_pair: there is no second text"),
    ("task.kind=masked_lm", "task.kind: 'masked_lm' needs text"),
    ("task.label=labell", "did you mean 'label'"),
    ("task.input=picture", "no column 'picture'"),
    ("model.trunk.position.length=9", "model.trunk.position.length: 9, and the front end makes 10 tokens"),
    ("model.head={kind='pooling', out=3}", "model.head.out: 3"),
    ("data.source=nothere.png", "nothere.png: no such file"),
    ("data.validation=0.0001", "too few to keep 0.0001"),
])  # fmt: skip
def test_what_does_not_go_together_is_one_sentence(change, message, recipe):
    with pytest.raises((config.ConfigError, config.DataError), match=message):
        Run.from_recipe(recipe(change))


def test_a_bad_record_stops_or_is_passed_over_and_counted(recipe, desk):
    rows = [*shapes(20), {"image": [[1, 2], [3]], "label": "row"}]
    (desk / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(config.DataError, match="shapes.jsonl:21"):
        Run.from_recipe(recipe())
    said = []
    run = Run.from_recipe(recipe("data.on_bad_record=skip"), notice=said.append)

    assert len(run.data.rows) + len(run.validation.rows) == 20
    assert len(said) == 1 and "1 bad record was skipped" in said[0] and "shapes.jsonl:21" in said[0]


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("way", WAYS)
def test_a_run_on_images_goes_on_bit_for_bit_from_a_checkpoint(way, recipe, tmp_path):
    whole, half, again = (Run.from_recipe(recipe(*WAYS[way])) for _ in range(3))
    expected = advanced(whole)
    assert advanced(half, 3) == expected[:3]
    half.save(tmp_path / "half")
    again.load(tmp_path / "half")

    assert advanced(again) == expected[3:]
    assert_same(bits(again), bits(whole))


@pytest.mark.slow
def test_workers_make_the_same_batches_and_change_no_bit(recipe):
    augment = "train.augment={crop=1, mixup=0.4}"
    alone, helped = (Run.from_recipe(recipe(augment, f"train.workers={count}")) for count in (0, 2))
    for step in range(3):
        assert_same(helped.data.batch(step), alone.data.batch(step))
    assert advanced(alone) == advanced(helped)
    helped.data.close()
    assert_same(bits(alone), bits(helped))


def test_what_is_validated_on_is_never_augmented(recipe):
    plain, changed = (Run.from_recipe(recipe(*how)) for how in ((), ("train.augment={crop=2, mixup=1.0}",)))
    for ours, theirs in zip(plain.validation.batches(), changed.validation.batches(), strict=True):
        assert_same(ours, theirs)
    assert "other" in changed.data.batch(0) and "other" not in plain.data.batch(0)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["augmented", pytest.param("plain", marks=in_full)])
def test_two_ranks_learn_what_one_learns(way, tmp_path):
    (tmp_path / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shapes()))
    (tmp_path / "shapes.toml").write_text(RECIPE)
    group = Launcher(tmp_path)
    try:
        for name, size in (("one", 1), ("two", 2)):
            end = group.run("train", "shapes.toml", "model.dropout=0", *WAYS[way], "--out", name, size=size)
            assert end.codes == [0] * size, end
    finally:
        group.close()
    one, two = (lines(tmp_path / name / "log.jsonl") for name in ("one", "two"))

    assert_close([line["loss"] for line in two if "norm" in line], [line["loss"] for line in one if "norm" in line])
    assert two[-1]["accuracy"] == one[-1]["accuracy"] and two[-1]["eval_tokens"] == one[-1]["eval_tokens"]


# ---------------------------------------------------------------- a whole run


@pytest.mark.slow
def test_a_whole_run_is_logged_scored_resumed_loaded_and_asked(recipe, desk):
    straight = fit(recipe("train.steps=9"), desk / "straight", quiet=True)
    fit(recipe("train.save_every=3"), desk / "run", quiet=True)
    result = resume_fit(desk / "run", ["train.steps=9"], quiet=True)

    assert (result.steps, result.eval_loss) == (9, straight.eval_loss) and "accuracy" in result.scores
    model = regard.load(desk / "run")
    assert model.task.classes == ("column", "row") and model.tokenizer is None
    assert not (desk / "run" / "samples.jsonl").read_text()
    own = evaluate(desk / "run")
    assert own.loss == pytest.approx(result.eval_loss, abs=1e-6) and own.scores == pytest.approx(result.scores)
    all_of_it = evaluate(desk / "run", "shapes.jsonl", limit=30)
    assert all_of_it.rows == 30 and all_of_it.extras["confusion"].keys() == {"column", "row"}


def test_fine_tuning_begins_with_the_weights_of_another_run(recipe, desk):
    fit(recipe(), desk / "first", quiet=True)
    (desk / "tune.toml").write_text("[data]\nsource='shapes.jsonl'\n[task]\nkind='classification'\n[train]\nsteps=1\n")
    said = []
    run = Run.from_recipe(zoo.read_recipe("tune.toml", ["train.init_from=first"]), notice=said.append)
    first = dict(regard.load(desk / "first").named_parameters())

    assert run.recipe.model.embed == recipe().model.embed and run.recipe.model.head.pooling == "cls"
    assert all(torch.equal(weight.cpu(), first[name]) for name, weight in run.model.named_parameters())
    assert "from first" in said[0]


def test_other_data_than_those_of_a_run_are_refused(recipe, desk):
    fit(recipe(), desk / "run", quiet=True)
    (desk / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shapes(40)))
    with pytest.raises(config.DataError, match="shapes.jsonl: not the data that .* was trained on"):
        resume_fit(desk / "run", ["train.steps=9"], quiet=True)


@pytest.mark.slow
def test_the_doctor_asks_what_can_be_asked_and_says_what_does_not_apply(recipe):
    found = {finding.check: finding for finding in examine_run(Run.from_recipe(recipe("train.optimizer.lr=1e-3")), 10)}

    assert found["tokenizer"].evidence == "does not apply: the input is not text"
    assert found["leaks"].verdict == found["positions"].verdict == found["layers"].verdict == "fine"
    assert found["amount of data"].verdict == "look" and "examples" in found["amount of data"].evidence


@pytest.mark.slow
def test_the_doctor_sees_positions_that_say_nothing(recipe):
    run = Run.from_recipe(recipe("train.optimizer.lr=0"))
    with torch.no_grad():
        for table in run.model.trunk.positions.parameters():
            table.zero_()
    found = {finding.check: finding for finding in examine_run(run, 10)}["positions"]

    assert found.verdict == "wrong" and "the position encoding has no effect" in found.evidence


def test_batches_of_one_shape_can_be_compiled_once(recipe):
    assert (
        Run.from_recipe(recipe()).has_fixed_shapes
        and not Run.from_recipe(recipe("train.batch_tokens=70")).has_fixed_shapes
    )


def test_the_same_picture_is_never_trained_and_validated_on(recipe, desk):
    rows = list(shapes(40))
    (desk / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    run = Run.from_recipe(recipe())
    seen, kept = ({tuple(row["image"].flatten().tolist()) for row in part}
                  for part in (run.data.rows, run.validation.rows))  # fmt: skip

    assert not seen & kept and len(seen) + len(kept) == 40
