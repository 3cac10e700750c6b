"""The verbs on folders as `transformers` writes them: texts from the command line, files and pipes; lines and JSON."""

import json

import numpy
import pytest
import torch
from cli.published_folders import CONTEXT, stocked
from hub.text_folders import TEXTS
from safetensors.torch import load_file
from torch.testing import assert_close

import regard
from regard import config


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return stocked(tmp_path_factory.mktemp("shelf"))


@pytest.fixture
def there(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    return shelf


def told(said):
    """The objects on stdout, a line each."""
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()]


# ---------------------------------------------------------------- special tokens in texts

ODD = "the cat [SEP] sat on [MASK]"


@pytest.mark.parametrize("how", ["parse", "plain"])
def test_verbs_read_special_tokens_in_texts_as_they_are_told(say, there, how):
    known = {name: regard.load(name, device="cpu", specials=how) for name in ("body", "classes", "words", "gpt2")}
    asked = ("--specials", how, "--json")
    [line] = told(say("embed", "body", ODD, *asked))
    [filled] = told(say("fill", "words", ODD, *asked))
    [judged] = told(say("classify", "classes", ODD, "--top-k", 3, *asked))
    [likely] = told(say("likelihood", "gpt2", "the cat</s> sat", *asked))

    assert_close(torch.tensor(line["vector"]), known["body"].embeddings([ODD])[0])
    assert [[guess["id"] for guess in blank] for blank in filled["blanks"]] == [
        [guess.id for guess in blank] for blank in known["words"].fill_mask(ODD)
    ]
    assert judged["answers"][0]["classes"] == pytest.approx(known["classes"].classify([ODD])[0])
    assert [token["id"] for token in likely["tokens"]] == known["gpt2"].output_tokenizer.encode("the cat</s> sat", how)
    assert (2 in known["gpt2"].output_tokenizer.encode("the cat</s> sat", how)) == (how == "parse")
    made = told(say("generate", "gpt2", "the cat</s> sat", "--temperature", 0, *asked))
    assert made[0]["text"] == known["gpt2"].generate("the cat</s> sat", temperature=0.0)


def test_a_way_to_read_special_tokens_that_there_is_not_is_refused_by_every_verb(say, there):
    for words in (["embed", "body", "a"], ["fill", "words", "[MASK]"], ["classify", "classes", "a"],
                  ["likelihood", "gpt2", "a b"], ["generate", "gpt2", "a"], ["tag", "tags", "a"],
                  ["answer", "spans", "a", "--context", "b"], ["translate", "a", "--model", "t5"]):  # fmt: skip
        said = say(*words, "--specials", "all")
        assert (said.code, said.out) == (2, "") and "--specials: no 'all'; there are parse and plain" in said.err


# ---------------------------------------------------------------- embed


def test_embed_gives_a_line_of_json_for_each_text_in_order(say, there):
    want = regard.load("body", device="cpu").embeddings(TEXTS)
    lines = told(say("embed", "body", *TEXTS, "--json"))

    assert [line["text"] for line in lines] == TEXTS
    assert_close(torch.tensor([line["vector"] for line in lines]), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("words", "stdin"), [
    (["--file", "texts.txt"], b""), (["--file", "texts.jsonl"], b""), (["--file", "-"], "\n".join(TEXTS).encode()),
    (["-"], "\n".join(TEXTS).encode() + b"\n"),
])  # fmt: skip
def test_texts_come_from_files_of_lines_and_of_records_and_from_a_pipe(say, there, words, stdin):
    found = told(say("embed", "body", *words, "--json", stdin=stdin))

    assert [each.pop("line") for each in found] == [1, 2, 3, 4, 5]
    assert found == told(say("embed", "body", *TEXTS, "--json"))


