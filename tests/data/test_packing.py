"""Packed documents fill their rows, and know nothing of each other."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import regard
from regard import config as C
from regard.config.errors import DataError
from regard.data.example_store import store_examples
from regard.data.packing import PackedBatches


def rows_of(documents):
    rows = [{"ids": ids} for ids in documents]
    return store_examples(lambda tally: iter(rows), {}, Path("/dev/null/nowhere"), "rows", notice=lambda line: None)


def numbered(lengths):
    """Documents in which every token is its own number."""
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=False)]


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(lengths=lengths, context=st.integers(2, 17), epoch=st.integers(0, 2))
def test_every_token_is_read_once_an_epoch_and_every_token_but_a_documents_first_is_asked_for(lengths, context, epoch):
    documents = numbered(lengths)
    packed = PackedBatches(rows_of(documents), context, 1, seed=4, fill=-1)
    batches = [packed.batch(epoch * packed.count + step) for step in range(packed.count)]
    ids, labels = (torch.cat([batch[name] for batch in batches]) for name in ("ids", "labels"))

    assert ids[ids >= 0].sort().values.tolist() == list(range(sum(lengths)))
    first = {document[0] for document in documents}
    assert labels[labels >= 0].sort().values.tolist() == [id for id in range(sum(lengths)) if id not in first]
    assert (labels[labels >= 0] == ids[labels >= 0] + 1).all()
    assert ids.shape[1] == context and packed.filled == sum(lengths) / ids.numel()


@given(lengths=lengths, context=st.integers(2, 17), size=st.integers(1, 3))
def test_tokens_of_a_stretch_stand_together_and_pieces_bounds_them(lengths, context, size):
    documents = numbered(lengths)
    packed = PackedBatches(rows_of(documents), context, size, seed=0, fill=-1)
    owner = {id: number for number, document in enumerate(documents) for id in document}
    for step in range(3):
        batch = packed.batch(step)
        runs = 0
        for ids, document in zip(batch["ids"].tolist(), batch["document"].tolist(), strict=True):
            assert sorted(document) == document  # each in one run
            for number in set(document):
                here = {owner.get(id, "nobody") for id, which in zip(ids, document, strict=True) if which == number}
                assert len(here) == 1
            runs += len(set(document))
        assert runs <= packed.pieces


def test_hardly_anything_is_left_over():
    lengths = torch.randint(1, 300, (2000,)).tolist()

    assert PackedBatches(rows_of([[0] * length for length in lengths]), 256, 4, 0).filled > 0.98


@given(lengths=lengths, steps=st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_a_batch_depends_on_seed_and_step_alone(lengths, steps):
    rows = rows_of(numbered(lengths))
    one, other = (PackedBatches(rows, 9, 3, seed=7) for _ in range(2))
    forwards = {step: one.batch(step) for step in sorted(steps)}

    for step in reversed(steps):
        assert all(torch.equal(table, forwards[step][name]) for name, table in other.batch(step).items())


def test_a_row_of_one_token_is_refused():
    with pytest.raises(DataError, match="nothing to predict; set train.context=2 or more"):
        PackedBatches(rows_of([[1, 2]]), 1, 1, 0)


def model_of(mask):
    trunk = C.Trunk(dim=24, depth=2, mask=mask, attention=C.Attention(heads=3), position=C.RotaryPosition(),
                    dropout=C.NO_DROPOUT)  # fmt: skip
    return regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=97), trunk=trunk))


@pytest.mark.parametrize("mask", ["causal", "full", "causal & window(5)"])
@pytest.mark.parametrize("pieces", [False, True], ids=["", "pieces"])
def test_no_gradient_crosses_from_one_document_to_another(mask, pieces):
    """kernel = auto: the gradient of any logit with respect to the vectors of other documents is zero, exactly."""
    model, packed = model_of(mask), PackedBatches(rows_of([[5] * 4, [7] * 6, [9] * 3, [11] * 2]), 17, 1, 0)
    batch = packed.batch(0)
    document = batch["document"]
    tokens = model.embed(batch["ids"], document=document, **({"pieces": packed.pieces} if pieces else {}))
    tokens.x = tokens.x.detach().requires_grad_()
    logits = model(tokens)

    for number in document.unique().tolist():
        mine = document[0] == number
        [slope] = torch.autograd.grad(logits[0, mine].square().sum(), tokens.x, retain_graph=True)
        assert slope[0, ~mine].abs().max() == 0 and slope[0, mine].abs().min(-1).values.max() > 0


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_packed_document_means_what_it_means_alone(mask):
    documents = [torch.randint(97, (length,)).tolist() for length in (5, 3, 7, 2)]
    model, batch = model_of(mask), PackedBatches(rows_of(documents), 19, 1, 0).batch(0)
    logits = model(batch["ids"], document=batch["document"])

    for ids in documents:
        alone = model(torch.tensor([ids]))
        [start] = [place for place in range(19) if batch["ids"][0, place : place + len(ids)].tolist() == ids]
        assert_close(logits[:, start : start + len(ids)], alone)
