"""A trunk without feed-forwards: attention and residual connections alone, said by mlp.kind = "none"."""

from dataclasses import replace

import pytest
import torch
from core.builders import DIM, VOCAB, B, H, ids_of, model, translator
from parity.tolerance import randomise
from torch.testing import assert_close

import regard
from regard import config as C
from regard import measure
from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.hub.families.registry import explain_no_family, match_family
from regard.measure.explain import model_rows
from regard.zoo.describe import describe_model
from regard.zoo.preset import expand_preset

N = 9
NONE = C.MLP(kind="none")


@pytest.mark.parametrize("place", ["pre", "post"])
def test_it_is_torchs_attention_with_norms_and_sums(place):
    one = model(mlp=NONE, norm_placement=place, depth=2).double()
    x = torch.randn(B, N, DIM, dtype=torch.float64)
    theirs = x
    for block in one.trunk.blocks:
        attend = torch.nn.MultiheadAttention(DIM, H, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            attend.in_proj_weight.copy_(block.attn.qkv.weight)
            attend.in_proj_bias.copy_(block.attn.qkv.bias)
            attend.out_proj.weight.copy_(block.attn.out.weight)
            attend.out_proj.bias.copy_(block.attn.out.bias)
        given = theirs if place == "post" else block.attn_norm(theirs)
        theirs = theirs + attend(given, given, given, need_weights=False)[0]
        theirs = block.attn_norm(theirs) if place == "post" else theirs
    theirs = theirs if one.trunk.final_norm is None else one.trunk.final_norm(theirs)
    tokens = one.embed(ids_of(B, N)).with_vectors(x)

    assert_close(one.trunk(tokens).x, theirs)


def test_it_has_the_parameters_of_attention_and_its_norms_alone():
    one = model(mlp=NONE, depth=3)
    found = measure.count_parameters(one)

    assert found["feed-forward"] == 0 and found["attention"] == 3 * 4 * (DIM * DIM + DIM)
    assert found["norms"] == (3 + 1) * 2 * DIM
    assert not any("mlp" in name for name in one.state_dict())


@pytest.mark.parametrize("kind", ["blocks", "reversible"])
def test_cached_equals_uncached(kind):
    one, ids = model(mlp=NONE, mask="causal", kind=kind).double(), ids_of(B, N)
    with torch.no_grad():
        whole, cache = one(ids), one.cache(B, N)
        parts = [one(ids[:, :4], cache=cache), *(one(ids[:, i : i + 1], cache=cache) for i in range(4, N))]

    assert_close(torch.cat(parts, 1), whole)


def test_it_compiles_whole_and_says_the_same():
    one, ids = model(mlp=NONE, mask="causal"), ids_of(B, N)
    torch._dynamo.reset()
    compiled = torch.compile(one, backend="eager", fullgraph=True)

    with torch.no_grad():
        assert_close(compiled(ids), one(ids))


@pytest.mark.parametrize("kind", ["blocks", "reversible"])
def test_every_address_is_seen_and_none_is_of_a_feed_forward(kind):
    one = translator(mlp=NONE, kind=kind)
    addresses = list(one.addresses())
    with looking(one, *addresses) as seen, torch.no_grad():
        one(ids_of(B, N), source=ids_of(B, 7))

    assert [name for name in addresses if ".mlp." in name] == [
        f"encoder.{i}.mlp.{what}" for i in range(2) for what in ("input", "hidden", "out")
    ]
    assert set(seen) == set(addresses)
    assert torch.equal(seen["trunk.1.residual"], seen["trunk.1.residual_cross"])


def test_the_reversible_stack_walks_back_through_attention_alone():
    one, ids = model(mlp=NONE, mask="causal", kind="reversible", depth=4).double(), ids_of(B, N)
    found = []
    for keep in (False, True):
        one.zero_grad()
        with looking(one, "trunk.0.residual") if keep else torch.enable_grad():  # a hooked one keeps what it made
            one(ids).square().sum().backward()
        found.append({name: weight.grad.clone() for name, weight in one.named_parameters()})

    assert max(float(grad.abs().max()) for grad in found[0].values()) > 1e-3
    for name, grad in found[0].items():
        assert_close(grad, found[1][name], msg=name)


def test_a_recipe_says_it_in_a_table_and_a_preset_forgets_its_own():
    said = {"preset": "llama-7b", "dim": 256, "trunk": {"mlp": {"kind": "none"}}}
    told = C.from_dict(C.Transformer, expand_preset(said))

    assert told.trunk.mlp == C.MLP(kind="none") and C.from_dict(C.Transformer, C.to_dict(told)) == told


def test_a_config_that_says_nothing_of_it_has_feed_forwards():
    """As those that were written before it could be said."""
    said = C.to_dict(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB)))
    del said["trunk"]["mlp"]["kind"]

    assert C.from_dict(C.Transformer, said).trunk.mlp.kind == "dense"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mlp": {"kind": "none", "hidden": 5}}, "trunk.mlp.hidden: kind 'none' has no feed-forward"),
        ({"mlp": {"kind": "none", "gated": True}}, "trunk.mlp.gated: kind 'none'"),
        ({"mlp": {"kind": "none", "bias": False}}, "trunk.mlp.bias: kind 'none'"),
        ({"mlp": {"kind": "non"}}, "trunk.mlp.kind: no 'non'; did you mean 'none'?"),
        ({"mlp": {"kind": "none"}, "mixer": {"kind": "none"}, "position": {"kind": "none"}}, "a block does nothing"),
    ],
)
def test_what_it_cannot_have_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        C.from_dict(C.Transformer, {"embed": {"kind": "text", "vocab": 9}, "trunk": settings})


def test_no_family_of_transformers_says_it_and_it_is_saved_in_our_own_format(tmp_path):
    c = regard.preset("gpt2", dim=DIM, depth=2, heads=H, vocab=VOCAB)
    c = replace(c, trunk=replace(c.trunk, mlp=C.MLP(kind="none", activation="gelu_tanh")))
    made = regard.build(c)
    randomise(made)
    made.save(tmp_path / "model")
    ids = ids_of(B, N)

    assert match_family(c) is None and "trunk.mlp.kind is 'none'" in explain_no_family(c)
    with torch.no_grad():
        assert torch.equal(regard.load(tmp_path / "model")(ids), made.eval()(ids))


def test_it_is_described_without_a_feed_forward():
    one = model(mlp=NONE)

    assert "no feed-forward" in describe_model(one.c)
    assert [row[0] for row in model_rows(one) if "mlp" in row[0]] == []
