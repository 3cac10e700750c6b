"""regard convert: whatever loads, as a folder; in the words of `transformers` where it has a class."""

import json

import pytest
import torch
import transformers as hf
from hub import gguf_files
from hub.decoder_cases import CASES
from hub.published import pair, quiet

import regard
from regard import config, lens
from regard.hub.weights import load_tensors_lazy


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 as `transformers` saves it."""
    pair(CASES["gpt2"], tmp_path / "gpt2")
    return tmp_path / "gpt2"


def weights(folder):
    return load_tensors_lazy(folder / "model.safetensors")


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def said(folder):
    return json.loads((folder / "config.json").read_text())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], x) for name, x in other.items())


def test_a_folder_of_theirs_goes_through_without_a_change(say, folder, tmp_path):
    told = say("convert", folder, tmp_path / "out")
    ours = said(tmp_path / "out")
    ours.pop("regard")

    assert told.code == 0 and "GPT2LMHeadModel, which transformers opens" in told.out
    assert f"{sum(x.numel() for x in weights(folder).values()):,} in float32" in told.out
    assert same(weights(tmp_path / "out"), weights(folder)) and ours == said(folder)


@pytest.mark.parametrize("dtype, kind", [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)])
def test_numbers_are_written_in_the_type_that_is_asked_for(say, folder, tmp_path, dtype, kind):
    told = json.loads(say("convert", folder, tmp_path / "out", "--dtype", dtype, "--json").out)
    with quiet():
        theirs = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "out", dtype="auto")

    assert told["dtype"] == said(tmp_path / "out")["dtype"] == str(kind).removeprefix("torch.")
    assert same(weights(tmp_path / "out"), {name: x.to(kind) for name, x in weights(folder).items()})
    assert theirs.dtype == kind


@pytest.mark.slow
def test_in_our_words_and_back_nothing_is_lost(say, folder, tmp_path):
    told = say("convert", folder, tmp_path / "own", "--as", "regard")
    ids = torch.tensor([[3, 5, 7, 11]])

    assert "regard's own format" in told.out and said(tmp_path / "own")["model_type"] == "regard"
    assert "trunk.blocks.0.attn.qkv.weight" in weights(tmp_path / "own")
    assert torch.equal(*(regard.load(path, device="cpu")(ids) for path in (folder, tmp_path / "own")))

    again = json.loads(say("convert", tmp_path / "own", tmp_path / "back", "--as", "transformers", "--json").out)
    assert again["class"] == "GPT2LMHeadModel" and same(weights(tmp_path / "back"), weights(folder))
    assert said(tmp_path / "own")["pad_token_id"] == said(folder)["pad_token_id"]


@pytest.mark.slow
def test_a_pruned_model_is_written_as_our_own_kind_and_says_why(say, folder, tmp_path):
    small = lens.prune_heads(regard.load(folder, device="cpu"), {"trunk.1.attn": [0]})
    small.save(tmp_path / "pruned")
    told = say("convert", tmp_path / "pruned", tmp_path / "out", "--dtype", "bf16")
    refused = say("convert", tmp_path / "pruned", tmp_path / "other", "--as", "transformers")

    assert told.code == 0 and "own format, as transformers has no class for it: trunk.attention.heads" in told.out
    assert said(tmp_path / "out")["model_type"] == "regard"
    assert refused.code == 2 and "--as transformers: it has no class for this model (trunk.attention" in refused.err
    assert not (tmp_path / "other").exists()


def test_a_tokenizer_goes_along(say, checkpoint, tmp_path):
    told = say("convert", checkpoint, tmp_path / "out")

    assert "beside it" in told.out
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    assert regard.load(tmp_path / "out").context == 17


def test_a_gguf_file_becomes_a_folder_that_is_equal_in_transformers(say, tmp_path):
    pytest.importorskip("gguf")
    file = gguf_files.write(tmp_path / "llama.gguf", gguf_files.made(CASES["llama"]))
    refused, told = say("check", file), say("convert", file, tmp_path / "out")
    found = say("check", tmp_path / "out", "--quick", "--dtype", "fp32")

    assert refused.code == 3 and f"`regard convert {file} FOLDER` makes one" in refused.err
    assert told.code == 0 and "LlamaForCausalLM, which transformers opens" in told.out
    assert found.code == 0 and found.out.endswith("\nequal\n")


@pytest.mark.parametrize("form", ["regard", "transformers"])
def test_an_adapter_becomes_part_of_a_whole_model(say, folder, tmp_path, form):
    model = regard.load(folder, device="cpu").adapt(config.LoRA(rank=2))
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.3)
    ids = torch.tensor([[3, 5, 7, 11]])
    model.save_adapter(tmp_path / "adapter")
    refused = say("check", tmp_path / "adapter")
    told = say("convert", tmp_path / "adapter", tmp_path / "out", "--as", form)
    got, before = (regard.load(path, device="cpu")(ids) for path in (tmp_path / "out", folder))

    assert refused.code == 3 and "an adapter, which is part of a model" in refused.err
    assert told.code == 0, told.err
    assert torch.allclose(got, model(ids), atol=1e-5) and not torch.allclose(got, before, atol=1e-2)


def test_a_folder_that_was_not_written_by_a_save_is_never_replaced(say, folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("three years")
    told = say("convert", folder, tmp_path / "mine")

    assert told.code == 3 and "thesis.txt" in told.err
    assert files(tmp_path / "mine") == {"thesis.txt": b"three years"}


@pytest.mark.parametrize("form", ["regard", "transformers"])
def test_a_model_is_never_written_over_itself(say, folder, form):
    before = files(folder)
    told = say("convert", folder, f"{folder}/../{folder.name}", "--as", form)

    assert told.code == 3 and "source and target folder are the same" in told.err
    assert files(folder) == before


def test_numbers_that_fit_no_half_are_told_and_nothing_is_written(say, folder, tmp_path):
    model = regard.load(folder, device="cpu")
    model.trunk.blocks[1].mlp.up.weight.data[0, 0] = 1e6
    model.save(tmp_path / "large")
    told = say("convert", tmp_path / "large", tmp_path / "out", "--dtype", "fp16")

    assert told.code == 3 and "not finite as float16" in told.err
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_one_sentence(say, tmp_path):
    told = say("convert", tmp_path / "nowhere", tmp_path / "out")

    assert told.code == 3 and len(told.err.splitlines()) == 1
