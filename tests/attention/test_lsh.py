"""Attention within buckets: dense where there is one bucket, and never wiser than the mask."""

import math

import pytest
import torch
import torch.nn.functional as F
from attention.builders import decoder, layer, through
from core.builders import B, D, E, asking, gradients, ids_of, padded_tokens
from parity.tolerance import GRADIENT, assert_near

from regard.attention.lsh import SELF_SCORE, LSHRotations, bucket_factors, sort_into_buckets
from regard.core.kernels import make_plan
from regard.core.masks import mask
from regard.core.tokens import TokenLayout, sequence_tokens

N, H, SCALE = 23, 3, 0.4
SHARED = {"projections": ("q", "v", "out")}


def row(count, batch=B):
    return sequence_tokens(torch.empty(batch, count, 0))


def given(count=N, dtype=torch.float32):
    q, v = (torch.randn(B, H, count, width, dtype=dtype, requires_grad=True) for width in (D, E))
    return q, v


def dense(q, v, allowed):
    """Attention with one vector for q and k, and a token its own key only where there is no other."""
    s = SCALE * q @ F.normalize(q, dim=-1).mT
    s = s.masked_fill(torch.eye(q.shape[2], dtype=torch.bool), SELF_SCORE).masked_fill(~allowed, -math.inf)
    return s.softmax(-1).nan_to_num() @ v


def hashed(q, v, ask, size, rounds=2):
    torch.manual_seed(3)
    return through("lsh", q, torch.full_like(q, math.nan), v, ask, LSHRotations(size, rounds, D), SCALE)


@pytest.mark.spec("S064", "S119")
@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("text", ["full", "causal", "causal & window(3)", "padding"])
def test_one_bucket_is_dense_attention_with_one_vector_for_q_and_k(text, rounds):
    q, v = given()
    real = torch.arange(N) < torch.tensor([[N - 4], [N]])
    places = padded_tokens(torch.empty(B, N, 0), real) if "padding" in text else row(N)
    ask = asking(text, places)
    allowed = ask.mask.table(places, places)[:, None].expand(B, H, N, N)
    results = [out * real[:, None, :, None] for out in (hashed(q, v, ask, N, rounds), dense(q, v, allowed))]

    assert_near(*results, 1e-5)
    for ours, theirs in zip(*(gradients(out, (q, v)) for out in results), strict=True):
        assert_near(ours, theirs, GRADIENT)


@pytest.mark.spec("S064", "S119")
def test_one_bucket_is_what_transformers_computes_for_a_short_text():
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    theirs = LSHSelfAttention(ReformerConfig(
        hidden_size=H * D, num_attention_heads=H, attention_head_size=D, lsh_attn_chunk_length=64, num_buckets=2,
        is_decoder=True, lsh_attention_probs_dropout_prob=0.0, num_hashes=1,
    )).eval()  # fmt: skip
    x = torch.randn(B, N, H * D)
    split = [weight(x).unflatten(-1, (H, D)).transpose(1, 2) for weight in (theirs.query_key, theirs.value)]
    expected = theirs(x).hidden_states.unflatten(-1, (H, D)).transpose(1, 2)
    made = through("lsh", split[0], split[0], split[1], asking("causal", row(N)), LSHRotations(64, 3, D), 1.0)

    assert_near(made, expected, 1e-4)


@pytest.mark.parametrize("text", ["full", "causal"])
def test_several_buckets_are_attention_to_those_of_the_bucket_and_nobody_else(text):
    """Of one round it can be said by a mask: the same bucket, and the same chunk of it or the one before."""
    q, v = given()
    own, ask, size = LSHRotations(4, 1, D), asking(text, row(N)), 4
    bucket = own.buckets(F.normalize(q.detach(), dim=-1), 0)
    earlier = (bucket[..., :, None] == bucket[..., None, :]).tril().sum(-1) - 1
    apart = earlier[..., :, None] // size - earlier[..., None, :] // size
    same = bucket[..., :, None] == bucket[..., None, :]
    shown = same & (apart >= 0) & (apart <= 1) & ask.mask.table(ask.q, ask.q)

    assert bucket.unique().numel() > 2
    assert_near(through("lsh", q, q, v, ask, own, SCALE), dense(q, v, shown), 1e-5)


