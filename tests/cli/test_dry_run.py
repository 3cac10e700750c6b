"""regard train --dry-run: how large, how long and what is asked first; nothing is trained, nothing is written."""

import json

import pytest

from regard import config, tasks, text, zoo
from regard.cli.dry_run import describe_row, expected_answers, row_lines

TASK = """
[data]
source = "films.jsonl"
validation = 0.25
[task]
kind = "classification"
[tokenizer]
kind = "wordpiece"
vocab = 560
[model]
preset = "bert-base"
dim = 12
depth = 2
heads = 3
mask = "full"
[model.head]
kind = "pooling"
[train]
epochs = 3
steps = "none"
batch_size = 4
context = 9
compile = false
device = "cpu"
"""
FILMS = [{"text": f"{who} saw a {word} film", "label": label} for who in ("I", "we", "Ada", "nobody", "they", "you")
         for word, label in [("good", "yes"), ("great", "yes"), ("bad", "no"), ("long and dull", "no")]]  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The machine's speed is known without half a second of measuring."""
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)


@pytest.fixture
def films(desk):
    (desk / "films.jsonl").write_text("".join(json.dumps(film) + "\n" for film in FILMS))
    (desk / "films.toml").write_text(TASK)
    return desk


def dry(say, *words):
    told = say("train", *words, "--dry-run", "--json")
    assert told.code == 0, told.err
    return json.loads(told.out)


def test_nothing_is_written(say, desk):
    before = {path.name for path in desk.iterdir()}
    told = say("train", "recipe.toml", "--dry-run")

    assert told.code == 0 and {path.name for path in desk.iterdir()} - before <= {"cache"}


def test_a_text_is_shown_with_what_comes_next(say, desk):
    found = dry(say, "recipe.toml")
    [first, second] = found["batch"]["rows"]
    prose = (desk / "text.txt").read_text()

    assert found["batch"]["tensors"] == {"ids": [2, 7], "labels": [2, 7]}
    for each in (first, second):
        assert each["read"]["text"] in prose and len(each["read"]["ids"]) == 7 and each["read"]["padding"] == 0
        told = "".join(asked["answer"] for asked in each["asked"]).replace("·", " ").replace("⏎", "\n")
        assert each["read"]["text"][1:] + told[-1] in prose and each["read"]["text"][1:] == told[:-1]


def test_size_length_and_cost_are_those_of_the_run(say, desk):
    found = dry(say, "recipe.toml", "train.epochs=2", "train.steps=100")
    run = found["run"]

    assert sum(found["parts"].values()) == found["parameters"]
    assert run["ends_by"] == "epochs" and run["epochs"] == pytest.approx(2, abs=1 / run["steps_in_epoch"])
    assert run["minutes"] == pytest.approx(run["steps"] * found["predicted"]["step_seconds"] / 60)
    assert found["predicted"]["memory"] > 0 and run["tokens_in_step"] == 14
    assert dry(say, "recipe.toml", "train.gradient_accumulation=3")["run"]["tokens_in_step"] == 42


def test_people_get_calm_sections(say, desk):
    told = say("train", "recipe.toml", "--dry-run")
    titles = [line for line in told.out.splitlines() if line and not line.startswith(" ")]

    assert titles[1:] == ["parameters", "the run", "the first batch", "row 1", "row 2"]
    assert "ends by train.steps" in told.out and "→" in told.out


def test_a_class_is_named_and_padding_counted(say, films):
    found = dry(say, "films.toml")
    labels = {film["text"]: film["label"] for film in FILMS}

    for each in found["batch"]["rows"]:
        [asked] = each["asked"]
        said = [label for film, label in labels.items() if film.startswith(each["read"]["text"])]
        assert asked["answer"] == said[0] and each["read"]["pieces"][0] == "[CLS]"
        assert len(each["read"]["ids"]) + each["read"]["padding"] == found["batch"]["tensors"]["ids"][1]
    assert found["run"]["ends_by"] == "epochs" and found["config"]["task"]["classes"] == ["no", "yes"]


