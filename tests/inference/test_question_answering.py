"""Answers in a text: the span that their logits make likeliest, told by hand from the model of `transformers`."""

import pytest
import torch
import transformers as hf
from hub.text_folders import LENGTH, bert, bytelevel, saved

import regard
from regard import config
from regard.inference.question_answering import answer_questions

QUESTION, CONTEXT = "who sat on a mat?", "Ada saw a cat. The old dog sat on a big mat in Paris, and it was good."


def by_hand(model, tokenizer, question, context, longest=30):
    """The best span of one row, and its probability, from logits over the context and the first token."""
    asked = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    spans, owners = asked.pop("offset_mapping")[0].tolist(), asked.sequence_ids(0)
    if "token_type_ids" in asked and model.config.type_vocab_size < 2:
        asked.pop("token_type_ids")
    with torch.no_grad():
        said = model(**asked)
    may = torch.tensor([owner == 1 or place == 0 for place, owner in enumerate(owners)])
    logits = (said.start_logits, said.end_logits)
    first, last = (each[0].masked_fill(~may, -torch.inf).softmax(-1) for each in logits)
    scores = {(i, j): float(first[i] * last[j]) for i, one in enumerate(owners) for j, two in enumerate(owners)
              if one == two == 1 and i <= j < i + longest}  # fmt: skip
    best = max(scores, key=scores.get)
    none = float(first[0] * last[0])
    if none >= scores[best]:
        return (0, 0), none
    return (spans[best[0]][0], spans[best[1]][1]), scores[best]


@pytest.mark.parametrize("seed", range(4))
def test_the_span_and_its_probability_are_those_of_their_logits(seed, tmp_path):
    torch.manual_seed(seed)
    model, tokenizer, folder = bert("ForQuestionAnswering", tmp_path / "m", initializer_range=0.02 * (1 + seed))
    with torch.no_grad():
        model.qa_outputs.weight.mul_(1 + 3 * seed)
    saved(model, None, folder)
    place, score = by_hand(model, tokenizer, QUESTION, CONTEXT)
    got = regard.load(folder, device="cpu").answer_question(QUESTION, CONTEXT)

    assert (got.start, got.stop) == place and got.score == pytest.approx(score, abs=1e-5)
    assert got.text == CONTEXT[slice(*place)]


def test_roberta_is_asked_with_what_its_tokenizer_puts_between(tmp_path):
    torch.manual_seed(1)
    tokenizer = bytelevel()
    model = hf.RobertaForQuestionAnswering(hf.RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=60,
        max_position_embeddings=157, type_vocab_size=1, pad_token_id=1))  # fmt: skip
    ours = regard.load(saved(model, tokenizer, tmp_path / "r"), device="cpu")
    place, score = by_hand(model, tokenizer, QUESTION, CONTEXT)
    got = ours.answer_question(QUESTION, CONTEXT)

    assert (got.start, got.stop) == place and got.score == pytest.approx(score, abs=1e-5)


class Pointer(regard.Model):
    """Answers begin and end at one word wherever it stands; at the first token it is half as sure."""

    def forward(self, ids, **_):
        found = 9.0 * (ids == self.wanted)
        found[:, 0] = 4.0
        return torch.stack([found, found], -1)


def pointer(word, tmp_path):
    _, _, folder = bert("ForQuestionAnswering", tmp_path / "m")
    ours = regard.load(folder, device="cpu")
    made = Pointer(ours.c)
    made.tokenizer, made.context, made.source_folder = ours.tokenizer, ours.context, ours.source_folder
    made.wanted = ours.tokenizer.encode(word)[0]
    return made


def test_a_long_text_is_read_in_windows_to_its_end(tmp_path):
    long = "The cat sat on a mat. " * 60 + "It was in Paris, and it was good. " + "The dog saw a man. " * 70
    got = pointer("Paris", tmp_path).answer_question("where was it?", long)

    assert got.text == "Paris" and long[got.start : got.stop] == "Paris"


def test_where_no_window_has_an_answer_there_is_none(tmp_path):
    got = pointer("film", tmp_path).answer_question("where was it?", "The cat sat on a mat. " * 60)

    assert (got.text, got.start, got.stop) == ("", 0, 0) and 0 < got.score <= 1


def test_many_questions_are_answered_in_their_order(tmp_path):
    _, _, folder = bert("ForQuestionAnswering", tmp_path / "m")
    ours = regard.load(folder, device="cpu")
    asked = [(QUESTION, CONTEXT), ("what?", "a cat sat"), ("who saw a dog?", "the cat sat. " * 30), ("where?", CONTEXT)]
    for together, each in zip(answer_questions(ours, asked), asked, strict=True):
        alone = ours.answer_question(*each)
        assert together[:3] == alone[:3] and together.score == pytest.approx(alone.score, abs=1e-6)


@pytest.mark.parametrize(("kind", "question", "context", "error", "sentence"), [
    ("ForQuestionAnswering", " ", CONTEXT, config.DataError, "the question, ' ', is empty"),
    ("ForQuestionAnswering", QUESTION, "", config.DataError, "the context, '', is empty"),
    ("ForMaskedLM", QUESTION, CONTEXT, config.ConfigError, "predicts no start and end of an answer"),
    ("ForTokenClassification", QUESTION, CONTEXT, config.ConfigError, "predicts no start and end of an answer"),
])  # fmt: skip
def test_what_cannot_be_answered_is_one_sentence(kind, question, context, error, sentence, tmp_path):
    _, _, folder = bert(kind, tmp_path / "m")

    with pytest.raises(error, match=sentence):
        regard.load(folder, device="cpu").answer_question(question, context)


def test_a_window_is_never_longer_than_the_model_reads(tmp_path):
    from regard.inference.question_answering import qa_objective

    _, _, folder = bert("ForQuestionAnswering", tmp_path / "m")

    assert qa_objective(regard.load(folder, device="cpu")).rows.length == LENGTH
