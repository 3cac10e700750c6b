"""A long text in chunks: each becomes a vector by itself, and the chunks are read as tokens."""

import pytest
import torch
from core.builders import VOCAB, B, ids_of, model, padded
from core.builders import trunk as small
from parity.tolerance import assert_near

import regard
from regard import config as C
from regard.core.tokens import sequence_tokens

SIZE, WIDE = 4, 9


def encoder(pooling="mean", out=3, **said):
    inner = small(dim=WIDE, attention=C.Attention(heads=3), position=C.RotaryPosition(fraction=0.9))
    front = C.ChunkEmbedding(vocab=VOCAB, chunk_size=SIZE, pooling=pooling, trunk=inner, **said)
    return model(embed=front, head=C.PoolingHead(pooling="mean", out=out), position=C.SinusoidalPosition()).double()


@pytest.mark.spec("S120")
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_chunks_are_read_alone_and_pooled(pooling):
    one, ids = encoder(pooling), ids_of(B, 3 * SIZE)
    front, rows = one.embed, []
    for piece in ids.split(SIZE, 1):
        made = front.trunk(front.text(piece)).x
        rows.append(front.map(made.mean(1) if pooling == "mean" else made[:, 0]))

    tokens = front(ids)
    assert tokens.is_plain
    assert_near(tokens.x, torch.stack(rows, 1), 1e-10)
    assert_near(one(ids), one.head(one.trunk(sequence_tokens(torch.stack(rows, 1)))), 1e-10)


@pytest.mark.spec("S120")
@pytest.mark.parametrize("left, right", [(0, 5), (3, 0), (2, 7), (0, 1)])
def test_padding_on_either_side_changes_nothing(left, right):
    one, ids = encoder(), ids_of(B, 3 * SIZE - 1)
    longer, real, _ = padded(ids, left, right)

    assert_near(one(longer, real=real), one(ids), 1e-10)


def test_a_vector_knows_its_own_chunk_alone():
    one = encoder()
    ids = ids_of(1, 3 * SIZE)
    made, first = one.embed(ids).x, one.embed.text.tokens(ids)
    other = ids.clone()
    other[:, SIZE : 2 * SIZE] = (ids[:, SIZE : 2 * SIZE] + 1) % VOCAB
    changed = (one.embed(other).x - made).abs().amax(-1)[0]

    assert first.shape[1] == 12
    assert changed[1] > 1e-3 and not changed[[0, 2]].any()


def test_the_pad_id_is_not_read():
    one = encoder(pad_id=0)
    ids = ids_of(B, 2 * SIZE)

    assert_near(one(torch.cat([ids, torch.zeros(B, 6).long()], 1)), one(ids), 1e-10)


def test_what_it_makes_can_be_looked_into_and_is_trained():
    one, ids = encoder(), ids_of(B, 2 * SIZE + 1)
    with regard.looking(one, "embed.0.attn.pattern", "trunk.0.attn.pattern") as seen:
        one(ids).square().sum().backward()

    assert seen["embed.0.attn.pattern"].shape == (B * 3, 3, SIZE, SIZE)
    assert seen["trunk.0.attn.pattern"].shape == (B, 3, 3, 3)
    assert all(weight.grad.abs().sum() > 0 for weight in one.embed.parameters())


def test_packing_and_what_cannot_be_built_are_refused():
    with pytest.raises(ValueError, match="document: chunked text"):
        encoder()(ids_of(B, 8), document=torch.zeros(B, 8).long())
    with pytest.raises(ValueError, match="a chunk has no memory for cross-attention"):
        C.ChunkEmbedding(trunk=small(cross="last"))
    with pytest.raises(ValueError, match="chunk_size"):
        C.ChunkEmbedding(chunk_size=0)


def test_a_config_says_it():
    c = C.from_dict(
        C.Transformer,
        {
            "embed": {"kind": "chunks", "chunk_size": 7, "vocab": 23, "trunk": {"dim": 16, "depth": 1}},
            "head": {"kind": "pooling"},
        },
    )

    assert isinstance(c.embed, C.ChunkEmbedding) and c.embed.chunk_size == 7
    assert C.from_dict(C.Transformer, C.to_dict(c)) == c
