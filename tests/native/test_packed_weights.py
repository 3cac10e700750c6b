"""A weight held otherwise answers as the plain one would, wherever it stands."""

import copy

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import config
from regard.core.kernels import KERNELS
from regard.native import library
from regard.native.quantize import PackedWeight, is_worth_packing, pack_model, pack_weight, packed_format

NEAR = {"fp32": 2e-5, "bf16": 0.03, "int8": 0.05}


def writer(**changes):
    torch.manual_seed(3)
    model = regard.build(regard.preset("gpt2", depth=3, dim=80, heads=5, vocab=203, **changes)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3 if weight.dim() > 1 else 0.6)
    return model


@pytest.mark.parametrize("paneled", [False, True])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_it_multiplies_few_rows_and_many_and_looks_up(kind, paneled):
    weight, bias = torch.randn(45, 37), torch.randn(45)
    one = pack_weight(weight, kind, paneled)

    assert one.shape == weight.shape and one.dtype == torch.float32 and one.is_paneled == paneled
    assert torch.allclose(one.to_fp32(), weight, atol=NEAR[kind])
    with torch.no_grad():
        for rows in (1, 3, 40):
            x = torch.randn(2, rows, 37)
            right = F.linear(x, one.to_fp32(), bias)
            assert torch.allclose(F.linear(x, one, bias), right, atol=1e-4 if kind == "fp32" else 0.2)
        ids = torch.tensor([[3, 44], [0, 3]])
        assert torch.equal(F.embedding(ids, one), F.embedding(ids, one.to_fp32()))
    assert torch.equal(one[3:5] + 1, one.to_fp32()[3:5] + 1)  # whatever else is asked of it


def test_gradients_flow_through_to_who_asks():
    one, x = pack_weight(torch.randn(5, 7), "int8"), torch.randn(2, 7, requires_grad=True)
    F.linear(x, one).sum().backward()

    assert torch.allclose(x.grad, one.to_fp32().sum(0).expand(2, 7), atol=1e-6)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_whoever_writes_never_needs_the_plain_numbers(kind, monkeypatch):
    model = writer()
    pack_model(model, kind)

    def plain(self):
        raise AssertionError("a whole table was made")

    monkeypatch.setattr(PackedWeight, "to_fp32", plain)
    model.generate(torch.randint(0, 203, (2, 30)), max_new_tokens=3)
    model.beam_search(torch.randint(0, 203, (2, 30)).tolist(), num_beams=2, max_new_tokens=3)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_a_model_that_writes_says_the_same(kind):
    plain, quick = writer(), writer()
    ids = torch.randint(0, 203, (1, 23))
    pack_model(quick, kind)
    with torch.no_grad():
        far = (plain(ids) - quick(ids)).std() / plain(ids).std()

    assert far < NEAR[kind] and packed_format(quick) == kind and packed_format(plain) is None
    assert quick.head.weight is quick.embed.tokens.weight  # still tied
    if kind == "fp32":
        for rows in (1, 3):
            prompt = torch.randint(0, 203, (rows, 9))
            said = [model.generate(prompt, max_new_tokens=40, temperature=0) for model in (quick, plain)]
            assert torch.equal(*said)


def test_a_row_is_told_the_same_bits_alone_and_beside_others():
    model = writer()
    pack_model(model, "bf16")
    ids = torch.randint(0, 203, (5, 1))
    with torch.no_grad():
        together, alone = model(ids), torch.cat([model(row[None]) for row in ids])

    assert torch.equal(together, alone)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_model_that_reads_whole_texts_answers_the_same(kind):
    torch.manual_seed(1)
    plain = regard.build(regard.preset("bert-base", depth=2, dim=48, heads=3, vocab=101)).eval()
    quick = copy.deepcopy(plain)
    pack_model(quick, kind)
    ids = torch.randint(1, 101, (3, 31))
    with torch.no_grad():
        gap = (plain(ids) - quick(ids)).abs().max()

    assert gap < NEAR[kind] and any(isinstance(each, PackedWeight) for each in quick.parameters())


def test_what_is_held_is_not_saved_nor_held_twice(tmp_path):
    model = writer()
    pack_model(model, "int8")
    with pytest.raises(config.ConfigError, match="packed as int8"):
        model.save(tmp_path / "x")
    with pytest.raises(config.ConfigError, match="packed already"):
        pack_model(model, "bf16")
    with pytest.raises(config.ConfigError, match="there are fp32, bf16, int8"):
        pack_model(writer(), "int4")
    with pytest.raises(config.ConfigError, match="float64 on cpu"):
        pack_model(writer().double())


def test_laying_out_pays_for_large_models_alone():
    assert not is_worth_packing(writer())
    with torch.device("meta"):
        assert not is_worth_packing(regard.build(regard.preset("gpt2")))  # not on the CPU
    assert is_worth_packing(torch.nn.Linear(4000, 2001))


def test_without_a_compiler_torch_does_the_work(monkeypatch):
    plain, quick = writer(), writer()
    monkeypatch.setenv("REGARD_NATIVE", "0")
    library.LOADED.clear()
    pack_model(quick, "int8")
    ids = torch.randint(0, 203, (1, 9))
    with torch.no_grad():
        far = (plain(ids) - quick(ids)).std() / plain(ids).std()

    assert library.load_library() is None and far < NEAR["int8"]
    assert KERNELS["native_decode"].unsupported_reason is not None
