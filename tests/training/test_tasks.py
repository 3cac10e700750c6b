"""Every objective from one file: read, trained, saved, resumed bit for bit, and scored."""

import json
import signal
import sys

import pytest
import torch
from training.builders import advanced, assert_same, bits, lines

import regard
from regard import config, zoo
from regard.report import headline
from regard.report.run_data import read_logged_run
from regard.training.api import fit, resume_fit
from regard.training.run import Run
from regard.training.run_files import describe_epoch
from regard.training.validation import validate

ENCODER = """
[model]
dim = 12
depth = 2
heads = 3
hidden = 20
dropout = 0.1
mask = "full"
embed.segments = 2
"""
PAIR = """
[model]
preset = "transformer-base"
dim = 12
depth = 2
heads = 3
dropout = 0.1
"""
TRAIN = """
[tokenizer]
kind = "wordpiece"
vocab = 600
[train]
steps = 6
batch_size = 5
context = 24
device = "cpu"
compile = false
eval_every = 3
save_every = "none"
[train.schedule]
warmup = 2
"""
PLAIN = [
    {"text": f"{who} {what} the {whom} and {why}", "other": f"nobody {what} a {whom}", "label": kind, "score": size,
     "words": [who, what, whom], "tags": ["B", "O", kind], "question": f"who {what}?", "context": f"{who} {what} it",
     "answer": who, "lines": f"{who} {what}\nthe {whom}\nand {why} again\nand so on"}
    for size, who in enumerate(("a cat", "my dog", "the owl", "one elk", "no gnu"))
    for what, kind in (("saw", "x"), ("met", "y"), ("fed", "x"), ("hid", "y"), ("won", "x"))
    for whom in ("mouse", "king", "jug") for why in ("sat", "ran")
]  # fmt: skip
TASKS = {
    "next_token": ("kind = 'next_token'", '[model]\npreset = "gpt2"\ndim = 12\ndepth = 2\nheads = 3'),
    "masked_lm": ("kind = 'masked_lm'", ENCODER + 'head = {kind = "lm", transform = true, bias = true}'),
    "pairs": ("kind = 'masked_lm'\nnext_sentence = true\ninput = 'lines'", ENCODER + 'head = {kind = "pretraining"}'),
    "translation": ("kind = 'translation'\nsource = 'text'\ntarget = 'other'", PAIR),
    "span_corruption": ("kind = 'span_corruption'\nsentinels = 9", PAIR),
    "text_infilling": ("kind = 'text_infilling'", PAIR),
    "prefix_lm": ("kind = 'prefix_lm'", PAIR),
    "classification": (
        "kind = 'classification'\ninput_pair = 'other'",
        ENCODER + 'head = {kind = "pooling", pooling = "mean"}',
    ),
    "regression": ("kind = 'regression'\nlabel = 'score'", ENCODER + 'head = {kind = "pooling", pooling = "mean"}'),
    "token_classification": ("kind = 'token_classification'\nlabels = 'tags'", ENCODER + 'head = {kind = "token"}'),
    "question_answering": ("kind = 'question_answering'\nanswer_start = 'none'", ENCODER + 'head = {kind = "token"}'),
}
SCORES = {"classification": "matthews", "regression": "pearson", "pairs": "next accuracy", "next_token": None}


@pytest.fixture
def recipe(desk):
    """The recipe of a task on records, with changes."""
    text = "\n".join(json.dumps(row | {"words": " ".join(row["words"]).split(),
                                       "tags": [tag for word, tag in zip(row["words"], row["tags"], strict=True)
                                                for _ in word.split()]}) for row in PLAIN)  # fmt: skip
    (desk / "rows.jsonl").write_text(text, encoding="utf8")

    def read(kind, *changes):
        task, model = TASKS[kind]
        (desk / f"{kind}.toml").write_text(f"[data]\nsource = 'rows.jsonl'\n[task]\n{task}\n{TRAIN}\n{model}\n")
        return zoo.read_recipe(f"{kind}.toml", changes)

    return read


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    "how", [(), ("train.batch_tokens=90",), ("train.gradient_accumulation=2", "train.padding_side=left")], ids=str
)
def test_a_run_of_every_task_goes_on_bit_for_bit_from_a_checkpoint(kind, how, recipe, tmp_path):
    how = (
        how if kind != "next_token" or "train.padding_side=left" not in how else (*how, "train.batch_tokens=90")
    )  # rows, to be padded
    whole, half, again = (Run.from_recipe(recipe(kind, *how)) for _ in range(3))
    expected = advanced(whole)
    assert advanced(half, 3) == expected[:3]
    half.save(tmp_path / "half")
    again.load(tmp_path / "half")
    assert advanced(again) == expected[3:]
    assert_same(bits(again), bits(whole))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_a_whole_run_of_every_task_is_logged_scored_and_loaded(kind, recipe, desk):
    result = fit(recipe(kind), desk / "run", quiet=True)
    last = lines(desk / "run" / "log.jsonl")[-1]
    assert last["whole"] and last["eval_loss"] == result.eval_loss
    wanted = SCORES.get(kind, "accuracy")
    assert result.scores == {} if wanted is None else wanted in result.scores
    model = regard.load(desk / "run")
    assert model.task is not None and model.task.kind == recipe(kind).task.kind


