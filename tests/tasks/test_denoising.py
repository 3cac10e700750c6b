"""Corrupted texts for encoder-decoders: nothing is lost, and as much is hidden as was said."""

import math
from collections import Counter

import pytest
import torch
from tasks.builders import KINDS, chance, model, task, tokenizer

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.tasks.denoising import cut_spans, place_spans, random_composition
from regard.tasks.task import build_task

ROWS, LENGTH = 2003, 501
KIND = {"span_corruption": C.SpanCorruption(), "text_infilling": C.TextInfilling(), "prefix_lm": C.PrefixLM()}


def restored(source, target, marks):
    """The text again, from a source with marks and a target that says what stood there."""
    held, mark = {}, None
    for id in target:
        if id in marks:
            mark = id
            held[mark] = []
        else:
            held[mark].append(id)
    return [each for id in source for each in (held[id] if id in marks else [id])]


def test_the_published_example():
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    source, target = cut_spans(words, [(2, 4), (8, 9)], ["<X>", "<Y>", "<Z>"])

    assert " ".join(source) == "Thank you <X> me to your party <Y> week"
    assert " ".join(target) == "<X> for inviting <Y> last <Z>"  # figure 2 of Raffel et al. 2020


def test_a_row_of_512_reads_568_tokens_as_t5_s_own_code_has_it():
    objective, _ = task(C.SpanCorruption(), "unigram", length=512)
    source, target = objective.corrupt(list(range(1000, 1000 + objective.room)), chance())
    batch = objective.batch([source], [target])

    assert objective.room == 568 and batch["source"].shape == (1, 512)
    assert batch["labels"].shape == (1, 114 + 1)  # theirs says no last sentinel, the paper does


@pytest.mark.slow
def test_over_a_million_tokens_as_many_go_as_was_said_in_spans_as_long_as_was_said():
    objective, _ = task(C.SpanCorruption(), "unigram", length=LENGTH)
    marks, luck = objective.specials.sentinels, chance(1)
    gone = spans = first = last = 0
    for _ in range(ROWS):
        text = list(range(1000, 1000 + LENGTH))
        source, target = objective.corrupt(text, luck)
        used = [id for id in source if id in marks]

        assert used == list(marks[: len(used)]) and [id for id in target if id in marks] == list(marks[: len(used) + 1])
        assert restored(source, target, marks) == text
        gone, spans = gone + len(target) - len(used) - 1, spans + len(used)
        first, last = first + (source[0] in marks), last + (source[-1] in marks)

    assert ROWS * LENGTH > 1_000_000
    assert gone / (ROWS * LENGTH) == pytest.approx(0.15, abs=0.002)
    assert gone / spans == pytest.approx(3.0, abs=0.05)
    # a span stands at either end as often: kept tokens are in k + 1 gaps, of which an outer one is empty k times in
    # kept + 2 (stars and bars)
    kept, count = LENGTH - gone / ROWS, spans / ROWS
    for found in (first, last):
        assert found / ROWS == pytest.approx(count / (kept + 2 - (count - 1)), abs=0.02)


@pytest.mark.slow
def test_infilling_hides_what_was_said_and_tells_everything():
    objective, known = task(C.TextInfilling(), "unigram", length=LENGTH + 1)
    mask, luck = known.special_ids["mask"], chance(2)
    lengths, gone = Counter(), 0
    for _ in range(ROWS):
        text = list(range(1000, 1000 + LENGTH))
        source, target = objective.corrupt(text, luck)
        kept = [id for id in source if id != mask]

        assert target == text and kept == sorted(kept) and len(source) <= LENGTH
        gone += LENGTH - len(kept)
        edges = [999, *[id if id != mask else None for id in source], 1000 + LENGTH]
        runs = holes(edges)
        lengths.update(length for length, masks in runs if masks == 1)

    assert gone / (ROWS * LENGTH) == pytest.approx(0.3, abs=0.002)
    total = sum(lengths.values())
    for length in range(7):  # masks that stand alone: their spans are as Poisson has them
        assert lengths[length] / total == pytest.approx(math.exp(-3) * 3**length / math.factorial(length), abs=0.015)


