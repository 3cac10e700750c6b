"""A sweep over kept steps: one model whose weights are replaced answers as each folder alone, whatever it is asked."""

import math

import pytest
import torch
from lens.small_models import SHAPES
from training import builders

from regard import config, lens
from regard.inference.load import load_model
from regard.studies.training_sweep import TrainingSweep, saved_steps, stream_models, sweep_training
from regard.training.api import fit

STEPS = (0, 1, 8, 64)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4]])


def save(model, run, step):
    return model.save(run / "snapshots" / f"step-{step:06d}")


def next_token_loss(model):
    logits = model(IDS).detach().flatten(0, 1)[:-1]
    return float(torch.nn.functional.cross_entropy(logits, IDS[0, 1:]))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Four models of one shape, as snapshots of a run."""
    run = tmp_path_factory.mktemp("kept")
    for seed, step in enumerate(STEPS):
        save(SHAPES["decoder"].model(seed), run, step)
    return run


def alone(run):
    """Every model opened by itself."""
    return [load_model(each.path) for each in saved_steps(run)]


# ---------------------------------------------------------------- one model, other weights


@pytest.mark.parametrize("name", ["gpt2", "decoder", "encoder", "shared", "t5", "vit", "pixels"])
def test_a_model_whose_weights_are_replaced_is_the_model_of_each_folder_alone(tmp_path, name):
    shape = SHAPES["decoder" if name == "gpt2" else name]
    for seed, step in enumerate((0, 2, 16)):
        torch.manual_seed(seed)
        save(builders.model() if name == "gpt2" else shape.model(seed), tmp_path, step)
    seen = set()
    for (step, model), one in zip(stream_models(tmp_path), alone(tmp_path), strict=True):
        seen.add((id(model), step))
        builders.assert_same(model.state_dict(), one.state_dict())
        assert not model.training and torch.equal(shape.ask(model), shape.ask(one))

    assert len({identity for identity, _ in seen}) == 1 and {step for _, step in seen} == {0, 2, 16}


def test_what_still_refers_to_the_weights_of_a_step_is_left_alone(kept):
    views = sweep_training(kept, lambda model: {"view": model.embed.tokens.weight[1:], "heads": model.head}).results
    whole = sweep_training(kept, lambda model: model.embed.tokens.weight).results

    for view, weight, one in zip(views, whole, alone(kept), strict=True):
        assert torch.equal(view["view"], one.embed.tokens.weight[1:]) and torch.equal(weight, one.embed.tokens.weight)


ASKS = {
    "logit lens": lambda model: lens.logit_lens(model, IDS),
    "head summaries": lambda model: lens.summarize_heads(model, IDS, marks=(1,)),
    "attribution of a logit": lambda model: lens.attribute_logit(model, IDS, 7),
    "ablation": lambda model: lens.ablate_all(model, next_token_loss),
    "a loss": next_token_loss,
    "losses by name": lambda model: {"loss": next_token_loss(model), "norm": float(model.head.weight.detach().norm())},
}  # fmt: skip


@pytest.mark.parametrize("name", ASKS)
def test_what_a_lens_finds_at_each_step_is_what_it_finds_in_that_model(kept, name):
    heard = []
    sweep = sweep_training(kept, ASKS[name], progress=lambda *done: heard.append(done))
    single = [
        TrainingSweep((step,), (ASKS[name](model),)).table() for step, model in zip(STEPS, alone(kept), strict=True)
    ]

    assert sweep.steps == STEPS and heard == [(done, 4) for done in (1, 2, 3, 4)]
    assert [row for table in single for row in table.rows] == list(sweep.table().rows)
    assert len(set(sweep.table().rows)) > 3 and sweep.table().columns == single[0].columns
    assert str(sweep).count("\n") > 4


def test_heads_and_ablations_have_their_roles_and_deltas_in_the_table(kept):
    heads, rows = (sweep_training(kept, ASKS[name]) for name in ("head summaries", "ablation"))

    assert heads.table().columns == ("step", "where", "head", "entropy", "relative", "distance", "layer", "role")
    assert "delta" in rows.table().columns and len(rows.table().rows) == len(STEPS) * len(rows.results[0])


def test_numbers_are_drawn_as_lines_over_steps(kept):
    sweep = sweep_training(kept, ASKS["losses by name"], title="Does it learn?")
    picture = sweep.picture()

    assert picture.kind == "lines" and picture.title == "Does it learn?"
    assert (list(picture.rows), list(picture.columns)) == (["loss", "norm"], ["0", "1", "8", "64"])
    assert picture.values[0].tolist() == pytest.approx([each["loss"] for each in sweep.results])
    assert sweep.map(lambda each: each["loss"]).table().rows == tuple(
        zip(STEPS, (x["loss"] for x in sweep.results), strict=True)
    )
    assert sweep_training(kept, ASKS["logit lens"]).picture() is None


def test_results_without_a_table_say_what_to_do(kept):
    sweep = sweep_training(kept, lambda model: lens.attention_patterns(model, IDS))

    with pytest.raises(config.ConfigError, match=r"of type list, which has no table; .*sweep.map"):
        sweep.table()
    rises = sweep.map(lambda patterns: patterns[0].amax())
    assert all(0 < value <= 1 and math.isfinite(value) for _, value in rises.table().rows)


# ---------------------------------------------------------------- which steps


def test_steps_are_chosen_by_their_numbers(kept):
    assert [step for step, _ in stream_models(kept, steps=[64, 1])] == [1, 64]
    with pytest.raises(config.DataError, match="steps: 3 is not kept; there are 0, 1, 8, 64"):
        saved_steps(kept, [1, 3])


def test_checkpoints_that_stayed_are_steps_as_well(desk, recipe):
    fit(recipe("train.save_every=2", "train.keep_checkpoints=3"), "kept", quiet=True)
    fit(recipe("train.save_every=2", "train.keep_checkpoints=3", "train.snapshots=[0, 1, 4]"), "both", quiet=True)

    assert [each.step for each in saved_steps("kept")] == [2, 4, 6]
    assert [each.step for each in saved_steps("both")] == [0, 1, 2, 4, 6]
    losses = [sweep_training(run, lambda model: float(model.head.weight.detach().norm()), steps=[2, 4, 6]).results
              for run in ("kept", "both")]  # fmt: skip
    assert losses[0] == losses[1]


def test_a_list_of_folders_goes_by_the_steps_in_their_names_or_by_their_places(kept, tmp_path):
    folders = [each.path for each in saved_steps(kept)]
    for name, path in zip("abc", folders, strict=False):
        (tmp_path / name).symlink_to(path)

    assert [each.step for each in saved_steps(folders[::-1])] == list(STEPS)
    found = sweep_training([tmp_path / name for name in "cab"], ASKS["a loss"])
    assert found.steps == (0, 1, 2)
    assert [found.results[place] for place in (1, 2, 0)] == list(sweep_training(kept, ASKS["a loss"]).results[:3])


def test_revisions_of_the_hub_are_steps(kept, monkeypatch):
    asked = []

    def downloaded(name, revision=None):
        asked.append((name, revision))
        return kept / "snapshots" / f"step-{int(revision.removeprefix('step')):06d}"

    monkeypatch.setattr("regard.hub.locate.download_model", downloaded)
    found = sweep_training(["hf:some/model@step8", "hf:some/model@step0"], ASKS["a loss"])

    assert found.steps == (0, 8) and asked == [("some/model", "step0"), ("some/model", "step8")]
    assert found.results == sweep_training(kept, ASKS["a loss"], steps=[0, 8]).results


def test_what_is_no_training_is_refused_in_a_sentence(kept, tmp_path):
    save(SHAPES["vit"].model(), tmp_path, 9)
    with pytest.raises(config.DataError, match="step-000009: holds another model than the step before it"):
        sweep_training([kept / "snapshots/step-000001", tmp_path / "snapshots/step-000009"], lambda model: 1.0)
    for wrong in (tmp_path / "nothing", kept / "snapshots" / "step-000001"):
        with pytest.raises(config.DataError, match="there is no run; name a run that was trained with train.snapshots"):
            sweep_training(wrong, lambda model: 1.0)
    (tmp_path / "config.toml").touch()
    (tmp_path / "snapshots" / "step-000009" / "MANIFEST.json").unlink()
    with pytest.raises(config.DataError, match="nothing of it is kept yet"):
        sweep_training(tmp_path, lambda model: 1.0)
    with pytest.raises(config.ConfigError, match="an empty list"):
        sweep_training([], lambda model: 1.0)
    with pytest.raises(config.ConfigError, match="two folders of one step"):
        saved_steps(["a/step-000001", "b/step-1"])
