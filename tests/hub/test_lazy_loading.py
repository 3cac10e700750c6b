"""Loading: straight from the disk to where the weights stay, every name accounted for before a number is read."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import transformers as hf
from hub.builders import gpt2, llama, model, nobodys
from hub.test_bad_folders import shards
from parity.tolerance import randomise
from safetensors.torch import load_file, save_file

import regard
from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.hub import name_table, read_folder, weight_reader, weights, write_folder
from regard.hub.weight_reader import all_finite
from regard.hub.weights import folder_headers
from regard.inference.load import model_on_meta

PRESETS = sorted(path.stem for path in Path(regard.__file__).parent.glob("zoo/presets/*.toml"))
LSTM = C.Transformer(embed=C.TextEmbedding(vocab=53), trunk=C.RecurrentStack(cell="lstm", dim=36, depth=2))
PERFORMER = C.Transformer(
    embed=C.TextEmbedding(vocab=53),
    trunk=C.Trunk(dim=36, depth=2, attention=C.Attention(heads=6, kernel="performer(16)")),
)
MODELS = {"gpt2": gpt2(), "llama": llama(), "nobody's": nobodys(), "lstm": LSTM, "performer": PERFORMER}


@pytest.fixture
def saved(tmp_path):
    """A model of GPT-2's family in a folder, as somebody else would have written it."""
    torch.manual_seed(1)
    write_folder.save_model(tmp_path / "gpt2", model(gpt2()))
    (tmp_path / "gpt2/MANIFEST.json").unlink()
    return tmp_path / "gpt2"


