"""The closed tables of the config are the tables of the rooms, and what a config gets wrong is named by its path."""

import math
from typing import get_args

import pytest
import torch
from core.builders import DIM, VOCAB, B, H, ids_of, model, scope, translator, trunk
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import config as C
from regard.config.masks import MASKS
from regard.config.reader import from_dict
from regard.core.init import INIT_RULES
from regard.core.layers import ACTIVATIONS
from regard.core.masks import MASK_TYPES
from regard.core.model import HEADS, Transformer
from regard.core.positions import Position, build_position
from regard.core.tokens import grid_tokens, sequence_tokens

N = 7


def kinds(union: object) -> set[str]:
    return {word for part in get_args(union) for word in get_args(part.__annotations__["kind"])}


# ---------------------------------------------------------------- closed tables


def test_the_kernels_a_config_can_name_are_the_kernels_there_are():
    assert set(C.KERNELS) == {"auto", *regard.KERNELS} - {"native_decode"}  # which auto alone takes


def test_the_masks_a_config_can_name_are_the_masks_there_are():
    assert set(MASKS) == {"dilated", *MASK_TYPES}


def test_the_activations_a_config_can_name_are_the_activations_there_are():
    assert set(C.ACTIVATIONS) == set(ACTIVATIONS)


def test_the_initialisations_a_config_can_name_are_the_rules_there_are():
    assert set(C.INITS) == set(INIT_RULES)


def test_the_heads_a_config_can_name_are_the_heads_there_are():
    assert kinds(C.Head) == set(HEADS)


@pytest.mark.parametrize("part", get_args(C.Position), ids=lambda part: part.__name__)
def test_every_position_a_config_can_name_is_built(part):
    assert isinstance(build_position(part(), 64, 4, 16), Position)


def linear(part: nn.Module, x: Tensor) -> Tensor:
    return x @ part.weight.mT + (0 if part.bias is None else part.bias)


def transformed(lm: nn.Module, x: Tensor) -> Tensor:
    """BERT's logits: a dense layer, the trunk's activation and norm, then the table."""
    return linear(lm, lm.norm(linear(lm.dense, x).clamp(min=0)))


ANSWERS = {  # what a head of this kind makes of the trunk's vectors (B, N, D) when nothing else is said
    "lm": lambda head, x: linear(head, x),
    "pooling": lambda head, x: x[:, 0],
    "token": lambda head, x: linear(head.out, x),
    "none": lambda head, x: x,
    "pretraining": lambda head, x: (
        transformed(head.lm, x), linear(head.pooling.out, linear(head.pooling.dense, x[:, 0]).tanh())
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(kinds(C.Head)) - {"forecast"}))  # which is for series alone
def test_every_head_a_config_can_name_answers_by_its_formula(kind):
    made, ids = model(head=from_dict(C.Transformer, {"head": {"kind": kind}}).head), ids_of(B, N)

    assert_close(made(ids), ANSWERS[kind](made.head, made.trunk(made.embed(ids)).x))


FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_every_activation_is_its_formula_in_every_feed_forward_layer(activation, gated):
    mlp, x = model(mlp=C.MLP(hidden=17, activation=activation, gated=gated)).trunk.blocks[1].mlp, torch.randn(B, N, DIM)
    first, *second = linear(mlp.up, x).split(17, -1)
    hidden = torch.tensor([FORMULAS[activation](each) for each in first.flatten().tolist()]).view_as(first)

    assert first.min() < -0.5 and first.max() > 0.5 and len(second) == gated
    assert_close(mlp(x, scope(x)), linear(mlp.down, hidden * second[0] if gated else hidden))


# ---------------------------------------------------------------- mistakes that a config can hold


