"""Each preset is the sentence it should be: made tiny, it answers as the tiny model of `transformers` does.

Theirs is made from the published config with its sizes alone replaced, so eps, activation, places, scales and norms are
as published; ours from the preset in the same way. With the same weights the answers must be equal.
"""

import pytest
import torch
import transformers as hf
from parity import images
from parity.tolerance import assert_near, randomise
from zoo import hf_models
from zoo.tiny_presets import DIM, GROUPS, HEADS, HIDDEN, NARROW, OUT, WIDTH, WORDS, read, small

import regard
from regard import config, zoo
from regard.hub import name_table
from regard.hub.name_table import NameRow

# Their words for sizes, and the sizes of a tiny model.
SIZES = {
    "vocab_size": WORDS, "id2label": {place: str(place) for place in range(OUT)}, "projection_dim": OUT,
    "hidden_size": DIM, "d_model": DIM, "n_embd": DIM, "dim": DIM, "embed_dim": DIM, "embedding_size": NARROW,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "num_decoder_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_attention_heads": HEADS, "n_head": HEADS, "n_heads": HEADS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "d_kv": WIDTH,
    "intermediate_size": HIDDEN, "d_ff": HIDDEN, "hidden_dim": HIDDEN, "encoder_ffn_dim": HIDDEN,
    "decoder_ffn_dim": HIDDEN, "depths": [2, 2, 2, 2], "layer_types": None, "label2id": None,
}  # fmt: skip

BARE_BERT = [
    NameRow(row.theirs.removeprefix("bert."), row.ours, row.transform) for row in name_table.load_name_table("bert")
]
POOLED_BERT = BARE_BERT + [NameRow("pooler.dense.{w}", "head.dense.{w}")]
ALBERT = """
embeddings.word_embeddings.weight                                          embed.tokens.weight
embeddings.position_embeddings.weight                                      trunk.positions.0.tables.0
embeddings.token_type_embeddings.weight                                    embed.segments.weight
embeddings.LayerNorm.{w}                                                   trunk.embed_norm.{w}
encoder.embedding_hidden_mapping_in.{w}                                    trunk.project.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.attention.query.{w}        trunk.blocks.{i}.attn.qkv/q.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.attention.key.{w}          trunk.blocks.{i}.attn.qkv/k.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.attention.value.{w}        trunk.blocks.{i}.attn.qkv/v.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.attention.dense.{w}        trunk.blocks.{i}.attn.out.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.attention.LayerNorm.{w}    trunk.blocks.{i}.attn_norm.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.ffn.{w}                    trunk.blocks.{i}.mlp.up.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.ffn_output.{w}             trunk.blocks.{i}.mlp.down.{w}
encoder.albert_layer_groups.0.albert_layers.{i}.full_layer_layer_norm.{w}  trunk.blocks.{i}.mlp_norm.{w}
pooler.{w}                                                                 head.dense.{w}
"""
DISTILBERT = """
embeddings.word_embeddings.weight             embed.tokens.weight
embeddings.position_embeddings.weight         trunk.positions.0.tables.0
embeddings.LayerNorm.{w}                      trunk.embed_norm.{w}
transformer.layer.{i}.attention.q_lin.{w}     trunk.blocks.{i}.attn.qkv/q.{w}
transformer.layer.{i}.attention.k_lin.{w}     trunk.blocks.{i}.attn.qkv/k.{w}
transformer.layer.{i}.attention.v_lin.{w}     trunk.blocks.{i}.attn.qkv/v.{w}
transformer.layer.{i}.attention.out_lin.{w}   trunk.blocks.{i}.attn.out.{w}
transformer.layer.{i}.sa_layer_norm.{w}       trunk.blocks.{i}.attn_norm.{w}
transformer.layer.{i}.ffn.lin1.{w}            trunk.blocks.{i}.mlp.up.{w}
transformer.layer.{i}.ffn.lin2.{w}            trunk.blocks.{i}.mlp.down.{w}
transformer.layer.{i}.output_layer_norm.{w}   trunk.blocks.{i}.mlp_norm.{w}
"""
BART = """
final_logits_bias                             unused
model.encoder.embed_positions.weight          encoder.positions.0.tables.0
model.decoder.embed_positions.weight          trunk.positions.0.tables.0
model.encoder.layernorm_embedding.{w}         encoder.embed_norm.{w}
model.decoder.layernorm_embedding.{w}         trunk.embed_norm.{w}
"""
QWEN = """
model.layers.{i}.self_attn.q_norm.weight      trunk.blocks.{i}.attn.q_norm.weight
model.layers.{i}.self_attn.k_norm.weight      trunk.blocks.{i}.attn.k_norm.weight
"""
NEO = """
transformer.wte.weight                        embed.tokens.weight
transformer.wpe.weight                        trunk.positions.0.tables.0
transformer.h.{i}.ln_1.{w}                    trunk.blocks.{i}.attn_norm.{w}
transformer.h.{i}.attn.attention.q_proj.{w}   trunk.blocks.{i}.attn.qkv/q.{w}
transformer.h.{i}.attn.attention.k_proj.{w}   trunk.blocks.{i}.attn.qkv/k.{w}
transformer.h.{i}.attn.attention.v_proj.{w}   trunk.blocks.{i}.attn.qkv/v.{w}
transformer.h.{i}.attn.attention.out_proj.{w} trunk.blocks.{i}.attn.out.{w}
transformer.h.{i}.ln_2.{w}                    trunk.blocks.{i}.mlp_norm.{w}
transformer.h.{i}.mlp.c_fc.{w}                trunk.blocks.{i}.mlp.up.{w}
transformer.h.{i}.mlp.c_proj.{w}              trunk.blocks.{i}.mlp.down.{w}
transformer.ln_f.{w}                          trunk.final_norm.{w}
lm_head.weight                                embed.tokens.weight  tied
"""


