"""Texts that are lists: a training batch reads some of the phrases, an evaluation all of them."""

from collections import Counter

import pytest
import torch
from tasks.pictures import FRONT, SIDE, drawing, lively, towers
from torch.testing import assert_close

from regard import config as C
from regard import tasks
from regard.config import ConfigError, DataError
from regard.data import Record
from regard.inputs.senses import sense
from regard.tasks.phrases import comma, listed, some
from regard.text import train

TEXTS = ["grinning face, happy, smile", "red heart, love", "happy, red"]
LISTED = [listed(text) for text in TEXTS] * 3
KINDS = [C.Words(lower=True, fallback=False), C.Words(), C.Bytes(), C.Characters(),
         C.Pieces(kind="bpe", vocab=400), C.Pieces(kind="wordpiece", vocab=700), C.Pieces(kind="unigram", vocab=300)]
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
LISTS = C.Contrast(phrases=True, label="label", classes=("happy", "red"))


def phrases(tokenizer, ids):
    return [phrase.strip() for phrase in tokenizer.decode(ids).split(",")]


@every
def test_what_is_read_are_phrases_of_the_list_each_at_most_once(kind):
    tokenizer, chance = train(kind, LISTED), torch.Generator().manual_seed(0)
    ids = tokenizer.encode(listed(TEXTS[0]))
    read = [phrases(tokenizer, some(ids, comma(tokenizer), chance)) for _ in range(60)]

    assert {len(each) for each in read} == {1, 2, 3}
    for each in read:
        assert len({*each}) == len(each) and {*each} <= {"grinning face", "happy", "smile"}


@every
def test_a_phrase_is_the_same_tokens_alone_and_anywhere_in_a_list(kind):
    tokenizer = train(kind, LISTED)
    mark, alone = comma(tokenizer), tokenizer.encode(listed("happy"))

    assert tokenizer.encode(listed("red, happy , love")) == [
        *tokenizer.encode(listed("red")), mark, *alone, mark, *tokenizer.encode(listed("love"))]


def test_every_second_time_all_are_read_else_as_many_as_chance_has_it_in_any_order():
    chance, ids = torch.Generator().manual_seed(0), [5, 0, 6, 0, 7, 0, 8]
    drawn = [some(ids, 0, chance) for _ in range(2000)]
    counts, firsts = Counter(row.count(0) for row in drawn), Counter(row[0] for row in drawn)

    def unlike(found, wanted):  # chi-square of 3 degrees: beyond 16.3 once in a thousand times
        return sum((found[each] - count) ** 2 / count for each, count in wanted.items())

    assert unlike(counts, {0: 250, 1: 250, 2: 250, 3: 1250}) < 16.3
    assert unlike(firsts, {5: 500, 6: 500, 7: 500, 8: 500}) < 16.3


def task_of(tokenizer, c=LISTS):
    return tasks.build(c, tokenizer, towers(len(tokenizer)), rows=tasks.Rows(15), sense=sense(FRONT))


def records():
    return [Record({"image": torch.full((3, SIDE, SIDE), 40 * place, dtype=torch.uint8), "text": text, "label": "red"},
                   f"made:{place}") for place, text in enumerate(TEXTS)]  # fmt: skip


def test_an_evaluation_reads_all_phrases_and_a_training_batch_some():
    tokenizer = train(KINDS[0], LISTED)
    task = task_of(tokenizer)
    examples, chance = [task.example(each, tokenizer) for each in records()], torch.Generator().manual_seed(0)
    whole = {tuple(row) for row in task.plain(examples, chance)["ids"].tolist()}

    assert [tokenizer.decode(example["words"].tolist()) for example in examples] == [" " + text for text in TEXTS]
    seen = {tuple(row) for _ in range(20) for row in task.collate(examples, chance)["ids"].tolist()}
    assert len(whole) == 3 and len(seen) > 6


def test_towers_that_learned_from_lists_read_texts_and_classes_as_they_did():
    tokenizer = train(KINDS[0], LISTED)
    task, model = task_of(tokenizer), lively(towers(len(tokenizer)))
    model.tokenizer, model.task = tokenizer, LISTS
    given = task.plain([task.example(each, tokenizer) for each in records()], torch.Generator())
    said = task.answers(model, given)

    assert_close(torch.tensor(said["text"]), model.read(TEXTS))
    matched = model.match([each["image"] for each in records()], list(LISTS.classes))
    assert matched.argmax(-1).tolist() == said["class"]


def test_a_picture_is_drawn_after_some_phrases_and_asked_for_with_its_list():
    c = C.Draw(phrases=True, pixels=C.Pixels(palette=3, grid=(2, 4), colours=("000000", "ffffff", "ff0000")))
    tokenizer = tasks.equip(c, train(KINDS[0], LISTED))
    model = lively(drawing(len(tokenizer) + 3, 20))
    task = tasks.build(c, tokenizer, model.c, rows=tasks.Rows(20), sense=sense(c.pixels))
    examples, chance = [task.example(each, tokenizer) for each in records()], torch.Generator().manual_seed(0)
    plain, others = task.plain(examples, chance)["ids"], [task.collate(examples, chance)["ids"] for _ in range(9)]

    assert all(torch.equal(ids[:, task.room :], plain[:, task.room :]) for ids in others), "the same pixels"
    assert len({tuple(row) for ids in others for row in ids[:, : task.room].tolist()}) > 6, "after other words"
    model.tokenizer, model.task, model.context = tokenizer, c, 20
    assert torch.equal(model.paint(["happy,red"], seed=0), model.paint([" happy, red "], seed=0))


def test_a_tokenizer_without_a_comma_is_refused_in_a_sentence():
    tokenizer = train(C.Characters(fallback=False), ["red heart"])

    with pytest.raises(ConfigError, match="task.phrases: this tokenizer has no token that is a comma"):
        task_of(tokenizer)


def test_a_list_of_nothing_is_no_text():
    tokenizer = train(KINDS[0], LISTED)
    nothing = Record({**records()[0], "text": " , ,"}, "made:9")

    with pytest.raises(DataError, match="made:9: column 'text'"):
        task_of(tokenizer).example(nothing, tokenizer)
