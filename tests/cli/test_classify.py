"""regard classify, and every other verb on a run that reads images: answers or one sentence, never a traceback."""

import json

import pytest
import torch

from regard.report.image_rows import encode_png

IMAGES = """
[data]
source = "shapes.jsonl"
validation = 0.2
[task]
kind = "classification"
input = "pixels"
[model]
dim = 12
depth = 1
heads = 3
embed = {kind = "patches", patch_size = 2, image_size = 4, channels = 1}
[train]
steps = 3
batch_size = 5
device = "cpu"
compile = false
[train.schedule]
warmup = 1
"""
TEXTS = """
[data]
source = "said.jsonl"
validation = 0.2
[tokenizer]
kind = "char"
[task]
kind = "{kind}"
label = "{label}"
[model]
dim = 12
depth = 1
heads = 3
[train]
steps = 3
batch_size = 5
context = 32
device = "cpu"
compile = false
[train.schedule]
warmup = 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run on images and two on texts."""
    from regard import zoo
    from regard.training.api import fit

    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        patch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)
        torch.manual_seed(0)
        images = ({"pixels": torch.randint(0, 256, (4, 4)).tolist(), "label": ("day", "night")[n % 2]}
                  for n in range(31))  # fmt: skip
        said = ({"text": f"so it is {n}", "label": ("no", "yes")[n % 2], "score": n / 7} for n in range(31))
        for name, rows in (("shapes", images), ("said", said)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for label in ("a", "b"):
            (folder / f"{label}.png").write_bytes(encode_png(torch.randint(0, 256, (1, 4, 4), dtype=torch.uint8)))
        for name, text in (("images", IMAGES), ("texts", TEXTS.format(kind="classification", label="label")),
                           ("numbers", TEXTS.format(kind="regression", label="score"))):  # fmt: skip
            (folder / f"{name}.toml").write_text(text)
            fit(zoo.read_recipe(f"{name}.toml"), folder / name, quiet=True)
    return folder


@pytest.fixture
def regard(place, monkeypatch, capsys):
    """One command in that folder: its code, what it said on stdout, and on stderr."""
    from regard.cli.app import run_command

    monkeypatch.chdir(place)
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)

    def call(*words):
        code = run_command(words)
        told = capsys.readouterr()
        assert "Traceback" not in told.err and "bug in regard" not in told.err, told.err
        return code, told.out, told.err

    return call


def test_one_picture_is_a_class_and_how_sure_that_is(regard):
    code, out, _ = regard("classify", "images", "a.png")
    label, share = out.split()

    assert code == 0 and label in ("day", "night") and 0.5 <= float(share) <= 1


def test_several_are_told_by_name_and_all_classes_sum_to_one(regard):
    code, out, _ = regard("classify", "images", "a.png", "b.png", "shapes.jsonl", "--top-k", "9", "--json")
    told = json.loads(out)

    assert code == 0 and told["task"] == "classification"
    assert [each["of"] for each in told["answers"][:3]] == ["a.png", "b.png", "shapes.jsonl:1"]
    assert len(told["answers"]) == 33
    assert all(sum(each["classes"].values()) == pytest.approx(1, abs=1e-5) for each in told["answers"])
    assert all(list(each["classes"].values()) == sorted(each["classes"].values(), reverse=True)
               for each in told["answers"])  # fmt: skip


def test_what_is_said_of_a_file_is_what_an_evaluation_says(regard, place):
    _, out, _ = regard("classify", "images", "shapes.jsonl", "--json")
    said = [next(iter(each["classes"])) for each in json.loads(out)["answers"]]
    regard("evaluate", "images", "shapes.jsonl", "--out", "rows.jsonl")
    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]

    assert said == [row["said"] for row in rows]


def test_texts_are_classified_as_they_stand_from_files_and_from_standard_input(regard, monkeypatch):
    import io

    _, alone, _ = regard("classify", "texts", "so it is 3", "--json")
    _, filed, _ = regard("classify", "texts", "said.jsonl", "--json")
    monkeypatch.setattr("sys.stdin", io.StringIO("so it is 3\n\nso it is 4\n"))
    _, piped, _ = regard("classify", "texts", "-", "--json")
    one, all_of_them, two = (json.loads(out)["answers"] for out in (alone, filed, piped))

    assert one[0]["classes"] == pytest.approx(all_of_them[3]["classes"], abs=1e-5)
    assert [each["of"] for each in two] == ["so it is 3", "so it is 4"]
    assert two[0]["classes"] == pytest.approx(one[0]["classes"], abs=1e-5)


def test_a_model_of_numbers_gives_a_number(regard):
    code, out, _ = regard("classify", "numbers", "so it is 3")

    assert code == 0 and isinstance(float(out), float)


@pytest.mark.parametrize(("words", "code", "sentence"), [
    (["images"], 2, "-: images reads no text; name files, such as A.png"),
    (["images", "nothere.png"], 3, "nothere.png: no such file or folder"),
    (["images", "said.jsonl"], 3, "said.jsonl:1: no column 'pixels'"),
    (["images", "a.png", "--top-k", "0"], 2, "--top-k: 0 returns no class"),
    (["texts", "nothere.jsonl"], 3, "nothere.jsonl: no such file"),
    (["nothere", "a.png"], 3, "nothere: no such folder"),
    (["images", "broken.png"], 3, "broken.png"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(regard, place, words, code, sentence):
    (place / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    found, out, err = regard("classify", *words)

    assert found == code and not out and sentence in err and len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ["train", "images.toml", "--dry-run"], ["train", "images.toml", "--dry-run", "--json"], ["explain", "images"],
    ["explain", "images.toml", "--json"], ["estimate", "images.toml"], ["estimate", "images"],
    ["doctor", "images", "--steps", "10"], ["doctor", "images.toml", "--steps", "10", "--json"],
    ["report", "images"], ["evaluate", "images"], ["evaluate", "images", "shapes.jsonl", "--json"],
    ["resume", "images", "train.steps=4"], ["train", "images.toml", "train.steps=1", "--out", "again"],
], ids=" ".join)  # fmt: skip
def test_every_verb_takes_a_run_that_reads_images(regard, words):
    code, out, _ = regard(*words)

    assert code == 0 and out


@pytest.mark.parametrize(("words", "sentence"), [
    (["generate", "images", "hello"], "images: it was trained for 'classification' and generates no text"),
    (["explain", "images", "--heads"], "--heads reads a text, and this model reads images"),
    (["evaluate", "images", "task.kind=next_token"], "settings say how a FILE is read"),
    (["evaluate", "images", "shapes.jsonl", "task.kind=masked_lm"], "task.kind: 'masked_lm' needs text"),
])  # fmt: skip
def test_what_images_cannot_be_asked_is_one_sentence(regard, words, sentence):
    code, out, err = regard(*words)

    assert code in (2, 3) and not out and sentence in err and len(err.splitlines()) == 1
