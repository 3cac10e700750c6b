"""Folders both ways: what is written here opens in `transformers` with equal logits, and what they write opens here."""

import json
import re
import warnings
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hub.builders import LENGTH, ROTARY, F, H, V, gpt2, llama, model, nobodys, words
from parity.families import MODELS
from parity.tolerance import assert_near, randomise

from regard import config as C
from regard.core.model import Transformer
from regard.hub import locate, read_folder, weights, write_folder
from regard.hub.families.canonical import canonicalize

IDS = torch.arange(3, V - 1, dtype=torch.long)[:33].view(3, 11)
YARN = dict(scaling="yarn", factor=4.0, original_length=16, beta_fast=2.0, beta_slow=0.1, attention_factor=1.25)
FACTORS = (1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0)

MODELS_OF_A_FAMILY = {
    "gpt2": gpt2(),
    "gpt2 untied": gpt2(head=C.LMHead(tied=False)),
    "gpt2 with relu": gpt2(mlp=C.MLP(activation="relu"), norm=C.Norm(eps=1e-3)),
    "llama": llama(),
    "llama tied": llama(head=C.LMHead(tied=True)),
    "llama with biases": llama(
        attention=C.Attention(heads=H, kv_heads=2), mlp=C.MLP(hidden=F, activation="gelu_tanh", gated=True)
    ),
    "llama without groups": llama(attention=C.Attention(heads=H, bias=()), norm=C.Norm(kind="rms", eps=1e-3)),
    "llama of another base": llama(rotary=dict(base=50.0)),
    "llama linear": llama(rotary=dict(scaling="linear", factor=3.0)),
    "llama dynamic": llama(rotary=dict(scaling="dynamic", factor=3.0, original_length=8)),
    "llama yarn": llama(rotary=YARN),
    "llama 3": llama(
        rotary=dict(scaling="llama3", factor=8.0, original_length=16, low_freq_factor=1.0, high_freq_factor=3.0)
    ),
    "llama longrope": llama(rotary=dict(scaling="longrope", factor=4.0, original_length=16, freq_factors=FACTORS)),
}
EVERY = pytest.mark.parametrize("name", MODELS_OF_A_FAMILY)


def opened(path) -> Transformer:
    """The model in a folder, as our loader opens it."""
    found = read_folder.read_model_folder(path)
    made = Transformer(found.config).eval()
    read_folder.load_weights(made, found)
    return made


def assert_same_bits(one: torch.nn.Module, other: torch.nn.Module) -> None:
    mine, others = one.state_dict(), other.state_dict()
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


# ---------------------------------------------------------------- there


@EVERY
def test_transformers_opens_our_folder_with_equal_logits(name, tmp_path):
    ours = model(MODELS_OF_A_FAMILY[name])
    write_folder.save_model(tmp_path / "out", ours, context=LENGTH)

    theirs, report = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)

    assert not any(report.values())
    assert_near(ours(IDS), theirs.eval()(IDS).logits)


@EVERY
def test_a_family_folder_comes_back_bit_for_bit_with_all_of_its_config(name, tmp_path):
    c = replace(MODELS_OF_A_FAMILY[name], init="vit")
    ours = model(c)
    write_folder.save_model(tmp_path / "out", ours, context=17)
    found = read_folder.read_model_folder(tmp_path / "out")

    assert (found.config, found.context, found.family) == (c, 17, name.split()[0])
    assert_same_bits(opened(tmp_path / "out"), ours)


def test_their_autotokenizer_opens_the_tokenizer_and_knows_its_roles(tmp_path):
    write_folder.save_model(tmp_path / "out", model(llama()), words())
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")

    assert tokenizer("w5 w9").input_ids == [5, 9]
    for said in (theirs.config, theirs.generation_config):
        assert (said.bos_token_id, said.eos_token_id, said.pad_token_id) == (1, 2, 0)
    assert read_folder.read_model_folder(tmp_path / "out").tokenizer_path == tmp_path / "out" / "tokenizer.json"


