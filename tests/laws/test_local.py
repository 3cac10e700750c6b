"""Windows in chunks mean what the dense mask means, in output and gradients, at every length."""

import pytest
import torch
from core.builders import asking, attend, gradients, heads_of
from parity.tolerance import GRADIENT, assert_near

from regard.core.kernels import make_plan
from regard.core.tokens import sequence_tokens

MASKS = ["causal & window(5)", "window(5)", "causal & window(20)", "window(17)", "causal & window(0)", "window(0)"]


def row(count):
    return sequence_tokens(torch.empty(2, count, 0))


@pytest.mark.spec("S027")
@pytest.mark.parametrize("text", MASKS)
@pytest.mark.parametrize("count", [1, 3, 16, 17, 40, 101])
@pytest.mark.parametrize("heads, kv_heads", [(3, 3), (4, 2)])
def test_chunks_of_a_window_equal_the_dense_mask(text, count, heads, kv_heads):
    ask = asking(text, row(count))
    q, k, v = heads_of(count, count, heads=heads, kv_heads=kv_heads)

    results = [attend(name, q, k, v, ask, 0.4) for name in ("local", "reference")]

    assert_near(*results)
    for ours, theirs in zip(*(gradients(out, [q, k, v]) for out in results), strict=True):
        assert_near(ours, theirs, GRADIENT)


def test_a_long_line_is_claimed_and_a_short_or_padded_one_is_not():
    long, short = asking("causal & window(8)", row(64)), asking("causal & window(8)", row(63))

    assert make_plan("auto", long).kernel.name == "local"
    assert "no more than the window" in make_plan("auto", long).reason
    assert make_plan("auto", short).kernel.name == "fused"
    assert make_plan("auto", asking("causal", row(64))).kernel.name == "fused"


@pytest.mark.parametrize("text", ["full", "causal", "edges", "strided(3) | window(2)", "~window(3)"])
def test_masks_that_leave_most_keys_are_refused(text):
    with pytest.raises(ValueError, match="computes windows, blocks, dilations and global tokens"):
        make_plan("local", asking(text, row(64)))