def test_hidden_words_are_shown_beside_what_they_were(say, films):
    found = dry(say, "films.toml", 'task={kind="masked_lm", rate=0.5}', 'model.head={kind="lm"}')
    every = [asked for each in found["batch"]["rows"] for asked in each["asked"]]

    assert every and any(asked["reads"] == "[MASK]" and asked["answer"] != "[MASK]" for asked in every)


def test_a_mistake_in_the_recipe_is_found_before_anything_is_trained(say, films):
    told = say("train", "films.toml", "task.label=lable", "--dry-run")

    assert told.code == 3 and "no column 'lable'; did you mean 'label'?" in told.err and told.out == ""


def test_scripts_and_people_are_told_the_same(say, films):
    told, found = say("train", "films.toml", "--dry-run").out, dry(say, "films.toml")

    assert f"{found['parameters']:,} parameters" in told
    assert all(each["asked"][0]["answer"] in told for each in found["batch"]["rows"])


# ---------------------------------------------------------------- every kind of question


class Desk:
    """What `row` needs of a run: the task, and a model that says words."""

    def __init__(self, task, tokenizer):
        self.task, self.tokenizer, self.model = task, tokenizer, self
        self.output_tokenizer = tokenizer


RECORDS = {
    config.Translation(): {"source": "the cat", "target": "le chat"},
    config.SpanCorruption(rate=0.5): {"text": "the cat sat on the mat and the dog sat too"},
    config.TokenClassification(classes=("O", "B-PER")): {"words": ["Ada", "wrote"], "labels": ["B-PER", "O"]},
    config.Regression(): {"text": "the cat", "label": 2.5},
    config.QuestionAnswering(answer_start=None): {
        "question": "who sat",
        "context": "the cat sat there",
        "answer": "cat",
    },
}


@pytest.mark.parametrize("c", RECORDS, ids=lambda c: c.kind)
def test_every_kind_of_question_can_be_shown(c):
    import torch

    prose = ["the cat sat on the mat and the dog sat too", "Ada wrote le chat who there"] * 9
    tokenizer = tasks.add_task_tokens(
        c, text.train_tokenizer(config.SubwordTokenizer(kind="wordpiece", vocab=700), prose)
    )
    task = tasks.build_task(c, tokenizer, rows=tasks.RowPadding(length=33))
    batch = task.collate([task.example(RECORDS[c], tokenizer)], torch.Generator().manual_seed(0))
    found = describe_row(Desk(task, tokenizer), batch, 0)
    told = [each["answer"] for each in found["asked"]]

    match c.kind:
        case "translation":
            assert found["source"]["text"] == "the cat" and "".join(told[:-1]).replace("·", " ").strip() == "le chat"
        case "token_classification":
            assert [each for each in told] == ["B-PER", "O"]
        case "regression":
            assert told == [2.5]
        case "question_answering":
            assert [each.strip() for each in told] == ["cat"]
        case "span_corruption":
            assert any(piece.startswith("<extra_id_") for piece in found["source"]["pieces"]) and told
    assert list(row_lines(found)) and list(expected_answers(c, batch, 0, tokenizer)) == found["asked"]


def test_recipes_that_come_with_the_package_can_be_tried(say, desk):
    assert set(zoo.packaged_recipes()) >= {"shakespeare-nano"}
    told = say("train", "shakespeare-nano", "data.source=text.txt", "train.batch_size=2", "--dry-run")

    assert told.code == 0 and "ends by train." in told.out


def test_what_another_kind_of_optimizer_changes_is_said(say, desk):
    told = say("train", "recipe.toml", "train.optimizer.kind=muon", "--dry-run")

    assert told.code == 0 and "train.optimizer.kind: muon, and the recipe has adamw" in told.err
    assert "lr is 0.02 (was 0.0001)" in told.err
