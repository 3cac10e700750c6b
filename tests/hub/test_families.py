"""A model is of a family when saying it in their words and hearing it back changes nothing."""

from dataclasses import replace

import pytest
import torch
import transformers as hf
from hub.builders import D, F, H, gpt2, llama, nobodys
from parity.families import MODELS
from parity.tolerance import NORM, assert_near
from transformers.activations import ACT2FN

import regard
from regard import config as C
from regard.core.layers import ACTIVATIONS
from regard.hub.families.canonical import canonicalize
from regard.hub.families.hf_config import HF_ACTIVATIONS as WORDS
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import FAMILIES, explain_all, family_of, match_family, parse_hf_config

CONFIGS = {
    "gpt2": hf.GPT2Config, "llama": hf.LlamaConfig, "gpt_neo": hf.GPTNeoConfig, "openai-gpt": hf.OpenAIGPTConfig,
    "mistral": hf.MistralConfig, "qwen2": hf.Qwen2Config, "qwen3": hf.Qwen3Config,
    "bert": hf.BertConfig, "roberta": hf.RobertaConfig, "distilbert": hf.DistilBertConfig, "albert": hf.AlbertConfig,
    "electra": hf.ElectraConfig, "t5": hf.T5Config, "bart": hf.BartConfig, "mbart": hf.MBartConfig,
    "marian": hf.MarianConfig, "whisper": hf.WhisperConfig,
}  # fmt: skip
PAIRS = ["gpt2", "llama", "llama tied"]


def name_of(c):
    family = family_of(c)
    return family and family.name


def changed(c, path, value):
    """The config with the setting at a dotted path replaced."""
    name, _, rest = path.partition(".")
    return replace(c, **{name: changed(getattr(c, name), rest, value) if rest else value})


@pytest.mark.parametrize("name", PAIRS)
def test_a_config_of_transformers_is_heard_as_the_sentence_that_equals_it(name):
    theirs, ours = MODELS[name]()

    c, family, _, longest = parse_hf_config(theirs.config.to_dict(), "config.json")

    assert canonicalize(c) == canonicalize(ours) and family.name == name.split()[0]
    assert longest == theirs.config.max_position_embeddings


@pytest.mark.parametrize("name", PAIRS)
def test_a_sentence_is_recognised_as_its_family(name):
    assert name_of(MODELS[name]()[1]) == name.split()[0]


PRESETS = [("gpt2", "gpt2"), ("llama", "llama-7b"), ("llama", "llama3-8b"), ("llama", "smollm2-135m")]


@pytest.mark.parametrize("name, preset", [*PRESETS, ("qwen3", "qwen3-0.6b")])
def test_presets_are_of_their_families(name, preset):
    assert name_of(regard.preset(preset)) == name


@pytest.mark.parametrize("name, preset", [("gpt2", "gpt2"), ("llama", "llama-7b")])
def test_presets_say_what_transformers_takes_for_granted(name, preset):
    defaults = CONFIGS[name]().to_dict()
    said = FAMILIES[name].to_hf(regard.preset(preset), None)

    assert {key: defaults[key] for key in said} == said | ({"n_inner": None} if name == "gpt2" else {})


@pytest.mark.parametrize("name", CONFIGS)
def test_every_word_that_is_said_is_one_that_transformers_knows(name):
    c = parse_hf_config(CONFIGS[name]().to_dict(), "config.json").config
    unwritten = {"head_dim"} if name == "qwen2" else set()  # which its class reads, and has no default for

    assert FAMILIES[name].to_hf(c, 17).keys() <= CONFIGS[name]().to_dict().keys() | unwritten


@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_takes_for_granted_is_heard_and_said_again(name):
    usual = CONFIGS[name]().to_dict()
    c, family, _, longest = parse_hf_config(usual, "config.json")
    said = family.to_hf(c, longest)
    same = {"n_inner", "intermediate_size", "attention_types", "head_dim", "max_window_layers"}  # said in other words

    assert {key: value for key, value in usual.items() if key in said.keys() - same} == {
        key: value for key, value in said.items() if key not in same
    }