@pytest.mark.parametrize(
    "tree, path, sentence",
    [
        ({"trunk": {"dim": 0}}, "trunk.dim", "0 is less than 1"),
        ({"trunk": {"depth": 0}}, "trunk.depth", "0 is less than 1"),
        ({"trunk": {"dim": 10, "attention": {"heads": 4}}}, "trunk", "dim 10 is not divisible by attention.heads 4"),
        ({"trunk": {"attention": {"heads": 0}}}, "trunk.attention.heads", "0 is less than 1"),
        ({"trunk": {"attention": {"kv_heads": 3}}}, "trunk.attention", "heads 8 is not divisible by kv_heads 3"),
        ({"trunk": {"attention": {"kernel": "fussed"}}}, "trunk.attention.kernel", "did you mean 'fused'?"),
        ({"trunk": {"attention": {"projections": ["qq"]}}}, "trunk.attention", "no 'qq'"),
        ({"trunk": {"attention": {"heads": [1, 2]}}}, "trunk.attention.head_dim", "need the width of a head"),
        ({"trunk": {"attention": {"heads": [1, 2], "head_dim": 8}}}, "trunk.attention.heads", "depth is 6"),
        ({"trunk": {"attention": {"kv_heads": [2, 4]}}}, "trunk.attention.kv_heads", "names 2 layers and depth is 6"),
        (
            {"trunk": {"depth": 2, "share_layers": True, "attention": {"heads": [2, 4], "head_dim": 8}}},
            "trunk.attention.heads",
            "shared layers need one number",
        ),
        (
            {"trunk": {"depth": 2, "position": {"kind": "t5"}, "attention": {"heads": [2, 4], "head_dim": 8}}},
            "trunk",
            "set position.tables to layer",
        ),
        (
            {"embed": {"kind": "patches", "patch_size": 15}},
            "embed.patch_size",
            "patches of 15 pixels do not fill an image of 224",
        ),
        ({"embed": {"kind": "patches", "patch_size": 0}}, "embed.patch_size", "0 is less than 1"),
        ({"embed": {"kind": "patches"}}, "head.kind", "'lm' is for ids, and embed.kind is 'patches'"),
        ({"embed": {"kind": "pixels", "grid": [32]}}, "embed.grid", "[32] is not rows and columns"),
        ({"embed": {"kind": "stages"}}, "embed.trunks", "name at least one"),
        ({"embed": {"kind": "stages", "trunks": [{}] * 4}}, "embed.trunks", "56 x 56 patches, and 4 stages halve it"),
        (
            {"embed": {"kind": "stages", "trunks": [{}], "patches": {"cls_tokens": True}}},
            "embed.patches.cls_tokens",
            "does not",
        ),
        ({"head": {"kind": "lm", "vocab": 7}}, "head.vocab", "a tied head has the embedding's"),
        ({"head": {"kind": "pretraining", "pooling": {"pooling": "eos"}}}, "head.pooling", "'eos' needs embed.eos_id"),
        ({"trunk": {"mlp": {"activation": "gelo"}}}, "trunk.mlp.activation", "did you mean 'gelu'?"),
        ({"trunk": {"mlp": {"hidden": 0}}}, "trunk.mlp.hidden", "0 is less than 1"),
        ({"trunk": {"dropout": {"mlp": 1.0}}}, "trunk.dropout.mlp", "1.0 is not a rate"),
        ({"trunk": {"mask": "window"}}, "trunk.mask", "window takes window(radius)"),
        ({"trunk": {"mask": ["causal", "causal &"]}}, "trunk.mask", "cannot read 'causal &'"),
        ({"trunk": {"mask": "casual"}}, "trunk.mask: no 'casual'", "did you mean 'causal'?"),
        ({"trunk": {"mask": "strided(0)"}}, "trunk.mask", "strided takes a step of 1 or more"),
        ({"trunk": {"mask": []}}, "trunk.mask", "name at least one"),
        ({"trunk": {"norm": {"eps": -1.0}}}, "trunk.norm.eps", "-1.0 is less than 0"),
        ({"trunk": {"cross": "last"}}, "trunk.cross", "an encoder needs cross-attention"),
        ({"encoder": {}}, "trunk.cross", "an encoder needs cross-attention"),
        ({"trunk": {"cross": "layerwise"}, "encoder": {"trunk": {"depth": 2}}}, "trunk.cross", "as many"),
        ({"trunk": {"cross": "last"}, "encoder": {"trunk": {"dim": 64}}}, "encoder.trunk.dim", "must be trunk.dim 512"),
        ({"trunk": {"cross": "last"}, "encoder": {"trunk": {"cross": "last"}}}, "encoder.trunk.cross", "memory"),
        ({"embed": {"vocab": 0}}, "embed.vocab", "0 is less than 1"),
        ({"embed": {"vocab": 5, "pad_id": 5}}, "embed.pad_id", "5 is outside the vocabulary of 5"),
        ({"embed": {"vocab": 5, "eos_id": -1}}, "embed.eos_id", "-1 is outside the vocabulary of 5"),
        ({"embed": {"vocab": 5, "pad_id": 2, "eos_id": 2}}, "embed.pad_id", "2 is also the end-of-text id"),
        ({"head": {"kind": "pooling", "pooling": "eos"}}, "head.pooling", "needs embed.eos_id"),
        ({"init": "xaviar"}, "init", "did you mean 'xavier'?"),
    ],
)
def test_a_mistake_in_a_config_names_the_setting(tree, path, sentence):
    with pytest.raises(ValueError) as error:
        from_dict(C.Transformer, tree)

    assert str(error.value).startswith(path) and sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "said, setting, sentence",
    [
        ({"kind": "sinusoidal", "mode": "concat"}, "dim", "mode 'concat' needs it"),
        ({"kind": "sinusoidal", "dim": 8}, "dim", "it is for that mode alone"),
        ({"kind": "learned", "mode": "qk", "dim": 8}, "dim", "it is for that mode alone"),
        ({"kind": "sinusoidal", "axes": 0}, "axes", "0 is less than 1"),
        ({"kind": "learned", "length": 0}, "length", "0 is less than 1"),
        ({"kind": "learned", "length": [3, 0]}, "length", "0 is less than 1"),
        ({"kind": "onehot", "length": 0}, "length", "0 is less than 1"),
        ({"kind": "rotary", "fraction": 1.5}, "fraction", "not a fraction"),
        ({"kind": "rotary", "fraction": 0.1}, "fraction", "leaves no pair of channels"),
        ({"kind": "rotary", "factor": 0.0}, "factor", "more than zero"),
        ({"kind": "rotary", "scaling": "longrope"}, "freq_factors", "one factor"),
        ({"kind": "t5", "num_buckets": 2}, "num_buckets", "4 are the least"),
        ({"kind": "t5", "max_distance": 8}, "max_distance", "not beyond the 8 near distances"),
        ({"kind": "relative", "max_distance": -1}, "max_distance", "-1 is less than 0"),
        ({"kind": "shaw", "max_distance": -1}, "max_distance", "-1 is less than 0"),
    ],
)
def test_a_mistake_in_a_position_names_the_setting(said, setting, sentence):
    with pytest.raises(ValueError) as error:
        from_dict(C.Transformer, {"trunk": {"dim": DIM, "attention": {"heads": H}, "position": said}})

    assert str(error.value).startswith(f"trunk.position.{setting}: ") and sentence in str(error.value)


