"""What a text is worth: the plain forward says it, and so does a plain loop with `transformers`."""

import math

import pytest
import torch
import transformers as hf
from generation.builders import lively, model, trunk

from regard import config as C
from regard import load, text
from regard.inference.batching import length_batches
from regard.inference.likelihood import rank_labels, score_texts, token_log_probs
from regard.inference.model import Model

TEXTS = ["the cat sat", "a dog", "the mat and the hat and the cat and the rat"]
LABELS = ["cat", "dog", "the hat"]


@pytest.fixture
def speaker() -> Model:
    torch.manual_seed(0)
    words = text.train_tokenizer(C.CharTokenizer(), TEXTS)
    one = lively(C.Transformer(embed=C.TextEmbedding(vocab=len(words)), trunk=trunk(), head=C.LMHead(tied=False)))
    one.tokenizer = words
    return one


def gpt2(folder):
    """A tiny GPT-2 of `transformers` with a byte-level tokenizer, as a folder."""
    torch.manual_seed(0)
    words = text.train_tokenizer(C.SubwordTokenizer(vocab=300), TEXTS)
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=len(words), n_positions=37, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0,
    )).eval()  # fmt: skip
    theirs.save_pretrained(folder)
    words.save(folder)
    return folder, theirs, hf.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))


def loop(theirs, ids: list[int], start: int) -> list[float]:
    """Token by token, as anybody would write it."""
    logs = []
    for place in range(start, len(ids)):
        with torch.no_grad():
            logits = theirs(torch.tensor([ids[:place]])).logits[0, -1]
        logs.append(float(logits.log_softmax(-1)[ids[place]]))
    return logs


# ---------------------------------------------------------------- texts


@pytest.mark.spec("S084")
def test_the_tokens_of_a_text_have_the_chances_of_the_plain_forward(speaker):
    for one in score_texts(speaker, TEXTS):
        ids = torch.tensor(one.ids)
        with torch.no_grad():
            logs = speaker(ids[None, :-1])[0].log_softmax(-1).gather(1, ids[1:, None])[:, 0]

        assert one.logs[0] is None
        assert one.logs[1:] == pytest.approx(logs.tolist())
        assert one.total == pytest.approx(float(logs.sum()))
        assert one.perplexity == pytest.approx(math.exp(-float(logs.mean())))
        assert speaker.tokenizer.decode(one.ids) == one.text


@pytest.mark.spec("S084")
def test_all_texts_together_have_the_chance_of_one():
    """The chain rule: over every text of three tokens after a first one, probabilities sum to one."""
    torch.manual_seed(0)
    one = model()
    rows = [[3, a, b] for a in range(19) for b in range(19)]

    totals = [sum(log for log in row if log is not None) for row in token_log_probs(one, rows)]

    assert sum(map(math.exp, totals)) == pytest.approx(1)


def test_a_plain_loop_with_transformers_says_the_same(published):
    folder, theirs, words = published
    ours = load(folder, device="cpu")

    for one in ours.likelihoods(TEXTS):
        ids = words(one.text)["input_ids"]
        assert list(one.ids) == ids
        assert one.logs[1:] == pytest.approx(loop(theirs, ids, 1), abs=1e-4)


def test_texts_have_the_same_chances_alone_and_beside_others(speaker, monkeypatch):
    together = score_texts(speaker, TEXTS)
    monkeypatch.setattr("regard.inference.likelihood.ENTRIES", 1)
    alone = score_texts(speaker, TEXTS)

    for one, other in zip(together, alone, strict=True):
        assert one.logs[1:] == pytest.approx(other.logs[1:])


def test_a_start_token_lets_the_first_token_have_a_chance(speaker):
    """As Llama's tokenizer.json says it: <s> before every text."""
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    inner = tokenizers.Tokenizer.from_str(speaker.tokenizer.text())
    inner.add_special_tokens(["<s>"])
    start = inner.token_to_id("<s>")
    inner.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", start)])
    one = lively(C.Transformer(embed=C.TextEmbedding(vocab=start + 1), trunk=trunk(), head=C.LMHead(tied=False)))
    one.tokenizer = text.Tokenizer(inner)

    [told] = score_texts(one, ["the"])

    assert len(told.ids) == len(told.logs) == 3 and None not in told.logs