def test_dropout_is_carried_over_where_the_family_has_a_word():
    rates = C.Dropout(embed=0.11, attention=0.12, residual=0.13)

    said = FAMILIES["gpt2"].to_hf(gpt2(dropout=rates), None)
    assert (said["embd_pdrop"], said["attn_pdrop"], said["resid_pdrop"]) == (0.11, 0.12, 0.13)
    assert FAMILIES["gpt2"].from_hf(HFConfig(said), C.NoHead()).trunk.dropout == rates
    assert FAMILIES["llama"].to_hf(llama(dropout=rates), None)["attention_dropout"] == 0.12


# ---------------------------------------------------------------- what makes a model not of a family

COMMON = {
    "trunk.mask": "full",
    "trunk.attention.qk_norm": C.Norm(),
    "trunk.attention.scale": 1.0,
    "trunk.attention.score": "cosine",
    "trunk.attention.value_head_dim": 8,
    "trunk.attention.bias": ("q", "v"),
    "trunk.attention.projections": ("q", "v", "out"),
    "trunk.norm.gain": False,
    "trunk.norm.offset": 1.0,
    "trunk.norm_placement": "post",
    "trunk.embed_norm": True,
    "trunk.final_norm": False,
    "trunk.share_layers": True,
    "trunk.embed_dim": 20,
    "trunk.position": C.AlibiPosition(),
    "embed.scale": 6.0,
    "embed.segments": 2,
    "head.bias": True,
    "head.scale": 0.5,
    "head.transform": True,
}
GPT2 = COMMON | {
    "trunk.attention.kv_heads": 3,
    "trunk.attention.head_dim": 8,
    "trunk.attention.bias": (),
    "trunk.mlp.gated": True,
    "trunk.mlp.bias": False,
    "trunk.norm.kind": "rms",
    "trunk.norm.bias": False,
    "trunk.position.offset": 2,
    "trunk.position.mode": "qk",
}
LLAMA = COMMON | {
    "trunk.mlp.gated": False,
    "trunk.norm.kind": "layer",
    "trunk.position.layout": "interleaved",
    "trunk.position.fraction": 0.5,
    "trunk.position.attention_factor": 1.5,
}
CHANGES = [(gpt2, *change) for change in GPT2.items()] + [(llama, *change) for change in LLAMA.items()]


