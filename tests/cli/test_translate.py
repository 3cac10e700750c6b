"""regard translate: what it prints is what the model says, line by line, and where every word came from."""

import io
import json
import sys

import pytest
import torch

from regard import config as C
from regard import text
from regard.cli import main
from regard.inference.load import load_model
from regard.inference.model import build_model

WORDS = ["the", "cat", "sat", "on", "a", "mat", "le", "chat", "dort", "sur", "un", "tapis"]


@pytest.fixture
def translator(desk):
    """An encoder-decoder that has learnt nothing, with one tokenizer for both sides, as a folder."""
    torch.manual_seed(1)
    tokenizer = text.train_tokenizer(C.WordTokenizer(vocab=60, byte_fallback=False), [" ".join(WORDS), *WORDS])
    said = dict(
        dim=12, depth=2, attention=C.Attention(heads=3), dropout=C.NO_DROPOUT, position=C.LearnedPosition(length=17)
    )
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=C.Trunk(**said, mask="causal", cross="last"),
        encoder=C.Encoder(trunk=C.Trunk(**said)), head=C.LMHead(tied=False),
    )  # fmt: skip
    model = build_model(c)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    model.tokenizer = tokenizer
    model.save(desk / "translator")
    return desk / "translator"


def test_stdout_is_a_line_with_the_translation(say, translator):
    told = say("translate", "the cat sat", "--model", translator)

    assert (told.code, told.err) == (0, "")
    assert told.out == load_model(translator).translate("the cat sat") + "\n"


def test_every_setting_reaches_the_model(say, translator):
    said = say("translate", "the cat sat", "--model", translator, "--num-beams", 7, "--length-penalty", 0.3)

    assert said.out == load_model(translator).translate("the cat sat", num_beams=7, length_penalty=0.3) + "\n"


def test_the_best_come_with_their_scores_the_best_first(say, translator):
    told = say("translate", "the cat\na mat", "--model", translator, "--num-return-sequences", 3).out
    first, second = (
        load_model(translator).translations([source], num_return_sequences=3)[0] for source in ("the cat", "a mat")
    )
    blocks = ["".join(f"{one.score:.4f}\t{one.text}\n" for one in (each, *each.others)) for each in (first, second)]

    assert told == "\n".join(blocks)


@pytest.mark.parametrize("words", [["-"], ["--file", "-"], ["--file", "lines.txt"]], ids=" ".join)
def test_files_and_standard_input_keep_their_lines(say, translator, desk, words):
    lines = b"the cat sat\r\n\na mat\n"
    (desk / "lines.txt").write_bytes(lines)
    told = say("translate", *words, "--model", translator, stdin=lines)
    model = load_model(translator)

    assert (told.code, told.err) == (0, "")
    assert told.out.split("\n") == [model.translate("the cat sat"), "", model.translate("a mat"), ""]


def test_each_line_of_standard_input_is_answered_before_the_next_is_read(translator, monkeypatch):
    out, answered = io.StringIO(), []

    class Lines:
        def __iter__(self):
            for line in (b"the cat\n", b"a mat\n"):
                answered.append(out.getvalue().count("\n"))
                yield line

    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Lines()}))
    monkeypatch.setattr(sys, "stdout", out)

    assert main(["translate", "-", "--model", str(translator)]) == 0
    assert answered == [0, 1]


def test_json_is_one_object_a_line(say, translator, desk):
    (desk / "lines.txt").write_text("the cat sat\n\na mat\n")
    told = say(
        "translate", "--file", "lines.txt", "--model", translator, "--num-return-sequences", 2, "--json"
    ).out.splitlines()
    first, empty, last = map(json.loads, told)

    assert first["source"] == "the cat sat" and first["text"] == first["translations"][0]["text"]
    assert len(first["translations"]) == 2 and first["translations"][0].keys() == {"text", "score", "tokens", "reason"}
    assert empty == {"line": 2, "source": "", "text": "", "translations": []}
    assert last["source"] == "a mat" and "alignment" not in last


def test_an_alignment_in_json_is_the_model_s_own(say, translator):
    told = json.loads(say("translate", "the cat sat", "--model", translator, "--align", "--json").out)["alignment"]
    seen = load_model(translator).align("the cat sat")

    assert (tuple(told["source"]), tuple(told["target"]), told["layer"]) == (seen.source, seen.target, 0)
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in told["weights"])
    torch.testing.assert_close(torch.tensor(told["weights"]), seen.weights, atol=1e-6, rtol=0)


