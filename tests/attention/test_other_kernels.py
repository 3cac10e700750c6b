"""Linformer, top-k, additive and tiled attention: each at the setting where it must be attention itself, and beyond."""

from dataclasses import replace

import pytest
import torch
from attention.builders import decoder, layer, through
from core.builders import (
    BIASES,
    B,
    D,
    E,
    H,
    K,
    Q,
    asking,
    attend,
    biased,
    gradients,
    heads_of,
    ids_of,
    model,
    padded_tokens,
    scattered_pair,
)  # fmt: skip
from parity.tolerance import GRADIENT, assert_near

from regard import config as C
from regard.attention.additive import hard_lookup
from regard.attention.linformer import LengthProjection
from regard.core.kernels import AttentionArgs, make_plan
from regard.core.masks import mask
from regard.core.tokens import sequence_tokens


def row(count, batch=B):
    return sequence_tokens(torch.empty(batch, count, 0))


def assert_same(ours, theirs, weights, within=1e-5):
    assert_near(ours, theirs, within)
    for mine, other in zip(*(gradients(out, weights) for out in (ours, theirs)), strict=True):
        assert_near(mine, other, GRADIENT)


# ---------------------------------------------------------------- linformer


def identity(count):
    own = LengthProjection(count, count)
    with torch.no_grad():
        own.k.copy_(torch.eye(count))
        own.v.copy_(torch.eye(count))
    return own


@pytest.mark.spec("S065", "S117")
def test_linformer_that_mixes_nothing_is_attention():
    q, k, v = heads_of(K, K)
    ask = asking("full", row(K))

    assert_same(through("linformer", q, k, v, ask, identity(K)), through("reference", q, k, v, ask), (q, k, v))


@pytest.mark.spec("S065", "S117")
def test_linformer_is_attention_to_mixed_keys():
    q, k, v = heads_of(K, K, heads=6, kv_heads=2)
    own, ask = LengthProjection(3, K), asking("full", row(K))
    mixed = own.k @ k, own.v @ v

    expected = attend("reference", q, *mixed, asking("full", row(K), row(3)))
    assert_same(through("linformer", q, k, v, ask, own, D**-0.5), expected, (q, k, v, *own.parameters()))


def test_linformer_never_feels_padding():
    real = torch.arange(K) < torch.tensor([[4], [0]])
    ask = asking("padding", padded_tokens(torch.empty(B, K, 0), real))
    q, k, v = heads_of(K, K)
    own = LengthProjection(3, K)
    out = through("linformer", q, k, v, ask, own)
    loud = [x.masked_fill(~real[:, None, :, None], 1e9) for x in (k, v)]

    assert_near(through("linformer", q, *loud, ask, own), out, 0)
    assert not out[1].any()


@pytest.mark.spec("S065", "S117")
def test_the_weights_of_linformer_grow_with_the_length_times_what_is_left():
    assert sum(weight.numel() for weight in layer("linformer(5, 31)").own.parameters()) == 2 * 5 * 31
    learned = layer("linformer(5)", position=C.LearnedPosition(length=17))
    assert learned.own.k.shape == (5, 17)


@pytest.mark.parametrize(
    "ask, why",
    [
        (asking("causal"), "must be full"),
        (asking("window(2)"), "must be full"),
        (asking("full", row(3), row(5)), "neither cross-attention"),
        (asking("full", bias=True), "bias"),
    ],
)
def test_what_linformer_cannot_do_is_refused(ask, why):
    with pytest.raises(ValueError, match=why):
        make_plan("linformer", ask)


def test_linformer_needs_its_length_and_keeps_to_it():
    with pytest.raises(ValueError, match=r"linformer\(256, 1024\)"):
        layer("linformer")
    encoder = decoder("linformer(3, 7)", mask="full")
    encoder(ids_of(B, 7))
    with pytest.raises(ValueError, match="made for 7 tokens, got 6"):
        encoder(ids_of(B, 6))
    with pytest.raises(ValueError, match="causal"):
        decoder("linformer(3, 7)")(ids_of(B, 7))
    with pytest.raises(ValueError, match="has no cache"):
        decoder("linformer(3, 7)").cache(B, 7)


# ---------------------------------------------------------------- top-k


@pytest.mark.spec("S014")
@pytest.mark.parametrize("text", ["full", "causal & padding", "causal & (window(1) | global_tokens(1))"])
def test_all_keys_kept_is_attention_to_the_bit(text):
    ask = asking(text, *scattered_pair())
    q, k, v = heads_of(Q, K)

    for said in (f"topk({K})", "topk(900)"):
        assert torch.equal(attend(said, q, k, v, ask), attend("reference", q, k, v, ask))


@pytest.mark.spec("S013", "S014")
def test_one_key_kept_is_the_hard_lookup():
    q, k, v = heads_of(Q, K, kv_heads=1)
    out = attend("topk(1)", q, k, v, asking(q=row(Q), k=row(K)))

    for b in range(B):
        assert_near(out[b], hard_lookup(q[b], k[b, 0], v[b, 0]), 1e-6)


