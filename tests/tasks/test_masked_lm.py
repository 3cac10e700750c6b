"""Masked words and next sentences: the statistics that were promised, and what is never touched."""

import pytest
import torch
import torch.nn.functional as F
from tasks.builders import KINDS, PROSE, chance, model, task, tokenizer
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import DataError
from regard.tasks.collate import WordBoundaries
from regard.tasks.task import combine_losses, total_counts

BOTH = C.PretrainingHead()
PADDED = {"text": "The cat sat on the mat."}, {"text": "A dog met an owl, and neither said why!"}


def many(known, rows=2003, length=500, seed=1):
    """A million ordinary tokens between special ones, with padding after every other row."""
    low, high = 20, len(known)
    ids = torch.randint(low, high, (rows, length), generator=chance(seed)).tolist()
    cls, sep = known.special_ids["cls"], known.special_ids["sep"]
    return [{"ids": [cls, *row[: length - place % 2], sep]} for place, row in enumerate(ids)]


@pytest.mark.slow
@pytest.mark.spec("S087")
@pytest.mark.parametrize("whole_words", [False, True])
def test_fifteen_in_a_hundred_are_chosen_and_of_these_eighty_ten_ten(whole_words):
    objective, known = task(C.MaskedLM(whole_words=whole_words), length=502)
    examples = many(known)
    batch = objective.collate(examples, chance(2))
    before = objective.rows.pad([example["ids"] for example in examples], known.special_ids["pad"])
    chosen, ordinary = batch["labels"] != -100, ~objective.specials.special[before]
    masked, same = batch["ids"] == known.special_ids["mask"], batch["ids"] == before

    def share(part, of):
        return (part & of).sum().item() / of.sum().item()

    assert ordinary.sum() > 1_000_000
    assert share(chosen, ordinary) == pytest.approx(0.15, abs=0.002)
    assert share(masked, chosen) == pytest.approx(0.8, abs=0.005)
    assert share(same, chosen) == pytest.approx(0.1, abs=0.005)
    assert share(~same & ~masked, chosen) == pytest.approx(0.1, abs=0.005)


@pytest.mark.spec("S087")
def test_nothing_else_is_touched_and_nothing_else_is_asked():
    objective, known = task(C.MaskedLM(rate=0.9), length=40)
    examples = [objective.example(record, known) for record in PADDED]
    batch = objective.collate(examples, chance())
    before = objective.rows.pad([example["ids"] for example in examples], known.special_ids["pad"])
    chosen = batch["labels"] != -100
    never = objective.specials.special[before] | ~batch["real"]

    assert torch.equal(batch["labels"][chosen], before[chosen])
    assert torch.equal(batch["ids"][~chosen], before[~chosen])
    assert not (chosen & never).any() and chosen[~never].float().mean() > 0.8
    assert not objective.specials.special[batch["ids"][chosen & (batch["ids"] != known.special_ids["mask"])]].any()


@pytest.mark.spec("S087")
def test_the_loss_is_on_the_chosen_tokens_alone():
    objective, known = task(C.MaskedLM())
    asked = model(vocab=len(known))
    batch = objective.collate([objective.example(record, known) for record in PADDED], chance(3))
    with torch.no_grad():
        each = F.cross_entropy(asked(batch["ids"], real=batch["real"]).transpose(1, 2), batch["labels"].clamp(min=0),
                               reduction="none")  # fmt: skip
    chosen = batch["labels"] != -100

    assert_close(objective.loss_sums(asked, batch)["loss"], each[chosen].sum())
    assert objective.count_parts(batch)["loss"].count == chosen.sum() > 0


