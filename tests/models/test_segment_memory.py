"""Segments with a memory mean what one long pass means, as far back as the memory reaches."""

import math

import pytest
import torch
import torch.nn.functional as F
from attention.builders import decoder
from core.builders import POSITIONS, B, ids_of, model, padded
from parity.tolerance import assert_near

from regard import config as C
from regard.core.model import Transformer
from regard.models.segment_memory import build_segment_memory

N = 23
ENDLESS = [name for name in POSITIONS if not name.startswith(("learned", "onehot", "sinusoidal beside"))]


def read(one, ids, pieces, length, real=None):
    seen = build_segment_memory(one, len(ids), length)
    parts, begin = [], 0
    for size in pieces:
        piece = slice(begin, begin + size)
        parts.append(one(ids[:, piece], cache=seen, **({} if real is None else {"real": real[:, piece]})))
        begin += size
    return torch.cat(parts, 1)


@pytest.mark.spec("S199")
@pytest.mark.parametrize("pieces", [[23], [7, 9, 7], [1] * 23])
@pytest.mark.parametrize("name", ENDLESS)
def test_a_memory_that_holds_everything_is_one_long_pass(name, pieces):
    one, ids = model(mask="causal", position=POSITIONS[name]).double(), ids_of(B, N)

    assert_near(read(one, ids, pieces, N), one(ids), 1e-10)


@pytest.mark.spec("S199")
@pytest.mark.parametrize("kernel", ["auto", "local", "tiled_flash(4)", "topk(3)"])
def test_a_memory_as_long_as_the_window_loses_nothing(kernel):
    one, ids = decoder(kernel, "causal & window(5)", position=C.RotaryPosition()).double(), ids_of(B, N)

    assert_near(read(one, ids, [6, 1, 9, 7], 5), one(ids), 1e-10)
    assert (read(one, ids, [6, 1, 9, 7], 3) - one(ids)).abs().max() > 1e-6


@pytest.mark.parametrize("kernel", ["linear", "performer(10)"])
def test_a_state_needs_no_length(kernel):
    one, ids = decoder(kernel).double(), ids_of(B, N)

    assert_near(read(one, ids, [6, 1, 9, 7], 1), one(ids), 1e-10)


def test_padding_is_not_remembered():
    one = model(mask="causal", position=C.AlibiPosition()).double()
    ids, real, kept = padded(ids_of(B, 17), 3, 3)

    assert_near(read(one, ids, [5, 9, 9], N, real)[:, kept], one(ids, real=real)[:, kept], 1e-10)


def test_the_new_segment_is_trained_and_what_is_remembered_is_not():
    one = model(mask="causal", position=C.RotaryPosition()).double()
    x = torch.randn(B, 10, one.c.trunk.dim, dtype=torch.float64, requires_grad=True)
    tokens = [tokens_at(x, 0, 6), tokens_at(x, 6, 10)]
    seen = build_segment_memory(one, B, 10)
    one(tokens[0], cache=seen)
    (grad,) = torch.autograd.grad(one(tokens[1], cache=seen)[:, -1].sum(), x)

    assert not grad[:, :6].any() and grad[:, 6:].abs().amin() > 0


def tokens_at(x, begin, end):
    from regard.core.tokens import Tokens

    return Tokens(x=x[:, begin:end], order=torch.arange(begin, end).expand(B, -1))


def test_its_size_never_changes_and_it_can_be_forgotten():
    one, ids = model(mask="causal", position=C.RotaryPosition()), ids_of(B, N)
    seen = build_segment_memory(one, B, 5)
    shapes = [table.shape for table in seen.tables()]
    first = one(ids[:, :7], cache=seen)
    one(ids[:, 7:], cache=seen)

    assert [table.shape for table in seen.tables()] == shapes
    seen.forget()
    assert_near(one(ids[:, :7], cache=seen), first, 0)


@pytest.mark.parametrize(
    "said, why", [({"position": C.LearnedPosition(length=31)}, "fixed length"), ({"mask": "full"}, "causal mask")]
)
def test_what_cannot_be_remembered_is_refused(said, why):
    with pytest.raises(ValueError, match=why):
        build_segment_memory(model(**({"mask": "causal"} | said)), B, 5)


def test_rewinding_and_other_rows_are_refused():
    one = model(mask="causal", position=C.RotaryPosition())
    seen = build_segment_memory(one, B, 5)
    with pytest.raises(ValueError, match="rewind"):
        seen.truncate(0)
    with pytest.raises(ValueError, match="rows"):
        one(ids_of(B + 1, 4), cache=seen)
    with pytest.raises(ValueError, match="length"):
        build_segment_memory(one, B, 0)


# ---------------------------------------------------------------- what it is for

WINDOW, AGAIN, VOCAB, ROWS = 8, 32, 7, 32


def copied(length, episodes=50):
    """The loss on texts that repeat after four windows, when they repeat, read a window at a time."""
    torch.manual_seed(0)
    c = C.Trunk(
        dim=32, depth=1, mask="causal", position=C.RelativeBias(max_distance=AGAIN, scaled=False),
        attention=C.Attention(heads=1, projections=("q", "k")), mlp=C.MLP(hidden=64), dropout=C.NO_DROPOUT,
    )  # fmt: skip
    one = Transformer(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=c, init="gpt2"))
    optimizer, seen = torch.optim.AdamW(one.parameters(), lr=0.02), build_segment_memory(one, ROWS, length)
    for _ in range(episodes):
        losses, text = [], torch.randint(VOCAB, (ROWS, AGAIN)).repeat(1, 3)
        for begin in range(0, 2 * AGAIN, WINDOW):
            piece = text[:, begin : begin + WINDOW + 1]
            logits = one(piece[:, :-1], cache=seen)
            if begin >= AGAIN:
                losses.append(F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten()))
                optimizer.zero_grad()
                losses[-1].backward()
                optimizer.step()
    return float(sum(losses).detach() / len(losses))


@pytest.mark.slow
@pytest.mark.spec("S199")
def test_a_text_is_copied_from_four_windows_ago():
    remembered, forgotten = copied(AGAIN), copied(WINDOW)

    assert remembered < 0.05
    assert forgotten > 0.9 * math.log(VOCAB)