def test_an_alignment_is_a_table_under_the_translation(say, translator, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told = say("translate", "the cat sat", "--model", translator, "--align").out.splitlines()
    seen = load_model(translator).align("the cat sat")

    assert told[0] == load_model(translator).translate("the cat sat")
    assert told[1].split() == list(seen.source) and len({len(line) for line in told[1:]}) == 1
    assert [line.split()[0] for line in told[2:]] == list(seen.target)
    assert all(cell in "·1.0" or 0 < float(cell) < 1 for line in told[2:] for cell in line.split()[1:])


def test_a_narrow_screen_shows_what_each_token_looked_at_most(say, translator, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    told = say("translate", "the cat sat", "--model", translator, "--align").out.splitlines()
    seen = load_model(translator).align("the cat sat")
    first = [line.split()[:2] for line in told[1:]]

    assert first == [list(pair) for pair in seen.likeliest()]


MISTAKES = {
    "no model": (["a", "--model", "nowhere"], 3, "nowhere: no such folder; name a run, a checkpoint"),
    "no text": (["--model", "translator"], 2, "TEXT: there is none; give a text or --file FILE"),
    "two texts": (["a", "--file", "f", "--model", "translator"], 2, "TEXT: there is --file f as well"),
    "an empty text": ([" ", "--model", "translator"], 3, "TEXT: ' ' is empty; give it some words"),
    "no beams": (["a", "--num-beams", 0, "--model", "translator"], 2, "--num-beams: 0 is less than 1"),
    "too many": (
        ["a", "--num-return-sequences", 5, "--model", "translator"],
        2,
        "--num-return-sequences: 5 texts are more than the 4",
    ),
    "no file": (["--file", "nowhere.txt", "--model", "translator"], 3, "nowhere.txt: there is no such file"),
    "no folder": (["a", "--model", "nowhere"], 3, "nowhere: no such folder"),
    "no encoder": (["a", "--model", "model"], 2, "model: this model has no encoder"),
}


@pytest.mark.parametrize("words, code, sentence", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_and_an_exit_code(say, translator, checkpoint, desk, words, code, sentence):
    told = say("translate", *words)

    assert (told.code, told.out) == (code, "")
    assert told.err.startswith(f"regard: {sentence}") and told.err.count("\n") == 1


def test_bad_lines_are_named_and_the_others_are_translated(say, translator, desk):
    long = " ".join(["the cat sat on a mat"] * 3)
    (desk / "lines.txt").write_bytes(f"the cat\n{long}\nun gar\xe7on\na mat\n".encode("latin1"))
    good = [say("translate", text, "--model", translator).out for text in ("the cat", "a mat")]
    words = ["translate", "--file", "lines.txt", "--model", translator]
    usual, skipped, cut = say(*words), say(*words, "--skip"), say(*words, "--cut", "--json")
    first, *others = usual.err.splitlines()

    assert usual.code == 3 and usual.out == f"{good[0]}\n\n{good[1]}"
    assert first.startswith("regard: lines.txt: line 2: 18 tokens are more than the ") and len(others) == 1
    assert others[0].startswith("regard: lines.txt: line 3 is not UTF-8; convert it")
    assert skipped.code == 0 and skipped.out == "".join(good)
    assert skipped.err.startswith("regard: 2 of 4 lines were skipped, the first: lines.txt: line 2")
    told = [json.loads(line) for line in cut.out.splitlines()]
    assert cut.code == 3 and [each["line"] for each in told] == [1, 2, 3, 4] and told[1]["text"]
    assert "error" in told[2] and "1 text was cut to what the model reads at once, the first in line 2" in cut.err


def test_odd_bytes_on_standard_input_name_their_line(say, translator):
    told = say("translate", "-", "--model", translator, stdin=b"the cat\nun gar\xe7on\n")

    assert told.code == 3 and told.out.count("\n") == 2  # the line before has been answered
    assert told.err.startswith("regard: standard input: line 2 is not UTF-8;")


def test_a_folder_without_a_tokenizer_is_told_by_its_name(say, translator):
    for file in (*translator.glob("tokenizer*"), translator / "MANIFEST.json"):
        file.unlink()
    told = say("translate", "the cat", "--model", translator)

    assert told.code == 3 and told.err.startswith(f"regard: {translator}: this model has no tokenizer")