def test_the_pieces_of_a_word_are_chosen_together():
    objective, known = task(C.MaskedLM(rate=0.3, whole_words=True), length=900)
    batch = objective.collate([objective.example({"text": PROSE}, known)], chance())
    words = WordBoundaries.of(known).words(objective.rows.pad([objective.example({"text": PROSE}, known)["ids"]], 0))[0]
    chosen = batch["labels"][0] != -100
    fates = [set(chosen[words == word].tolist()) for word in range(int(words.max()) + 1)]

    assert all(len(fate) == 1 for fate in fates)
    assert max(torch.bincount(words)) > 1  # some words have several pieces


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "word"])
def test_words_are_those_that_the_tokenizer_was_trained_on(kind):
    """`tokenizers` knows which word each token came from. One apostrophe inside, and a space before, are ours."""
    known = tokenizer(kind)
    text = "Unaffordable naïve cafés in 1992 said why, and neither dog met the second owl!"
    ids = known.encode(text)
    theirs = known.inner.encode(text, add_special_tokens=False).word_ids
    ours = WordBoundaries.of(known).words(torch.tensor([ids]))[0].tolist()
    firsts = {theirs.index(word) for word in theirs}
    begins = {place for place, word in enumerate(ours) if place == 0 or ours[place - 1] != word}

    assert firsts <= begins  # no word of ours spans two of theirs
    assert all(not known.decode([ids[place - 1]]).strip() for place in begins - firsts)  # but a lone space is none


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_can_be_masked(kind):
    objective, known = task(C.MaskedLM(rate=0.5, whole_words=True), kind)
    batch = objective.collate([objective.example(PADDED[0], known)], chance())

    assert (batch["ids"] == known.special_ids["mask"]).any()
    assert known.encode("The cat") == tokenizer(kind).encode("The cat")


def test_what_does_not_fit_is_counted():
    objective, known = task(C.MaskedLM(), length=11)
    example = objective.example(PADDED[1], known)

    assert len(example["ids"]) == 11 and example["ids"][-1] == known.special_ids["sep"]
    assert example["cut"] == len(known.encode(PADDED[1]["text"])) - 9


def test_a_batch_is_a_function_of_its_examples_and_the_seed():
    objective, known = task(C.MaskedLM())
    examples = [objective.example(record, known) for record in PADDED]
    first, again, other = (objective.collate(examples, chance(seed)) for seed in (5, 5, 6))

    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["labels"], other["labels"])


def test_padding_on_the_left_changes_no_loss():
    found = []
    for side in ("right", "left"):
        objective, known = task(C.MaskedLM(rate=0.4), side=side)
        asked = model(vocab=len(known))
        labels = [objective.collate([objective.example(record, known)], chance(7)) for record in PADDED]
        rows = [objective.rows.pad([row[name][0].tolist() for row in labels], fill)
                for name, fill in (("ids", 0), ("labels", -100))]  # fmt: skip
        real = objective.rows.real([row["ids"][0].tolist() for row in labels])
        found.append(objective.loss_sums(asked, {"ids": rows[0], "labels": rows[1]} | real)["loss"])

    assert_close(found[0], found[1], atol=1e-4, rtol=1e-5)


# ---------------------------------------------------------------- next sentence


def documents(count=41, sentences=23, words=7):
    """Documents whose every token tells where it stood: document · 1000 + sentence."""
    sizes = [[1 + (doc + place) % words for place in range(1 + (doc * 7) % sentences)] for doc in range(count)]
    return [{"ids": [doc * 1000 + place for place, size in enumerate(rows) for _ in range(size)], "sentences": rows}
            for doc, rows in enumerate(sizes)]  # fmt: skip


def parts_of(example, around):
    """The two texts of a row again."""
    where = torch.tensor(example["segment"]).argmax()
    return example["ids"][len(around.before) : where - len(around.between)], example["ids"][where : -len(around.after)]