def rows(text):
    return list(name_table.parse_rows(text))


def swin():
    text = images.swin()[2].split("swin.encoder.layers.0.blocks")[0]
    for place, ours in enumerate(("embed.trunks.0", "embed.trunks.1", "embed.trunks.2", "trunk")):
        blocks = f"swin.encoder.layers.{place}.blocks"
        text += images.block(blocks, ours, "attention", "o_proj", "layernorm_before", "layernorm_after")
        table = "attention.relative_position_bias.relative_position_bias_table"
        text += f"{blocks}.{{i}}.{table}  {ours}.positions.{{i}}.bias\n"
    return rows(text)


NAMES = {
    "bert-base": lambda: POOLED_BERT,
    "bert-large": lambda: POOLED_BERT,
    "roberta-base": lambda: POOLED_BERT,
    "distilbert": lambda: rows(DISTILBERT),
    "albert-base": lambda: rows(ALBERT),
    "electra-small": lambda: [*BARE_BERT, NameRow("embeddings_project.{w}", "trunk.project.{w}")],
    **{name: lambda: name_table.load_name_table("gpt2") for name in hf_models.GPT2 if name.startswith("gpt2")},
    **{name: lambda: name_table.load_name_table("llama") for name in ("llama-7b", "llama3-8b", "smollm2-135m")},
    "qwen3-0.6b": lambda: rows(QWEN) + name_table.load_name_table("llama"),
    "t5-small": lambda: name_table.load_name_table("t5"),
    "t5-v1.1-base": lambda: name_table.load_name_table("t5"),
    "bart-base": lambda: rows(BART) + name_table.load_name_table("marian"),
    "marian": lambda: name_table.load_name_table("marian"),
    **{name: lambda: rows(images.vit()[2]) for name in ("vit-b16", "vit-l16", "vit-h14")},
    "swin-tiny": swin,
    "clip-vit-b32": lambda: rows(images.clip()[2]),
    "imagegpt-small": lambda: rows(images.imagegpt()[2]),
    "imagegpt-medium": lambda: rows(images.imagegpt()[2]),
    "imagegpt-large": lambda: rows(images.imagegpt()[2]),
}  # fmt: skip


def shrunk(said, c):
    """Their config with other sizes; ids beyond the tiny vocabulary become its last one."""
    found = {}
    for word, value in said.items():
        if isinstance(value, dict) and word in ("text_config", "vision_config"):
            value = shrunk(value, c)
        elif word.endswith("_token_id") and isinstance(value, int) and value >= WORDS:
            value = WORDS - 1
        elif word == "num_key_value_heads":
            value = GROUPS if value < said["num_attention_heads"] else HEADS
        elif word == "head_dim":
            value = c.trunk.head_width
        elif word == "num_heads":  # one number a stage
            value = [HEADS] * len(value) if isinstance(value, list | tuple) else HEADS
        elif word == "n_positions" and isinstance(c.embed, config.PixelEmbedding):
            value = c.embed.count
        elif word == "vocab_size" and said.get("model_type") == "imagegpt":
            pass
        elif word in SIZES and value is not None:
            value = SIZES[word]
        found[word] = value
    return found


