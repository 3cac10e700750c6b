"""Named initialisations begin with the published spreads, and leave nothing to chance memory."""

import math

import pytest
import torch
from core.builders import B, H, ids_of, model, trunk

from regard import config as C
from regard.core.init import INIT_RULES, weight_roles
from regard.core.model import Transformer, Trunk

D, WIDTH, HIDDEN, VOCAB, DEPTH = 96, 32, 191, 211, 3
QKV = ("q", "k", "v")
PUBLISHED = {
    "gpt2": {**dict.fromkeys((*QKV, "up", "token", "place"), 0.02), "out": 0.02 / 6**0.5, "down": 0.02 / 6**0.5},
    "bert": dict.fromkeys((*QKV, "out", "up", "down", "token", "place"), 0.02),
    "vit": dict.fromkeys((*QKV, "out", "up", "down", "token", "place"), 0.02),
    "xavier": {
        **dict.fromkeys((*QKV, "out"), (2 / (D + D)) ** 0.5),
        **dict.fromkeys(("up", "down"), (2 / (D + HIDDEN)) ** 0.5),
        **dict.fromkeys(("token", "place"), D**-0.5),
    },
    "t5": {
        **dict.fromkeys(("k", "v", "out", "up", "place"), D**-0.5),
        "q": (D * WIDTH) ** -0.5, "down": HIDDEN**-0.5, "token": 1.0,
    },
    "zero_init": {**dict.fromkeys((*QKV, "up", "token", "place"), D**-0.5), "out": 0.0, "down": 0.0},
}  # fmt: skip


def fresh(rule: str, **said: object) -> Transformer:
    base = dict(dim=D, depth=DEPTH, attention=C.Attention(heads=H), mlp=C.MLP(hidden=HIDDEN))
    c = C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk(**(base | said)), init=rule)
    return Transformer(c)


def spread(made: Transformer | Trunk, role: str) -> float:
    return float(torch.cat([weight.detach().flatten() for name, weight in weight_roles(made) if name == role]).std())


@pytest.mark.parametrize("rule, role", [(rule, role) for rule, spreads in PUBLISHED.items() for role in spreads])
def test_a_weight_begins_with_its_published_spread(rule, role):
    made = fresh(rule, position=C.LearnedPosition(length=101))

    assert spread(made, role) == pytest.approx(PUBLISHED[rule][role], rel=0.04)


def test_every_named_initialisation_is_tried_here():
    assert set(PUBLISHED) == set(INIT_RULES)


def test_t5_buckets_begin_with_the_spread_of_the_width():
    made = fresh("t5", position=C.T5Bias(num_buckets=512, max_distance=1024))

    assert spread(made, "place") == pytest.approx(D**-0.5, rel=0.08)


@pytest.mark.parametrize("rule", INIT_RULES)
def test_a_trunk_by_itself_begins_as_it_does_in_a_model(rule):
    c = fresh(rule, position=C.LearnedPosition(length=101)).trunk.c
    alone = Trunk(c, init=rule)

    for role in {role for role, _ in weight_roles(alone)}:
        assert spread(alone, role) == pytest.approx(PUBLISHED[rule][role], rel=0.04), role


def test_xavier_is_uniform_and_gpt2_is_not():
    flat, round_ = (
        torch.cat([weight.detach().flatten() for role, weight in weight_roles(fresh(rule)) if role in QKV])
        for rule in ("xavier", "gpt2")
    )

    assert flat.abs().max() <= math.sqrt(3) * flat.std() * 1.01
    assert round_.abs().max() > 3 * round_.std()


@pytest.mark.parametrize("rule", INIT_RULES)
def test_biases_begin_at_zero_and_norms_at_one(rule):
    for name, weight in fresh(rule).named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        if "norm.weight" in name:
            assert (weight == 1).all(), name


@pytest.fixture
def poisoned():
    """Memory that nobody has written is NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("rule", INIT_RULES)
@pytest.mark.parametrize(
    "position",
    [
        C.LearnedPosition(),
        C.LearnedPosition(length=(3, 5)),
        C.T5Bias(),
        C.ShawPosition(),
        C.RelativeBias(),
        C.RelativeBias(tables="layer"),
    ],
    ids=lambda position: position.kind,
)
def test_no_weight_is_left_as_the_memory_was(poisoned, rule, position):
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=23, segments=3),
        trunk=trunk(position=position, cross="last", embed_norm=True, embed_dim=6),
        head=C.LMHead(tied=False, transform=True, bias=True),
        encoder=C.Encoder(trunk=trunk(embed_dim=6)),
        init=rule,
    )
    left = [name for name, weight in Transformer(c).named_parameters() if not weight.isfinite().all()]

    assert left == []


@pytest.mark.parametrize("head", [C.LMHead(tied=False), C.PoolingHead(dense=True, out=5)], ids=lambda head: head.kind)
def test_no_head_is_left_as_the_memory_was(poisoned, head):
    made = Transformer(C.Transformer(embed=C.TextEmbedding(vocab=23), trunk=trunk(), head=head))

    assert all(weight.isfinite().all() for weight in made.head.parameters())


def test_a_tied_weight_begins_as_the_embedding():
    made = fresh("t5")

    assert made.head.weight is made.embed.tokens.weight
    assert float(made.head.weight.detach().std()) == pytest.approx(1, rel=0.04)


def test_the_same_seed_begins_the_same_model():
    ids = ids_of(B, 7)

    assert torch.equal(model(seed=3)(ids), model(seed=3)(ids))
    assert not torch.equal(model(seed=3)(ids), model(seed=4)(ids))