@pytest.mark.parametrize(
    "said", [C.OneHotPosition(length=DIM), C.SinusoidalPosition(mode="concat", dim=DIM)], ids=lambda c: c.kind
)
def test_positions_beside_the_tokens_must_leave_them_some_channels(said):
    with pytest.raises(ValueError, match=f"^position: {DIM} channels set beside the tokens leave none of dim {DIM}"):
        trunk(position=said)
    assert trunk(position=said, embed_dim=1).embed_dim == 1  # then the tokens bring their own


def test_buckets_for_both_sides_are_those_for_the_past_in_a_trunk_that_never_looks_ahead():
    """Half of the table is for what comes later, and nothing comes later."""
    both, past = (
        model(position=C.T5Bias(bidirectional=sides, num_buckets=count, max_distance=6), mask="causal")
        for sides, count in ((True, 8), (False, 4))
    )
    state, table = both.state_dict(), "trunk.positions.0.bias"
    past.load_state_dict(state | {table: state[table][:4]})
    ids = ids_of(B, N)

    assert_close(both(ids), past(ids))


# ---------------------------------------------------------------- mistakes that only an input shows


@pytest.mark.parametrize(
    "said, ids, sentence",
    [
        ({"position": C.LearnedPosition(length=5)}, ids_of(B, N), "7 tokens are more than position.length 5"),
        ({"position": C.OneHotPosition(length=5)}, ids_of(B, N), "7 tokens are more than position.length 5"),
        (
            {"position": C.SinusoidalPosition(axes=2)},
            ids_of(B, N),
            "these positions have 2 axes, and the tokens 1 coordinates",
        ),
        ({"position": C.LearnedPosition(length=(9, 9))}, ids_of(B, N), "these positions have 2 axes, and the tokens 1"),
        ({"mask": "padding"}, ids_of(B, N), "reads 'real'"),
        ({"mask": "documents"}, ids_of(B, N), "reads 'document'"),
        ({"mask": "edges"}, ids_of(B, N), "reads 'edges'"),
        ({}, ids_of(N), "ids must be (batch, tokens)"),
        ({"attention": C.Attention(heads=H, kernel="window2d")}, ids_of(B, N), "attention.kernel 'window2d'"),
        ({"attention": C.Attention(heads=H, kernel="flex")}, ids_of(B, N), "attention.kernel 'flex' has no gradient"),
        ({}, sequence_tokens(torch.randn(B, N, DIM + 1)), "takes vectors of width 12, got 13"),
    ],
)
def test_an_input_that_does_not_fit_is_told_what_would(said, ids, sentence):
    with pytest.raises(ValueError) as error:
        model(**said)(ids)

    assert sentence in str(error.value)