def test_without_a_tokenizer_there_is_no_end_of_text(tmp_path):
    write_folder.save_model(tmp_path / "out", model(gpt2()))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    assert theirs.config.eos_token_id is theirs.generation_config.eos_token_id is None
    assert read_folder.read_model_folder(tmp_path / "out").tokenizer_path is None
    assert theirs.generate(IDS, max_new_tokens=2, do_sample=False).shape == (3, 13)


def test_weights_in_bf16_are_opened_as_bf16_on_both_sides(tmp_path):
    ours = model(replace(llama(), precision="bf16"))
    write_folder.save_model(tmp_path / "out", ours)

    assert hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    assert_same_bits(opened(tmp_path / "out"), ours)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_table_is_stored_once(tied, tmp_path):
    write_folder.save_model(tmp_path / "out", model(gpt2(head=C.LMHead(tied=tied))))

    assert ("lm_head.weight" in weights.load_tensors_lazy(tmp_path / "out/model.safetensors")) == (not tied)


# ---------------------------------------------------------------- and back


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama tied"])
@pytest.mark.parametrize("shard", ["50GB", "20kB"], ids=["one file", "shards"])
def test_a_folder_that_transformers_wrote_opens_with_equal_logits(name, shard, tmp_path):
    theirs, sentence = MODELS[name]()
    randomise(theirs)
    theirs.eval().save_pretrained(tmp_path, max_shard_size=shard)

    ours = opened(tmp_path)

    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20kB")
    assert canonicalize(ours.c) == canonicalize(sentence)
    assert_near(ours(IDS), theirs(IDS).logits)


def test_a_trunk_that_was_stored_alone_opens_as_the_published_gpt2_does(tmp_path):
    theirs, _ = MODELS["gpt2"]()
    randomise(theirs)
    theirs.eval().transformer.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"architectures": ["GPT2LMHeadModel"]}))

    assert "wte.weight" in weights.load_tensors_lazy(tmp_path / "model.safetensors")
    assert_near(opened(tmp_path)(IDS), theirs(IDS).logits)


def test_half_precision_of_others_is_read_into_fp32(tmp_path):
    theirs, _ = MODELS["llama"]()
    randomise(theirs)
    theirs.half().save_pretrained(tmp_path)

    ours = opened(tmp_path)

    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
    assert_near(ours(IDS), hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(IDS).logits)


def test_a_folder_changed_by_others_is_read_in_their_words(tmp_path):
    write_folder.save_model(tmp_path / "out", model(gpt2()))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    theirs.resize_token_embeddings(V + 4)
    theirs.save_pretrained(tmp_path / "changed")
    assert "regard" in json.loads((tmp_path / "changed/config.json").read_text())  # and now it is wrong

    with pytest.warns(UserWarning, match="changed after it was saved"):
        ours = opened(tmp_path / "changed")
    assert ours.c.embed.vocab == V + 4
    assert_near(ours(IDS), theirs(IDS).logits)


# ---------------------------------------------------------------- models of nobody's family


@pytest.mark.parametrize(
    "c",
    [nobodys(), nobodys(position=C.ShawPosition(max_distance=5)), nobodys(norm_placement="post", share_layers=False)],
)
def test_a_model_of_no_family_comes_back_bit_for_bit(c, tmp_path):
    ours = model(c)
    write_folder.save_model(tmp_path / "out", ours, context=29)
    found = read_folder.read_model_folder(tmp_path / "out")

    assert (found.config, found.family, found.context) == (c, None, 29)
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "regard"
    assert_same_bits(opened(tmp_path / "out"), ours)


def test_the_card_says_that_transformers_has_no_class_for_it_and_why(tmp_path):
    write_folder.save_model(tmp_path / "out", model(nobodys()))
    card = (tmp_path / "out/README.md").read_text()

    assert "`transformers` has no class" in card and "trunk.attention.qk_norm" in card


