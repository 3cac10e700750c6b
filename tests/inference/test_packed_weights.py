"""Plain parameters and packed products: what `regard.load` returns is a torch module, and its verbs are as fast as the
command line's."""

import copy

import pytest
import torch
from torch import nn

import regard
from regard.inference import packed_weights as room
from regard.inference.load import load_for_inference
from regard.inference.packed_weights import pack_in_place
from regard.native import quantize
from regard.native.library import load_library
from regard.native.quantize import PackedWeight, packed_format

PROMPT = torch.tensor([[3, 50, 7, 11]])


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A model that counts as large, stored in bf16."""
    if load_library() is None:
        pytest.skip("packed weights need a C compiler")
    monkeypatch.setattr(quantize, "LARGE", 1000)
    torch.manual_seed(0)
    regard.build(regard.preset("gpt2", depth=2, dim=48, heads=3, vocab=203)).bfloat16().save(tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def products(monkeypatch):
    """How many products were made by panels."""
    made, before = [], quantize.library.packed_linear

    def mapped(*given):
        made.append(1)
        return before(*given)

    monkeypatch.setattr(quantize.library, "packed_linear", mapped)
    return made


def write(model):
    return model.generate(PROMPT, max_new_tokens=12, temperature=0).tolist()


def test_verbs_of_a_loaded_model_use_panels_and_say_the_same(saved, products):
    plain, usual = regard.load(saved, device="cpu", weights="plain"), regard.load(saved, device="cpu")
    said = write(plain)
    assert not products and plain.layout is None

    assert write(usual) == said and products
    assert (
        all(type(each) is nn.Parameter and each.requires_grad for each in usual.parameters())
        and packed_format(usual) is None
    )


def test_everything_else_sees_plain_weights(saved, products, tmp_path):
    plain, usual = regard.load(saved, device="cpu", weights="plain"), regard.load(saved, device="cpu")
    write(usual)
    products.clear()

    assert torch.equal(usual(PROMPT), plain(PROMPT)) and not products
    usual(PROMPT).sum().backward()
    assert all(each.grad is not None for each in usual.parameters())
    usual.save(tmp_path / "again")
    assert torch.equal(regard.load(tmp_path / "again", device="cpu")(PROMPT), plain(PROMPT))
    assert copy.deepcopy(usual)(PROMPT).equal(plain(PROMPT)) and write(copy.deepcopy(usual)) == write(plain)
    assert usual.double()(PROMPT).dtype == torch.float64 and write(usual) == write(plain)


def test_a_weight_that_has_changed_is_packed_again(saved):
    usual = regard.load(saved, device="cpu")
    write(usual)
    for change in (trained, replaced, reloaded, retyped):
        change(usual)
        fresh = copy.deepcopy(usual)
        fresh.layout = None

        assert write(usual) == write(fresh), change.__name__


def test_layers_with_adapters_multiply_by_the_panels_that_there_are(saved, products):
    usual = regard.load(saved, device="cpu")
    said, count = write(usual), len(products)
    packed = usual.layout.packed
    usual.adapt(regard.config.LoRA(targets=("q", "v", "out", "up", "down")))

    assert write(usual) == said and len(products) == 2 * count and usual.layout.packed is packed


def trained(model):
    model.train()
    model(PROMPT).logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    model.eval()


def replaced(model):
    model.trunk.blocks[0].mlp.down.weight = nn.Parameter(torch.randn(48, 192))


def reloaded(model):
    model.load_state_dict({name: x + torch.randn_like(x) for name, x in model.state_dict().items()})


def retyped(model):
    for weight in model.parameters():
        weight.data = weight.data.flip(0)  # twice, lest the second stand where the first stood
        weight.data = weight.data.roll(1, 0)


def test_a_model_in_training_is_asked_with_its_plain_weights_and_keeps_no_copy(saved, products):
    model = regard.load(saved, device="cpu")
    write(model)
    model.train()
    products.clear()
    write(model)

    assert not products and not model.layout.packed and model.training


def test_verbs_inside_verbs_and_a_step_that_fails_leave_the_weights_plain(saved):
    model = regard.load(saved, device="cpu")
    session = model.session([[3, 5]], max_new_tokens=3)
    with model.layout.use(list(model.modules())):
        session.step()
        assert packed_format(model) == "fp32"
    assert packed_format(model) is None
    with pytest.raises(ZeroDivisionError), model.layout.use(list(model.modules())):
        raise ZeroDivisionError
    assert packed_format(model) is None


def test_no_copy_is_made_without_memory_for_it(saved, products, monkeypatch):
    monkeypatch.setattr(room, "free_memory_bytes", lambda: 1000.0)
    write(regard.load(saved, device="cpu"))

    assert not products


def test_a_process_that_only_answers_holds_packed_weights_alone(saved, products):
    model = load_for_inference(saved, "cpu")

    assert model.layout is None and packed_format(model) == "fp32"
    assert write(model) == write(regard.load(saved, device="cpu", weights="plain")) and products
    assert packed_format(pack_in_place(regard.load(saved, device="cpu", weights="plain"))) is None


@pytest.mark.parametrize("dtype", ["auto", "fp16", "fp32"])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_weights_of_sixteen_bits_are_converted_to_be_packed(saved, dtype, kind):
    model = regard.load(saved, device="cpu", dtype=dtype, weights=kind)
    plain = regard.load(saved, device="cpu", dtype=dtype, weights="plain").float()

    assert packed_format(model) == kind and {each.dtype for each in model.parameters()} == {torch.float32}
    far = (model(PROMPT) - plain(PROMPT)).std() / plain(PROMPT).std()
    assert far < {"fp32": 1e-5, "bf16": 0.01, "int8": 0.02}[kind]
    assert any(isinstance(each, PackedWeight) for each in model.parameters()) and len(write(model)[0]) == 12


def test_a_layout_that_there_is_not_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="weights: no 'int4'; there are auto, plain, fp32, bf16, int8"):
        regard.load(tmp_path / "nowhere", weights="int4")
