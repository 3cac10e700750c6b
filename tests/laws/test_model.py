"""Laws of whole models: time, padding, packing, prefixes, and learning."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from core.builders import (
    CPU_KERNELS,
    DIM,
    MEANINGS,
    PLACED,
    POSITIONS,
    VOCAB,
    B,
    H,
    ids_of,
    model,
    padded,
    padded_tokens,
    stack,
    translator,
    trunk,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.tolerance import NORM, assert_near
from torch import Tensor

from regard import config as C
from regard.core.hooks import looking
from regard.core.masks import mask
from regard.core.model import Transformer, Trunk
from regard.core.tokens import sequence_tokens

N, M = 7, 5
amounts = st.integers(0, 4)
BOTH = {"bidirectional": True}  # buckets that look both ways, for masks that do


# ---------------------------------------------------------------- time


def derivatives(trunk_: Trunk, count: int) -> Tensor:
    """(N, N): how much output i is moved by input j."""
    x = torch.randn(1, count, trunk_.incoming, requires_grad=True)
    out = trunk_(sequence_tokens(x)).x[0]
    probe = torch.randn(out.shape[-1])
    return torch.stack([torch.autograd.grad(row @ probe, x, retain_graph=True)[0][0].abs().sum(-1) for row in out])


@pytest.mark.spec("S020")
@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_the_future_cannot_change_the_past(kernel, name):
    moved = derivatives(stack(mask="causal", attention=C.Attention(heads=H, kernel=kernel), **PLACED[name]), N)

    assert (moved.triu(1) == 0).all()
    assert (moved.tril() > 0).sum() == N * (N + 1) // 2


@pytest.mark.slow
@pytest.mark.spec("S020")
@pytest.mark.parametrize("name", ["none", "alibi"])
@torch.no_grad()
def test_the_future_cannot_change_one_bit_of_the_past_in_flex(name):
    decoder = model(mask="causal", attention=C.Attention(heads=H, kernel="flex"), position=POSITIONS[name])
    ids = ids_of(B, N)
    other = torch.cat([ids[:, :4], ids_of(B, N - 4)], 1)

    assert torch.equal(decoder(ids)[:, :4], decoder(other)[:, :4])
    assert not torch.equal(decoder(ids)[:, 4:], decoder(other)[:, 4:])


@pytest.mark.spec("S020")
@pytest.mark.parametrize("text", [text for text in MEANINGS if mask(text).tables <= {"order"} and "causal &" in text])
def test_a_mask_that_is_also_causal_hides_the_future(text):
    assert (derivatives(stack(mask=text, depth=3), N).triu(1) == 0).all()


@pytest.mark.spec("S025")
@pytest.mark.parametrize("name", PLACED)
@torch.no_grad()
def test_one_causal_pass_is_all_fifteen_prefixes_at_once(name):
    words = "when the rain had stopped we went down to the harbour and bought two red bags"
    vocabulary = sorted(set(words.split()))
    ids = torch.tensor([[vocabulary.index(word) for word in words.split()]])
    prefixes = range(1, ids.shape[1])
    decoder = model(mask="causal", **PLACED[name])
    at_once = F.cross_entropy(decoder(ids[:, :-1])[0], ids[0, 1:], reduction="none")
    one_by_one = [F.cross_entropy(decoder(ids[:, :n])[:, -1], ids[:, n]) for n in prefixes]

    assert len(prefixes) == len(at_once) == 15
    assert_near(at_once, torch.stack(one_by_one))


@pytest.mark.spec("S023")
def test_an_encoder_is_a_decoder_without_the_mask():
    encoder, decoder = model(mask="full"), model(mask="causal", seed=1)
    decoder.load_state_dict(encoder.state_dict())
    ids = ids_of(B, N)

    assert_near(encoder(ids[:, :1]), decoder(ids[:, :1]), 0)  # one token has no future
    assert (encoder(ids) - decoder(ids)).abs().amax((0, 2))[:-1].min() > 1e-3
    decoder.trunk.masks = encoder.trunk.masks
    assert_near(encoder(ids), decoder(ids), 0)


@pytest.mark.spec("S023")
def test_in_one_layer_the_last_token_cannot_tell_an_encoder_from_a_decoder():
    encoder, decoder = model(mask="full", depth=1), model(mask="causal", depth=1)
    ids = ids_of(B, N)

    assert_near(encoder(ids)[:, -1], decoder(ids)[:, -1])


# ---------------------------------------------------------------- padding


def looks_both_ways(name: str) -> dict:
    said = PLACED[name]
    return said | {"position": replace(said["position"], **BOTH)} if name == "t5" else said


@pytest.mark.spec("S021")
@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("text", ["full", "causal", "causal & (window(2) | global_tokens(1))", "blocks(3)"])
@given(left=amounts, right=amounts)
@settings(max_examples=4)
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(text, name, left, right):
    torch.manual_seed(0)
    one, ids = model(mask=text, **looks_both_ways(name) if text != "causal" else PLACED[name]), ids_of(B, N)
    wide, real, inside = padded(ids, left, right)

    assert_near(one(wide, real=real)[:, inside], one(ids))


@pytest.mark.spec("S021")
@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("text", ["full", "causal"])
@given(left=amounts, right=amounts)
@settings(max_examples=4)
@torch.no_grad()
def test_a_padding_id_in_the_config_is_as_good_as_saying_what_is_real(text, kernel, left, right):
    torch.manual_seed(0)
    said = dict(mask=text, position=C.LearnedPosition(length=31), attention=C.Attention(heads=H, kernel=kernel))
    one, ids = model(embed=C.TextEmbedding(vocab=VOCAB, pad_id=0), **said), ids_of(B, N)
    wide, _, inside = padded(ids, left, right, fill=0)

    assert_near(one(wide)[:, inside], one(ids))


@pytest.mark.spec("S021")
@pytest.mark.parametrize("cross", ["last", "layerwise"])
@pytest.mark.parametrize("name", ["sinusoidal", "rotary", "alibi", "shaw"])
@given(sides=st.tuples(*[amounts] * 4))
@settings(max_examples=4)
@torch.no_grad()
def test_padding_on_either_side_of_source_and_target_changes_no_translation(name, cross, sides):
    torch.manual_seed(0)
    one = translator(source={"position": POSITIONS[name]}, position=POSITIONS[name], cross=cross)
    source, target = ids_of(B, M), ids_of(B, N)
    wide, real, inside = padded(target, *sides[:2])
    wide_source, source_real, _ = padded(source, *sides[2:])
    out = one(wide, source=wide_source, real=real, source_real=source_real)

    assert_near(out[:, inside], one(target, source=source))


@pytest.mark.spec("S021")
@torch.no_grad()
def test_rows_of_different_length_in_one_batch_are_the_rows_alone():
    one = model(mask="causal", position=C.LearnedPosition(length=31), embed=C.TextEmbedding(vocab=VOCAB, pad_id=0))
    rows = [ids_of(1, n) for n in (3, 7, 1, 5)]
    batch = torch.cat([F.pad(row, (0, 7 - row.shape[1])) for row in rows])

    for row, out in zip(rows, one(batch), strict=True):
        assert_near(out[None, : row.shape[1]], one(row))


@pytest.mark.spec("S021")
@pytest.mark.parametrize("text", ["full", "causal", "causal & window(2)"])
@given(seed=st.integers(0, 2**20))
@settings(max_examples=4)
@torch.no_grad()
def test_padding_may_even_stand_between_the_tokens(text, seed):
    torch.manual_seed(seed)
    one, ids, real = (
        model(mask=text, position=C.LearnedPosition(length=31)),
        ids_of(1, N),
        torch.zeros(1, 13, dtype=torch.bool),
    )
    where = torch.randperm(13)[:N].sort().values
    wide, real[0, where] = ids_of(1, 13), True
    wide[0, where] = ids[0]

    assert_near(one(wide, real=real)[:, where], one(ids))


@pytest.mark.spec("S021")
@torch.no_grad()
def test_padding_gets_a_weight_of_exactly_zero():
    one = model(mask="full")
    wide, real, _ = padded(ids_of(B, N), 2, 3)
    with looking(one, "trunk.*.attn.pattern") as seen:
        one(wide, real=real)

    for address in seen:
        hidden = ~real[:, None, None].expand_as(seen[address])
        assert (seen[address][hidden] == 0).all() and hidden.any()


@pytest.mark.spec("S021")
@torch.no_grad()
def test_zeros_are_not_ignored_by_themselves():
    """E23: a key of zeros scores 0, which is no small score, and takes its share of the softmax."""
    bare = stack(norm=C.Norm(bias=False), attention=C.Attention(heads=H, bias=()))
    x = torch.randn(B, N, DIM)
    wide = F.pad(x, (0, 0, 0, 4))
    real = torch.arange(N + 4).expand(B, -1) < N

    assert (bare(sequence_tokens(wide)).x[:, :N] - bare(sequence_tokens(x)).x).abs().max() > 0.1
    assert_near(bare(padded_tokens(wide, real)).x[:, :N], bare(sequence_tokens(x)).x)


@pytest.mark.spec("S024")
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_a_row_that_is_all_padding_harms_no_gradient(kernel):
    one = model(
        mask="causal", attention=C.Attention(heads=H, kernel=kernel), embed=C.TextEmbedding(vocab=VOCAB, pad_id=0)
    ).train()
    ids = ids_of(B, N)
    ids[0] = 0
    one(ids)[1].square().sum().backward()

    assert all(weight.grad.isfinite().all() for weight in one.parameters() if weight.grad is not None)


@pytest.mark.spec("S024")
def test_a_source_that_is_all_padding_leaves_the_decoder_to_itself():
    one = translator()
    source, target = ids_of(B, M), ids_of(B, N)
    nothing = torch.zeros(B, M, dtype=torch.bool)
    out = one(target, source=source, source_real=nothing)
    out.sum().backward()

    assert out.isfinite().all() and all(w.grad.isfinite().all() for w in one.trunk.parameters() if w.grad is not None)
    assert_near(out, one(target, source=ids_of(B, M + 4), source_real=torch.zeros(B, M + 4, dtype=torch.bool)))


# ---------------------------------------------------------------- packing


def packed(apart: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The documents in one row, and which of them each token belongs to."""
    return torch.cat(apart, 1), torch.cat([torch.full_like(ids, i) for i, ids in enumerate(apart)], 1)