@pytest.mark.parametrize("tokenizer", [None, words], ids=["silent", "speaking"])
def test_the_card_of_a_family_says_how_transformers_opens_it(tokenizer, tmp_path, monkeypatch):
    ours = model(llama())
    write_folder.save_model(tmp_path / "out", ours, tokenizer and tokenizer())
    blocks = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path / "out")
    names = {}
    exec(blocks[1], names)  # the card's own words

    assert_near(names["model"].eval()(IDS).logits, ours(IDS))
    assert ("tokenizer" in names) == (tokenizer is not None)


def test_the_settings_on_the_card_are_the_model(tmp_path):
    c = nobodys()
    write_folder.save_model(tmp_path / "out", model(c))
    [block] = re.findall(r"```toml\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    (tmp_path / "card.toml").write_text(block)

    assert C.read_toml(C.Transformer, tmp_path / "card.toml") == c


# ---------------------------------------------------------------- runs


def test_a_run_stands_for_its_newest_checkpoint(tmp_path):
    for step in (9, 100, 20):
        write_folder.save_model(tmp_path / f"checkpoints/step-{step:06d}", model(nobodys()))

    assert (
        read_folder.read_model_folder(tmp_path).path
        == locate.newest_checkpoint(tmp_path)
        == tmp_path / "checkpoints/step-000100"
    )
    assert [path.name for path in locate.list_checkpoints(tmp_path)] == ["step-000009", "step-000020", "step-000100"]


def test_steps_beyond_a_million_are_newer_still(tmp_path):
    for step in (999_999, 1_000_000):
        write_folder.save_model(tmp_path / f"checkpoints/step-{step:06d}", model(nobodys()))

    assert locate.newest_checkpoint(tmp_path).name == "step-1000000"


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(tmp_path):
    for step in (1, 2):
        write_folder.save_model(tmp_path / f"checkpoints/step-{step:06d}", model(nobodys()))
    (tmp_path / "checkpoints/step-000002/config.json").unlink()

    with pytest.warns(UserWarning, match="step-000002/config.json: no such file.*step-000001 is used"):
        assert locate.newest_checkpoint(tmp_path).name == "step-000001"
    write_folder.save_model(tmp_path / "checkpoints/step-000002", model(nobodys()))  # and the run may write it again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert locate.newest_checkpoint(tmp_path).name == "step-000002"


def test_more_files_are_sealed_with_the_others(tmp_path):
    def more(place):
        (place / "train").mkdir()
        weights.save_tensors(place / "train/optim.safetensors", {"step": torch.tensor(7)})

    write_folder.save_model(tmp_path / "out", model(nobodys()), more=more)

    assert "train/optim.safetensors" in json.loads((tmp_path / "out/MANIFEST.json").read_text())["files"]
    assert weights.load_tensors_lazy(tmp_path / "out/train/optim.safetensors")["step"] == 7


# ---------------------------------------------------------------- tensors alone


def test_tensors_of_every_kind_come_back(tmp_path):
    table = torch.randn(5, 7)
    tensors = {
        "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 3), "whole": torch.tensor([2**53 + 1]),
        "flipped": table.mT, "row": table[0], "once": table, "twice": table, "half": table.bfloat16(),
        "random": torch.get_rng_state(), "bits": torch.tensor([True, False]),
    }  # fmt: skip
    weights.save_tensors(tmp_path / "x.safetensors", tensors)
    again = weights.load_tensors_lazy(tmp_path / "x.safetensors")

    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) and again[name].dtype == tensors[name].dtype for name in again)


def test_no_tensors_at_all_come_back(tmp_path):
    weights.save_tensors(tmp_path / "x.safetensors", {}, {"step": "7"})

    assert weights.load_tensors_lazy(tmp_path / "x.safetensors") == {}


def test_a_file_of_tensors_may_be_read_by_whoever_may_read_its_folder(tmp_path):
    for rights in (0o755, 0o700):
        tmp_path.chmod(rights)
        weights.save_tensors(tmp_path / "x.safetensors", {})

        assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == rights & 0o644


def test_rotary_length_is_the_context_where_nothing_is_stretched(tmp_path):
    write_folder.save_model(tmp_path / "out", model(llama(rotary=ROTARY)), context=19)

    assert json.loads((tmp_path / "out/config.json").read_text())["max_position_embeddings"] == 19