def test_classes_that_nobody_named_are_found_and_remembered(recipe, desk):
    fit(recipe("classification"), desk / "run", quiet=True)
    assert regard.load(desk / "run").task.classes == ("x", "y")
    said = json.loads((desk / "run" / "checkpoints" / "step-000006" / "config.json").read_text())
    assert said["id2label"] == {"0": "x", "1": "y"}


def test_a_run_may_end_by_epochs(recipe):
    run = Run.from_recipe(recipe("classification", "train.steps=none", "train.epochs=2"))
    rows = len(run.data.rows)
    assert len(advanced(run)) == -(-2 * rows // 5) and run.is_over


def test_workers_change_no_bit(recipe):
    alone, helped = (Run.from_recipe(recipe("masked_lm", f"train.workers={count}")) for count in (0, 2))
    assert advanced(alone) == advanced(helped)
    helped.data.close()
    assert_same(bits(alone), bits(helped))
    assert describe_epoch(helped) == describe_epoch(alone) != "0 rows an epoch" and helped.epochs == alone.epochs > 0


def test_packed_documents_train_as_rows_of_their_own_do(recipe, desk):
    """The next token of packed documents and of the same documents in rows of their own: the same loss."""
    changes = ("train.context=40", "model.position={kind = 'rotary'}", "data.validation=0", "model.dropout=0")
    packed = Run.from_recipe(recipe("next_token", "train.pack=true", "train.batch_size=20", *changes))
    alone = Run.from_recipe(recipe("next_token", "train.batch_size=36", "train.batch_tokens=100000", *changes))
    alone.model.load_state_dict(packed.model.state_dict())
    there = [packed.data.in_order(None)]
    ours = validate(packed.model, there[0], packed.objective)
    theirs = validate(alone.model, [alone.data.batch(0)], alone.objective)
    assert ours.count == theirs.count and ours.loss == pytest.approx(theirs.loss, abs=1e-6)


def test_the_best_checkpoint_stays_and_a_run_that_becomes_no_better_ends(recipe, desk):
    changes = ("train.eval_every=1", "train.keep_best=true", "train.keep_checkpoints=1", "train.patience=3",
               "train.steps=60",
               "train.optimizer.lr=0.5")  # fmt: skip
    result = fit(recipe("classification", *changes), desk / "run", quiet=True)
    found = [line for line in lines(desk / "run" / "log.jsonl") if "eval_loss" in line and "whole" not in line]
    best = min(found, key=lambda line: line["eval_loss"])
    assert result.steps < 60 and best["step"] == result.steps - 3
    kept = sorted(path.name for path in (desk / "run" / "checkpoints").iterdir())
    assert kept == [f"step-{best['step']:06d}", f"step-{result.steps:06d}"]
    assert (desk / "run" / "best").resolve().name == kept[0]
    assert resume_fit(desk / "run", quiet=True).steps == result.steps


def test_an_average_is_what_is_saved_and_the_run_goes_on_from_its_own_weights(recipe, desk):
    change = "train.ema_decay=0.9"
    whole, half, again = (Run.from_recipe(recipe("classification", change)) for _ in range(3))
    expected = advanced(whole)
    advanced(half, 3)
    half.save(desk / "half")
    with half.ema.applied():
        mean = {name: weight.detach().clone() for name, weight in half.model.named_parameters()}
    saved = dict(regard.load(desk / "half").named_parameters())
    assert all(torch.equal(saved[name], mean[name]) for name in mean)
    again.load(desk / "half")
    assert advanced(again) == expected[3:]
    assert_same(bits(again), bits(whole))


def test_steps_that_cannot_be_taken_are_named_and_too_many_end_the_run(recipe, desk):
    with pytest.raises(config.RunError, match="steps .* were all skipped"):
        fit(recipe("classification", "train.optimizer.lr=1e30", "train.guard.max_skipped_steps=3",
                   "train.max_grad_norm=none", "train.steps=60",
                   "train.optimizer.weight_decay=0"), desk / "run", quiet=True)  # fmt: skip
    refused = [line for line in lines(desk / "run" / "log.jsonl") if "skipped" in line]
    assert len(refused) >= 3 and all(line["batches"] for line in refused)
    model = regard.load(desk / "run")
    assert all(weight.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(("kind", "change", "message"), [
    ("classification", "task.label=labell", "did you mean 'label'"),
    ("classification", "train.pack=true", "train.pack: task 'classification' treats each row by itself"),
    ("classification", "model.head.out=7", "model.head.out: 7"),
    ("translation", "train.context=3", "train.context"),
    ("masked_lm", "data.source=nothere.jsonl", "nothere.jsonl"),
    ("next_token", "data.text_column=labels", "labels"),
])  # fmt: skip
def test_what_does_not_go_together_is_one_sentence(kind, change, message, recipe):
    with pytest.raises((config.ConfigError, config.DataError), match=message):
        Run.from_recipe(recipe(kind, change))


def test_a_run_that_ended_early_goes_on_when_it_is_asked_to(recipe, desk):
    changes = ("train.eval_every=1", "train.patience=2", "train.steps=60", "train.optimizer.lr=0.5")
    ended = fit(recipe("classification", *changes), desk / "run", quiet=True).steps
    assert ended < 60 and resume_fit(desk / "run", quiet=True).steps == ended
    assert resume_fit(desk / "run", ["train.steps=61"], quiet=True).steps > ended


def test_an_evaluation_that_is_no_number_is_never_the_best(recipe, desk, monkeypatch):
    """Nor is it bare NaN in the log, which no other reader of JSON knows."""
    module, losses = sys.modules["regard.training.trainer"], iter([float("nan"), 3.0, 2.0, 4.0])
    monkeypatch.setattr(module, "validate", lambda *asked: module.ValidationScore(next(losses), 1))
    changes = ("train.eval_every=1", "train.steps=4", "train.keep_best=true")
    fit(recipe("classification", *changes), desk / "run", quiet=True)
    text = (desk / "run" / "log.jsonl").read_text()

    assert (desk / "run" / "best").resolve().name == "step-000003"
    assert '"eval_loss": "nan"' in text and "NaN" not in text


def test_the_best_is_pointed_at_after_an_evaluation_that_was_interrupted(recipe, desk, monkeypatch):
    changes = ("train.eval_every=2", "train.keep_best=true", "train.keep_checkpoints=1", "train.optimizer.lr=0.01")
    straight = fit(recipe("classification", *changes), desk / "straight", quiet=True)
    fitting, calls = sys.modules["regard.training.trainer"], []

    def interrupted(*asked):
        calls.append(asked)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return validate(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "validate", interrupted)
        fit(recipe("classification", *changes), desk / "run", quiet=True)
    again = resume_fit(desk / "run", quiet=True)

    assert again.steps == straight.steps
    assert (desk / "run" / "best").resolve().name == (desk / "straight" / "best").resolve().name
    assert (desk / "run" / "best").resolve().is_dir()


# ---------------------------------------------------------------- the best checkpoint


BEST = ("train.keep_best=true", "train.keep_checkpoints=1", "train.steps=4")


def scripted(monkeypatch, desk, losses):
    """Evaluations whose losses are known by the step and by whether all is asked; which were made, in order."""
    fitting, made = sys.modules["regard.training.trainer"], []

    def ask(self, validation, tokens, whole):
        made.append((self.run.step, whole))
        return fitting.ValidationScore(losses[self.run.step, whole] * (9 if whole else 4), 9 if whole else 4)

    monkeypatch.setattr(fitting.Trainer, "score_validation", ask)
    return made


def pointed(run):
    return (run / "best").resolve().name


def test_the_last_evaluation_counts_for_the_best(recipe, desk, monkeypatch):
    """Over all of the data the last step is better than the best on the way."""
    losses = {(2, False): 3.0, (2, True): 2.9, (4, True): 2.8}
    made = scripted(monkeypatch, desk, losses)
    done = fit(recipe("classification", "train.eval_every=2", *BEST), desk / "run", quiet=True)

    assert (done.best, done.eval_loss, pointed(desk / "run")) == (4, pytest.approx(2.8), "step-000004")
    assert made == [(2, False), (4, True), (2, True)] and (desk / "run" / "checkpoints" / "step-000002").is_dir()


def test_candidates_for_the_best_are_compared_over_the_same_data(recipe, desk, monkeypatch):
    """A part of the data was easier: 2.5 there is 2.9 over all, and still better than the last step's 3.0."""
    made = scripted(monkeypatch, desk, {(2, False): 2.5, (2, True): 2.9, (4, True): 3.0})
    done = fit(recipe("classification", "train.eval_every=2", *BEST), desk / "run", quiet=True)
    log = [line for line in lines(desk / "run" / "log.jsonl") if line.get("whole")]

    assert (done.best, done.eval_loss, done.steps) == (2, pytest.approx(2.9), 4) and made[-1] == (2, True)
    assert [(line["step"], line.get("best")) for line in log] == [(4, None), (2, True)]
    told = read_logged_run(desk / "run")
    assert told.final["step"] == 2 and pointed(desk / "run") == "step-000002"
    assert headline.loss_numbers(told, told.recipe.task)[0][1:] == ("2.9000", "nats a text, at step 2, the best")


def test_a_run_that_ends_before_its_first_evaluation_has_a_best_one(recipe, desk):
    done = fit(recipe("classification", "train.eval_every=100", *BEST), desk / "run", quiet=True)

    assert done.best == 4 and pointed(desk / "run") == "step-000004"


def test_a_run_that_is_made_longer_goes_on_from_the_best_on_its_way(recipe, desk, monkeypatch):
    """When it ended the last step was the best; it is compared again over the part that others are compared over."""
    losses = {(2, False): 3.0, (2, True): 3.0, (4, True): 2.8, (4, False): 3.5, (6, False): 2.6, (6, True): 2.7,
              (8, True): 2.9}  # fmt: skip
    scripted(monkeypatch, desk, losses)
    changes = ("train.eval_every=2", *BEST)
    fit(recipe("classification", *changes), desk / "run", quiet=True)
    again = resume_fit(desk / "run", ["train.steps=8"], quiet=True)
    straight = fit(recipe("classification", *changes, "train.steps=8"), desk / "straight", quiet=True)

    assert again.best == straight.best == 6 and pointed(desk / "run") == pointed(desk / "straight") == "step-000006"
    assert sorted(path.name for path in (desk / "run" / "checkpoints").iterdir()) == ["step-000006", "step-000008"]


def test_the_best_is_what_a_run_stands_for_and_it_can_be_named(recipe, desk, monkeypatch):
    """By load, by evaluate, which says so, and by a new run that begins with it."""
    with monkeypatch.context() as patch:
        scripted(patch, desk, {(2, False): 2.5, (2, True): 2.5, (4, True): 3.0})
        fit(recipe("classification", "train.eval_every=2", "train.optimizer.lr=0.05", *BEST), desk / "run", quiet=True)
    run = desk / "run"
    models = [regard.load(place) for place in (run, run / "best", run / "checkpoints" / "step-000002")]
    last = regard.load(run / "checkpoints" / "step-000004")
    weights = [dict(model.named_parameters()) for model in models]

    assert all(torch.equal(weights[0][name], other[name]) for other in weights for name in other)
    assert any(not torch.equal(weights[0][name], weight) for name, weight in last.named_parameters())
    scores = [regard.evaluate(place) for place in (run, run / "best", run / "checkpoints" / "step-000004")]
    assert scores[0].loss == scores[1].loss != scores[2].loss
    assert scores[0].tree()["checkpoint"] == "step-000002, the best of the run" and "checkpoint" not in scores[2].tree()


def test_a_best_checkpoint_that_is_damaged_is_passed_over_and_named(recipe, desk, monkeypatch):
    with monkeypatch.context() as patch:
        scripted(patch, desk, {(2, False): 2.5, (2, True): 2.5, (4, True): 3.0})
        fit(recipe("classification", "train.eval_every=2", *BEST), desk / "run", quiet=True)
    (desk / "run" / "best" / "model.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="the best checkpoint is not used"):
        model = regard.load(desk / "run")

    assert model.source_folder.path.name == "step-000004"


@pytest.mark.slow
@pytest.mark.parametrize("changes", [["train.ema_decay=0.9"], ["train.eval_tokens=9"], []], ids=str)
def test_the_best_score_in_the_summary_is_the_one_that_evaluating_the_run_finds(recipe, desk, changes):
    done = fit(recipe("classification", "train.eval_every=1", "train.keep_best=true", "train.optimizer.lr=0.2",
                      "train.steps=8",
                      *changes), desk / "run", quiet=True)  # fmt: skip
    found = regard.evaluate(desk / "run")

    assert done.best is not None and f"step-{done.best:06d}" in found.tree()["checkpoint"]
    assert found.loss == pytest.approx(done.eval_loss, abs=1e-5) and found.scores == pytest.approx(done.scores)


@pytest.mark.parametrize("changes", [
    ("train.keep_best=true", "data.validation=0"), ("train.patience=3", "train.eval_every=none"),
    ("train.loss_chunk=5",), ("data.text_column=other",), ("train.pack=true",),
])  # fmt: skip
def test_settings_that_would_be_ignored_are_refused(changes, recipe):
    with pytest.raises(config.ConfigError, match=changes[0].partition("=")[0]):
        Run.from_recipe(recipe("classification", *changes))


def test_windows_have_nothing_to_pad(recipe):
    with pytest.raises(config.ConfigError, match="train.padding_side"):
        Run.from_recipe(recipe("next_token", "train.padding_side=left"))
