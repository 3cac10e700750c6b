"""Every kernel here compiles into one graph, forward and backward, and means the same there."""

import pytest
import torch
from attention.builders import decoder
from core.builders import B, ids_of, padded
from parity.tolerance import assert_near

from regard.core.tokens import Tokens

# torch makes an instance of autograd.Function when it traces one, and warns itself
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")]
SAID = {
    "linear": {}, "performer(10)": {}, "topk(3)": {}, "additive(5)": {}, "tiled_flash(4)": {},
    "local": {"mask": "causal & (window(2) | global_tokens(1))"},
    "lsh(4, 2)": {"attention": {"projections": ("q", "v", "out")}},
    "linformer(3, 12)": {"mask": "full"}, "fused": {"kind": "reversible"},
}  # fmt: skip


def gradients(call, one, *given, **more):
    one.zero_grad()
    out = call(*given, **more)
    out.square().sum().backward()
    return [out.detach(), *(weight.grad for weight in one.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("kernel, is_padded", [(each, True) for each in SAID] + [("linear", False), ("local", False)])
def test_a_compiled_model_is_one_graph_and_means_the_same(kernel, is_padded):
    torch.compiler.reset()
    one = decoder(kernel, depth=1, **SAID[kernel])
    fast = torch.compile(one, fullgraph=True, dynamic=False, backend="aot_eager")
    ids, real, _ = padded(ids_of(B, 9), 2, 1)
    more = {"real": real} if is_padded else {}

    for ours, theirs in zip(gradients(fast, one, ids, **more), gradients(one, one, ids, **more), strict=True):
        assert_near(ours, theirs, 1e-4 * max(1, float(theirs.abs().max())))


@torch.no_grad()
def test_one_graph_serves_every_step_of_a_state():
    torch.compiler.reset()
    one = decoder("linear")
    graphs = []

    def counted(graph, given):
        graphs.append(graph)
        return graph.forward

    fast, ids, cache = torch.compile(one, fullgraph=True, backend=counted), ids_of(B, 9), one.cache(B, 9)
    parts = [one(ids[:, :4], cache=cache), *(fast(ids[:, i : i + 1], cache=cache) for i in range(4, 9))]

    assert_near(torch.cat(parts, 1), one(ids), 1e-5)
    assert len(graphs) == 1


def test_tokens_out_of_order_are_refused_when_a_compiled_graph_meets_them():
    torch.compiler.reset()
    one = decoder("linear", depth=1)
    fast = torch.compile(one, fullgraph=True, backend="aot_eager")
    order = torch.tensor([[0, 1, 3, 2]]).expand(B, -1)
    with pytest.raises(RuntimeError, match="needs tokens in order"):
        fast(Tokens(x=torch.randn(B, 4, one.c.trunk.dim), order=order))
