"""Translation: what is read and what is told stand one place apart; all places at once are as one by one."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tasks.builders import KINDS, chance, model, shown, task, tokenizer
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.tasks.collate import RowPadding
from regard.tasks.task import add_task_tokens, build_task
from regard.text.trainers import train_tokenizer

RECORDS = [
    {"source": "The cat sat on the mat.", "target": "A dog met an owl."},
    {"source": "Thank you.", "target": "It was the cat that sat there."},
]
PLAIN = C.Translation(label_smoothing=0.0)


def batch_of(c=PLAIN, kind="word", **how):
    objective, known = task(c, kind, **how)
    return objective, known, objective.collate([objective.example(record, known) for record in RECORDS], chance())


@pytest.mark.spec("S085")
def test_the_target_is_read_behind_a_start_and_told_with_its_end():
    objective, known, batch = batch_of()
    target = known.encode(RECORDS[0]["target"])
    start, end, count = known.special_ids["bos"], known.special_ids["eos"], len(target) + 1

    assert batch["ids"][0, :count].tolist() == [start, *target]
    assert batch["labels"][0, :count].tolist() == [*target, end]  # as many as are read
    assert (batch["labels"][0, count:] == -100).all() and batch["real"][0].sum() == count
    assert torch.equal(batch["labels"][1, :-1], batch["ids"][1, 1:])  # the longest row: one place apart throughout
    assert batch["source"][0, : batch["source_real"][0].sum()].tolist() == [*known.encode(RECORDS[0]["source"]), end]


@pytest.mark.spec("S085")
def test_the_loss_of_all_places_at_once_is_the_loss_step_by_step():
    objective, known, batch = batch_of()
    asked = model(vocab=len(known), encoder=True)
    sums = objective.loss_sums(asked, batch)["loss"].item()
    found = 0.0
    with torch.no_grad():
        for row, record in enumerate(RECORDS):
            count = len(known.encode(record["target"])) + 1
            source = batch["source"][row : row + 1][:, batch["source_real"][row]]
            cache = asked.cache(1, count)
            for place in range(count):  # what was really there is fed, whatever the model would have said
                logits = asked(batch["ids"][row : row + 1, place : place + 1], cache=cache,
                               source=source if place == 0 else None)  # fmt: skip
                found += F.cross_entropy(logits[:, -1], batch["labels"][row, place : place + 1]).item()

    assert sums == pytest.approx(found, abs=1e-5 * objective.count_parts(batch)["loss"].count)


@pytest.mark.spec("S085")
def test_what_is_told_later_changes_nothing_that_is_told_before():
    _, known, batch = batch_of()
    asked = model(vocab=len(known), encoder=True)
    other = batch["ids"].clone()
    other[:, 4:] = known.special_ids["eos"]
    source = {name: batch[name] for name in ("source", "source_real")}
    first, second = (asked(ids, **source) for ids in (batch["ids"], other))

    assert_close(first[:, :4], second[:, :4])
    assert not torch.allclose(first[:, 4:], second[:, 4:])


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_smoothing_is_pytorch_s(smoothing, chunk):
    objective, known, batch = batch_of(C.Translation(label_smoothing=smoothing), chunk=chunk)
    asked = model(vocab=len(known), encoder=True)
    logits = asked(batch["ids"], **{name: batch[name] for name in ("source", "real", "source_real")}).flatten(0, 1)
    theirs = F.cross_entropy(logits, batch["labels"].flatten(), label_smoothing=smoothing, reduction="sum")

    assert_close(objective.loss_sums(asked, batch)["loss"], theirs, atol=1e-4, rtol=1e-6)


def test_padding_never_changes_a_loss():
    objective, known, batch = batch_of()
    asked = model(vocab=len(known), encoder=True)
    alone = [objective.collate([objective.example(record, known)], chance()) for record in RECORDS]
    wide, _, padded = batch_of(side="left", multiple=16)

    together = objective.loss_sums(asked, batch)["loss"]
    assert_close(together, sum(objective.loss_sums(asked, each)["loss"] for each in alone), atol=1e-4, rtol=1e-5)
    assert_close(together, wide.loss_sums(asked, padded)["loss"], atol=1e-4, rtol=1e-5)
    assert padded["source"].shape[1] % 16 == 0 and not padded["source_real"][:, 0].all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_can_translate(kind):
    objective, known, batch = batch_of(kind=kind, length=60)
    target = known.encode(RECORDS[0]["target"])

    assert known.decode(batch["labels"][0][batch["labels"][0] >= 0].tolist()) == known.decode(target)
    assert batch["labels"][0][len(target)] == known.special_ids["eos"] == objective.specials["eos"]


@pytest.mark.parametrize("kind, begins", [("word", "<start>"), ("unigram", "<pad>"), ("bpe", "<|endoftext|>")])
def test_a_target_begins_as_its_family_has_it(kind, begins):  # ours, T5's, GPT-2's
    _, known, batch = batch_of(kind=kind)

    assert shown(known, [int(batch["ids"][0, 0])]) == begins


def test_a_setting_says_how_a_target_begins():
    assert (
        batch_of(C.Translation(decoder_start="eos"))[2]["ids"][0, 0] == tokenizer("word").special_ids["eos"]
    )  # BART's
    with pytest.raises(ConfigError, match="no bos token"):
        batch_of(C.Translation(decoder_start="bos"), "unigram")


def test_two_languages_may_have_two_tokenizers():
    source, target = tokenizer("unigram"), tokenizer("word")
    objective = build_task(PLAIN, source, rows=RowPadding(40), target=target)
    example = objective.example(RECORDS[0], source, target)
    batch = objective.collate([example], chance())

    assert example["source"] == source.encode(RECORDS[0]["source"])
    assert batch["source"][0, -1] == source.special_ids["eos"]
    assert batch["ids"][0, 0] == target.special_ids["bos"] and batch["labels"][0, -1] == target.special_ids["eos"]


def test_what_does_not_fit_is_counted_on_both_sides():
    objective, known = task(PLAIN, "char", length=9)
    example = objective.example(RECORDS[0], known)
    batch = objective.collate([example], chance())

    assert batch["source"].shape == batch["ids"].shape == batch["labels"].shape == (1, 9)
    assert example["cut"] == len(RECORDS[0]["source"]) - 8 + len(RECORDS[0]["target"]) - 8
    assert "real" not in batch and "source_real" not in batch  # every row is full


@pytest.mark.parametrize("record, words", [
    ({"source": "a"}, "no column 'target'; the columns are 'source'"),
    ({"source": "a", "tarjet": "b"}, "did you mean 'tarjet'"),
    ({"source": "a", "target": ""}, "column 'target' holds ''; expected a text"),
    ({"source": "a", "target": None}, "holds None"),
    ({"source": ["a"], "target": "b"}, "column 'source' holds"),
    ({"source": "a", "target": "\ud800"}, "column 'target': character 0 of the text"),
])  # fmt: skip
def test_a_record_that_cannot_be_used_is_one_sentence(record, words):
    objective, known = task(PLAIN)

    with pytest.raises(DataError) as error:
        objective.example(record, known)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_bad_record_is_named_by_its_place():
    class Row(dict):
        where = "pairs.tsv:31"

    objective, known = task(PLAIN)
    with pytest.raises(DataError, match=r"^pairs.tsv:31: column 'target' holds None"):
        objective.example(Row(source="a", target=None), known)


def test_two_vocabularies_are_each_held_to_their_own_tokenizer():
    texts = ((9, "a b c d"), (300, "q r s t u v w x y"))
    words, more = (train_tokenizer(C.WordTokenizer(vocab=many, byte_fallback=False), [said]) for many, said in texts)
    task = C.Translation()
    source, target = add_task_tokens(task, words), add_task_tokens(task, more)
    trunk = C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2))
    said = C.Transformer(
        embed=C.TextEmbedding(vocab=len(target)), trunk=replace(trunk, mask="causal", cross="last"),
        encoder=C.Encoder(trunk=trunk, embed=C.TextEmbedding(vocab=len(source))),
    )  # fmt: skip

    build_task(task, source, said, target=target)
    with pytest.raises(ConfigError, match="model.encoder.embed.vocab: "):
        build_task(task, target, said, target=target)
    with pytest.raises(ConfigError, match="model.embed.vocab: "):
        build_task(task, source, replace(said, embed=C.TextEmbedding(vocab=5)), target=target)
