"""Adapters both ways: what `peft` saved answers here as there, what is saved here there; the rest is refused."""

import json
import shutil

import peft
import pytest
import torch
import transformers as hf
from hub import decoder_cases, encoder_cases, encoder_decoder_cases, image_cases
from hub.published import answers, pair, question, quiet
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

import regard
from regard import config
from regard.hub import peft_load
from regard.hub.families import hf_config
from regard.hub.name_table import RUNTIME_NAMES, file_name, runtime_name
from regard.models import lora

CASES = {**decoder_cases.CASES, **encoder_cases.CASES, **encoder_decoder_cases.CASES, **image_cases.CASES}
CLOSE = 1e-5
QUICK = ["gpt2", "llama", "bert", "t5"]
OTHERS = [
    "gpt2 untied, relu", "gpt2 label", "gpt neo", "gpt", "llama tied, biases", "llama tags", "mistral span", "qwen2",
    "qwen3 tied, biases", "bert words and pairs, relu", "bert classes, gelu_new", "bert answers, silu",
    "roberta classes", "distilbert classes", "albert wide embeddings, relu", "electra classes",
    "t5 gated, a head of its own", "bart classes", "mbart", "marian apart, a head of its own", "whisper", "vit", "deit",
    "clip text", "clip images", "imagegpt", "swin",
]  # fmt: skip
FAMILIES = pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])


def off(ours, theirs):
    assert [x.shape for x in ours] == [x.shape for x in theirs]
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def asking(model, both, asked):
    """What another model of ours says."""
    before, both.ours = both.ours, model
    said, both.ours = told(both, asked)[1], before
    return said


def maps(model):
    """All of their maps that an adapter may be on: a head that is the embedding's table is none."""
    weights = [weight for _, weight in model.named_parameters(remove_duplicate=False)]
    return [name for name, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D)
            and sum(weight is part.weight for weight in weights) == 1]  # fmt: skip


def adapted(theirs, folder, targets=None, modules_to_save=None, **changes):
    """Theirs with random adapters, saved by peft."""
    settings = {
        "r": 3,
        "lora_alpha": 4,
        "target_modules": targets or maps(theirs),
        "modules_to_save": modules_to_save or None,
    }
    with quiet():
        model = peft.get_peft_model(theirs, peft.LoraConfig(**settings | changes)).eval()
        with torch.no_grad():
            for weight in (weight for weight in model.parameters() if weight.requires_grad):
                weight.normal_(std=0.2)
        model.save_pretrained(folder)
    return model


def opened(base, folder):
    """What peft makes of our folder."""
    with quiet():
        return peft.PeftModel.from_pretrained(type(base).from_pretrained(base.name_or_path), folder).eval()


@torch.no_grad()
def told(of, asked):
    return answers(of, asked)


@pytest.fixture
def of(tmp_path):
    """A pair of models, and a question to both."""

    def made(name):
        made = pair(CASES[name], tmp_path / "base")
        with quiet():
            made.theirs = type(made.theirs).from_pretrained(tmp_path / "base").eval()
        return made, question(made)

    return made


# ---------------------------------------------------------------- theirs, here


@FAMILIES
def test_adapters_on_every_map_of_theirs_answer_alike_here_and_go_back(name, of, tmp_path):
    both, asked = of(name)
    base, plain = both.theirs, told(both, asked)[1]
    both.theirs = adapted(base, tmp_path / "theirs")
    both.ours.adapt(tmp_path / "theirs")
    theirs, ours = told(both, asked)
    both.ours.save_adapter(tmp_path / "ours")
    both.theirs = opened(base, tmp_path / "ours")
    back, _ = told(both, asked)
    both.ours.merge()
    _, merged = told(both, asked)

    assert off(ours, plain) > 0.1
    assert off(ours, theirs) <= CLOSE and off(ours, back) <= CLOSE
    assert off(merged, ours) <= 3 * CLOSE  # T5's answers are as large as its weights begin


