"""One bad line does not end a batch: the others are answered, and the bad ones are named."""

import json

import numpy
import pytest
from cli.published_folders import CONTEXT, stocked
from inference.test_likelihood import gpt2


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    made = stocked(tmp_path_factory.mktemp("shelf"))
    gpt2(made / "writer")
    (made / "bad.txt").write_bytes(b"The cat sat.\n\nun gar\xe7on\na dog\n")
    (made / "bad.jsonl").write_text('{"text": "The cat sat."}\n{"text": }\n{"text": "  "}\n{"txt": "a"}\n'
                                    '{"text": "a dog"}\n')  # fmt: skip
    (made / "blanks2.txt").write_text("the [MASK] sat\nno blank\na [MASK] dog\n" + "the [MASK] " * 400 + "\n")
    asked = [{"question": "who?", "context": CONTEXT}, {"question": "who?", "context": ""},
             {"question": "what sat?", "context": CONTEXT}]  # fmt: skip
    (made / "some.jsonl").write_text("\n".join(map(json.dumps, asked)))
    (made / "many.txt").write_text("a cat\n" + "\n" * 20 + "a dog\n")
    (made / "long.txt").write_text("the cat\n" + "the cat " * 300 + "\nthe mat\n")
    return made


@pytest.fixture
def there(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    return shelf


VERBS = {
    "embed": (["embed", "body", "--file", "bad.txt"], [1, 4], [2, 3]),
    "embed records": (["embed", "body", "--file", "bad.jsonl"], [1, 5], [2, 3, 4]),
    "tag": (["tag", "tags", "--file", "bad.txt"], [1, 4], [2, 3]),
    "fill": (["fill", "words", "--file", "blanks2.txt"], [1, 3], [2, 4]),
    "answer": (["answer", "spans", "--file", "some.jsonl"], [1, 3], [2]),
    "likelihood": (["likelihood", "writer", "--file", "bad.txt"], [1, 4], [2, 3]),
    "too long": (["likelihood", "writer", "--file", "long.txt"], [1, 3], [2]),
}


@pytest.mark.parametrize("name", VERBS)
def test_good_lines_are_answered_and_bad_ones_named(say, there, name):
    words, good, bad = VERBS[name]
    said = say(*words, "--json")
    told = [json.loads(line) for line in said.out.splitlines()]

    assert said.code == 3 and [each["line"] for each in told] == sorted(good + bad)
    assert [each["line"] for each in told if "error" in each] == bad
    sentences = [line.removeprefix("regard: ") for line in said.err.splitlines()]
    assert sentences == [each["error"] for each in told if "error" in each]
    alone = say(*words, "--skip", "--json")
    assert alone.code == 0 and [json.loads(line) for line in alone.out.splitlines()] == [
        each for each in told if "error" not in each]  # fmt: skip
    assert alone.err.count("\n") == 1 and f"{len(bad)} of {len(told)} lines were skipped, the first: " in alone.err


def test_a_bad_line_is_an_empty_line_where_answers_are_lines(say, there):
    said = say("embed", "body", "--file", "bad.txt")
    shapes = [len(line.split()) for line in said.out.splitlines()]

    assert said.code == 3 and shapes[1:3] == [0, 0] and shapes[0] == shapes[3] > 0
    assert said.err.splitlines()[0] == "regard: bad.txt: line 2: '' is empty; give it some words, or leave it out"
    assert said.err.splitlines()[1].startswith("regard: bad.txt: line 3 is not UTF-8; convert it")


def test_classes_are_told_with_the_numbers_of_their_lines(say, there):
    said = say("classify", "classes", "--file", "bad.jsonl", "--json")
    answers = json.loads(said.out)["answers"]

    assert said.code == 3 and [each["line"] for each in answers] == [1, 2, 3, 4, 5]
    assert ["error" in each for each in answers] == [False, True, True, True, False]
    shown = say("classify", "classes", "--file", "bad.jsonl").out.splitlines()
    assert [bool(line) for line in shown] == [True, False, False, False, True]
    alone = json.loads(say("classify", "classes", "--file", "bad.jsonl", "--skip", "--json").out)["answers"]
    assert alone == [answers[0], answers[4]]


@pytest.mark.parametrize("skip", [[], ["--skip"]])
def test_the_rows_of_a_table_are_the_lines_of_the_file(say, there, tmp_path, skip):
    said = say("embed", "body", "--file", "bad.txt", "--out", tmp_path / "v.npy", *skip)
    rows = numpy.load(tmp_path / "v.npy")

    assert said.code == (0 if skip else 3) and numpy.isnan(rows).all(1).tolist() == [False, True, True, False]
    assert numpy.isfinite(rows[[0, 3]]).all()


def test_few_of_many_bad_lines_are_named(say, there):
    said = say("embed", "body", "--file", "many.txt")

    assert said.code == 3 and said.err.count("\n") == 6
    assert said.err.splitlines()[-1] == "regard: and 15 more of 22 lines"


def test_a_text_that_is_too_long_is_cut_where_that_is_asked(say, there):
    said = say("likelihood", "writer", "--file", "long.txt", "--cut", "--json")
    told = [json.loads(line) for line in said.out.splitlines()]

    assert said.code == 0 and len(told) == 3 and all("error" not in each for each in told)
    assert said.err == "regard: 1 text was cut to what the model reads at once, the first in line 2\n"
    assert len(told[1]["tokens"]) > len(told[0]["tokens"])


def test_a_text_on_the_command_line_is_refused_as_it_was(say, there):
    said = say("embed", "body", "a cat", " ")

    assert (said.code, said.out) == (3, "") and said.err.startswith("regard: TEXT 2: ' ' is empty")