@pytest.mark.parametrize("make, path, value", CHANGES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_setting_that_the_family_has_no_word_for_is_the_reason_against_it(make, path, value):
    c = changed(make(), path, value)

    assert make.__name__ != name_of(c)
    assert path in explain_all(c)[make.__name__]


@pytest.mark.parametrize("c", [gpt2, llama], ids=["gpt2", "llama"])
def test_an_encoder_beside_it_or_another_head_is_a_reason(c):
    encoder = C.Encoder(trunk=c().trunk)

    assert "cross" in explain_all(replace(c(), trunk=replace(c().trunk, cross="last"), encoder=encoder))[c.__name__]
    assert "head.kind" in explain_all(replace(c(), head=C.PoolingHead()))[c.__name__]


def test_a_head_of_odd_width_is_a_reason_against_llama():
    assert (
        "head_dim is 15"
        in explain_all(llama(attention=C.Attention(heads=H, kv_heads=3, head_dim=15, bias=())))["llama"]
    )


def test_heads_that_differ_from_layer_to_layer_are_a_reason():
    attention = C.Attention(heads=(6, 3, 6), head_dim=6)

    assert "heads" in explain_all(gpt2(attention=attention))["gpt2"]


def test_nobodys_model_has_a_reason_against_every_family():
    assert all(explain_all(nobodys()).values())


SAME = {
    "trunk.attention.kv_heads": H,
    "trunk.attention.head_dim": D // H,
    "trunk.attention.value_head_dim": D // H,
    "trunk.attention.scale": 6**-0.5,
    "trunk.attention.heads": (H, H, H),
    "trunk.attention.bias": ("out", "v", "k", "q"),
    "trunk.attention.kernel": "reference",
    "trunk.mask": ("causal & full", "causal"),
    "trunk.final_norm": True,
    "trunk.embed_dim": D,
    "trunk.dropout": C.NO_DROPOUT,
    "embed.pad_id": 3,
    "init": "vit",
    "precision": "bf16",
}


@pytest.mark.parametrize("path", SAME)
def test_the_same_model_said_in_another_way_is_still_of_the_family(path):
    c = gpt2(attention=C.Attention(heads=H, head_dim=D // H))

    assert explain_all(changed(c, path, SAME[path]))["gpt2"] == ""


# ---------------------------------------------------------------- what is heard


@pytest.mark.parametrize("word", WORDS)
def test_an_activation_is_the_one_that_transformers_means(word):
    x = torch.linspace(-7, 7, 301)

    assert_near(ACTIVATIONS[WORDS[word]](x), ACT2FN[word](x), NORM)


SMALL = dict(num_hidden_layers=5, hidden_size=36, num_attention_heads=6, num_key_value_heads=3)
SAID = {
    "gpt2": FAMILIES["gpt2"].to_hf(gpt2(), None) | {"model_type": "gpt2"},
    "llama": FAMILIES["llama"].to_hf(llama(), None) | {"model_type": "llama"},
    "gpt_neo": hf.GPTNeoConfig(num_layers=4, attention_types=[[["global", "local"], 2]]).to_dict(),
    "openai-gpt": hf.OpenAIGPTConfig().to_dict(),
    "mistral": hf.MistralConfig(**SMALL).to_dict(),
    "qwen2": hf.Qwen2Config(**SMALL).to_dict(),
    "qwen3": hf.Qwen3Config(**SMALL).to_dict(),
}
ROPE = {"rope_theta": 50.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "said",
    [
        {"rope_parameters": {**ROPE, "original_max_position_embeddings": 17}},
        {"rope_parameters": None, "rope_theta": 50.0,
         "rope_scaling": {**ROPE, "rope_theta": None, "original_max_position_embeddings": 17}},
        {"rope_theta": 50, "rope_scaling": {**ROPE, "rope_type": None, "type": "llama3",
                                            "original_max_position_embeddings": 17}},
        {"rope_parameters": ROPE, "original_max_position_embeddings": 17},
    ],
    ids=["rope_parameters", "rope_theta and rope_scaling", "type", "length outside"],
)  # fmt: skip
def test_rotary_positions_are_heard_in_every_spelling(said):
    position = parse_hf_config(SAID["llama"] | said, "config.json")[0].trunk.position

    assert (
        canonicalize(llama(rotary=dict(base=50.0, scaling="llama3", factor=8.0, original_length=17))).trunk.position
        == position
    )


def test_a_config_from_before_kv_heads_and_biases_is_heard():
    new = ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "attention_dropout", "rope_parameters")
    said = {key: value for key, value in SAID["llama"].items() if key not in new}
    old = llama(attention=C.Attention(heads=H, bias=()))

    assert canonicalize(parse_hf_config(said, "config.json")[0]) == canonicalize(old)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("word, precision", [("float32", "fp32"), ("float16", "fp32"), ("bfloat16", "bf16")])
def test_the_type_of_the_weights_is_heard(key, word, precision):
    assert parse_hf_config(SAID["gpt2"] | {key: word}, "config.json")[0].precision == precision


REFUSED = [
    ("gpt2", {"activation_function": "gelu_nw"}, ("activation_function", "gelu_nw", "gelu_new")),
    ("gpt2", {"activation_function": "mish"}, ("activation_function", "mish", "relu")),
    ("gpt2", {"n_embd": "wide"}, ("n_embd", "wide", "whole number")),
    ("gpt2", {"n_embd": None}, ("n_embd", "missing")),
    ("gpt2", {"n_head": 7}, ("36", "7", "divisible")),
    ("gpt2", {"n_layer": True}, ("n_layer", "true")),
    ("gpt2", {"vocab_size": 0}, ("vocab_size", "0")),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ("scale_attn_by_inverse_layer_idx", "true", "false")),
    ("gpt2", {"scale_attn_weights": False}, ("scale_attn_weights", "false", "true")),
    ("gpt2", {"add_cross_attention": True}, ("add_cross_attention",)),
    ("gpt2", {"pruned_heads": {"0": [1]}}, ("pruned_heads",)),
    ("gpt2", {"resid_pdrop": 1.5}, ("1.5", "rate")),
    ("gpt2", {"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "yes", "true or false")),
    ("gpt2", {"dtype": "float8"}, ("dtype", "float8", "bfloat16")),
    ("llama", {"quantization_config": {"bits": 4}}, ("quantization_config", "bits")),
    ("llama", {"head_dim": 15}, ("head_dim", "15", "even")),
    ("llama", {"num_key_value_heads": 4}, ("heads 6", "kv_heads 4")),
    ("llama", {"rms_norm_eps": float("inf")}, ("rms_norm_eps", "number")),
    ("llama", {"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
    ("llama", {"rope_parameters": [1]}, ("rope_parameters", "table")),
    ("llama", {"rope_parameters": {"rope_type": "mrope"}}, ("rope_type", "mrope", "llama3")),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, ("factor", "missing")),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, ("truncate", "false")),
    ("llama", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
     ("long_factor", "short_factor")),
    ("gpt_neo", {"attention_types": [[["global", "near"], 2]]}, ("attention_types", "near", "global or local")),
    ("gpt_neo", {"attention_types": [[["global"], 3]]}, ("attention_types", "global or local", "4")),
    ("gpt_neo", {"attention_types": [[["global"], 2**40]]}, ("attention_types", "global", "4")),
    ("gpt_neo", {"attention_types": [["global", 4]]}, ("attention_types", "global", "4")),
    ("gpt_neo", {"attention_types": 7}, ("attention_types", "7")),
    ("gpt_neo", {"num_layers": 10**9}, ("num_layers", "1000000000", "4,096")),
    ("gpt_neo", {"window_size": 0}, ("window_size", "0", "whole number")),
    ("openai-gpt", {"afn": "gelu_new"}, ("afn", "gelu_new", "gelu", "silu")),
    ("mistral", {"sliding_window": 0.5}, ("sliding_window", "0.5", "whole number")),
    ("mistral", {"layer_types": ["sliding_attention"] * 5}, ("layer_types", "sliding_attention", "null")),
    ("qwen2", {"layer_types": ["full_attention"] * 4}, ("layer_types", "5 layers")),
    ("qwen2", {"layer_types": ["full_attention"] * 4 + ["linear_attention"]}, ("linear_attention", "sliding")),
    ("qwen2", {"layer_types": ["sliding_attention"] * 5}, ("use_sliding_window", "false", "sliding_attention")),
    ("qwen3", {"num_hidden_layers": 10**9, "layer_types": None}, ("num_hidden_layers", "1000000000", "4,096")),
    ("qwen3", {"architectures": ["Qwen3ForQuestionAnswering"]}, ("architectures", "Qwen3ForTokenClassification")),
    ("llama", {"model_type": "lama"}, ("model_type", "lama", "did you mean 'llama'", "gpt2")),
    ("llama", {"model_type": ["llama"]}, ("model_type", "gpt2")),
    ("llama", {"model_type": None}, ("model_type", "missing", "gpt2", "regard")),
]  # fmt: skip


@pytest.mark.parametrize("name, said, words", REFUSED, ids=lambda one: str(one)[:60] if isinstance(one, dict) else "")
def test_what_we_cannot_say_is_refused_by_the_name_of_its_key(name, said, words):
    with pytest.raises(C.DataError) as error:
        parse_hf_config(SAID[name] | said, "folder/config.json")

    for word in ("folder/config.json", *words):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_hidden_is_four_times_the_width_unless_said():
    assert parse_hf_config(SAID["gpt2"] | {"n_inner": None}, "")[0].trunk.mlp.hidden == 4 * D != F


# ---------------------------------------------------------------- how far back layers look

FAR, NEAR = "full_attention", "sliding_attention"
SEEN = [
    ("mistral", {}, "causal & window(4095)"),
    ("mistral", {"sliding_window": None}, "causal"),
    ("mistral", {"sliding_window": 7}, "causal & window(6)"),
    ("qwen2", {"sliding_window": 7}, "causal"),  # asked for by another word
    ("qwen2", {"layer_types": None, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3},
     ("causal",) * 3 + ("causal & window(6)",) * 2),
    ("qwen2", {"layer_types": [NEAR, FAR, NEAR, FAR, NEAR], "use_sliding_window": True, "sliding_window": 7},
     ("causal & window(6)", "causal")),
    ("qwen3", {"layer_types": [NEAR] * 5, "use_sliding_window": True, "sliding_window": 7}, "causal & window(6)"),
    ("gpt_neo", {"window_size": 7}, ("causal", "causal & window(6)")),
    ("gpt_neo", {"window_size": 7, "attention_types": [[["global"], 3], [["local"], 1]]},
     ("causal",) * 3 + ("causal & window(6)",)),
    ("gpt_neo", {"attention_types": [[["global"], 4]]}, "causal"),
]  # fmt: skip


@pytest.mark.parametrize("name, said, mask", SEEN, ids=lambda one: one if isinstance(one, str) else "")
def test_what_layers_see_is_heard_as_the_shortest_tile_and_said_again(name, said, mask):
    said = {key: value for key, value in (SAID[name] | said).items() if value is not None or key == "sliding_window"}
    c, family, _, longest = parse_hf_config(said, "config.json")

    assert c.trunk.mask == mask
    assert family.from_hf(HFConfig(family.to_hf(c, longest)), c.head).trunk.mask == mask


def test_a_window_that_is_not_said_is_the_usual_one():
    said = {key: value for key, value in SAID["mistral"].items() if key != "sliding_window"}

    assert parse_hf_config(said, "config.json").config.trunk.mask == "causal & window(4095)"


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3", "gpt_neo"])
@pytest.mark.parametrize("mask", ["full", "causal & strided(3)", ("causal & window(3)", "causal & window(5)")])
def test_a_mask_that_is_no_window_is_a_reason_against_it(name, mask):
    c = parse_hf_config(SAID[name], "config.json").config

    assert "trunk.mask" in explain_all(changed(c, "trunk.mask", mask))[name]


def test_relatives_of_llama_are_told_apart_by_what_differs():
    told = {name: parse_hf_config(SAID[name], "config.json").config for name in ("llama", "mistral", "qwen2", "qwen3")}

    assert {name: name_of(c) for name, c in told.items()} == {name: name for name in told}
    assert "trunk.mask" in explain_all(told["mistral"])["llama"]
    assert "trunk.attention.bias" in explain_all(told["qwen2"])["llama"]
    assert "trunk.attention.qk_norm" in explain_all(told["qwen3"])["llama"]


def test_a_model_that_two_families_can_say_stays_what_it_was():
    c = parse_hf_config(SAID["mistral"] | {"sliding_window": None}, "config.json").config

    assert match_family(c).family.name == "llama"
    assert match_family(c, "MistralForCausalLM") == (FAMILIES["mistral"], "MistralForCausalLM")
    assert match_family(replace(c, head=C.NoHead()), "MistralModel") == (FAMILIES["mistral"], "MistralModel")


@pytest.mark.parametrize("pad, known", [(0, 0), (5, 5), (None, None), (-1, None), (10**9, None), ("0", None)])
def test_a_head_for_the_last_token_knows_padding_where_there_is_such_a_word(pad, known):
    for name in ("gpt2", "llama", "gpt_neo", "openai-gpt"):
        label = next(each for each in FAMILIES[name].heads if each.endswith("ForSequenceClassification"))
        said = SAID[name] | {"pad_token_id": pad}

        assert parse_hf_config(said | {"architectures": [label]}, "config.json").config.embed.pad_id == known
        assert parse_hf_config(said, "config.json").config.embed.pad_id is None