@FAMILIES
def test_adapters_on_our_parts_answer_alike_there(name, of, tmp_path):
    both, asked = of(name)
    both.ours.adapt(config.LoRA(rank=3, alpha=5, targets=("q", "v", "out")))
    with torch.no_grad():
        for weight in lora.adapter_parameters(both.ours).values():
            weight.normal_(std=0.2)
    both.ours.save_adapter(tmp_path / "ours")
    both.theirs = opened(both.theirs, tmp_path / "ours")
    again = regard.load(tmp_path / "base", device="cpu", adapter=tmp_path / "ours")
    theirs, ours = told(both, asked)

    assert off(ours, theirs) <= CLOSE
    assert off(asking(again, both, asked), ours) <= CLOSE


@pytest.mark.parametrize("changes", [
    {"use_rslora": True},
    {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"q_proj": 9, "model.layers.1.mlp.up_proj": 2}},
    {"rank_pattern": {"^model.layers.0.self_attn.v_proj": 2}, "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 7}},
    {"lora_dropout": 0.5},
    {"layers_to_transform": [0, 2]},
    {"init_lora_weights": "gaussian"},
    {"lora_alpha": 0.7},
], ids=str)  # fmt: skip
def test_their_settings_mean_here_what_they_mean_there(changes, of, tmp_path):
    both, asked = of("llama")
    both.theirs = adapted(both.theirs, tmp_path / "theirs", ["q_proj", "v_proj", "up_proj"], **changes)
    both.ours.adapt(tmp_path / "theirs")
    theirs, ours = told(both, asked)
    both.ours.save_adapter(tmp_path / "ours")
    again = regard.load(tmp_path / "base", device="cpu").adapt(tmp_path / "ours")

    assert off(ours, theirs) <= CLOSE
    assert off(asking(again, both, asked), ours) <= CLOSE


@pytest.mark.parametrize("targets", [("qkv",), ("q",), ("k", "v")], ids=str)
def test_parts_of_a_map_that_is_one_for_them_are_one_adapter_of_a_higher_rank(targets, of, tmp_path):
    both, asked = of("gpt2")
    both.ours.adapt(config.LoRA(rank=3, targets=targets))
    with torch.no_grad():
        for weight in lora.adapter_parameters(both.ours).values():
            weight.normal_(std=0.2)
    both.ours.save_adapter(tmp_path / "ours")
    said = json.loads((tmp_path / "ours/adapter_config.json").read_text())
    both.theirs = opened(both.theirs, tmp_path / "ours")
    theirs, ours = told(both, asked)

    assert said["target_modules"] == ["c_attn"] and said["r"] == 3 * len(targets) and said["fan_in_fan_out"]
    assert off(ours, theirs) <= CLOSE


def test_one_adapter_for_three_maps_of_theirs_is_three_that_read_alike(of, tmp_path):
    both, asked = of("llama")
    both.ours.adapt(config.LoRA(rank=3, targets=("qkv",)))
    with torch.no_grad():
        for weight in lora.adapter_parameters(both.ours).values():
            weight.normal_(std=0.2)
    both.ours.save_adapter(tmp_path / "ours")
    both.theirs = opened(both.theirs, tmp_path / "ours")
    stored = load_file(tmp_path / "ours/adapter_model.safetensors")
    one, other = (stored[f"base_model.model.model.layers.0.self_attn.{each}_proj.lora_A.weight"] for each in "qv")

    assert torch.equal(one, other)
    assert off(*told(both, asked)) <= CLOSE


# ---------------------------------------------------------------- what learned whole


def test_a_part_that_learned_whole_takes_the_place_of_the_bases(of, tmp_path):
    both, asked = of("bert classes, gelu_new")
    both.theirs = adapted(
        both.theirs, tmp_path / "theirs", ["query", "value"], modules_to_save=["classifier", "pooler"]
    )
    both.ours.adapt(tmp_path / "theirs")
    learn = {name for name, weight in both.ours.named_parameters() if weight.requires_grad}

    assert off(*told(both, asked)) <= CLOSE
    assert learn - lora.adapter_parameters(both.ours).keys() == {f"head.{part}.{w}" for part in ("dense", "out")
                                                      for w in ("weight", "bias")}  # fmt: skip
    both.ours.save_adapter(tmp_path / "ours")
    base = hf.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    both.theirs = opened(base, tmp_path / "ours")
    assert off(*told(both, asked)) <= CLOSE


