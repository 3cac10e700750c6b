"""Both models side by side: equal where they are, and what is planted is found where it was planted."""

import re
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
import torch
from hub import decoder_cases, encoder_cases, encoder_decoder_cases, image_cases
from hub.published import LENGTH, pair

import regard
from regard.config.errors import DataError
from regard.hub import check
from regard.hub.check.reference import flatten_probe, unflatten_probe

CASES = decoder_cases.CASES | encoder_cases.CASES | image_cases.CASES | encoder_decoder_cases.CASES
KINDS = ("gpt2", "llama", "bert words and pairs, relu", "roberta", "albert words and order", "electra", "t5", "bart",
         "bart classes", "marian apart, two vocabularies", "whisper", "vit", "swin", "clip", "imagegpt")  # fmt: skip


class Both:
    """Theirs and ours from one folder, in one type, and a question."""

    def __init__(self, name, folder, dtype="fp32"):
        kind = check.DTYPES[dtype]
        self.ours = pair(CASES[name], folder).ours.to(kind)
        self.theirs = check.load_reference(self.ours.source_folder, kind)
        self.asked = check.build_probe(self.ours, self.theirs, 11, kind)
        self.dtype = dtype

    def equal(self):
        return check.compare_outputs(self.ours, self.theirs, self.asked, self.dtype)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_is_equal_layer_by_layer(name, tmp_path):
    both = Both(name, tmp_path / "model")
    found = both.equal()
    layers = [where for where in both.ours.addresses() if where.endswith(".residual")]

    assert found.same and found.argmax == 1 and found.first is None
    assert found.distance <= 1e-5 and max(step.far for step in found.steps) <= 1e-5
    assert [step.where for step in found.steps if step.where in layers] == layers