def test_a_source_without_an_encoder_and_an_encoder_without_a_source_are_refused():
    with pytest.raises(ValueError, match="source: this model has no encoder"):
        model()(ids_of(B, N), source=ids_of(B, N))
    with pytest.raises(ValueError, match="source: an encoder-decoder needs it"):
        translator()(ids_of(B, N))


@pytest.mark.parametrize("what", ["real", "document", "segment"])
def test_what_ids_may_say_is_refused_beside_tokens_that_say_it_themselves(what):
    with pytest.raises(ValueError, match=what):
        model()(sequence_tokens(torch.randn(B, N, DIM)), **{what: torch.zeros(B, N, dtype=torch.long)})


def test_segments_are_refused_by_a_model_without_a_table_of_them():
    with pytest.raises(ValueError, match="embed.segments"):
        model()(ids_of(B, N), segment=torch.zeros(B, N, dtype=torch.long))


@pytest.mark.parametrize("axes", [1, 2])
def test_offsets_on_other_axes_than_the_tokens_have_are_refused(axes):
    x = torch.randn(B, 15, DIM)
    one = model(position=C.RelativeBias(axes=axes, max_distance=3), head=C.NoHead())
    with pytest.raises(ValueError, match=f"these positions have {axes} axes, and the tokens {3 - axes} coordinates"):
        one(sequence_tokens(x) if axes == 2 else grid_tokens(x, (3, 5)))


def test_turning_on_two_axes_is_refused():
    with pytest.raises(ValueError, match="these positions have 1 axes, and the tokens 2 coordinates"):
        model(position=C.RotaryPosition(), head=C.NoHead())(grid_tokens(torch.randn(B, 15, DIM), (3, 5)))


def test_positions_may_lean_where_the_embedding_has_another_width():
    assert model(embed_dim=6, position=C.SinusoidalPosition(mode="qk"))(ids_of(B, N)).shape == (B, N, VOCAB)


class Made(TorchDispatchMode):
    """The number of elements in each tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        self.elements += [each.numel() for each in (out if isinstance(out, tuple | list) else [out])]
        return out


@pytest.mark.parametrize(
    "tree, sentence",
    [
        ({"trunk": {"attention": {"heads": 7}}}, "dim 512 is not divisible by attention.heads 7"),
        ({"trunk": {"dropout": {"mlp": 1.0}}}, "trunk.dropout.mlp: 1.0 is not a rate"),
        ({"head": {"vocab": 7}}, "head.vocab: a tied head has the embedding's"),
        ({"trunk": {"dim": 9, "attention": {"heads": 3}}}, "position.dim 9 is not divisible by two"),  # as it is built
    ],
)
def test_a_config_that_is_refused_is_refused_before_torch_allocates_anything(tree, sentence):
    with Made() as made, pytest.raises(ValueError, match=sentence):
        Transformer(from_dict(C.Transformer, tree))

    assert made.elements == []


def test_a_config_that_is_taken_allocates_its_weights():
    with Made() as made:  # which would see what the refused ones allocate
        Transformer(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk()))

    assert max(made.elements) >= VOCAB * DIM
