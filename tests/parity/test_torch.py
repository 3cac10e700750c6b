"""With the same weights, equal to torch.nn: attention, norms, layers, and the whole Transformer."""

import pytest
import torch
from parity.tolerance import NORM, assert_all_near, assert_near, gradients, randomise, renamed_gradients
from torch import Tensor, nn

from regard import config as C
from regard.core.hooks import looking
from regard.core.layers import MLP, Norm, Scope
from regard.core.model import Transformer, Trunk
from regard.core.positions import PreparedPosition
from regard.core.tokens import Tokens, sequence_tokens
from regard.hub import name_table

B, N, M, D, H, F = 2, 5, 7, 12, 4, 17  # M: tokens of the memory
BASE = dict(dim=D, position=C.NoPosition(), attention=C.Attention(heads=H), dropout=C.NO_DROPOUT)

# One table for everything torch.nn stacks. Its cross-attention keeps q, k, v in one tensor; `parted` cuts it first.
TABLE = list(
    name_table.parse_rows("""
        encoder.layers.{i}.self_attn.in_proj_{w}         encoder.blocks.{i}.attn.qkv.{w}
        encoder.layers.{i}.self_attn.out_proj.{w}        encoder.blocks.{i}.attn.out.{w}
        encoder.layers.{i}.linear1.{w}                   encoder.blocks.{i}.mlp.up.{w}
        encoder.layers.{i}.linear2.{w}                   encoder.blocks.{i}.mlp.down.{w}
        encoder.layers.{i}.norm1.{w}                     encoder.blocks.{i}.attn_norm.{w}
        encoder.layers.{i}.norm2.{w}                     encoder.blocks.{i}.mlp_norm.{w}
        encoder.norm.{w}                                 encoder.final_norm.{w}
        decoder.layers.{i}.self_attn.in_proj_{w}         trunk.blocks.{i}.attn.qkv.{w}
        decoder.layers.{i}.self_attn.out_proj.{w}        trunk.blocks.{i}.attn.out.{w}
        decoder.layers.{i}.multihead_attn.q.{w}          trunk.blocks.{i}.cross.q.{w}
        decoder.layers.{i}.multihead_attn.kv.{w}         trunk.blocks.{i}.cross.kv.{w}
        decoder.layers.{i}.multihead_attn.out_proj.{w}   trunk.blocks.{i}.cross.out.{w}
        decoder.layers.{i}.linear1.{w}                   trunk.blocks.{i}.mlp.up.{w}
        decoder.layers.{i}.linear2.{w}                   trunk.blocks.{i}.mlp.down.{w}
        decoder.layers.{i}.norm1.{w}                     trunk.blocks.{i}.attn_norm.{w}
        decoder.layers.{i}.norm2.{w}                     trunk.blocks.{i}.cross_norm.{w}
        decoder.layers.{i}.norm3.{w}                     trunk.blocks.{i}.mlp_norm.{w}
        decoder.norm.{w}                                 trunk.final_norm.{w}
    """)
)