@pytest.mark.parametrize("base, other", [
    ("bert", hf.BertForSequenceClassification), ("bert body, three segments", hf.BertForSequenceClassification),
    ("bert", hf.BertForTokenClassification), ("bert", hf.BertForQuestionAnswering),
    ("llama", hf.LlamaForSequenceClassification), ("roberta", hf.RobertaForSequenceClassification),
], ids=lambda one: getattr(one, "__name__", one))  # fmt: skip
def test_an_adapter_for_another_task_brings_its_head(base, other, of, tmp_path):
    both, asked = of(base)
    with quiet():
        theirs = other.from_pretrained(tmp_path / "base", num_labels=2 if "Answering" in other.__name__ else 5)
    kind = {"Sequence": "SEQ_CLS", "Token": "TOKEN_CLS", "Question": "QUESTION_ANS"}
    task = next(task for word, task in kind.items() if f"For{word}" in other.__name__)
    named = {"SEQ_CLS": "score" if "Llama" in other.__name__ else "classifier", "TOKEN_CLS": "classifier",
             "QUESTION_ANS": "qa_outputs"}  # fmt: skip
    modules_to_save = [named[task]] + ["pooler"] * (base == "bert" and task == "SEQ_CLS")
    targets = ["q_proj", "v_proj"] if base == "llama" else ["query", "value"]
    worn = adapted(theirs, tmp_path / "theirs", targets, modules_to_save, task_type=task)
    both.theirs = worn.get_base_model()  # peft's class for answers asks without segments
    both.ours = regard.load(tmp_path / "base", device="cpu", adapter=tmp_path / "theirs")

    assert off(*told(both, asked)) <= CLOSE


def test_a_head_that_nobody_has_is_told(of, tmp_path):
    both, _ = of("bert")  # without a pooler
    with quiet():
        theirs = hf.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    adapted(theirs, tmp_path / "theirs", ["query"], ["classifier"], task_type="SEQ_CLS")
    before = {name: weight.clone() for name, weight in both.ours.state_dict().items()}
    with pytest.raises(config.DataError, match="another head, and neither it nor the model has head.dense.bias"):
        both.ours.adapt(tmp_path / "theirs")

    assert before.keys() == both.ours.state_dict().keys() and not lora.adapted_modules(both.ours)
    assert all(torch.equal(weight, before[name]) for name, weight in both.ours.state_dict().items())


def test_a_model_of_no_family_has_adapters_with_its_own_names(tmp_path):
    c = config.Transformer(embed=config.TextEmbedding(vocab=19), trunk=config.Trunk(
        dim=12, depth=2, attention=config.Attention(heads=3, kernel="linear"), mask="causal"))  # fmt: skip
    model, ids = regard.build(c).eval(), torch.arange(7)[None]
    model.save(tmp_path / "base")
    model.adapt(config.LoRA(rank=2, targets=("q", "out"), modules_to_save=("trunk.final_norm",)))
    with torch.no_grad():
        for weight in (weight for weight in model.parameters() if weight.requires_grad):
            weight.normal_()
    model.save_adapter(tmp_path / "ours")
    again = regard.load(tmp_path / "base", device="cpu", adapter=tmp_path / "ours")

    assert torch.equal(again(ids), model(ids))
    assert again.trunk.blocks[0].attn.qkv.lora.keys() == {"q"}


# ---------------------------------------------------------------- folders


def test_a_folder_with_an_adapter_alone_stands_for_its_model_wearing_it(of, tmp_path):
    both, asked = of("gpt2")
    both.theirs = adapted(both.theirs, tmp_path / "theirs", ["c_attn"])
    both.ours = regard.load(tmp_path / "theirs", device="cpu")

    assert off(*told(both, asked)) <= CLOSE


def test_saving_a_model_that_wears_adapters_merges_them_in_the_folder_alone(of, tmp_path):
    both, asked = of("gpt2")
    adapted(both.theirs, tmp_path / "theirs", ["c_attn"])
    both.ours.adapt(tmp_path / "theirs")
    before = told(both, asked)[1]
    both.ours.save(tmp_path / "merged")

    assert off(asking(regard.load(tmp_path / "merged", device="cpu"), both, asked), before) <= CLOSE
    assert lora.adapted_modules(both.ours) and torch.equal(told(both, asked)[1][0], before[0])
    with quiet():
        both.theirs = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "merged").eval()
    assert off(*told(both, asked)) <= CLOSE