def test_batches_hold_every_text_once_and_no_more_than_fits():
    texts = [tuple(range(length)) for length in (1, 2, 2, 3, 7, 50)]

    made = [[texts[place] for place in batch] for batch in length_batches(list(map(len, texts)), 8)]

    assert [text for batch in made for text in batch] == texts
    assert all(len(batch) == 1 or len(batch) * max(map(len, batch)) <= 8 for batch in made)


# ---------------------------------------------------------------- labels


@pytest.mark.spec("S113")
@pytest.mark.parametrize("per", ["label", "token", "character"])
def test_labels_are_chosen_as_a_plain_loop_with_transformers_chooses_them(published, per):
    folder, theirs, words = published
    ours = load(folder, device="cpu")
    for prompt in ("the cat is a", "the", "a dog and"):
        before = words(prompt)["input_ids"]
        scores = []
        for label in LABELS:
            after = words(" " + label)["input_ids"]
            logs = loop(theirs, before + after, len(before))
            scores.append(sum(logs) / {"label": 1, "token": len(logs), "character": len(label) + 1}[per])
        shares = torch.tensor(scores).softmax(-1).tolist()

        found = ours.choose_label(prompt, [f" {label}" for label in LABELS], score_per=per)

        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert [found[f" {label}"] for label in LABELS] == pytest.approx(shares, abs=1e-4)


def test_a_space_before_the_label_may_belong_to_either_side(published):
    """ "is a " and "cat" are the text that "is a" and " cat" are, so they say the same."""
    ours = load(published[0], device="cpu")

    inside = ours.choose_label("it is a ", LABELS)
    outside = ours.choose_label("it is a", [f" {label}" for label in LABELS])

    assert list(inside.values()) == pytest.approx(list(outside.values()))
    assert [f" {label}" for label in inside] == list(outside)


def test_a_neutral_prompt_takes_out_what_is_likely_anyway(speaker):
    plain, neutral = (speaker.choose_label(prompt, LABELS) for prompt in ("the ", "a "))

    weighed = speaker.choose_label("the ", LABELS, calibration_prompt="a ")

    odds = {label: plain[label] / neutral[label] for label in LABELS}
    assert weighed == pytest.approx({label: odds[label] / sum(odds.values()) for label in LABELS})
    assert speaker.choose_label("a ", LABELS, calibration_prompt="a ") == pytest.approx(dict.fromkeys(LABELS, 1 / 3))


def test_labels_of_one_token_cost_one_look(speaker, monkeypatch):
    looks = []
    forward = speaker.forward
    monkeypatch.setattr(speaker, "forward", lambda ids, **rest: looks.append(len(ids)) or forward(ids, **rest))

    speaker.choose_label("the ", ["c", "d", "h", "m"])

    assert looks == [1]


def test_many_prompts_say_what_each_says_alone(speaker):
    prompts = ["the ", "a dog and a ", "the mat"]

    together = rank_labels(speaker, prompts, LABELS)

    for prompt, found in zip(prompts, together, strict=True):
        assert found == pytest.approx(speaker.choose_label(prompt, LABELS))


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("labels", [[], ["a"], ["a", ""], ["a", "a"], "ab"])
def test_labels_that_leave_no_choice_are_refused(speaker, labels):
    with pytest.raises(C.ConfigError, match="labels: .*give a list of two or more"):
        speaker.choose_label("the", labels)


def test_what_cannot_be_scored_is_one_sentence(speaker):
    with pytest.raises(C.DataError, match="text: '' has no tokens"):
        speaker.likelihoods([""])
    with pytest.raises(C.DataError, match="'t' is too short"):
        speaker.likelihoods(["t"])
    with pytest.raises(C.DataError, match="prompt: it is empty"):
        speaker.choose_label("", LABELS)
    with pytest.raises(C.ConfigError, match="score_per: no 'word'"):
        speaker.choose_label("the", LABELS, score_per="word")
    speaker.context = 5
    with pytest.raises(C.DataError, match="text: 10 tokens are more than the 5"):
        speaker.likelihoods(["the cat sat"])


def test_who_does_not_write_from_left_to_right_is_refused():
    reader = Model(C.Transformer(embed=C.TextEmbedding(vocab=9), trunk=trunk(mask="full")))

    with pytest.raises(C.ConfigError, match="is not autoregressive"):
        reader.likelihoods(["a"])
