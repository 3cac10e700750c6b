"""A stack that computes its inputs back: the same outputs and gradients as one that keeps them, in less memory."""

import pytest
import torch
from core.builders import PLACED, B, H, ids_of, model, padded, translator
from parity.tolerance import assert_near

import regard
from regard import config as C
from regard.models.reversible import ReversibleTrunk

N = 9
DROPS = C.Dropout(embed=0.1, attention=0.2, mlp=0.3, residual=0.2)


def gradients(one, *given, plain=False, monkeypatch=None, **more):
    """The loss's gradients, by walking back or by keeping everything."""
    if plain:
        monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    torch.manual_seed(5)
    out = one(*given, **more)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
    one.zero_grad()
    (out * probe).sum().backward()
    if plain:
        monkeypatch.undo()
    return out.detach(), {name: weight.grad for name, weight in one.named_parameters() if weight.grad is not None}


def assert_same(one, monkeypatch, within, *given, **more):
    (ours, mine), (theirs, kept) = (gradients(one, *given, plain=plain, monkeypatch=monkeypatch, **more)
                                    for plain in (False, True))  # fmt: skip
    assert_near(ours, theirs, within)
    assert mine.keys() == kept.keys() and any(grad.abs().max() > 1e-3 for grad in mine.values())
    for name in kept:
        assert_near(mine[name], kept[name], within * max(1, float(kept[name].abs().max())), name)


def reversible(**said):
    return model(kind="reversible", **({"mask": "causal", "depth": 4} | said))


@pytest.mark.spec("S064", "S119")
@pytest.mark.parametrize("dtype, within", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_gradients_by_walking_back_are_those_of_what_was_kept(dtype, within, monkeypatch):
    assert_same(reversible(depth=7).to(dtype), monkeypatch, within, ids_of(B, N))


@pytest.mark.parametrize("name", PLACED)
def test_every_position_gets_its_gradient(name, monkeypatch):
    assert_same(reversible(**PLACED[name]).double(), monkeypatch, 1e-10, ids_of(B, N))


@pytest.mark.parametrize("kernel", ["fused", "linear", "additive", "performer(10)"])
def test_every_kernel_gets_its_gradient(kernel, monkeypatch):
    one = reversible(attention=C.Attention(heads=H, kernel=kernel))
    assert_same(one.double(), monkeypatch, 1e-10, ids_of(B, N))


def test_shared_layers_sum_their_gradients(monkeypatch):
    assert_same(reversible(share_layers=True).double(), monkeypatch, 1e-10, ids_of(B, N))


def test_padding_is_honoured(monkeypatch):
    ids, real, _ = padded(ids_of(B, N), 2, 1)
    assert_same(reversible().double(), monkeypatch, 1e-10, ids, real=real)


@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_a_source_gets_its_gradient(cross, monkeypatch):
    one = translator({"kind": "reversible"}, kind="reversible", cross=cross).double()
    assert_same(one, monkeypatch, 1e-10, ids_of(B, N), source=ids_of(B, 5))


def test_dropout_drops_the_same_the_second_time(monkeypatch):
    one = reversible(dropout=DROPS).double().train()
    assert_same(one, monkeypatch, 1e-10, ids_of(B, N))

    torch.manual_seed(1)
    after = []
    for walk in (True, False):
        torch.manual_seed(1)
        out = one(ids_of(B, N)).sum()
        if walk:
            out.backward()
        after.append(torch.rand(3))
    assert torch.equal(*after)  # and the random numbers of others are left alone


def test_frozen_weights_stay_without_gradient(monkeypatch):
    one = reversible().double()
    one.trunk.blocks[1].attn.requires_grad_(False)
    assert_same(one, monkeypatch, 1e-10, ids_of(B, N))
    assert one.trunk.blocks[1].attn.qkv.weight.grad is None


def test_mixed_precision_recomputes_in_what_it_computed_in(monkeypatch):
    assert_same(reversible(precision="mixed"), monkeypatch, 0.02, ids_of(B, N))


def kept(depth):
    """Numbers that autograd keeps for a training step, weights not counted."""
    one, sizes = reversible(depth=depth), {}
    weights = {weight.data_ptr() for weight in one.parameters()}

    def keep(x):
        if x.data_ptr() not in weights:
            sizes[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        one(ids_of(B, 31)).sum()
    return sum(sizes.values())


@pytest.mark.spec("S064", "S119")
def test_what_is_kept_does_not_grow_with_the_depth():
    assert kept(2) == kept(12)


@torch.no_grad()
def test_generation_from_a_cache_is_the_same():
    one, ids = reversible(), ids_of(B, N)
    cache = one.cache(B, N)
    parts = [one(part, cache=cache) for part in ids.split([4, 1, 4], 1)]

    assert_near(torch.cat(parts, 1), one(ids), 1e-5)


def test_watching_changes_nothing_and_edits_move_both_streams():
    one, ids = reversible(), ids_of(B, N)
    plain = one(ids)
    with regard.looking(one, "trunk.3.residual", "trunk.0.attn.pattern", "trunk.final") as seen:
        assert_near(one(ids), plain, 1e-6)
    assert_near(one.trunk.final_norm(seen["trunk.3.residual"]), seen["trunk.final"], 1e-5)
    with regard.looking(one, "trunk.3.residual", edit=lambda name, x: 0 * x):
        assert one(ids).std(1).max() < 1e-3  # a norm of nearly nothing


def test_the_formula_of_a_block():
    one = reversible(depth=1)
    block, x = one.trunk.blocks[0], torch.randn(B, N, one.c.trunk.dim)
    tokens = regard.sequence_tokens(x)
    first = x + block.attn(block.attn_norm(x), scope_of(one, tokens))
    second = x + block.mlp(block.mlp_norm(first), scope_of(one, tokens))

    assert isinstance(one.trunk, ReversibleTrunk)
    assert_near(one.trunk(tokens).x, one.trunk.final_norm((first + second) / 2), 1e-5)


def scope_of(one, tokens):
    from regard.core.layers import Scope
    from regard.core.positions import PreparedPosition

    return Scope(
        plan=one.trunk.runner.plan(one.trunk, tokens.x, one.trunk.masks[0], tokens, tokens, PreparedPosition()),
        position=PreparedPosition(),
    )


def test_post_norm_is_refused():
    with pytest.raises(ValueError, match="trunk.norm_placement = 'pre'"):
        reversible(norm_placement="post")