@pytest.mark.slow
@pytest.mark.spec("S088")
def test_half_of_the_pairs_follow_each_other_and_no_other_pair_is_of_one_document():
    objective, _ = task(C.MaskedLM(next_sentence=True), length=64)
    made, luck, corpus = [], chance(11), documents()
    while len(made) < 40_000:
        for place in range(len(corpus)):
            made += [(place, example) for example in objective.pairs(corpus, place, luck)]
    follows = 0
    for place, example in made:
        a, b = parts_of(example, objective.specials.pair)
        assert a and b and len(example["ids"]) <= 64
        assert {id // 1000 for id in a} == {place}  # a first part is of one document
        assert len({id // 1000 for id in b}) == 1  # and so is a second
        assert (b[0] // 1000 == place) == (example["next"] == 0)
        if example["next"] == 0:
            assert b[0] == a[-1] + 1  # the sentence after
            follows += 1

    assert follows / len(made) == pytest.approx(0.5, abs=0.01)


def test_every_sentence_but_a_last_one_is_read_in_an_epoch():
    objective, _ = task(C.MaskedLM(next_sentence=True), length=200)
    corpus = documents(count=5)
    for place, document in enumerate(corpus):
        made = objective.pairs(corpus, place, chance(place))
        read = [parts_of(example, objective.specials.pair) for example in made]
        here = {id for a, b in read for id in (*a, *b) if id // 1000 == place}
        missing = set(document["ids"]) - here

        assert len(missing) <= 1 and missing <= {document["ids"][-1]}


def test_too_long_a_pair_is_cut_at_its_outer_ends_and_counted():
    objective, _ = task(C.MaskedLM(next_sentence=True), length=13)
    corpus = [{"ids": list(range(100, 140)), "sentences": [20, 20]}, {"ids": [7, 8], "sentences": [1, 1]}]
    made = next(found for seed in range(20) if (found := objective.pairs(corpus, 0, chance(seed))[0])["next"] == 0)
    a, b = parts_of(made, objective.specials.pair)

    assert (a, b) == (list(range(115, 120)), list(range(120, 125))) and made["cut"] == 30


def test_one_document_has_no_other():
    objective, _ = task(C.MaskedLM(next_sentence=True))

    with pytest.raises(DataError, match="one document"):
        objective.pairs(documents()[3:4], 0, chance())


@pytest.mark.spec("S088")
def test_masked_and_next_are_each_divided_by_their_own_count():
    objective, known = task(C.MaskedLM(next_sentence=True))
    asked = model(BOTH, vocab=len(known))
    said = [objective.example({"text": PROSE}, known), objective.example({"text": PROSE[::-1]}, known)]
    batch = objective.collate(objective.pairs(said, 0, chance())[:5], chance())
    parts = objective.count_parts(batch)
    logits, follows = asked(batch["ids"], real=batch.get("real"), segment=batch["segment"])
    mean = F.cross_entropy(logits.transpose(1, 2), batch["labels"]) + F.cross_entropy(follows, batch["next"])

    assert parts["masked"].count == (batch["labels"] != -100).sum() and parts["next"].count == 5
    assert_close(combine_losses(objective.loss_sums(asked, batch), total_counts([parts])), mean)


def test_documents_are_lines_or_lists_of_sentences():
    objective, known = task(C.MaskedLM(next_sentence=True))
    lines = objective.example({"text": "The cat sat.\n\nA dog met.\n"}, known)
    listed = objective.example({"text": ["The cat sat.", "A dog met."]}, known)

    assert lines == listed
    assert lines["sentences"] == [len(known.encode("The cat sat.")), len(known.encode("A dog met."))]
    with pytest.raises(DataError, match="at least one text"):
        objective.example({"text": " \n "}, known)


def test_a_model_scores_what_it_was_asked():
    objective, known = task(C.MaskedLM(next_sentence=True))
    asked = model(BOTH, vocab=len(known))
    said = [objective.example({"text": PROSE}, known), objective.example({"text": PROSE[::-1]}, known)]
    batch = objective.collate(objective.pairs(said, 0, chance())[:5], chance())
    meant = objective.expected_answers(batch)

    assert objective.score(meant, meant) == {"masked accuracy": 1.0, "next accuracy": 1.0}
    assert objective.score(objective.answers(asked, batch), meant)["masked accuracy"] < 0.5
