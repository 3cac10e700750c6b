"""Images: ViT, DeiT, CLIP and its towers, ImageGPT, Swin."""

import transformers as hf
from hub.published import D, F, H, V

LABELS, NARROW, OUT = 7, 28, 19
SIZES = dict(hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F, image_size=24,
             patch_size=6)  # fmt: skip
READS = dict(vocab_size=V, hidden_size=NARROW, num_hidden_layers=2, num_attention_heads=H, intermediate_size=F,
             max_position_embeddings=11, bos_token_id=0, pad_token_id=1, eos_token_id=V - 1,
             projection_dim=OUT)  # fmt: skip
SEES = dict(hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F, image_size=24, patch_size=8,
            projection_dim=OUT)  # fmt: skip


def vit(cls=hf.ViTForImageClassification, more=(), **said):
    return cls(hf.ViTConfig(**SIZES | dict(num_labels=LABELS) | said), **dict(more))


def deit(cls=hf.DeiTForImageClassificationWithTeacher, **said):
    return cls(hf.DeiTConfig(**SIZES | dict(num_labels=LABELS) | said))


def clip(reads=(), sees=(), **said):
    reads, sees = READS | dict(reads), SEES | dict(sees)
    return hf.CLIPModel(hf.CLIPConfig(text_config=reads, vision_config=sees, projection_dim=OUT, **said))


def reader(cls=hf.CLIPTextModelWithProjection, **said):
    return cls(hf.CLIPTextConfig(**READS | said))


def seer(cls=hf.CLIPVisionModelWithProjection, **said):
    return cls(hf.CLIPVisionConfig(**SEES | said))


def imagegpt(cls=hf.ImageGPTForCausalImageModeling, **said):
    sizes = dict(vocab_size=V, n_positions=90, n_embd=D, n_layer=3, n_head=H, n_inner=F)
    return cls(hf.ImageGPTConfig(**sizes | said))


def swin(cls=hf.SwinForImageClassification, **said):
    """Three stages on grids of 12, 6 and 3."""
    sizes = dict(image_size=48, patch_size=4, embed_dim=12, depths=[2, 3, 1], num_heads=[2, 3, 4], window_size=3)
    return cls(hf.SwinConfig(**sizes | dict(num_labels=LABELS) | said))


CASES = {
    "vit": vit,
    "vit without biases, relu": lambda: vit(qkv_bias=False, hidden_act="relu", layer_norm_eps=1e-3),
    "vit of one channel, quick_gelu": lambda: vit(num_channels=1, hidden_act="quick_gelu", num_attention_heads=9),
    "vit body": lambda: vit(hf.ViTModel, patch_size=8, num_hidden_layers=1),
    "vit body, pooled by gelu": lambda: vit(hf.ViTModel, pooler_act="gelu", intermediate_size=D),
    "vit body without a pooler": lambda: vit(hf.ViTModel, dict(add_pooling_layer=False), hidden_act="silu"),
    "deit": deit,
    "deit without biases, gelu_new": lambda: deit(qkv_bias=False, hidden_act="gelu_new", layer_norm_eps=1e-3),
    "deit one token answers": lambda: deit(hf.DeiTForImageClassification, patch_size=12),
    "deit body": lambda: deit(hf.DeiTModel, num_channels=1, num_attention_heads=6),
    "clip": clip,
    "clip with gelu, other eps": lambda: clip(
        dict(hidden_act="gelu", layer_norm_eps=1e-3), dict(hidden_act="relu", num_attention_heads=6, patch_size=6)
    ),
    "clip that ends with the highest id": lambda: clip(dict(eos_token_id=2)),
    "clip that ends with 5": lambda: clip(dict(eos_token_id=5), dict(num_channels=1), logit_scale_init_value=1.3),
    "clip text": reader,
    "clip text body": lambda: reader(hf.CLIPTextModel, num_attention_heads=7, hidden_act="gelu"),
    "clip text body, highest id": lambda: reader(hf.CLIPTextModel, eos_token_id=2, vocab_size=V + 4),
    "clip images": seer,
    "clip images, first token": lambda: seer(hf.CLIPVisionModel, num_channels=1, layer_norm_eps=1e-3),
    "imagegpt": imagegpt,
    "imagegpt gelu, other eps": lambda: imagegpt(activation_function="gelu", layer_norm_epsilon=1e-3, n_head=9),
    "imagegpt four times as wide": lambda: imagegpt(n_inner=None, n_positions=99, n_layer=1),
    "imagegpt body": lambda: imagegpt(hf.ImageGPTModel, n_head=6),
    "swin": swin,
    "swin without biases, relu": lambda: swin(qkv_bias=False, hidden_act="relu", layer_norm_eps=1e-3, mlp_ratio=2.3),
    "swin of two stages, even windows": lambda: swin(depths=[3, 2], num_heads=[3, 4], window_size=6),
    "swin windows as large as the grid": lambda: swin(
        image_size=24, depths=[2, 1], num_heads=[2, 3], window_size=3, num_channels=1
    ),
    "swin body": lambda: swin(hf.SwinModel, depths=[1, 2, 1, 2], num_heads=[1, 2, 3, 6], image_size=96),
}
SPEAK = {"imagegpt", "imagegpt gelu, other eps", "imagegpt four times as wide"}  # those that say the next pixel
