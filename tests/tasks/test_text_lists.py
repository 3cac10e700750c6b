"""Texts that are lists: a training batch reads some of the phrases, an evaluation all of them."""

from collections import Counter

import pytest
import torch
from tasks.image_text_models import FRONT, SIDE, drawing, lively, towers
from torch.testing import assert_close

from regard import config as C
from regard import tasks
from regard.config.errors import ConfigError, DataError
from regard.data.records import Record
from regard.inputs.processors import build_processor
from regard.tasks.image_text import normalize_phrases, sample_phrases, separator_id
from regard.text.trainers import train_tokenizer

TEXTS = ["grinning face, happy, smile", "red heart, love", "happy, red"]
LISTED = [normalize_phrases(text) for text in TEXTS] * 3
KINDS = [
    C.WordTokenizer(lowercase=True, byte_fallback=False),
    C.WordTokenizer(),
    C.ByteTokenizer(),
    C.CharTokenizer(),
    C.SubwordTokenizer(kind="bpe", vocab=400),
    C.SubwordTokenizer(kind="wordpiece", vocab=700),
    C.SubwordTokenizer(kind="unigram", vocab=300),
]
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
LISTS = C.Contrastive(phrase_list=True, label="label", classes=("happy", "red"))


def phrases(tokenizer, ids):
    return [phrase.strip() for phrase in tokenizer.decode(ids).split(",")]


@every
def test_what_is_read_are_phrases_of_the_list_each_at_most_once(kind):
    tokenizer, chance = train_tokenizer(kind, LISTED), torch.Generator().manual_seed(0)
    ids = tokenizer.encode(normalize_phrases(TEXTS[0]))
    read = [phrases(tokenizer, sample_phrases(ids, separator_id(tokenizer), chance)) for _ in range(60)]

    assert {len(each) for each in read} == {1, 2, 3}
    for each in read:
        assert len({*each}) == len(each) and {*each} <= {"grinning face", "happy", "smile"}


@every
def test_a_phrase_is_the_same_tokens_alone_and_anywhere_in_a_list(kind):
    tokenizer = train_tokenizer(kind, LISTED)
    mark, alone = separator_id(tokenizer), tokenizer.encode(normalize_phrases("happy"))

    assert tokenizer.encode(normalize_phrases("red, happy , love")) == [
        *tokenizer.encode(normalize_phrases("red")),
        mark,
        *alone,
        mark,
        *tokenizer.encode(normalize_phrases("love")),
    ]


def test_every_second_time_all_are_read_else_as_many_as_chance_has_it_in_any_order():
    chance, ids = torch.Generator().manual_seed(0), [5, 0, 6, 0, 7, 0, 8]
    drawn = [sample_phrases(ids, 0, chance) for _ in range(2000)]
    counts, firsts = Counter(row.count(0) for row in drawn), Counter(row[0] for row in drawn)

    def unlike(found, wanted):  # chi-square of 3 degrees: beyond 16.3 once in a thousand times
        return sum((found[each] - count) ** 2 / count for each, count in wanted.items())

    assert unlike(counts, {0: 250, 1: 250, 2: 250, 3: 1250}) < 16.3
    assert unlike(firsts, {5: 500, 6: 500, 7: 500, 8: 500}) < 16.3


def task_of(tokenizer, c=LISTS):
    return tasks.build_task(
        c, tokenizer, towers(len(tokenizer)), rows=tasks.RowPadding(15), sense=build_processor(FRONT)
    )


def records():
    return [Record({"image": torch.full((3, SIDE, SIDE), 40 * place, dtype=torch.uint8), "text": text, "label": "red"},
                   f"made:{place}") for place, text in enumerate(TEXTS)]  # fmt: skip


def test_an_evaluation_reads_all_phrases_and_a_training_batch_some():
    tokenizer = train_tokenizer(KINDS[0], LISTED)
    task = task_of(tokenizer)
    examples, chance = [task.example(each, tokenizer) for each in records()], torch.Generator().manual_seed(0)
    whole = {tuple(row) for row in task.collate_eval(examples, chance)["ids"].tolist()}

    assert [tokenizer.decode(example["words"].tolist()) for example in examples] == [" " + text for text in TEXTS]
    seen = {tuple(row) for _ in range(20) for row in task.collate(examples, chance)["ids"].tolist()}
    assert len(whole) == 3 and len(seen) > 6


def test_towers_that_learned_from_lists_read_texts_and_classes_as_they_did():
    tokenizer = train_tokenizer(KINDS[0], LISTED)
    task, model = task_of(tokenizer), lively(towers(len(tokenizer)))
    model.tokenizer, model.task = tokenizer, LISTS
    given = task.collate_eval([task.example(each, tokenizer) for each in records()], torch.Generator())
    said = task.answers(model, given)

    assert_close(torch.tensor(said["text"]), model.embed_texts(TEXTS))
    matched = model.match([each["image"] for each in records()], list(LISTS.classes))
    assert matched.argmax(-1).tolist() == said["class"]


def test_a_picture_is_drawn_after_some_phrases_and_asked_for_with_its_list():
    c = C.TextToImage(
        phrase_list=True, pixels=C.PixelEmbedding(palette=3, grid=(2, 4), colors=("000000", "ffffff", "ff0000"))
    )
    tokenizer = tasks.add_task_tokens(c, train_tokenizer(KINDS[0], LISTED))
    model = lively(drawing(len(tokenizer) + 3, 20))
    task = tasks.build_task(c, tokenizer, model.c, rows=tasks.RowPadding(20), sense=build_processor(c.pixels))
    examples, chance = [task.example(each, tokenizer) for each in records()], torch.Generator().manual_seed(0)
    plain, others = (
        task.collate_eval(examples, chance)["ids"],
        [task.collate(examples, chance)["ids"] for _ in range(9)],
    )

    assert all(torch.equal(ids[:, task.room :], plain[:, task.room :]) for ids in others), "the same pixels"
    assert len({tuple(row) for ids in others for row in ids[:, : task.room].tolist()}) > 6, "after other words"
    model.tokenizer, model.task, model.context = tokenizer, c, 20
    assert torch.equal(model.generate_images(["happy,red"], seed=0), model.generate_images([" happy, red "], seed=0))


def test_a_tokenizer_without_a_comma_is_refused_in_a_sentence():
    tokenizer = train_tokenizer(C.CharTokenizer(byte_fallback=False), ["red heart"])

    with pytest.raises(ConfigError, match="task.phrase_list: this tokenizer has no token that is a comma"):
        task_of(tokenizer)


def test_a_list_of_nothing_is_no_text():
    tokenizer = train_tokenizer(KINDS[0], LISTED)
    nothing = Record({**records()[0], "text": " , ,"}, "made:9")

    with pytest.raises(DataError, match="made:9: column 'text'"):
        task_of(tokenizer).example(nothing, tokenizer)