def packed_equals_apart(one: Transformer, sizes: tuple[int, ...] = (3, 1, 5, 2)) -> None:
    apart = [ids_of(B, size) for size in sizes]
    together, document = packed(apart)

    assert_near(one(together, document=document), torch.cat([one(ids) for ids in apart], 1))


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("kernel", CPU_KERNELS)
@torch.no_grad()
def test_packed_documents_are_the_documents_apart(kernel, name):
    packed_equals_apart(model(mask="causal", attention=C.Attention(heads=H, kernel=kernel), **PLACED[name]))


@pytest.mark.parametrize(
    "text", ["full", "causal & window(1)", "strided(2)", "global_tokens(1) | window(0)", "prefix(2)", "blocks(2)"]
)
@torch.no_grad()
def test_packed_documents_are_the_documents_apart_under_every_mask(text):
    packed_equals_apart(model(mask=text, position=C.SinusoidalPosition()))


@pytest.mark.parametrize("first_sides", [(0, 0), (2, 0), (0, 2), (1, 3)])
@pytest.mark.parametrize("second_sides", [(0, 0), (2, 0), (0, 2), (1, 3)])
@torch.no_grad()
def test_packed_documents_may_be_padded_on_either_side(first_sides, second_sides):
    one = model(mask="causal", position=C.LearnedPosition(length=5), embed=C.TextEmbedding(vocab=VOCAB, pad_id=0))
    apart = [ids_of(B, 3), ids_of(B, 5)]
    sides = (first_sides, second_sides)
    together, document = packed([F.pad(ids, side) for ids, side in zip(apart, sides, strict=True)])
    out = one(together, document=document)[together != 0]

    assert_near(out, torch.cat([one(ids) for ids in apart], 1).flatten(0, 1))