@pytest.mark.parametrize("dtype", ["fp64", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_they_are_equal_in_every_type_of_numbers(name, dtype, tmp_path):
    found = Both(name, tmp_path / "model", dtype).equal()

    assert found.same and found.distance <= found.tolerance


def test_texts_are_asked_with_rows_that_end_early(tmp_path):
    asked = Both("gpt2", tmp_path / "model").asked

    assert asked.named["real"].sum(-1).tolist() == [11, 8, 6]
    assert asked.theirs["attention_mask"].bool().equal(asked.named["real"])


def test_the_same_folder_is_always_asked_the_same(tmp_path):
    both = Both("marian apart, two vocabularies", tmp_path / "model")
    again = check.build_probe(both.ours, both.theirs, 11)

    assert all(again.theirs[name].equal(x) for name, x in both.asked.theirs.items())


def test_a_question_is_never_longer_than_the_model_has_places(tmp_path):
    both = Both("gpt2", tmp_path / "model")

    assert check.build_probe(both.ours, both.theirs, 5000).ours[0].shape[1] == both.ours.c.trunk.position.length


def test_a_source_is_never_as_long_as_its_target(tmp_path):
    both = Both("bart", tmp_path / "model")
    asked = check.build_probe(both.ours, both.theirs, 5000)

    assert asked.theirs["decoder_input_ids"].shape[1] < asked.theirs["input_ids"].shape[1] == LENGTH
    assert check.compare_outputs(both.ours, both.theirs, asked).same


@pytest.mark.parametrize("name", ["clip", "marian apart, two vocabularies", "vit"])
def test_a_question_survives_the_way_to_another_process(name, tmp_path):
    both = Both(name, tmp_path / "model")
    given, named = unflatten_probe(flatten_probe(both.asked, "ours"))

    assert torch.equal(both.ours(*given, **named), both.asked.asked_of(both.ours))


# ---------------------------------------------------------------- what is planted is found


def part(model, where):
    """The module at one of our addresses: trunk.1.attn is in block 1 of the trunk."""
    return model.get_submodule(re.sub(r"(trunk|encoder)\.(\d+)\.", r"\1.blocks.\2.", where))


@torch.no_grad()
def shaken(module):
    weight = next(module.parameters())
    weight.add_(0.1 * torch.randn_like(weight))


@pytest.mark.parametrize("name, where, tap", [
    ("gpt2", "trunk.1.mlp.down", "trunk.1.mlp.out"),
    ("gpt2", "trunk.2.attn.qkv", "trunk.2.attn.out"),
    ("gpt2", "trunk.0.mlp_norm", "trunk.0.mlp.out"),
    ("gpt2", "embed", "trunk.embed"),
    ("gpt2 untied, relu", "head", "head"),
    ("llama", "trunk.1.attn.out", "trunk.1.attn.out"),
    ("bert", "trunk.1.mlp_norm", "trunk.1.residual"),
    ("t5", "encoder.1.mlp.up", "encoder.1.mlp.out"),
    ("t5", "trunk.1.cross.kv", "trunk.1.cross.out"),
    ("clip", "towers.1.trunk.1.attn.out", "towers.1.trunk.1.attn.out"),
    ("vit", "trunk.2.mlp.up", "trunk.2.mlp.out"),
])  # fmt: skip
def test_a_weight_that_was_changed_is_found_where_it_is(name, where, tap, tmp_path):
    both = Both(name, tmp_path / "model")
    shaken(part(both.ours, where))
    found = both.equal()

    assert not found.same and found.distance > 1e-3
    assert found.first == tap


def test_a_changed_weight_of_a_stage_is_found_in_the_front_end(tmp_path):
    both = Both("swin", tmp_path / "model")
    shaken(both.ours.embed.trunks[1].blocks[0].mlp.down)

    assert both.equal().first == "embed.1.0.mlp.out"


@pytest.mark.parametrize("name, layer", [("gpt2", 2), ("llama", 1), ("t5", 1)])
def test_another_eps_in_one_norm_is_found_at_its_layer(name, layer, tmp_path):
    both = Both(name, tmp_path / "model")
    norm = both.ours.trunk.blocks[layer].attn_norm
    norm.c = replace(norm.c, eps=0.05)
    found = both.equal()

    assert not found.same
    assert found.first == f"trunk.{layer}.attn.out"


def test_fp64_finds_what_fp32_takes_for_rounding(tmp_path):
    def tweaked(dtype):
        both = Both("gpt2", tmp_path / dtype, dtype)
        norm = both.ours.trunk.blocks[1].mlp_norm
        norm.c = replace(norm.c, eps=norm.c.eps + 2e-5)
        return both.equal()

    assert tweaked("fp32").same and not tweaked("fp64").same


def test_an_answer_that_is_no_number_is_never_equal(tmp_path):
    both = Both("gpt2", tmp_path / "model")
    both.ours.trunk.blocks[1].mlp.down.weight.data[0, 0] = torch.nan
    found = both.equal()

    assert not found.same and found.distance == torch.inf and found.first == "trunk.1.mlp.out"


def test_numbers_too_large_for_a_type_are_never_equal(tmp_path):
    both = Both("gpt2", tmp_path / "model", "fp16")
    for weight in (both.ours.trunk.final_norm.weight, both.theirs.transformer.ln_f.weight):
        weight.data.fill_(6e4)
    found = both.equal()

    assert not isfinite(found.largest) and not found.same and found.first == "head"


# ---------------------------------------------------------------- the way back


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_goes_back_to_the_byte(name, tmp_path):
    ours = pair(CASES[name], tmp_path / "model").ours
    found = check.check_round_trip(ours)

    assert found.is_lossless and found.same == len(
        regard.hub.weights.load_tensors_lazy(tmp_path / "model" / "model.safetensors")
    )


def test_a_tensor_that_changed_by_one_bit_is_named(tmp_path):
    ours = pair(CASES["llama"], tmp_path / "model").ours
    weight = ours.trunk.blocks[1].attn.qkv.weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))

    assert check.check_round_trip(ours).changed == ("model.layers.1.self_attn.q_proj.weight",)


def test_a_model_that_comes_from_nowhere_cannot_go_back():
    with pytest.raises(DataError, match="not read from a folder"):
        check.check_round_trip(regard.build(regard.preset("gpt2", dim=12, depth=1, heads=2, vocab=7)))


def test_one_file_alone_imports_the_other_library():
    files = [path for path in Path(regard.__file__).parent.rglob("*.py") if '"transformers")' in path.read_text("utf8")]

    assert [path.name for path in files] == ["reference.py"]
