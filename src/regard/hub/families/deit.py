"""DeiT (Touvron et al. 2021): ViT with a second learned token, which was taught by another model what to answer."""

from dataclasses import replace

from regard import config
from regard.hub.families import vit
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs, count
from regard.hub.families.vit import classes, pooler, say


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    """Of an image the middle is seen, 224 pixels of 256."""
    c = vit.hear(theirs, head, cls=2)
    assert isinstance(c.embed, config.Patches)
    frame = config.Frame(fit="squeeze", whole=c.embed.image * 256 // 224, resample="bicubic")
    return replace(c, embed=replace(c.embed, frame=frame))


def both(theirs: Theirs) -> config.Head:
    """Each of the learned tokens answers through a map of its own, and the answer is their mean."""
    return config.Pooled(out=count(theirs), voices=2)


HEADS = {
    "DeiTForImageClassificationWithTeacher": both,
    "DeiTForImageClassification": classes,
    "DeiTModel": pooler,
}
enter(Family("deit", "DeiT", HEADS, say, hear, prefix="deit.", alone=("DeiTModel",), front=config.Patches))