def test_what_others_left_is_not_replaced_and_what_was_saved_here_is_checked(of, tmp_path):
    both, _ = of("gpt2")
    adapted(both.theirs, tmp_path / "theirs", ["c_attn"])
    both.ours.adapt(tmp_path / "theirs")
    with pytest.raises(config.DataError, match="not written by a save"):
        both.ours.save_adapter(tmp_path / "theirs")
    both.ours.save_adapter(tmp_path / "ours")
    both.ours.save_adapter(tmp_path / "ours")  # its own it may replace

    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        "MANIFEST.json", "adapter_config.json", "adapter_model.safetensors", "regard.json"]  # fmt: skip
    stored = bytearray((tmp_path / "ours/adapter_model.safetensors").read_bytes())
    stored[-3] ^= 1
    (tmp_path / "ours/adapter_model.safetensors").write_bytes(stored)
    with pytest.raises(config.DataError, match="sha256 differs"):
        both.ours.merge().adapt(tmp_path / "ours")


def test_a_model_without_adapters_has_none_to_save(tmp_path):
    with pytest.raises(config.ConfigError, match=r"has no adapters; model.adapt\(...\) attaches some"):
        regard.build(regard.preset("gpt2", dim=12, depth=1, heads=3, vocab=11)).save_adapter(tmp_path / "none")


# ---------------------------------------------------------------- what is refused


@pytest.fixture
def theirs(of, tmp_path):
    """A model here, and a good folder of theirs to spoil."""
    both, _ = of("llama")
    adapted(both.theirs, tmp_path / "theirs", ["q_proj", "v_proj"])
    return both.ours, tmp_path / "theirs"


def refused(model, folder):
    """The sentence; the model stays as it was, bit for bit."""
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises((config.DataError, config.ConfigError)) as problem:
        model.adapt(folder)
    assert "\n" not in str(problem.value) and len(str(problem.value)) < 600
    assert before.keys() == model.state_dict().keys() and all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    return str(problem.value)


