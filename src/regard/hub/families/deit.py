"""DeiT (Touvron et al. 2021): ViT with a second learned token, the distillation token, taught by another model."""

from dataclasses import replace

from regard import config
from regard.hub.families import vit
from regard.hub.families.hf_config import HFConfig, num_labels
from regard.hub.families.registry import Family, register_family
from regard.hub.families.vit import vit_classification_head, vit_pooler_head, vit_to_hf


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    """The DeiT config: ViT with two learned tokens, on images cropped to their centre, 224 of 256 pixels."""
    c = vit.vit_from_hf(hf, head, cls=2)
    assert isinstance(c.embed, config.PatchEmbedding)
    frame = config.ImageResize(mode="stretch", size_before_crop=c.embed.image_size * 256 // 224, resample="bicubic")
    return replace(c, embed=replace(c.embed, resize=frame))


def distilled_head(hf: HFConfig) -> config.Head:
    """One classifier for each learned token; their logits are averaged."""
    return config.PoolingHead(out=num_labels(hf), classifiers=2)


HEADS = {
    "DeiTForImageClassificationWithTeacher": distilled_head,
    "DeiTForImageClassification": vit_classification_head,
    "DeiTModel": vit_pooler_head,
}
register_family(
    Family(
        "deit",
        "DeiT",
        HEADS,
        vit_to_hf,
        from_hf,
        prefix="deit.",
        body_prefix=("DeiTModel",),
        front_end=config.PatchEmbedding,
    )
)
