"""Small random image models made by `transformers`, the same in our nouns, and the names of their weights."""

import torch
import transformers as hf
from parity.tolerance import randomise
from torch import Tensor, nn

import regard
from regard import config as C
from regard.core.model import Transformer
from regard.hub import name_table

D, H, F, V = 36, 4, 60, 53
SMALL = dict(dropout=C.NO_DROPOUT)

BLOCK = """
{theirs}.{i}.{q}.{w}        {ours}.blocks.{i}.attn.qkv/q.{w}
{theirs}.{i}.{k}.{w}        {ours}.blocks.{i}.attn.qkv/k.{w}
{theirs}.{i}.{v}.{w}        {ours}.blocks.{i}.attn.qkv/v.{w}
{theirs}.{i}.{o}.{w}        {ours}.blocks.{i}.attn.out.{w}
{theirs}.{i}.{before}.{w}   {ours}.blocks.{i}.attn_norm.{w}
{theirs}.{i}.{after}.{w}    {ours}.blocks.{i}.mlp_norm.{w}
{theirs}.{i}.mlp.fc1.{w}    {ours}.blocks.{i}.mlp.up.{w}
{theirs}.{i}.mlp.fc2.{w}    {ours}.blocks.{i}.mlp.down.{w}
"""


def block(theirs: str, ours: str, at: str, out: str, before: str, after: str) -> str:
    words = dict(theirs=theirs, ours=ours, q=f"{at}.q_proj", k=f"{at}.k_proj", v=f"{at}.v_proj", o=f"{at}.{out}",
                 before=before, after=after)  # fmt: skip
    text = BLOCK
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def vit(size: int = 6, **said):
    theirs = hf.ViTForImageClassification(
        hf.ViTConfig(hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F, image_size=24,
                     patch_size=size, num_channels=3, num_labels=7, layer_norm_eps=1e-6, **said)
    )  # fmt: skip
    count = (24 // size) ** 2 + 1
    ours = C.Transformer(
        embed=C.PatchEmbedding(patch_size=size, image_size=24),
        trunk=C.Trunk(dim=D, depth=3, position=C.LearnedPosition(length=count), attention=C.Attention(heads=H),
                      norm=C.Norm(eps=1e-6), mlp=C.MLP(hidden=F, activation="gelu"), **SMALL),
        head=C.PoolingHead(out=7), init="vit",
    )  # fmt: skip
    rows = """
    vit.embeddings.cls_token                          embed.cls.weight  row
    vit.embeddings.position_embeddings                trunk.positions.0.tables.0  row
    vit.embeddings.patch_embeddings.projection.{w}    embed.map.{w}
    vit.layernorm.{w}                                 trunk.final_norm.{w}
    classifier.{w}                                    head.out.{w}
    """
    return theirs, ours, rows + block("vit.layers", "trunk", "attention", "o_proj",
                                      "layernorm_before", "layernorm_after")  # fmt: skip


def imagegpt():
    theirs = hf.ImageGPTForCausalImageModeling(
        hf.ImageGPTConfig(vocab_size=V + 1, n_positions=30, n_embd=D, n_layer=3, n_head=H, n_inner=F,
                          layer_norm_epsilon=1e-5)
    )  # fmt: skip
    ours = C.Transformer(
        embed=C.PixelEmbedding(palette=V, grid=(5, 6)),
        trunk=C.Trunk(
            dim=D,
            depth=3,
            mask="causal",
            position=C.LearnedPosition(length=30),
            attention=C.Attention(heads=H),
            norm=C.Norm(kind="rms"),
            mlp=C.MLP(hidden=F, activation="quick_gelu"),
            **SMALL,
        ),
        head=C.LMHead(tied=False, vocab=V),
        init="gpt2",
    )
    rows = """
    transformer.wte.weight                  embed.tokens.weight
    transformer.wpe.weight                  trunk.positions.0.tables.0
    transformer.h.{i}.ln_1.weight           trunk.blocks.{i}.attn_norm.weight
    transformer.h.{i}.attn.c_attn.weight    trunk.blocks.{i}.attn.qkv.weight  flip
    transformer.h.{i}.attn.c_attn.bias      trunk.blocks.{i}.attn.qkv.bias
    transformer.h.{i}.attn.c_proj.weight    trunk.blocks.{i}.attn.out.weight  flip
    transformer.h.{i}.attn.c_proj.bias      trunk.blocks.{i}.attn.out.bias
    transformer.h.{i}.ln_2.weight           trunk.blocks.{i}.mlp_norm.weight
    transformer.h.{i}.mlp.c_fc.weight       trunk.blocks.{i}.mlp.up.weight  flip
    transformer.h.{i}.mlp.c_fc.bias         trunk.blocks.{i}.mlp.up.bias
    transformer.h.{i}.mlp.c_proj.weight     trunk.blocks.{i}.mlp.down.weight  flip
    transformer.h.{i}.mlp.c_proj.bias       trunk.blocks.{i}.mlp.down.bias
    transformer.ln_f.weight                 trunk.final_norm.weight
    lm_head.weight                          head.weight
    """
    return theirs, ours, rows


def clip():
    theirs = hf.CLIPModel(
        hf.CLIPConfig(
            text_config=dict(vocab_size=V, hidden_size=28, num_hidden_layers=2, num_attention_heads=H,
                             intermediate_size=F, max_position_embeddings=11, bos_token_id=0, pad_token_id=1,
                             eos_token_id=V - 1),
            vision_config=dict(hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F,
                               image_size=24, patch_size=8),
            projection_dim=19,
        )
    )  # fmt: skip
    act = dict(mlp=C.MLP(hidden=F, activation="quick_gelu"), attention=C.Attention(heads=H), **SMALL)
    image = C.Transformer(
        embed=C.PatchEmbedding(patch_size=8, image_size=24, bias=False),
        trunk=C.Trunk(dim=D, depth=3, position=C.LearnedPosition(length=10), embed_norm=True, **act),
        head=C.PoolingHead(out=19, bias=False),
    )
    text = C.Transformer(
        embed=C.TextEmbedding(vocab=V, eos_id=V - 1),
        trunk=C.Trunk(dim=28, depth=2, mask="causal", position=C.LearnedPosition(length=11), **act),
        head=C.PoolingHead(pooling="eos", out=19, bias=False),
    )
    rows = """
    logit_scale                                        scale
    vision_model.embeddings.class_embedding            towers.0.embed.cls.weight
    vision_model.embeddings.patch_embedding.weight     towers.0.embed.map.weight
    vision_model.embeddings.position_embedding.weight  towers.0.trunk.positions.0.tables.0
    vision_model.pre_layrnorm.{w}                      towers.0.trunk.embed_norm.{w}
    vision_model.post_layernorm.{w}                    towers.0.trunk.final_norm.{w}
    visual_projection.weight                           towers.0.head.out.weight
    text_model.embeddings.token_embedding.weight       towers.1.embed.tokens.weight
    text_model.embeddings.position_embedding.weight    towers.1.trunk.positions.0.tables.0
    text_model.final_layer_norm.{w}                    towers.1.trunk.final_norm.{w}
    text_projection.weight                             towers.1.head.out.weight
    """
    for place, name in enumerate(("vision_model", "text_model")):
        norms = ("layer_norm1", "layer_norm2")
        rows += block(f"{name}.encoder.layers", f"towers.{place}.trunk", "self_attn", "out_proj", *norms)
    return theirs, C.DualEncoder(towers=(image, text)), rows


def swin():
    """Three stages on grids of 12, 6 and 3: windows of 3, every second layer shifted where there is more than one."""
    theirs = hf.SwinForImageClassification(
        hf.SwinConfig(image_size=48, patch_size=4, embed_dim=12, depths=[2, 4, 2], num_heads=[2, 3, 4], window_size=3,
                      mlp_ratio=2.0, num_labels=7, drop_path_rate=0.0)
    )  # fmt: skip

    def stage(dim, depth, heads, last=False):
        return C.Trunk(
            dim=dim, depth=depth, mask="window2d(3)" if last else ("window2d(3)", "window2d(3, 1)"), final_norm=last,
            position=C.RelativeBias(max_distance=2, axes=2, scaled=False, tables="layer"),
            attention=C.Attention(heads=heads),
            mlp=C.MLP(hidden=2 * dim, activation="gelu"), **SMALL,
        )  # fmt: skip

    ours = C.Transformer(
        embed=C.StageEmbedding(patches=C.PatchEmbedding(patch_size=4, image_size=48, cls_tokens=False, norm=True),
                       trunks=(stage(12, 2, 2), stage(24, 4, 3))),
        trunk=stage(48, 2, 4, last=True), head=C.PoolingHead(pooling="mean", out=7), init="vit",
    )  # fmt: skip
    rows = """
    swin.embeddings.patch_embeddings.projection.{w}    embed.patches.map.{w}
    swin.embeddings.norm.{w}                           embed.patches.norm.{w}
    swin.encoder.layers.{i}.downsample.reduction.weight  embed.merges.{i}.map.weight
    swin.encoder.layers.{i}.downsample.norm.{w}        embed.merges.{i}.norm.{w}
    swin.layernorm.{w}                                 trunk.final_norm.{w}
    classifier.{w}                                     head.out.{w}
    """
    for place, name in enumerate(("embed.trunks.0", "embed.trunks.1", "trunk")):
        blocks = f"swin.encoder.layers.{place}.blocks"
        rows += block(blocks, name, "attention", "o_proj", "layernorm_before", "layernorm_after")
        table = "attention.relative_position_bias.relative_position_bias_table"
        rows += f"{blocks}.{{i}}.{table}  {name}.positions.{{i}}.bias\n"
    return theirs, ours, rows


MODELS = {"vit": vit, "imagegpt": imagegpt, "clip": clip, "swin": swin}


def stored(theirs: nn.Module) -> dict[str, Tensor]:
    """Their weights, where a shape or an order differs, in ours: a class token is a table of one row, and offsets are
    counted from the query to the key, not back."""
    state = {name: tensor for name, tensor in theirs.state_dict().items() if tensor.is_floating_point()}
    for name in state:
        if name.endswith("class_embedding"):
            state[name] = state[name][None]
        if name.endswith("relative_position_bias_table"):
            state[name] = state[name].flip(0)
    return state


def pair(name: str):
    """Their model and ours with the same weights, in eval mode; and how the names are said."""
    theirs, c, rows = MODELS[name]()
    randomise(theirs)
    ours = regard.DualEncoderModel(c) if isinstance(c, C.DualEncoder) else Transformer(c)
    table = list(name_table.parse_rows(rows))
    name_table.load_tensors(ours, stored(theirs), table)
    return theirs.eval(), ours.eval(), table


def pictures(size: int) -> Tensor:
    return torch.randn(2, 3, size, size)