@pytest.mark.parametrize("changes, said", [
    ({"use_dora": True}, "use_dora is true; DoRA also learns the lengths"),
    ({"peft_type": "LOHA"}, 'peft_type is "LOHA"; adapters here can only be LORA'),
    ({"peft_type": None}, "peft_type is missing"),
    ({"bias": "all"}, 'bias is "all"; models here can only have "none"'),
    ({"lora_bias": True}, "lora_bias is true; it may change outputs"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices is [3]"),
    ({"alora_invocation_tokens": [3, 4]}, "alora_invocation_tokens is [3, 4]"),
    ({"something_new": {"a": 1}}, "something_new is"),
    ({"init_lora_weights": "pissa_niter_4"}, "it changes the base as well"),
    ({"init_lora_weights": "loftq"}, "it changes the base as well"),
    ({"lora_alpha": "many"}, 'lora_alpha is "many"; expected a number'),
    ({"alpha_pattern": {"(a+)+$": 3}}, "expected the name of a map, or its end"),
    ({"alpha_pattern": [3]}, "alpha_pattern is [3]; expected a table"),
    ({"use_rslora": "yes"}, "expected true or false"),
    ({"lora_dropout": 1.5}, "lora_dropout is 1.5"),
], ids=str)  # fmt: skip
def test_settings_that_mean_something_else_are_refused_in_one_sentence(theirs, changes, said):
    model, folder = theirs
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    assert said in refused(model, folder)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def without(name):
    return lambda tensors: tensors.pop(name)


def with_(name, *shape, like=torch.zeros):
    return lambda tensors: tensors.update({name: like(*shape)})


@pytest.mark.parametrize("spoil, said", [
    (without(f"{FIRST}B.weight"), "expected A (r, in) and B (out, r)"),
    (with_(f"{FIRST}A.weight", 4, 36), "expected A (r, in) and B (out, r)"),
    (with_(f"{FIRST}A.weight", 3, 35), "q_proj changes a map of 84 x 35, and here it is 84 x 36"),
    (with_(f"{FIRST}magnitude_vector", 36), "is no A or B of a linear layer"),
    (with_("base_model.model.model.embed_tokens.lora_embedding_A", 3, 53), "is no A or B of a linear layer"),
    (with_("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", 3, 36), "expected A (r, in)"),
    (with_("base_model.model.model.norm.weight", 35), "model.norm.weight is (35,), and (36,) in this model"),
    (with_("base_model.model.nothing.weight", 36), "nothing.weight: Llama has no such part in this model"),
    (with_(f"{FIRST}A.weight", 3, 36, like=lambda *shape: torch.full(shape, float("nan"))), "that are not finite"),
    (lambda tensors: tensors.clear() or tensors.update(x=torch.ones(3)), "there is no adapter in"),
], ids=["no B", "other rank", "other width", "magnitudes", "table", "half", "other shape", "nothing", "not finite",
        "none"])  # fmt: skip
def test_tensors_that_have_no_place_are_refused_in_one_sentence(theirs, spoil, said):
    model, folder = theirs
    tensors = load_file(folder / "adapter_model.safetensors")
    spoil(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")

    assert said in refused(model, folder)


def test_files_that_are_not_there_or_not_whole_are_told(theirs, tmp_path):
    model, folder = theirs
    stored = (folder / "adapter_model.safetensors").read_bytes()

    assert "no such folder; did you mean 'theirs'?" in refused(model, tmp_path / "theirz")
    assert "expected adapter_config.json" in refused(model, tmp_path / "base")
    (folder / "adapter_model.safetensors").write_bytes(stored[: len(stored) // 2])
    assert "not whole safetensors" in refused(model, folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "may run code when it is opened" in refused(model, folder)
    (folder / "adapter_model.bin").unlink()
    assert "there is no adapter_model.safetensors" in refused(model, folder)
    (folder / "adapter_config.json").write_text("{")
    assert "not valid JSON" in refused(model, folder)


def test_an_adapter_of_another_model_is_refused(of, theirs, tmp_path):
    shutil.rmtree(tmp_path / "base")
    both, _ = of("gpt2")

    assert "GPT-2 has no such part in this model" in refused(both.ours, theirs[1])


def test_a_head_of_any_size_costs_no_memory_before_it_is_refused(theirs):
    model, folder = theirs
    head = {"kind": "pooling", "out": 1 << 40}
    (folder / "regard.json").write_text(json.dumps({"format": 1, "head": head, "architecture": None, "task": None}))

    assert "has not as many" in refused(model, folder)


def test_an_adapter_on_a_table_that_two_share_is_refused(of, tmp_path):
    both, _ = of("llama tied, biases")
    with quiet():
        adapted(both.theirs, tmp_path / "theirs", ["lm_head"])

    assert "shares its weight with another part" in refused(both.ours, tmp_path / "theirs")


def test_one_of_two_names_of_a_shared_table_is_refused(of, tmp_path):
    both, _ = of("gpt2")
    adapted(both.theirs, tmp_path / "theirs", ["c_attn"], modules_to_save=["wte"])

    assert "are one weight in this model, and two in the adapter" in refused(both.ours, tmp_path / "theirs")


def test_a_model_wears_one_adapter_at_a_time_and_others_after_merging(theirs):
    model, folder = theirs
    model.adapt(folder)
    with pytest.raises(config.ConfigError, match=r"has adapters already; model.merge\(\)"):
        model.adapt(folder)
    model.merge().adapt(folder)

    assert lora.adapted_modules(model)


@pytest.mark.parametrize("family", RUNTIME_NAMES)
def test_names_of_files_and_of_running_models_translate_both_ways(family):
    rows = regard.hub.name_table.all_name_rows(family)
    for row in (row for row in rows if row.transform not in regard.hub.name_table.READ_ONLY_KINDS):
        assert file_name(runtime_name(row.theirs, family), family) == row.theirs


def test_every_setting_that_peft_has_unless_said_is_understood():
    plain = peft.LoraConfig(target_modules=["q"]).to_dict()

    peft_load.check_peft_config(
        hf_config.HFConfig(plain)
    )  # a newer peft may have more, and they are refused where they are said
    assert {"use_dora", "lora_bias", "trainable_token_indices"} <= plain.keys() - peft_load.KNOWN_PEFT_KEYS