@torch.no_grad()
def test_a_packed_row_may_be_longer_than_its_longest_document():
    packed_equals_apart(model(mask="causal", position=C.LearnedPosition(length=5)))


@torch.no_grad()
def test_packed_translations_are_the_translations_apart():
    one = translator(source={"position": C.SinusoidalPosition()}, position=C.SinusoidalPosition())
    sources, targets = ([ids_of(B, size) for size in sizes] for sizes in ((4, 1, 3), (2, 5, 1)))
    (source, read), (target, written) = packed(sources), packed(targets)
    apart = [one(ids, source=its) for ids, its in zip(targets, sources, strict=True)]

    assert_near(one(target, source=one.embed(source, document=read), document=written), torch.cat(apart, 1))


def test_a_packed_target_and_a_source_that_is_not_packed_are_refused_and_the_other_way_round():
    one, document = translator(), torch.zeros(B, M, dtype=torch.long)
    source = one.embed(ids_of(B, M), document=document)

    with pytest.raises(ValueError, match="document: a packed target reads a packed source"):
        one(ids_of(B, M), source=ids_of(B, M), document=document)
    with pytest.raises(ValueError, match="document: a packed target reads a packed source"):
        one(ids_of(B, M), source=source)


# ---------------------------------------------------------------- encoder and decoder


