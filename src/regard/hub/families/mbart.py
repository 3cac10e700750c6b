"""mBART (Liu et al. 2020): BART for many languages, with a norm before each sublayer and one after the last."""

from regard import config
from regard.hub.families import bart
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import Family, register_family


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    return bart.bart_from_hf(hf, head, norm_placement="pre")


def classification_head(hf: HFConfig) -> config.Head:
    return bart.bart_classification_head(hf, usual=2)


HEADS = bart.bart_heads("MBart") | {"MBartForSequenceClassification": classification_head}
register_family(Family("mbart", "mBART", HEADS, bart.bart_to_hf, from_hf, prefix="model.", body_prefix=("MBartModel",)))