def holes(edges):
    """(tokens that are missing, masks that stand for them) between every two neighbours that were kept."""
    found, before, masks = [], edges[0], 0
    for id in edges[1:]:
        if id is None:
            masks += 1
            continue
        if masks:
            found.append((id - before - 1, masks))
        else:
            assert id == before + 1  # nothing is missing where no mask stands
        before, masks = id, 0
    return found


def test_a_prefix_and_what_follows_are_the_text_and_the_cut_is_anywhere():
    objective, _ = task(C.PrefixLM(), "unigram")
    text, luck = list(range(1000, 1011)), chance(3)
    places = Counter()
    for _ in range(10_000):
        source, target = objective.corrupt(text, luck)
        assert source + target == text
        places[len(source)] += 1

    assert set(places) == set(range(1, 11))
    chi = sum((count - 1000) ** 2 / 1000 for count in places.values())
    assert chi < 27.9  # nine degrees of freedom, one in a thousand


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KIND)
def test_every_kind_of_tokenizer_can_be_asked_and_a_model_learns(kind, name):
    objective, known = task(KIND[name], kind, length=47)
    asked = model(vocab=len(known), encoder=True)
    records = [{"text": "The cat sat on the mat."}, {"text": "Thank you for inviting me to your party last week."}]
    batch = objective.collate([objective.example(record, known) for record in records], chance())
    sums, parts = objective.loss_sums(asked, batch), objective.count_parts(batch)
    sums["loss"].backward()

    assert parts["loss"].count == (batch["labels"] != -100).sum()
    assert sums["loss"].isfinite() and asked.embed.tokens.weight.grad.any()
    assert known.encode("The cat") == tokenizer(kind).encode("The cat")


@pytest.mark.parametrize("name", KIND)
def test_rows_are_never_longer_than_was_said(name):
    objective, known = task(KIND[name], "char", length=23)
    text = "Thank you for inviting me to your party last week."
    example = objective.example({"text": text}, known)
    for seed in range(50):
        batch = objective.collate([example], chance(seed))
        assert max(batch["source"].shape[1], batch["ids"].shape[1]) <= 23

    assert example["cut"] == len(text) - len(example["ids"]) > 0


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_shortest_texts_are_hidden_and_told(count, rate):
    objective, _ = task(C.SpanCorruption(rate=rate), "unigram")
    text = list(range(1000, 1000 + count))
    source, target = objective.corrupt(text, chance())

    assert restored(source, target, objective.specials.sentinels) == text
    assert 1 <= len(target) - sum(id in objective.specials.sentinels for id in target) < count


def test_every_way_to_part_a_number_is_equally_likely():
    luck = chance(4)
    found = Counter(tuple(random_composition(5, 3, 1, luck)) for _ in range(6000))

    assert len(found) == 6 and all(sum(parts) == 5 and min(parts) >= 1 for parts in found)
    assert sum((count - 1000) ** 2 / 1000 for count in found.values()) < 20.5  # five degrees, one in a thousand


def test_holes_keep_apart():
    luck = chance(5)
    for _ in range(200):
        made = place_spans(7, [2, 1, 3], 1, luck)
        assert [stop - start for start, stop in made] == [2, 1, 3]
        assert all(after[0] - before[1] >= 1 for before, after in zip(made, made[1:], strict=False))
        assert made[0][0] >= 0 and made[-1][1] <= 13


def test_a_text_of_one_token_is_refused():
    objective, known = task(C.SpanCorruption(), "char")

    with pytest.raises(DataError, match="two tokens or more"):
        objective.example({"text": "a"}, known)


def test_too_few_sentinels_are_refused_before_training():
    with pytest.raises(ConfigError, match=r"task.sentinels: 5 are too few .* need"):
        task(C.SpanCorruption(sentinels=5), "char", length=512)


def test_a_tokenizer_without_the_tokens_is_refused():
    with pytest.raises(ConfigError, match="needs a mask token"):
        build_task(C.TextInfilling(), tokenizer("unigram"))
    with pytest.raises(ConfigError, match="no sentinels"):
        build_task(C.SpanCorruption(), tokenizer("unigram"))


def test_the_same_seed_gives_the_same_corruption():
    for c in KIND.values():
        objective, known = task(c, "unigram")
        example = objective.example({"text": "Thank you for inviting me"}, known)
        first, again = (objective.collate([example], chance(9)) for _ in range(2))

        assert all(torch.equal(first[name], again[name]) for name in first)
