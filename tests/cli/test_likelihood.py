"""regard likelihood, and regard classify with labels: a language model is asked how likely words are."""

import json

import pytest
from inference.test_likelihood import TEXTS, gpt2

from regard import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))[0]


def test_the_command_line_tells_how_likely_texts_are(folder, say, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS))
    ours = load(folder, device="cpu").likelihoods(TEXTS)

    told = [json.loads(line) for line in say("likelihood", folder, "--file", file, "--json").out.splitlines()]
    shown = say("likelihood", folder, TEXTS[0], "--tokens").out.splitlines()

    assert [one["text"] for one in told] == TEXTS
    assert [one["log"] for one in told] == pytest.approx([one.total for one in ours])
    assert [each["log"] for each in told[0]["tokens"]][1:] == pytest.approx(ours[0].logs[1:])
    assert shown[0].startswith(f"log p {ours[0].total:.4f}   perplexity") and len(shown) == 1 + len(ours[0].ids)


@pytest.mark.spec("S113")
def test_the_command_line_chooses_labels_after_examples(folder, say, tmp_path):
    file = tmp_path / "examples.jsonl"
    rows = [{"text": "the cat", "label": "cat"}, {"text": "a dog", "label": "dog"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    asked = "the cat = cat;a dog = dog;the mat = "
    wanted = load(folder, device="cpu").choose_label(asked, ["cat", "dog"])

    told = json.loads(say("classify", folder, "the mat", "--examples", file, "--template", "{text} = {label}",
                         "--separator", ";", "--top-k", "2", "--json").out)  # fmt: skip
    [line] = say(
        "classify", folder, "the mat", "--labels", "cat,dog", "--template", "{text} = {label}"
    ).out.splitlines()

    assert told == {"task": "labels", "answers": [{"of": "the mat", "classes": pytest.approx(wanted)}]}
    assert line.split()[0] in ("cat", "dog")


@pytest.mark.parametrize("words, said", [
    (["--shots", "2"], "--shots: a setting of zero-shot labels"),
    (["--labels", "a"], "labels: ['a']; give a list of two or more"),
    (["--labels", "a,b", "--shots", "2"], "--shots: there are no examples"),
    (["--labels", "a,b", "--template", "{text}"], "template: '{text}' has the fields text"),
    (["--labels", "a,b", "--score-per", "word"], "--score-per: no 'word'"),
    (["--labels", "a,b", "--pair", "x"], "--pair: a language model reads one text"),
    (["--labels", "a,b", "--examples", "/nowhere.csv"], "/nowhere.csv: no such file"),
], ids=str)  # fmt: skip
def test_mistakes_on_the_command_line_are_one_sentence(folder, say, words, said):
    done = say("classify", folder, "the mat", *words)

    assert done.code in (2, 3) and said in done.err and len(done.err.strip().splitlines()) == 1


# ---------------------------------------------------------------- regard generate


def test_guesses_on_the_command_line_change_no_text(folder, say):
    asked = ("generate", folder, "the cat", "--temperature", "0", "--max-new-tokens", "20")
    plain = say(*asked).out

    assert (
        say(*asked, "--prompt-lookup", "3").out
        == say(*asked, "--draft-model", folder, "--num-speculative-tokens", "4").out
        == plain
    )
    told = json.loads(say(*asked, "--draft-model", folder, "--json").out)["texts"][0]
    assert told["text"] == plain and told["kept"] == told["guessed"] > 0


def test_a_regex_is_a_text_whatever_it_looks_like(folder, say):
    assert say("generate", folder, "the", "--regex", "[7]").out == "7"
    assert say("generate", folder, "the", "--regex", "123").out == "123"
    assert json.loads(say("generate", folder, "the", "--json-schema", '{"enum": [[4, "a"]]}').out) == [4, "a"]


@pytest.mark.parametrize("words, said", [
    (["--num-speculative-tokens", "3"], "num_speculative_tokens: no drafting method is set"),
    (["--prompt-lookup", "2", "--num-beams", "2"], "--prompt-lookup: speculative decoding is for a text that is"),
    (["--prompt-lookup", "0"], "prompt_lookup: 0 is not a whole number"),
    (["--regex", "["], "regex: '[' cannot be read"),
    (["--json-schema", "{"], "json_schema: '{' is no JSON"),
    (["--regex", "a", "--json-schema", "{}"], "json-schema: there is a regex as well"),
], ids=str)  # fmt: skip
def test_mistakes_of_steering_are_one_sentence(folder, say, words, said):
    done = say("generate", folder, "the", *words)

    assert done.code == 2 and said in done.err and len(done.err.strip().splitlines()) == 1