@pytest.mark.parametrize("size", [4, 8])
def test_the_future_changes_nothing_not_even_by_crowding(size):
    q, v = given()
    ask, later = asking("causal", row(N)), 11
    out = hashed(q, v, ask, size)
    other_q, other_v = (torch.cat([x[:, :, :later], 9 * torch.randn_like(x[:, :, later:])], 2) for x in (q, v))

    assert_near(hashed(other_q, other_v, ask, size)[:, :, :later], out[:, :, :later], 1e-6)


def test_padding_is_never_heard():
    q, v = given()
    real = torch.arange(N) < torch.tensor([[N - 9], [0]])
    ask = asking(mask("causal & padding"), padded_tokens(torch.empty(B, N, 0), real))
    out = hashed(q, v, ask, 4)
    loud = v.masked_fill(~real[:, None, :, None], 1e9)

    assert_near(hashed(q, loud, ask, 4), out, 0)
    assert not out[1].any() and out[0, :, : N - 9].all()
    assert all(grad.isfinite().all() for grad in gradients(out, (q, v)))


def test_more_rounds_come_nearer():
    torch.manual_seed(0)
    q, v = (torch.randn(1, 2, 256, 16) * scale for scale in (3, 1))
    ask = asking("full", row(256, 1))
    exact = through("lsh", q, q, v, ask, LSHRotations(256, 1, 16), 1.0)
    errors = []
    for rounds in (1, 4, 16):
        torch.manual_seed(1)
        errors.append((through("lsh", q, q, v, ask, LSHRotations(32, rounds, 16), 1.0) - exact).norm())

    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("many, size, count", [(1, 5, 7), (4, 3, 23), (12, 8, 50)])
def test_every_token_has_a_slot_and_no_chunk_holds_two_buckets(many, size, count):
    bucket = torch.randint(many, (2, 3, count))
    home, token = sort_into_buckets(bucket, size, many)

    assert torch.equal(token.gather(-1, home), torch.arange(count).expand_as(home))
    assert (token >= 0).sum() == bucket.numel()
    held = bucket.gather(-1, token.clamp(min=0)).masked_fill(token < 0, -1).unflatten(-1, (-1, size))
    assert all(len(set(chunk.tolist()) - {-1}) <= 1 for chunk in held.flatten(0, 2))
    inside = token.unflatten(-1, (-1, size)).masked_fill(held < 0, count)
    assert (inside.diff(dim=-1) >= 0).all()  # in the order of the text


@pytest.mark.parametrize("count, size, buckets", [(64, 64, 1), (65, 64, 2), (1000, 64, 16), (65536, 64, 1024)])
def test_there_are_about_as_many_buckets_as_chunks(count, size, buckets):
    first, second = bucket_factors(count, size)

    assert buckets <= first * second <= 2 * buckets


def test_gradients_are_those_of_small_steps():
    q, v = given(7, torch.float64)
    q, v = (x[:1, :1, :, :3].detach().requires_grad_() for x in (q, v))
    own, ask = LSHRotations(3, 2, 3), asking("causal", row(7, 1))

    assert torch.autograd.gradcheck(lambda q, v: through("lsh", q, q, v, ask, own, SCALE), (q, v), atol=1e-4)


def test_models_share_q_and_k_by_leaving_out_a_map():
    one = decoder("lsh(4, 2)", attention=SHARED)

    assert one(ids_of(B, 9)).isfinite().all()
    assert "k" not in one.trunk.blocks[0].attn.qkv.sizes
    with pytest.raises(ValueError, match=r"set attention.projections = \['q', 'v', 'out'\]"):
        decoder("lsh(4, 2)")


def test_caches_and_sources_are_refused():
    with pytest.raises(ValueError, match="has no cache"):
        decoder("lsh(4, 2)", attention=SHARED).cache(B, 9)
    with pytest.raises(ValueError, match="neither cross-attention nor a cache"):
        make_plan("lsh", asking("full", row(3), row(5)))


def test_packed_documents_are_refused():
    places = TokenLayout(order=torch.tensor([[0, 1, 0]]), document=torch.tensor([[0, 0, 1]]))
    with pytest.raises(ValueError, match="would share buckets"):
        make_plan("lsh", asking("causal & documents", places))


def test_its_numbers_are_the_size_of_a_bucket_and_the_rounds():
    own = layer("lsh(5, 3)", **SHARED).own

    assert own.size == 5 and len(own.w) == 3 and len(layer("lsh", **SHARED).own.w) == 4