@pytest.mark.spec("S012")
@pytest.mark.parametrize("cross, notices", [("last", False), ("layerwise", True)])
@torch.no_grad()
def test_a_decoder_hears_of_early_encoder_layers_only_when_it_reads_layer_by_layer(cross, notices):
    one, source, target = translator(cross=cross), ids_of(B, M), ids_of(B, N)
    with looking(one, "encoder.final") as seen:
        before = one(target, source=source)
    with looking(one, "encoder.0.residual", edit=lambda name, x: x + 1), looking(
        one, "encoder.1.residual", edit=lambda name, x: x * 0
    ), looking(one, "encoder.final", edit=lambda name, x: seen["encoder.final"]):  # fmt: skip
        after = one(target, source=source)

    assert torch.equal(before, after) != notices


@pytest.mark.spec("S012")
@torch.no_grad()
def test_every_decoder_layer_reads_the_encoders_last_output():
    one, source, target = translator(depth=3), ids_of(B, M), ids_of(B, N)
    with looking(one, "trunk.*.cross.k", "encoder.final") as seen:
        one(target, source=source)

    for i, block in enumerate(one.trunk.blocks):
        k = block.cross.kv.split(seen["encoder.final"])["k"]
        assert_near(seen[f"trunk.{i}.cross.k"], block.cross.split(k, H), NORM)


@pytest.mark.spec("S012")
@torch.no_grad()
def test_layer_by_layer_each_decoder_layer_reads_its_own_encoder_layer():
    one, source, target = translator(cross="layerwise"), ids_of(B, M), ids_of(B, N)
    with looking(one, "trunk.*.cross.k", "encoder.*.residual") as seen:
        one(target, source=source)

    for i, block in enumerate(one.trunk.blocks):
        memory = one.encoder.final_norm(seen[f"encoder.{i}.residual"])
        assert_near(seen[f"trunk.{i}.cross.k"], block.cross.split(block.cross.kv.split(memory)["k"], H), NORM)


@pytest.mark.spec("S011")
def test_a_translation_looks_at_all_of_the_source_and_not_at_its_own_future():
    one, source, target = translator(), ids_of(1, M), ids_of(1, N)
    memory, x = (torch.randn(1, n, DIM, requires_grad=True) for n in (M, N))
    out = one(sequence_tokens(x), source=sequence_tokens(memory))
    to_source, to_past = torch.autograd.grad(out[0, 2] @ torch.randn(VOCAB), [memory, x])

    assert (to_source[0].abs().sum(-1) > 0).all()
    assert (to_past[0].abs().sum(-1) > 0).tolist() == [True] * 3 + [False] * 4
    assert one(target, source=source).shape == (1, N, VOCAB)


# ---------------------------------------------------------------- learning


@pytest.mark.slow
@pytest.mark.spec("S192")
def test_a_small_model_learns_any_table_of_sequences_by_heart():
    c = trunk(dim=48, attention=C.Attention(heads=3), mlp=C.MLP(hidden=95), position=C.LearnedPosition(length=N))
    one = Transformer(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=c, head=C.LMHead(tied=True), init="gpt2"))
    ask, answer = torch.randint(VOCAB, (100, N)), torch.randint(VOCAB, (100, N))
    optimizer = torch.optim.Adam(one.parameters(), lr=3e-3)
    for _ in range(250):
        loss = F.cross_entropy(one(ask).flatten(0, 1), answer.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert torch.equal(one(ask).argmax(-1), answer)


@pytest.mark.parametrize("build", [model, translator])
def test_every_parameter_learns_in_a_loop_of_plain_pytorch(build):
    one, ids = build().train(), ids_of(B, N)
    source = {"source": ids_of(B, M)} if build is translator else {}
    optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(one(ids, **source).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses == sorted(losses, reverse=True)
    assert all(weight.grad.any() for weight in one.parameters())
