"""Precision is how a model was trained; what is loaded computes in fp32 unless another type is asked for."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import config as C

IDS = torch.tensor([[3, 5, 7, 11, 2]])


@pytest.fixture(params=["mixed", "bf16", "fp32"])
def saved(request, tmp_path):
    """A model as a run of this precision stores it."""
    torch.manual_seed(0)
    c = regard.preset("smollm2-135m", dim=32, depth=2, heads=4, kv_heads=2, hidden=48, vocab=61)
    regard.build(replace(c, precision=request.param)).save(tmp_path / "run")
    return tmp_path / "run"


def plain(saved):
    """The same weights in a model that never heard of another precision."""
    model = regard.load(saved, device="cpu")
    fresh = regard.build(replace(model.c, precision="fp32"))
    fresh.load_state_dict({name: x.float() for name, x in model.state_dict().items()})
    return fresh.eval()


def test_a_loaded_model_computes_in_fp32_whatever_it_was_trained_in(saved):
    model = regard.load(saved, device="cpu")

    assert {each.dtype for each in model.parameters()} == {torch.float32} and model.c.precision == "fp32"
    assert model(IDS).dtype == torch.float32 and torch.equal(model(IDS), plain(saved)(IDS))
    with regard.looking(model, "*.pattern") as seen:
        model(IDS)
    assert {seen[name].dtype for name in ("trunk.0.attn.pattern", "trunk.1.attn.pattern")} == {torch.float32}


def test_types_mean_what_they_mean_in_torch(saved):
    exact = plain(saved).double()(IDS)
    for change, near in (("float", 1e-5), ("double", 1e-12), ("bfloat16", 0.1)):
        model = getattr(regard.load(saved, device="cpu"), change)()
        logits, kind = model(IDS), {"float": torch.float32, "double": torch.float64}.get(change, torch.bfloat16)

        assert logits.dtype == kind and (logits.double() - exact).abs().max() <= near
        with regard.looking(model, "trunk.0.attn.pattern") as seen:
            model(IDS)
        assert seen["trunk.0.attn.pattern"].dtype == kind
        said = model.generate(IDS, max_new_tokens=4, temperature=0)
        assert (
            kind == torch.bfloat16
            or said.tolist() == plain(saved).generate(IDS, max_new_tokens=4, temperature=0).tolist()
        )
        assert model.cache(1, 8).entries[0].k.dtype == kind


@pytest.mark.parametrize("said, kind", [
    (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
    (torch.float64, torch.float64), ("half", torch.float16), ("double", torch.float64), ("bfloat16", torch.bfloat16),
    ("torch.float16", torch.float16),
])  # fmt: skip
def test_a_type_is_torchs_own_or_a_name(saved, said, kind):
    model = regard.load(saved, device="cpu", dtype=said)

    assert {each.dtype for each in model.parameters()} == {kind} and model(IDS).dtype == kind


def test_auto_is_as_stored_and_never_brings_autocast_back(saved):
    model, stored = regard.load(saved, device="cpu", dtype="auto"), load_file(saved / "model.safetensors")

    assert {each.dtype for each in model.parameters()} == {each.dtype for each in stored.values()}
    assert model.c.precision != "mixed" and model(IDS).dtype == next(model.parameters()).dtype


def test_what_is_loaded_in_fp32_is_saved_in_fp32(saved, tmp_path):
    model = regard.load(saved, device="cpu")
    model.save(tmp_path / "again")

    assert {x.dtype for x in load_file(tmp_path / "again/model.safetensors").values()} == {torch.float32}
    assert torch.equal(regard.load(tmp_path / "again", device="cpu", dtype="auto")(IDS), model(IDS))


def test_towers_compute_in_fp32_too(tmp_path):
    trunk = C.Trunk(dim=16, depth=1, attention=C.Attention(heads=2))
    tower = C.Transformer(
        embed=C.TextEmbedding(vocab=31), trunk=trunk, head=C.PoolingHead(pooling="mean"), precision="mixed"
    )
    regard.build(C.DualEncoder(towers=(tower, tower))).save(tmp_path / "two")
    model = regard.load(tmp_path / "two", device="cpu")

    assert model.c.precision == "fp32" and model(IDS, IDS).dtype == torch.float32
    assert model.double()(IDS, IDS).dtype == torch.float64
