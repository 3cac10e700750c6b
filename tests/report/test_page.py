"""The report: one file that says what the run did, whatever the run left behind."""

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from report import run_folders
from report.run_folders import HOSTILE, SAID, asked_run, data_in, eventful, look, put, recipe, whole_run, write_run

import regard
from regard import config as C
from regard import lens, report, tasks, text
from regard.report.answer_rows import ROW_BUILDERS
from regard.report.curves import diagnostics_section
from regard.report.run_data import LoggedRun
from regard.report.task_text import TASK_WORDINGS
from regard.tasks.columns import TEXT_COLUMNS

SECTIONS = ["learn", "write", "look", "roles", "alike", "tokens", "cost", "again"]


class Elements(HTMLParser):
    """Every tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found, self.inside, self.words = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)


def made(folder, **said):
    path = report.write_report(*whole_run(folder, **said))
    return path.read_text(encoding="utf8")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "lab")


# ---------------------------------------------------------------- one file, whole in itself


def test_the_page_is_one_small_file_beside_the_log(tmp_path):
    run, model, tokenizer = whole_run(tmp_path / "lab")
    path = report.write_report(run, model, tokenizer)

    assert path == run / "report.html" and path.stat().st_size < 3_000_000
    assert sorted(each.name for each in run.iterdir() if "json" not in each.name) == ["config.toml", "report.html"]


def test_the_page_fetches_nothing(page):
    found = Elements(page).found

    assert not [attrs for _, attrs in found if "src" in attrs or "href" in attrs and not attrs["href"].startswith("#")]
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in found}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", page)
    policy = next(attrs["content"] for tag, attrs in found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_every_section_has_a_heading(page):
    assert [attrs["id"] for tag, attrs in Elements(page).found if tag == "section"] == SECTIONS
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert len({*titles}) == len(SECTIONS) and all(titles)


@pytest.mark.spec("S179")
def test_the_page_carries_the_numbers_of_every_figure(page):
    data = data_in(page)

    assert [line["name"] for line in data["headline"]][:3] == ["validation loss", "perplexity", "bits a token"]
    figures = ["1.5000", f"{math.exp(1.5):.2f}", f"{1.5 / math.log(2):.3f}"]
    assert [line["value"] for line in data["headline"]][:3] == figures
    assert data["curves"]["loss"]["step"] == list(range(1, 121)) and len(data["samples"]) == 12
    assert data["curves"]["final"]["value"] == [1.5] and data["curves"]["validation"]["step"] == [30, 60, 90, 120]
    assert data["curves"]["clipped"]["count"] == sum(3 / s + 0.3 + 0.1 * math.sin(s) > 1 for s in range(1, 121))
    assert set(data["curves"]["speed"]["value"]) == {4800}
    assert len(data["heads"]) == 9 and [role["name"] for role in data["roles"]] == [role.name for role in lens.ROLES]
    assert {row["what"] for row in data["cost"]["rows"]} >= {"parameters", "time of a step", "memory"}


def test_the_page_says_how_to_make_the_run_again(page):
    words = "".join(Elements(page).words)

    assert "regard train shakespeare --out runs/lab" in words and torch.__version__ in words
    assert C.to_toml(recipe(text.train_tokenizer(C.CharTokenizer(), [SAID]))) in words


@pytest.mark.spec("S149", "S183")
def test_attention_maps_survive_their_packing(tmp_path):
    run, model, tokenizer = whole_run(tmp_path, sentence="hear me speak")
    data = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))
    ids = tokenizer.encode("hear me speak")
    [group] = data["attention"]["groups"]
    packed = torch.tensor(list(base64.b64decode(group["maps"]))).view(9, len(ids), len(ids))

    assert group["queries"] == group["keys"] == [tokenizer.token_text(i) for i in ids] and group["heads"] == [3, 3, 3]
    seen = torch.cat(lens.attention_patterns(model, torch.tensor([ids])), 1)[0]
    assert ((packed / 255) ** 2 - seen).abs().max() < 0.005


def test_likeness_survives_its_packing(page):
    likeness = data_in(page)["likeness"]
    table = torch.tensor(list(base64.b64decode(likeness["values"]))).view(9, 9)

    assert likeness["layers"] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert torch.equal(table, table.mT) and table.diag().eq(255).all()


# ---------------------------------------------------------------- what a user wrote stays text


def test_hostile_text_stays_text(tmp_path):
    run, model, tokenizer = whole_run(tmp_path / "<b>lab&", samples=HOSTILE + SAID, sentence=HOSTILE)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"command": HOSTILE, "platform": HOSTILE, "device": HOSTILE}))
    page = report.write_report(run, model, tokenizer).read_text(encoding="utf8")
    found = Elements(page)

    assert "<script>document" not in page and "<img" not in page and "<b>lab" not in page
    assert [tag for tag, _ in found.found].count("script") == 2
    assert data_in(page)["samples"][0]["text"] == HOSTILE + SAID
    assert HOSTILE in "".join(found.words)  # the command, to be read and not to be run


def test_settings_that_look_like_the_template_are_left_alone(tmp_path):
    page = made(tmp_path, samples="{{script}} {{nothing}}" + SAID)

    assert data_in(page)["samples"][0]["text"].startswith("{{script}} {{nothing}}")


# ---------------------------------------------------------------- runs that are not whole


def test_a_torn_last_line_is_skipped_and_said(tmp_path):
    run, model, tokenizer = whole_run(tmp_path)
    log = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(log[:-40])
    page = report.write_report(run, model, tokenizer).read_text(encoding="utf8")

    assert data_in(page)["curves"]["final"]["value"] == []
    assert data_in(page)["headline"][0]["value"] == f"{4 / 120**0.2:.4f}"
    assert "log.jsonl: 1 line could not be read" in "".join(Elements(page).words)


@pytest.mark.parametrize(
    "line", ["\x00\xff", "[1, 2]", '{"step": "one", "loss": 2}', '{"loss": 1}', "null", '{"step": true}', "[" * 99_999],
    ids=["bytes", "list", "a word for a number", "no step", "null", "true", "deep"],
)  # fmt: skip
def test_strange_lines_do_no_harm(tmp_path, line):
    run, model, tokenizer = whole_run(tmp_path)
    for name in ("log.jsonl", "samples.jsonl"):
        with open(run / name, "a", encoding="utf8") as file:
            file.write(line + "\n")

    assert (
        len(data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))["curves"]["loss"]["step"])
        == 120
    )


def test_a_run_without_validation_shows_its_training_loss(tmp_path):
    tokenizer = text.train_tokenizer(C.CharTokenizer(), [SAID])
    said = recipe(tokenizer)
    run = write_run(tmp_path, said, evaluate=False)
    data = data_in(report.write_report(run, regard.Model(said.model), tokenizer).read_text(encoding="utf8"))

    assert data["headline"][0]["name"] == "training loss" and data["curves"]["validation"]["value"] == []


def test_a_run_without_samples_or_sentence_says_so(tmp_path):
    data = data_in(made(tmp_path, samples=None))

    assert data["samples"] == [] and "no sentence" in data["absent"] and "attention" not in data
    assert len(data["words"]["pieces"]) > 10


def test_a_sentence_that_cannot_be_said_gives_way_to_the_models_own_words(tmp_path):
    tokenizer = text.train_tokenizer(C.CharTokenizer(byte_fallback=False), [SAID])
    said = recipe(tokenizer, sentence="Ω")
    run = write_run(tmp_path, said)
    data = data_in(report.write_report(run, regard.Model(said.model), tokenizer).read_text(encoding="utf8"))

    assert "report.sentence" in data["attention"]["note"] and "text of the model" in data["attention"]["note"]


def test_an_empty_folder_still_makes_a_page(tmp_path):
    _, model, tokenizer = whole_run(tmp_path / "lab")
    (tmp_path / "empty").mkdir()
    page = report.write_report(tmp_path / "empty", model, tokenizer).read_text(encoding="utf8")
    words = "".join(Elements(page).words)

    assert all(f"{name}" in words for name in ("config.toml", "log.jsonl", "samples.jsonl", "run.json"))
    assert data_in(page)["cost"]["rows"] == [] and data_in(page)["headline"][0]["name"] == "parameters"


def test_a_run_that_diverged_is_shown_with_gaps(tmp_path):
    run, model, tokenizer = whole_run(tmp_path)
    put(run / "log.jsonl", [{"step": i, "loss": 2.0 if i < 5 else math.nan, "norm": math.inf} for i in range(1, 9)])
    data = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))

    assert data["curves"]["loss"]["value"] == [2.0] * 4 + [None] * 4
    assert data["headline"][0]["note"] == "the run diverged"


def test_a_folder_that_is_none_is_refused_in_a_sentence(tmp_path):
    _, model, tokenizer = whole_run(tmp_path / "lab")

    with pytest.raises(C.DataError, match="nowhere: no such run"):
        report.write_report(tmp_path / "nowhere", model, tokenizer)


def test_a_page_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path):
    run, model, tokenizer = whole_run(tmp_path)
    (run / "report.html").mkdir()  # a folder in the way

    with pytest.raises(C.RunError, match=r"report\.html: cannot be written"):
        report.write_report(run, model, tokenizer)
    assert not list(run.glob(".report*"))


def test_another_models_tokenizer_is_refused_in_a_sentence(tmp_path):
    run, model, _ = whole_run(tmp_path)
    large = text.train_tokenizer(C.CharTokenizer(), [SAID + "".join(map(chr, range(0x4E00, 0x4F00)))])

    with pytest.raises(C.DataError, match="use the tokenizer that the model was trained with"):
        report.write_report(run, model, large)


def test_a_run_stopped_at_once_makes_a_page(tmp_path):
    run, model, tokenizer = asked_run(tmp_path, C.Classification(), REVIEWS, head=C.PoolingHead(pooling="mean"))
    for name in ("log.jsonl", "samples.jsonl"):
        (run / name).write_text("")
    data = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))

    assert data["headline"][0]["name"] == "parameters" and data["scores"] == [] and data["health"] == {}
    assert data["answers"]["rows"] and data["attention"]["note"] == "a text that it never trained on"


def test_a_run_of_before_there_were_tasks_is_one_of_the_next_token(tmp_path):
    run, model, tokenizer = whole_run(tmp_path)
    settings = (run / "config.toml").read_text()
    old = re.sub(r"\[(task|train\.guard)\]\n(.+\n)*", "", settings)
    new = "epochs|batch_tokens|pack|workers|loss_chunk|ema_decay|init_from|keep_best|patience|tensorboard"
    old = re.sub(rf"^({new}) = .*\n", "", old, flags=re.M)
    (run / "config.toml").write_text(old)
    page = report.write_report(run, model, tokenizer).read_text(encoding="utf8")

    assert old != settings and "could not be read" not in page and data_in(page)["task"] == "next_token"
    assert "Trained on shakespeare, character by character, 48 tokens at a time." in page


# ---------------------------------------------------------------- what was asked


REVIEWS = [{"text": f"a film of {place} minutes", "label": "dull" if place % 2 else "fine", "score": place / 7}
           for place in range(61)]  # fmt: skip
ASKED = [
    (
        C.Classification(),
        C.PoolingHead(pooling="mean"),
        "Classifies the texts of rows.jsonl, dull or fine, character by",
    ),
    (
        C.Regression(label="score"),
        C.PoolingHead(pooling="mean"),
        "Predicts a number for each text of rows.jsonl, character by",
    ),
    (C.MaskedLM(), C.LMHead(), "Predicts masked tokens of rows.jsonl, character by character, rows of at most 48"),
    (C.PrefixLM(), C.LMHead(), "Continues prefixes of rows.jsonl, character by character"),
]


@pytest.mark.parametrize(("task", "head", "sentence"), ASKED, ids=[task.kind for task, _, _ in ASKED])
def test_the_first_sentence_says_what_was_asked(tmp_path, monkeypatch, task, head, sentence):
    monkeypatch.chdir(tmp_path)
    run, model, tokenizer = asked_run(Path(), task, REVIEWS, head=head)
    page = report.write_report(run, model, tokenizer).read_text(encoding="utf8")

    assert sentence in "".join(Elements(page).words) and "<h2>Generated text" not in page


def test_every_task_has_its_words():
    assert set(TASK_WORDINGS) == set(tasks.TASKS) and not any("?" in asks.heading for asks in TASK_WORDINGS.values())
    textual = {*TEXT_COLUMNS, "masked_lm", "span_corruption", "text_infilling", "prefix_lm", "next_token"}
    assert set(ROW_BUILDERS) == textual - {"next_token", "translation"}  # whose samples say it


def test_scores_and_steps_that_were_not_taken_are_on_the_page(tmp_path):
    run, model, tokenizer = asked_run(tmp_path, C.Classification(), REVIEWS, head=C.PoolingHead(pooling="mean"))
    eventful(run, {"trunk": 3})
    page = report.write_report(run, model, tokenizer).read_text(encoding="utf8")
    data = data_in(page)

    assert [line["name"] for line in data["headline"]][:3] == ["accuracy", "f1", "validation loss"]
    assert [(mark["name"], mark["value"]) for mark in data["scores"]] \
        == [("accuracy", 0.75), ("f1", 0.5), ("matthews", 0.25)]  # fmt: skip
    assert data["curves"]["scores"]["f1"] == {"step": [30, 60, 90, 120, 120], "seconds": [1.5, 3.0, 4.5, 6.0, 6.0],
                                              "value": [0.125, 0.25, 0.375, 0.5, 0.5]}  # fmt: skip
    assert data["curves"]["skipped"]["why"] == {run_folders.LEAPT: [40, 41], run_folders.NONE: [77]}
    assert data["curves"]["loss"]["value"][76] is None and len(data["curves"]["loss"]["step"]) == 120
    assert "Crosses: skipped steps." in page


def test_health_is_a_row_for_each_layer_and_head_and_a_column_for_each_look(tmp_path):
    run, model, tokenizer = whole_run(tmp_path)
    eventful(run, {"trunk": 3})
    found = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))["health"]

    assert found["layers"] == ["embed", "trunk.0", "trunk.1", "trunk.2", "head"] and found["step"] == [30, 60, 90]
    assert found["gradient"] == [[0.033333, 0.016667, 0.011111]] * 5 and found["update"] == [[0.001] * 3] * 5
    assert found["heads"] == [f"{layer}.{head}" for layer in range(3) for head in range(3)]
    assert found["entropy"][1] == [0.4] * 3


def test_many_looks_are_thinned_and_the_last_is_kept():
    found = diagnostics_section(LoggedRun(Path(), looks=[look(step, {"trunk": 2}) for step in range(1, 1001)]))

    assert found["step"][-1] == 1000 and 48 < len(found["step"]) <= 96
    assert all(len(row) == len(found["step"]) for row in (*found["gradient"], *found["entropy"]))


STRANGE = [
    {},
    {"layers": 3},
    {"layers": {"embed": 1, "trunk.x": {"gradient": "nan", "update": None}}},
    {"layers": {"a": {}}, "heads": {"odd": [1], "trunk.0.attn": "wide", "trunk.y.attn": ["nan", None]}},
]


@pytest.mark.parametrize("told", STRANGE, ids=["empty", "number", "words", "strange heads"])
def test_a_strange_look_does_no_harm(tmp_path, told):
    run, model, tokenizer = whole_run(tmp_path)
    put(run / "log.jsonl", [look(1, {"trunk": 3}), {"step": 2, "health": told}])
    found = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))["health"]

    assert found["step"] == [1, 2] and found["gradient"][0] == [1.0, None]


# ---------------------------------------------------------------- other models


def test_an_encoder_has_heads_to_show(tmp_path):
    data = data_in(made(tmp_path, mask="full"))

    assert len(data["heads"]) == 9 and data["attention"]["groups"][0]["keys"]


@pytest.mark.parametrize(
    "kind", [C.SubwordTokenizer(vocab=300), C.WordTokenizer(vocab=290), C.ByteTokenizer()], ids=lambda c: c.kind
)
def test_other_tokenizers_have_their_pieces_shown(tmp_path, kind):
    tokenizer = text.train_tokenizer(kind, [SAID])
    said = recipe(tokenizer, kind, sentence="hear me speak.")
    run = write_run(tmp_path, said)
    data = data_in(report.write_report(run, regard.Model(said.model), tokenizer).read_text(encoding="utf8"))

    assert data["attention"]["groups"][0]["keys"] == [
        tokenizer.token_text(i) for i in tokenizer.encode("hear me speak.")
    ]
    assert not any(piece.startswith("<0x") for piece in data["words"]["pieces"])


@pytest.mark.slow
def test_a_model_of_many_heads_stays_small(tmp_path):
    run, model, tokenizer = whole_run(tmp_path, dim=64, depth=24, attention=C.Attention(heads=32))
    path = report.write_report(run, model, tokenizer)
    data = data_in(path.read_text(encoding="utf8"))

    assert path.stat().st_size < 3_000_000 and len(data["heads"]) == 768
    assert data["likeness"]["size"] == len(data["likeness"]["layers"]) <= 256
    assert 4 <= len(data["attention"]["groups"][0]["keys"]) <= 34