def pair(name):
    """Their tiny model and ours with the same weights."""
    cls, said = hf_models.MODELS[name]()
    c = small(zoo.preset(name))
    their = cls(type(said)(**shrunk(said.to_dict(), c)))
    if name == "t5-v1.1-base":  # transformers 5 ties every fresh T5
        their.lm_head.weight = torch.nn.Parameter(DIM**-0.5 * torch.randn(WORDS, DIM))
    randomise(their)
    if name == "bart-base":  # published as zeros, and no parameter
        their.final_logits_bias.zero_()
    ours = regard.DualEncoderModel(c) if isinstance(c, config.DualEncoder) else regard.Model(c)
    name_table.load_tensors(ours, stored(their), NAMES[name]())
    return their.eval(), ours.eval()


def stored(model):
    """Each tensor once, and no fixed sinusoids."""
    if isinstance(model, hf.CLIPModel | hf.SwinForImageClassification):
        return images.stored(model)
    seen, out = set(), {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            out[name] = tensor
    return out


def asked(their, ours):
    """Both answers to the same question."""
    c = ours.c
    if isinstance(c, config.DualEncoder):
        pictures, ids = (read(tower.embed, 9) for tower in c.towers)
        ids[0, 5:], ids[1, 8] = WORDS - 1, WORDS - 1  # texts end at different places
        return their(input_ids=ids, pixel_values=pictures).logits_per_image, ours(pictures, ids)
    x = read(c.embed, 7)
    if c.encoder is not None:
        source = read(c.embed, 11)
        return their(input_ids=source, decoder_input_ids=x).logits, ours(x, source=source)
    if isinstance(c.embed, config.PatchEmbedding | config.StageEmbedding):
        return their(pixel_values=x).logits, ours(x)
    if isinstance(c.embed, config.PixelEmbedding):
        ids = torch.cat([torch.full((len(x), 1), c.embed.palette), x.flatten(1)[:, :-1]], 1)
        return their(input_ids=ids).logits, ours(x)
    answer, mine = their(input_ids=x), ours(x)
    if isinstance(c.head, config.PoolingHead):
        return answer.pooler_output, mine
    return answer.last_hidden_state if isinstance(c.head, config.NoHead) else answer.logits, mine


@pytest.mark.spec("S052", "S055")
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_tiny_one_answers_as_transformers_does_with_the_same_weights(name):
    want, got = asked(*pair(name))

    assert want.std() > 1e-3
    assert_near(got, want)


EPS = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps")
RATES = {
    "hidden_dropout_prob": ("embed", "residual"), "attention_probs_dropout_prob": ("attention",),
    "embd_pdrop": ("embed",), "attn_pdrop": ("attention",), "resid_pdrop": ("residual",),
    "dropout": ("embed", "residual"), "attention_dropout": ("attention",), "activation_dropout": ("mlp",),
    "dropout_rate": ("embed", "attention", "mlp", "residual"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if name != "clip-vit-b32"])
def test_what_answers_hardly_show_is_as_their_config_says(name):
    """The eps of norms, and dropout, which sleeps while a model is asked."""
    trunk, said = zoo.preset(name).trunk, hf_models.MODELS[name]()[1]
    rates = {ours: getattr(said, word) for word, both in RATES.items() if hasattr(said, word) for ours in both}

    assert {getattr(said, word, trunk.norm.eps) for word in EPS} == {trunk.norm.eps}
    assert {ours: getattr(trunk.dropout, ours) for ours in rates} == rates


def test_every_preset_but_the_oldest_the_banded_and_our_own_is_asked():
    left = {name for name in config.PRESETS if name not in NAMES}

    assert left == {"transformer-base", "transformer-big", "lab", *(name for name in hf_models.GPT2 if "gpt3" in name)}


@torch.no_grad()
def test_bands_of_gpt3_are_those_of_gpt_neo():
    """GPT-Neo leaves out the scale of scores and the biases of q, k and v; with both left out, 300 tokens agree."""
    c = small(zoo.preset("gpt3-125m", trunk={"attention": {"scale": 1.0, "bias": ["out"]}}))
    their = hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(vocab_size=WORDS, hidden_size=DIM, num_layers=2, num_heads=HEADS, bos_token_id=None,
                        eos_token_id=None, attention_types=[[["global", "local"], 1]])
    ).eval()  # fmt: skip
    randomise(their)
    ours = regard.Model(c).eval()
    name_table.load_tensors(ours, stored(their), rows(NEO))
    ids = read(c.embed, 300)

    assert_near(ours(ids), their(input_ids=ids).logits)