def parted(state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    out = {}
    for name, tensor in state.items():
        if "multihead_attn.in_proj_" in name:
            q, kv = tensor.split([D, 2 * D])
            name = name.replace("in_proj_", "{}.")
            out |= {prefix + name.format("q"): q, prefix + name.format("kv"): kv}
        else:
            out[prefix + name] = tensor
    return out


def ours_like(theirs: nn.Module, prefix: str = "", **trunks: C.Trunk) -> nn.ModuleDict:
    """Our trunks with the weights of a torch module."""
    randomise(theirs)
    ours = nn.ModuleDict({name: Trunk(c) for name, c in trunks.items()})
    name_table.load_tensors(ours, parted(theirs.state_dict(), prefix), TABLE)
    return ours


def assert_equal(ours: nn.ModuleDict, theirs: nn.Module, out: Tensor, want: Tensor, prefix: str = "") -> None:
    """Outputs near; and after one backward from the same place, the gradients of all weights."""
    probe = torch.randn_like(want)
    assert_near(out, want)
    (out * probe).sum().backward()
    (want * probe).sum().backward()
    want_grads = parted(gradients(theirs), prefix)
    assert len(want_grads) == len(parted(dict(theirs.named_parameters()), prefix))
    assert_all_near(renamed_gradients(ours, TABLE), want_grads)


def tokens(x: Tensor, real: Tensor | None = None) -> Tokens:
    row = sequence_tokens(x)
    row.is_real, row.is_plain = real, real is None
    return row


def padding(count: int) -> Tensor:  # (B, count), True for real tokens: row 1 lacks its last three
    return torch.arange(count) < torch.tensor([[count], [count - 3]])


def triangle(count: int) -> Tensor:
    """torch's word for causal: True where looking is forbidden."""
    return torch.ones(count, count, dtype=torch.bool).triu(1)


# ---------------------------------------------------------------- attention alone


class Attended:
    """One of the two attentions of a decoder as it happens, and torch.nn.MultiheadAttention in its place."""

    def __init__(self, side: str, mask: str = "full", padded: bool = False) -> None:
        trunk = C.Trunk(depth=1, norm_placement="post", **BASE)
        decoder = C.Trunk(depth=1, norm_placement="post", mask=mask, cross="last", **BASE)
        model = Transformer(C.Transformer(trunk=decoder, encoder=C.Encoder(trunk=trunk), head=C.NoHead()))
        randomise(model)
        x = torch.randn(B, N, D)
        real, source_real = (padding(N), padding(M)) if padded else (None, None)
        with looking(model, "encoder.final", f"trunk.0.{side}.*", "trunk.0.attn.out") as seen:
            model(tokens(x, real), source=tokens(torch.randn(B, M, D), source_real))
        block = model.trunk.blocks[0]
        # post-norm: self-attention is given x itself, cross-attention what the first norm makes
        query = x if side == "attn" else block.attn_norm(x + seen["trunk.0.attn.out"])
        key, real = (x, real) if side == "attn" else (seen["encoder.final"], source_real)
        query, key = query.detach(), key.detach()
        self.ours, self.theirs = getattr(block, side), nn.MultiheadAttention(D, H, batch_first=True)
        self.theirs.load_state_dict(self.fused("weight") | self.fused("bias"))
        self.want, self.want_pattern = self.theirs(
            query, key, key, attn_mask=triangle(N) if mask == "causal" else None,
            key_padding_mask=None if real is None else ~real,
        )  # fmt: skip
        self.out, self.pattern = seen[f"trunk.0.{side}.out"], seen[f"trunk.0.{side}.pattern"]

    def fused(self, what: str, grad: bool = False) -> dict[str, Tensor]:
        """Our weights, or their gradients, under torch's names."""
        maps = [self.ours.q, self.ours.kv] if hasattr(self.ours, "kv") else [self.ours.qkv]
        weights = [getattr(each, what) for each in (*maps, self.ours.out)]
        *asks, out = [weight.grad for weight in weights] if grad else weights
        return {f"in_proj_{what}": torch.cat(asks), f"out_proj.{what}": out}


ATTENDED = pytest.mark.parametrize(
    "how",
    [
        dict(side="attn"),
        dict(side="attn", mask="causal"),
        dict(side="attn", padded=True),
        dict(side="attn", mask="causal", padded=True),
        dict(side="cross"),
        dict(side="cross", padded=True),
    ],
    ids=["self", "causal", "padded", "causal and padded", "cross", "cross and padded"],
)


@ATTENDED
def test_attention_equals_multihead_attention(how):
    case = Attended(**how)

    assert_near(case.out, case.want)


@ATTENDED
def test_the_pattern_averaged_over_heads_is_multihead_attentions_weights(how):
    case = Attended(**how)

    assert_near(case.pattern.mean(1), case.want_pattern)


@ATTENDED
def test_attention_learns_what_multihead_attention_learns(how):
    case = Attended(**how)
    probe = torch.randn(B, N, D)
    (case.out * probe).sum().backward()
    (case.want * probe).sum().backward()

    assert_all_near(case.fused("weight", grad=True) | case.fused("bias", grad=True), gradients(case.theirs))


# ---------------------------------------------------------------- norms and feed-forward


@pytest.mark.spec("S043")
@pytest.mark.parametrize("affine", [True, False], ids=["with gain and bias", "bare"])
def test_layer_norm_equals_torch(affine):
    ours, theirs = Norm(C.Norm(gain=affine, bias=affine, eps=1e-3), D), nn.LayerNorm(D, 1e-3, elementwise_affine=affine)
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = 3 * torch.randn(B, N, D) + 2

    assert_near(ours(x), theirs(x), NORM)


@pytest.mark.spec("S043")
@pytest.mark.parametrize("affine", [True, False], ids=["with gain", "bare"])
def test_rms_norm_equals_torch(affine):
    ours = Norm(C.Norm(kind="rms", gain=affine, eps=1e-3), D)
    theirs = nn.RMSNorm(D, 1e-3, elementwise_affine=affine)
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = 3 * torch.randn(B, N, D) + 2

    assert_near(ours(x), theirs(x), NORM)


@pytest.mark.spec("S039")
def test_the_feed_forward_layer_is_two_convolutions_of_width_one():
    dim, hidden = 512, 2048  # the slide's sizes
    ours = MLP(C.MLP(hidden=hidden), dim, dropout=0.0)
    first, second = nn.Conv1d(dim, hidden, kernel_size=1), nn.Conv1d(hidden, dim, kernel_size=1)
    for linear, conv in ((ours.up, first), (ours.down, second)):
        linear.load_state_dict({"weight": conv.weight.squeeze(2), "bias": conv.bias})
    x = torch.randn(2, 10, dim)
    convolved = second(first(x.mT).relu()).mT

    assert torch.allclose(
        ours(x, Scope(plan=None, position=PreparedPosition())), convolved, atol=1e-6
    )  # the slide's own line


# ---------------------------------------------------------------- layers


LAYERS = pytest.mark.parametrize("activation", ["relu", "gelu"])
PLACES = pytest.mark.parametrize("place", ["pre", "post"])


def layer(place: str, activation: str, **more: object) -> C.Trunk:
    return C.Trunk(
        depth=1, norm_placement=place, final_norm=False, mlp=C.MLP(hidden=F, activation=activation), **BASE, **more
    )


def torch_layer(kind: type[nn.Module], place: str, activation: str) -> nn.Module:
    return kind(D, H, F, dropout=0.0, activation=activation, batch_first=True, norm_first=place == "pre")


@pytest.mark.spec("S045")
@PLACES
@LAYERS
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_the_block_equals_torchs_encoder_layer(place, activation, padded):
    theirs = torch_layer(nn.TransformerEncoderLayer, place, activation)
    ours = ours_like(theirs, "encoder.layers.0.", encoder=layer(place, activation))
    x, real = torch.randn(B, N, D), padding(N) if padded else None
    out = ours["encoder"](tokens(x, real)).x
    want = theirs(x, src_key_padding_mask=None if real is None else ~real)

    assert_equal(ours, theirs, out, want, "encoder.layers.0.")


@pytest.mark.spec("S022", "S046")
@PLACES
@LAYERS
@pytest.mark.parametrize("padded", [False, True], ids=["whole memory", "padded memory"])
def test_the_block_with_two_masks_equals_torchs_decoder_layer(place, activation, padded):
    theirs = torch_layer(nn.TransformerDecoderLayer, place, activation)
    ours = ours_like(theirs, "decoder.layers.0.", trunk=layer(place, activation, mask="causal", cross="last"))
    x, memory, real = torch.randn(B, N, D), torch.randn(B, M, D), padding(M) if padded else None
    out = ours["trunk"](tokens(x), memory=tokens(memory, real)).x
    want = theirs(x, memory, tgt_mask=triangle(N), memory_key_padding_mask=None if real is None else ~real)

    assert_equal(ours, theirs, out, want, "decoder.layers.0.")


def test_two_trunks_equal_torchs_transformer():
    theirs = nn.Transformer(D, H, 3, 2, F, dropout=0.0, batch_first=True)
    how = dict(norm_placement="post", final_norm=True, mlp=C.MLP(hidden=F), **BASE)
    ours = ours_like(
        theirs, encoder=C.Trunk(depth=3, **how), trunk=C.Trunk(depth=2, mask="causal", cross="last", **how)
    )
    source, x, real, source_real = torch.randn(B, M, D), torch.randn(B, N, D), padding(N), padding(M)
    out = ours["trunk"](tokens(x, real), memory=ours["encoder"](tokens(source, source_real))).x
    want = theirs(
        source, x, tgt_mask=triangle(N), src_key_padding_mask=~source_real, tgt_key_padding_mask=~real,
        memory_key_padding_mask=~source_real,
    )  # fmt: skip

    assert_equal(ours, theirs, out[real], want[real])
