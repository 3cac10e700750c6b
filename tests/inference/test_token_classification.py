"""Labels of words and whole entities, held to the pipeline of `transformers`."""

import pytest
import torch
import transformers as hf
from hub.text_folders import LENGTH, TEXTS, bert, bytelevel, saved

import regard
from regard import config
from regard.inference.text_inputs import TextInputs
from regard.inference.token_classification import TaggedSpan, merge_entities, split_frame, tag_texts

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LABELS = {"id2label": dict(enumerate(NAMES)), "label2id": {name: n for n, name in enumerate(NAMES)}}


def theirs(model, tokenizer, text, way):
    return hf.pipeline("token-classification", model=model, tokenizer=tokenizer, device="cpu")(
        text, aggregation_strategy=way, ignore_labels=["O"] if way == "first" else [])  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_word_has_the_label_and_the_probability_of_its_first_piece(text, tmp_path):
    model, tokenizer, folder = bert("ForTokenClassification", tmp_path / "m", **LABELS)
    pieces = {each["start"]: each for each in theirs(model, tokenizer, text, "none")}
    got = regard.load(folder, device="cpu").tag(text)

    assert "".join(word.text for word in got) == text.replace(" ", "")
    for word in got:
        assert text[word.start : word.stop] == word.text
        assert word.label == pieces[word.start]["entity"]
        assert word.score == pytest.approx(pieces[word.start]["score"], abs=1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_entities_are_those_of_the_pipeline(text, tmp_path):
    model, tokenizer, folder = bert("ForTokenClassification", tmp_path / "m", **LABELS)
    want = [(each["start"], each["end"], each["entity_group"], pytest.approx(float(each["score"]), abs=1e-5))
            for each in theirs(model, tokenizer, text, "first")]  # fmt: skip
    got = merge_entities(text, regard.load(folder, device="cpu").tag(text))

    assert [(each.start, each.stop, each.label, each.score) for each in got] == want


def test_words_of_bytes_are_whole_and_without_the_space_before_them(tmp_path):
    torch.manual_seed(4)
    tokenizer = bytelevel()
    model = hf.RobertaForTokenClassification(hf.RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=60,
        max_position_embeddings=99, type_vocab_size=1, pad_token_id=1, **LABELS))  # fmt: skip
    text = "ada lovelace wrote, who?"
    got = regard.load(saved(model, tokenizer, tmp_path / "r"), device="cpu").tag(text)
    pieces = theirs(model, tokenizer, text, "none")

    assert [word.text for word in got] == ["ada", "lovelace", "wrote", ",", "who", "?"]
    by_end = {each["end"]: each for each in pieces}
    assert got[3].label == by_end[got[3].stop]["entity"]


def words(*labels):
    return [TaggedSpan(letter, 2 * place, 2 * place + 1, label, 0.5 + 0.1 * place)
            for place, (letter, label) in enumerate(zip("abcdef", labels, strict=False))]  # fmt: skip


@pytest.mark.parametrize(("labels", "found"), [
    (("B-PER", "I-PER", "O", "B-LOC"), [("a b", "PER"), ("d", "LOC")]),
    (("B-PER", "B-PER"), [("a", "PER"), ("b", "PER")]),
    (("I-PER", "I-PER"), [("a b", "PER")]),
    (("B-PER", "I-LOC"), [("a", "PER"), ("b", "LOC")]),
    (("O", "O"), []),
])  # fmt: skip
def test_b_begins_an_entity_and_i_of_the_same_kind_goes_on(labels, found):
    assert [(each.text, each.label) for each in merge_entities("a b c d e f", words(*labels))] == found


def test_a_long_text_is_read_in_parts_that_cover_it_once(tmp_path):
    _, _, folder = bert("ForTokenClassification", tmp_path / "m", **LABELS)
    reader = TextInputs.of(regard.load(folder, device="cpu"))
    for many in (1, 9, 12, 40):
        frame = reader.frame("the cat sat. " * many)
        parts = list(split_frame(frame, LENGTH))

        assert all(len(part.frame) <= LENGTH for part in parts)
        told = [place for part in parts for place in range(part.first, part.last)]
        assert told == list(range(len(frame)))
        for part in parts:
            own = part.frame.ids[part.skip : part.skip + part.last - part.first]
            assert own == frame.ids[part.first : part.last]


def test_every_word_of_a_long_text_has_a_label(tmp_path):
    _, _, folder = bert("ForTokenClassification", tmp_path / "m", **LABELS)
    long, short = "Ada wrote to the old man. " * 30, "a cat"
    got = tag_texts(regard.load(folder, device="cpu"), [long, short])

    assert "".join(word.text for word in got[0]) == long.replace(" ", "") and len(got[1]) == 2
    assert all(word.score > 1 / len(NAMES) - 1e-6 for word in got[0])


@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification"])
def test_who_has_no_label_for_every_word_is_refused(kind, tmp_path):
    _, _, folder = bert(kind, tmp_path / "m")

    with pytest.raises(config.ConfigError, match="no label for every word"):
        regard.load(folder, device="cpu").tag("a cat")