def retensor(path, change):
    tensors = {name: tensor.clone() for name, tensor in load_file(path / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


# ---------------------------------------------------------------- the same model


@pytest.mark.parametrize("piece", [7, 4 << 20])
def test_a_matrix_that_is_stored_flipped_lies_as_it_is_stored(saved, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_reader, "PIECE", piece)
    ours, stored = regard.load(saved, device="cpu"), load_file(saved / "model.safetensors")
    weight, theirs = ours.trunk.blocks[1].mlp.up.weight, stored["transformer.h.1.mlp.c_fc.weight"]
    ours.save(tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")

    assert weight.T.is_contiguous() and torch.equal(weight.T, theirs)
    assert stored.keys() == again.keys() and all(torch.equal(stored[name], again[name]) for name in stored)


@pytest.mark.parametrize("piece", [7, 4 << 20])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_built_without_numbers_is_the_one_that_was_saved(name, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_reader, "PIECE", piece)
    monkeypatch.setattr(weight_reader, "ALONE", piece)
    torch.manual_seed(2)
    whole = regard.build(MODELS[name]).eval()
    randomise(whole)
    whole.save(tmp_path / "at")
    chance = torch.get_rng_state()
    again = regard.load(tmp_path / "at", device="cpu")
    after, ids = torch.get_rng_state(), torch.randint(53, (2, 9))

    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in whole.state_dict().items())
    assert list(name_table.untied_tensors(again)) == list(name_table.untied_tensors(whole)), "what is tied"
    assert all(a.requires_grad == b.requires_grad for a, b in zip(again.parameters(), whole.parameters(), strict=True))
    assert torch.equal(again(ids), whole(ids))
    assert torch.equal(chance, after), "nothing was drawn for it"


@pytest.mark.parametrize("name", PRESETS)
def test_no_model_has_tables_that_are_neither_weights_nor_stored(name):
    """One that had would be built in full; a plain tensor would be left without numbers."""
    made = model_on_meta(read_folder.ModelFolder(Path(), regard.preset(name)))
    loose = [f"{place}.{key}" for place, module in made.named_modules() for key, value in vars(module).items()
             if isinstance(value, torch.Tensor)]  # fmt: skip

    assert not loose
    assert {key for key, _ in made.named_buffers()} <= made.state_dict().keys()
    assert all(weight.is_meta for weight in made.parameters())


def test_shards_are_read_as_one_file_is(saved, tmp_path):
    shards(saved, tmp_path / "shards")
    one, many = (regard.load(path, device="cpu").state_dict() for path in (saved, tmp_path / "shards"))

    assert all(torch.equal(tensor, many[name]) for name, tensor in one.items())


# ---------------------------------------------------------------- what it costs


COST = textwrap.dedent("""
    import json, os, sys, torch, regard

    def now(key):
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

    regard.load(sys.argv[1], device="cpu")  # what is imported on the way is no part of a model
    before = now("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest mark begins anew
    model = regard.load(sys.argv[2], device="cpu")
    weights = sum(weight.nbytes for weight in model.parameters())
    print(json.dumps([weights, now("VmHWM") - before]))
""")


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the memory of a process is told by Linux")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_load_needs_a_tenth_more_memory_than_the_weights_at_most(dtype, saved, tmp_path):
    sizes = dict(vocab_size=20_011, n_positions=64, n_embd=768, n_layer=8, n_head=12, bos_token_id=0, eos_token_id=0)
    hf.GPT2LMHeadModel(hf.GPT2Config(**sizes)).to(getattr(torch, dtype)).save_pretrained(tmp_path / "large")
    told = subprocess.run([sys.executable, "-c", COST, saved, tmp_path / "large"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)  # fmt: skip
    weights, most = json.loads(told.stdout)

    assert weights > 250e6 and most <= 1.1 * weights, most / weights


def test_names_and_shapes_are_compared_before_there_is_room_for_a_number(saved):
    retensor(saved, lambda tensors: tensors.update({"transformer.h.1.ln_2.bias": torch.ones(7)}))
    found = read_folder.read_model_folder(saved)
    made = model_on_meta(found)

    with pytest.raises(DataError, match="h.1.ln_2.bias"):
        read_folder.load_weights(made, found)
    assert all(weight.is_meta for weight in made.parameters())


# ---------------------------------------------------------------- types


@pytest.mark.parametrize("asked, held", [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_held_in_the_type_that_is_asked_for_and_saved_in_it(stored, asked, held, tmp_path):
    theirs = small().to(stored)
    theirs.save_pretrained(tmp_path / "theirs")
    made = regard.load(tmp_path / "theirs", device="cpu", dtype=asked)
    made.save(tmp_path / "ours")
    ids = torch.arange(9)[None]

    assert {weight.dtype for weight in made.parameters()} == {held}
    assert {x.dtype for x in load_file(tmp_path / "ours/model.safetensors").values()} == {held}
    assert json.loads((tmp_path / "ours/config.json").read_text())["dtype"] == str(held).removeprefix("torch.")
    near = made(ids).float() - theirs.float()(ids).logits
    assert near.abs().max() < (0.1 if torch.bfloat16 in (stored, held) else 0.02 if held == torch.float16 else 1e-5)


def small():
    torch.manual_seed(4)
    sizes = dict(vocab_size=53, n_positions=40, n_embd=36, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes)).eval()
    randomise(theirs)
    return theirs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_that_nobody_changed_goes_back_to_the_byte(dtype, tmp_path):
    small().to(dtype).save_pretrained(tmp_path / "theirs")
    made = regard.load(tmp_path / "theirs", device="cpu", dtype="auto")
    made.save(tmp_path / "ours")
    want, got = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    said = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours")]
    said[1].pop("regard")

    assert {weight.dtype for weight in made.parameters()} == {dtype}
    assert want.keys() == got.keys() and said[0] == said[1]
    assert all(torch.equal(*(x[name].flatten().view(torch.uint8) for x in (want, got))) for name in want)


def test_half_precision_that_was_trained_further_keeps_all_of_its_digits(tmp_path):
    small().half().save_pretrained(tmp_path / "theirs")
    made = regard.load(tmp_path / "theirs", device="cpu")
    with torch.no_grad():
        made.trunk.final_norm.bias += 1e-6
    made.save(tmp_path / "ours")
    again = regard.load(tmp_path / "ours", device="cpu")

    assert json.loads((tmp_path / "ours/config.json").read_text())["dtype"] == "float32"
    assert torch.equal(again.trunk.final_norm.bias, made.trunk.final_norm.bias)


def test_an_earlier_word_for_the_type_is_kept(tmp_path):
    small().half().save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs/config.json"
    said = json.loads(path.read_text())
    said["torch_dtype"] = said.pop("dtype")
    path.write_text(json.dumps(said))
    regard.load(tmp_path / "theirs", device="cpu", dtype="auto").save(tmp_path / "ours")
    again = json.loads((tmp_path / "ours/config.json").read_text())

    assert again.pop("regard") and again == said


def test_a_type_that_there_is_not_is_a_mistake_of_the_setting(saved):
    with pytest.raises(ConfigError, match="dtype: no 'int4'; there are auto, fp32, bf16, fp16, fp64"):
        regard.load(saved, dtype="int4")


# ---------------------------------------------------------------- files that change under the reader


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_stays_as_it_is_when_its_file_is_overwritten_and_cut_short(name, tmp_path):
    torch.manual_seed(3)
    write_folder.save_model(tmp_path / "at", model(MODELS[name]))
    made, file = regard.load(tmp_path / "at", device="cpu"), tmp_path / "at/model.safetensors"
    before, size = {key: tensor.clone() for key, tensor in made.state_dict().items()}, file.stat().st_size
    with file.open("r+b") as open_file:
        open_file.write(bytes(size))

    assert all(torch.equal(tensor, before[key]) for key, tensor in made.state_dict().items())
    os.truncate(file, 0)
    assert made(torch.arange(9)[None]).isfinite().all()


def test_a_file_that_ends_while_it_is_read_is_refused(saved):
    file = saved / "model.safetensors"
    found = folder_headers(saved)
    with pytest.raises(DataError, match=f"{file}: ended at byte [0-9,]+ while it was read"), \
            weight_reader.WeightReader([file]) as reader:  # fmt: skip
        os.truncate(file, file.stat().st_size - 9)
        reader.fill([weight_reader.ReadRequest(each, name_table.NameRow(name, name), torch.empty(each.shape))
                     for name, each in found.items()])  # fmt: skip


def test_a_disk_that_fails_is_told_in_a_sentence(saved, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    found = read_folder.read_model_folder(saved)
    monkeypatch.setattr("regard.hub.weight_reader.os.preadv", fails)
    with pytest.raises(DataError, match="model.safetensors: input/output error at byte"):
        read_folder.load_weights(model_on_meta(found), found)


def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end(saved, tmp_path, monkeypatch):
    found, want = read_folder.read_model_folder(saved), load_file(saved / "model.safetensors")
    settle = weights.materialize

    def replaced(*given):
        (tmp_path / "other").write_bytes(b"nothing")
        os.replace(tmp_path / "other", saved / "model.safetensors")
        settle(*given)

    monkeypatch.setattr(weights, "materialize", replaced)
    read_folder.load_weights(made := model_on_meta(found), found)

    assert torch.equal(made.embed.tokens.weight, want["transformer.wte.weight"])


def test_numbers_are_found_behind_tensors_of_a_type_that_nobody_reads(saved):
    want = regard.load(saved, device="cpu").state_dict()
    unused = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 3, 3, dtype=kind)
              for i, kind in enumerate((torch.complex64, torch.uint16, torch.float8_e4m3fn))}  # fmt: skip
    retensor(saved, lambda tensors: tensors.update(unused))
    got = regard.load(saved, device="cpu").state_dict()

    assert all(torch.equal(tensor, got[name]) for name, tensor in want.items())


def test_a_place_that_is_not_in_one_piece_is_filled_too(saved):
    found = folder_headers(saved)["transformer.wte.weight"]
    wide = torch.zeros(found.shape[1], found.shape[0]).mT
    with weight_reader.WeightReader([found.path]) as reader:
        reader.fill([weight_reader.ReadRequest(found, name_table.NameRow("x", "x"), wide)])

    assert not wide.is_contiguous() and torch.equal(wide, load_file(found.path)[found.name])


@pytest.mark.parametrize("how", ["", "flip"])
def test_a_place_on_another_device_gets_whole_pieces(how, saved, monkeypatch):
    """The meta device stands for one: it takes what is given and forgets it."""
    monkeypatch.setattr(weight_reader, "PIECE", 400)
    monkeypatch.setattr(weight_reader, "ALONE", 7)
    found, came = folder_headers(saved)["transformer.wte.weight"], []
    shape, put = found.shape[::-1] if how else found.shape, weight_reader.WeightReader.put
    monkeypatch.setattr(
        weight_reader.WeightReader, "put", lambda self, new, at: came.append(new.clone()) or put(self, new, at)
    )
    with weight_reader.WeightReader([found.path]) as reader:
        reader.fill(
            [weight_reader.ReadRequest(found, name_table.NameRow("x", "x", how), torch.empty(shape, device="meta"))]
        )

    assert sum(each.numel() for each in came if each.shape[-1] == shape[-1]) == found.shape[0] * found.shape[1]


# ---------------------------------------------------------------- numbers that are none


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["wte.weight", "h.2.ln_1.bias", "h.1.attn.c_attn.weight"])
def test_weights_that_are_not_finite_are_refused_by_name(name, value, saved, monkeypatch):
    monkeypatch.setattr(weight_reader, "PIECE", 300)

    def spoil(tensors):
        tensors[f"transformer.{name}"].view(-1)[-2] = value

    retensor(saved, spoil)
    with pytest.raises(DataError) as error:
        regard.load(saved, device="cpu")

    message = str(error.value)
    assert message.startswith(str(saved)) and f"transformer.{name}" in message and "not finite" in message


def test_of_many_that_are_not_finite_the_first_in_the_file_is_named(saved):
    retensor(saved, lambda tensors: [tensor.fill_(torch.nan) for tensor in tensors.values()])
    first = next(iter(folder_headers(saved)))

    for _ in range(5):
        with pytest.raises(DataError, match=f"{first} has values"):
            regard.load(saved, device="cpu")


def test_a_number_that_the_asked_type_cannot_hold_is_refused(saved):
    retensor(saved, lambda tensors: tensors["transformer.ln_f.bias"].fill_(1e5))

    regard.load(saved, device="cpu", dtype="bf16")
    with pytest.raises(DataError, match="ln_f.bias has values that are not finite as float16"):
        regard.load(saved, device="cpu", dtype="fp16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_largest_numbers_are_numbers(dtype):
    most = torch.finfo(dtype).max
    assert all_finite(torch.tensor([most, most, most], dtype=dtype)) and all_finite(torch.empty(0, dtype=dtype))
    assert not all_finite(torch.tensor([0, torch.inf], dtype=dtype)) and not all_finite(
        torch.tensor([torch.nan], dtype=dtype)
    )


def test_a_model_may_be_opened_in_inference_mode(tmp_path):
    regard.build(regard.preset("gpt2", dim=32, depth=1, heads=2, vocab=50)).save(tmp_path / "one")
    with torch.inference_mode():
        model = regard.load(tmp_path / "one", device="cpu")

    assert torch.equal(model.head.weight.clone(), regard.load(tmp_path / "one", device="cpu").head.weight)
