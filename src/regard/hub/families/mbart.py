"""mBART (Liu et al. 2020): BART for many languages, with a norm before each sublayer and one after the last."""

from regard import config
from regard.hub.families import bart
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    return bart.hear(theirs, head, place="pre")


def pooled(theirs: Theirs) -> config.Head:
    return bart.pooled(theirs, usual=2)


HEADS = bart.heads("MBart") | {"MBartForSequenceClassification": pooled}
enter(Family("mbart", "mBART", HEADS, bart.say, hear, prefix="model.", alone=("MBartModel",)))