@pytest.mark.spec("S014")
@pytest.mark.parametrize("bias", [None, "alibi", "shaw"])
@pytest.mark.parametrize("text", ["full", "causal & padding"])
def test_the_best_keys_share_the_query_and_the_others_get_nothing(text, bias):
    places = scattered_pair()
    places = [type(each)(order=each.order, is_real=each.is_real) for each in places]
    ask, (q, k, v) = asking(text, *places), heads_of(Q, K)
    made = None if bias is None else biased(BIASES[bias], H).prepare(*places).bias_for(q, 0.3)
    scores = 0.3 * q @ k.mT
    if made is not None:
        scores = scores + make_plan("reference", replace(ask, bias=True, mask=mask("full"))).table(q, made)
    scores = scores.masked_fill(~ask.mask.table(*places)[:, None], float("-inf"))
    best = scores.topk(3)
    weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1)).nan_to_num()

    assert_near(attend("topk(3)", q, k, v, ask, 0.3, made), weights @ v)


@pytest.mark.spec("S014")
def test_gradients_of_the_best_are_finite_even_for_a_query_without_keys():
    q, k = scattered_pair()
    k.is_real[0] = False
    heads = heads_of(Q, K)
    out = attend("topk(2)", *heads, asking("padding", q, k))

    grads = gradients(out, heads)

    assert not out[0].any() and all(grad.isfinite().all() for grad in grads)
    assert grads[0][1].any() and not grads[0][0].any()


@pytest.mark.parametrize("kernel", ["topk(3)", "additive(5)"])
def test_a_few_queries_at_a_time_are_the_same_as_all_at_once(kernel, monkeypatch):
    layered = layer(kernel)
    q, k, v = heads_of(Q, K, heads=H)
    q, k, v = (x[..., :4].detach().requires_grad_() for x in (q, k, v))
    ask, weights = asking(q=row(Q), k=row(K)), [q, k, v, *([] if layered.own is None else layered.own.parameters())]
    whole = through(kernel, q, k, v, ask, layered.own)
    monkeypatch.setattr("regard.attention.pairwise.ROOM", 2 * B * H * K * 5)

    assert_same(through(kernel, q, k, v, ask, layered.own), whole, weights)


@pytest.mark.parametrize("kernel", ["topk(3)", "additive(5)", "tiled_flash(3)", "local"])
@torch.no_grad()
def test_generation_from_a_cache_is_the_same(kernel):
    one = decoder(kernel, mask="causal & (window(3) | global_tokens(2))")
    ids = ids_of(B, 9)
    cache = one.cache(B, 9)
    parts = [one(part, cache=cache) for part in ids.split([4, 1, 1, 3], 1)]

    assert_near(torch.cat(parts, 1), one(ids), 1e-5)


# ---------------------------------------------------------------- additive


@pytest.mark.spec("S009")
@pytest.mark.parametrize("text", ["full", "causal", "padding"])
def test_additive_attention_is_its_formula(text):
    own, places = layer("additive(5)").own, scattered_pair()
    q, k, v = heads_of(Q, K, heads=6, kv_heads=2)
    q, k = (x[..., :4].detach().requires_grad_() for x in (q, k))
    ask = asking(text, *places)
    rows = torch.zeros(B, 6, Q, E)
    for b in range(B):
        for h in range(6):
            for i in range(Q):
                seen = [j for j in range(K) if ask.mask.table(*places).expand(B, Q, K)[b, i, j]]
                scores = [own.w(torch.tanh(own.q(q[b, h, i]) + own.k(k[b, h // 3, j]))) for j in seen]
                if seen:
                    rows[b, h, i] = torch.cat(scores).softmax(0) @ v[b, h // 3, seen]

    assert_same(through("additive", q, k, v, ask, own), rows, (q, k, v, *own.parameters()))


def test_additive_attention_learns_its_own_weights():
    one = model(attention=C.Attention(heads=H, kernel="additive(5)"), mask="causal")
    one(ids_of(B, 7)).square().mean().backward()

    assert all(weight.grad.abs().sum() > 0 for block in one.trunk.blocks for weight in block.attn.own.parameters())
    with pytest.raises(ValueError, match="attention.scale"):
        layer("additive", scale=0.3)


# ---------------------------------------------------------------- tiled


@pytest.mark.spec("S116")
@pytest.mark.parametrize("size", [1, 3, 7, 64])
@pytest.mark.parametrize("text", ["full", "causal"])
def test_tiles_of_every_size_are_attention(text, size):
    q, k, v = heads_of(19, 19, heads=6, kv_heads=2)
    results = [attend(name, q, k, v, asking(text, row(19))) for name in (f"tiled_flash({size})", "reference")]

    assert_same(*results, (q, k, v))


@pytest.mark.spec("S116")
def test_tiles_keep_what_grows_with_the_length_alone():
    def kept(count):
        sizes, heads = [], [torch.randn(1, 2, count, 8, requires_grad=True) for _ in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            make_plan("tiled_flash(32)", asking("causal", row(count, 1))).run(*heads, AttentionArgs(0.3))
        return sum(sizes)

    assert kept(512) == 2 * kept(256)
    assert kept(512) == 4 * (2 * 512 * 8) + 2 * 512  # q, k, v, the output and a number a row


def test_tiles_refuse_dropout():
    with pytest.raises(ValueError, match="dropout"):
        make_plan("tiled_flash", asking("causal", dropout=True))