def test_vectors_go_into_files_that_others_read(say, there, tmp_path):
    want = regard.load("body", device="cpu").embeddings(TEXTS, normalize=False)
    for name in ("v.npy", "v.safetensors"):
        said = say("embed", "body", "--file", "texts.txt", "--no-normalize", "--out", tmp_path / name)
        assert said.code == 0 and said.out.split()[1::2] == [str(tmp_path / name), str(len(TEXTS)), "36"]
    found = numpy.load(tmp_path / "v.npy", allow_pickle=False)

    assert found.dtype == numpy.float32 and found.shape == (len(TEXTS), 36)
    assert_close(torch.from_numpy(found), want, rtol=0, atol=1e-6)
    assert_close(load_file(tmp_path / "v.safetensors")["vectors"], want, rtol=0, atol=1e-6)


def test_a_few_texts_on_a_terminal_are_shown_by_their_cosines(say, there, monkeypatch, capsys):
    import sys

    vectors = regard.load("body", device="cpu").embeddings(TEXTS[:3])
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    rows = say("embed", "body", *TEXTS[:3]).out.splitlines()

    assert rows[0].split() == ["1", "2", "3"] and rows[1].startswith("1  The cat sat.")
    assert float(rows[2].split()[-3]) == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-3)
    assert rows[3].split()[-1] == "1.000"


def test_in_a_pipe_a_vector_is_a_line_of_numbers(say, there):
    said = say("embed", "body", *TEXTS[:2])
    rows = [[float(word) for word in line.split()] for line in said.out.splitlines()]

    assert_close(torch.tensor(rows), regard.load("body", device="cpu").embeddings(TEXTS[:2]), rtol=0, atol=1e-5)


def test_clip_gives_vectors_for_a_picture_and_a_text_side_by_side(say, there):
    lines = told(say("embed", "clip", "picture.png", "a cat", "--json"))
    model = regard.load("clip", device="cpu")

    assert_close(torch.tensor(lines[0]["vector"])[None], model.embed_images(["picture.png"]), rtol=0, atol=1e-5)
    assert_close(torch.tensor(lines[1]["vector"])[None], model.embed_texts(["a cat"]), rtol=0, atol=1e-5)


def test_what_is_cut_is_counted_once(say, there):
    said = say("embed", "body", "the cat sat. " * 30, "a cat", "a dog " * 50, "--json")

    assert said.code == 0 and said.err.count("\n") == 1 and "2 texts have more than the 37 tokens" in said.err


# ---------------------------------------------------------------- fill, answer, tag, classify


def test_fill_tells_words_with_their_probabilities(say, there):
    [blank] = regard.load("words", device="cpu").fill_mask("Paris is the [MASK] of France.", top_k=3)
    said = say("fill", "words", "Paris is the [MASK] of France.", "--top-k", 3)

    assert said.out.splitlines() == [f"{g.word:<{max(len(g.word) for g in blank)}}  {g.probability:.4f}" for g in blank]
    [line] = told(say("fill", "words", "Paris is the [MASK] of France.", "--top-k", 3, "--json"))
    assert [g["word"] for g in line["blanks"][0]] == [g.word for g in blank]
    assert [g["probability"] for g in line["blanks"][0]] == pytest.approx([g.probability for g in blank], abs=1e-6)


def test_fill_numbers_several_blanks_and_takes_files(say, there):
    said = say("fill", "words", "the [MASK] sat on a [MASK]", "--top-k", 2).out
    lines = told(say("fill", "words", "--file", "blanks.txt", "--json"))

    assert [line for line in said.splitlines() if line.startswith("blank")] == ["blank 1", "blank 2"]
    assert len(lines) == len(TEXTS) and all(len(line["blanks"]) == 1 for line in lines)


def test_answer_tells_the_span_its_score_and_its_place(say, there):
    want = regard.load("spans", device="cpu").answer_question("who sat on a mat?", CONTEXT)
    [line] = told(say("answer", "spans", "who sat on a mat?", "--context", "context.txt", "--json"))

    assert (line["answer"] or "", line["start"], line["stop"]) == want[:3]
    assert line["score"] == pytest.approx(want.score, abs=1e-6)
    assert [line] == told(say("answer", "spans", "who sat on a mat?", "--context", CONTEXT, "--json"))
    piped = say("answer", "spans", "who sat on a mat?", "--context", "-", "--json", stdin=CONTEXT.encode())
    assert [line] == told(piped)
    out = say("answer", "spans", "who sat on a mat?", "--context", "context.txt").out
    assert f"{want.score:.4f}" in out and (f"characters {want.start} to {want.stop}" in out or "(no answer)" in out)


def test_answer_takes_records_and_questions_a_line_each(say, there):
    lines = told(say("answer", "spans", "--file", "asked.jsonl", "--json"))
    model = regard.load("spans", device="cpu")

    assert [line["question"] for line in lines] == TEXTS
    assert [(line["answer"] or "", line["start"]) for line in lines] == [
        model.answer_question(each, CONTEXT[: 60 * (n + 1)])[:2] for n, each in enumerate(TEXTS)]  # fmt: skip
    assert len(told(say("answer", "spans", "--file", "texts.txt", "--context", "context.txt", "--json"))) == len(TEXTS)


def test_tag_tells_entities_or_every_word(say, there):
    from regard.inference.token_classification import merge_entities

    model = regard.load("tags", device="cpu")
    lines = told(say("tag", "tags", "--file", "texts.txt", "--json"))
    every = told(say("tag", "tags", *TEXTS, "--all-words", "--json"))

    for line, full, said in zip(lines, every, TEXTS, strict=True):
        assert [(e["text"], e["label"]) for e in line["entities"]] == [
            (e.text, e.label) for e in merge_entities(said, model.tag(said))]  # fmt: skip
        assert [w["text"] for w in full["words"]] == [w.text for w in model.tag(said)]
    out = say("tag", "tags", TEXTS[1], "--all-words").out.splitlines()
    assert len(out) == len(model.tag(TEXTS[1])) and "Lovelace" in out[1]


def test_classify_names_the_classes_of_the_folder(say, there):
    want = regard.load("classes", device="cpu").classify(TEXTS)
    answers = json.loads(say("classify", "classes", "--file", "texts.txt", "--top-k", 3, "--json").out)["answers"]

    assert [each["classes"] for each in answers] == [pytest.approx(each, abs=1e-6) for each in want]
    label, share = say("classify", "classes", TEXTS[0]).out.split()
    assert (label, float(share)) == (next(iter(want[0])), pytest.approx(max(want[0].values()), abs=1e-4))


def test_classify_takes_pairs_with_a_tab_or_an_option(say, there):
    [want] = regard.load("classes", device="cpu").classify(["a cat"], ["a dog"])
    for words in (["a cat\ta dog"], ["a cat", "--pair", "a dog"]):
        [found] = json.loads(say("classify", "classes", *words, "--top-k", 3, "--json").out)["answers"]
        assert found["classes"] == pytest.approx(want, abs=1e-6)


def test_where_several_classes_may_be_right_all_likely_ones_are_told(say, there):
    want = regard.load("many", device="cpu").classify(TEXTS)
    answers = json.loads(say("classify", "many", *TEXTS, "--json").out)["answers"]
    for found, every in zip(answers, want, strict=True):
        likely = {name: share for name, share in every.items() if share >= 0.5} or dict([next(iter(every.items()))])
        assert found["classes"] == pytest.approx(likely, abs=1e-6)


def test_one_number_is_told_as_a_number(say, there):
    [want] = regard.load("number", device="cpu").classify([TEXTS[0]])

    assert float(say("classify", "number", TEXTS[0]).out) == pytest.approx(want, rel=1e-3)
    assert json.loads(say("classify", "number", TEXTS[0], "--json").out)["task"] == "regression"


# ---------------------------------------------------------------- lists in Python


def test_python_answers_lists_as_the_command_line_does(say, there):
    """To the last bit: both run the same batches."""
    known = {name: regard.load(name, device="cpu") for name in ("words", "spans", "tags", "t5")}
    blanks = [f"{each[:-1]} [MASK]" for each in TEXTS]
    filled = told(say("fill", "words", *blanks, "--top-k", 3, "--json"))
    assert [line["blanks"] for line in filled] == [[[guess._asdict() for guess in blank] for blank in text]
                                                   for text in known["words"].fill_mask(blanks, top_k=3)]  # fmt: skip
    answered = told(say("answer", "spans", *TEXTS, "--context", "context.txt", "--json"))
    assert [(line["answer"] or "", line["start"], line["stop"], line["score"]) for line in answered] == known[
        "spans"].answer_question(TEXTS, (there / "context.txt").read_text())  # fmt: skip
    for option, name, joined in ((), "entities", True), (("--all-words",), "words", False):
        tagged = told(say("tag", "tags", *TEXTS, *option, "--json"))
        assert [line[name] for line in tagged] == [[each._asdict() for each in spans] for spans in
                                                   known["tags"].tag(TEXTS, entities=joined)]  # fmt: skip
    (there / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    made = told(say("translate", "--file", "lines.txt", "--model", "t5", "--json"))
    assert [line["text"] for line in made] == known["t5"].translate(TEXTS)
    assert [line["translations"][0]["score"] for line in made] == [
        each.score for each in known["t5"].translations(TEXTS)]  # fmt: skip


def test_each_question_may_have_a_context_of_its_own(there):
    model = regard.load("spans", device="cpu")
    contexts = [CONTEXT[: 60 * (n + 1)] for n in range(len(TEXTS))]
    alone = [model.answer_question(each, context) for each, context in zip(TEXTS, contexts, strict=True)]

    assert [each[:3] for each in model.answer_question(TEXTS, contexts)] == [each[:3] for each in alone]
    with pytest.raises(config.ConfigError, match="context: 1 texts for 2 questions; give one for each, or one for all"):
        model.answer_question(TEXTS[:2], [CONTEXT])


@pytest.mark.parametrize("name, ask", [
    ("words", lambda model: model.fill_mask([torch.ones(2)])),
    ("tags", lambda model: model.tag([torch.ones(2)])),
    ("body", lambda model: model.embeddings(["a cat", torch.ones(2)])),
    ("spans", lambda model: model.answer_question([torch.ones(2)], CONTEXT)),
    ("t5", lambda model: model.translate([torch.ones(2)])),
])  # fmt: skip
def test_what_is_no_text_is_one_sentence(there, name, ask):
    with pytest.raises(config.DataError, match=r": Tensor is no text; give a string$"):
        ask(regard.load(name, device="cpu"))


def test_one_text_is_no_list_of_letters(there):
    with pytest.raises(config.ConfigError, match="inputs: 'a cat' is one alone; give a list of them"):
        regard.load("body", device="cpu").embeddings("a cat")


def test_two_towers_say_what_they_are_for(there):
    model = regard.load("clip", device="cpu")
    for verb in ("classify", "fill_mask", "tag", "answer_question", "forecast", "caption", "translate"):
        with pytest.raises(config.ConfigError, match="compares images and texts and generates nothing"):
            getattr(model, verb)("a cat")


# ---------------------------------------------------------------- translate, generate


def test_translate_follows_the_folder_and_puts_a_prefix_before_each_text(say, there):
    model = regard.load("t5", device="cpu")
    said = say("translate", "a cat", "--model", "t5", "--source-prefix", "say it: ", "--json")
    [line] = told(said)

    assert line["source"] == "a cat" and line["text"] == model.translate("say it: a cat")
    [short] = told(say("translate", "a cat", "--model", "t5", "--max-new-tokens", 3, "--num-beams", 1, "--json"))
    assert short["translations"][0]["tokens"] <= 3
    assert short["text"] == model.translate("a cat", max_new_tokens=3, num_beams=1)


def test_generate_follows_the_folder_and_options_go_before_it(say, there):
    found = json.loads(say("generate", "gpt2", "a cat", "--seed", 3, "--json").out)
    more = json.loads(say("generate", "gpt2", "a cat", "--seed", 3, "--max-new-tokens", 12, "--top-k", 5, "--json").out)

    assert (found["sampling"]["max_new_tokens"], found["sampling"]["top_k"]) == (7, 3)
    assert found["texts"][0]["tokens"] <= 7
    assert (more["sampling"]["max_new_tokens"], more["sampling"]["top_k"]) == (12, 5)
    assert say("generate", "gpt2", "a cat", "--seed", 3).out == found["text"]
