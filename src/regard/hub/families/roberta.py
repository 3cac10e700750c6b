"""RoBERTa (Liu et al. 2019): BERT trained longer and better; places are counted from the id after padding's."""

from typing import Any

from regard import config
from regard.hub.families import encoders
from regard.hub.families.encoders import body, classes, ends, hear_encoder, say_encoder, say_places, tags
from regard.hub.families.settled import of_blocks
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    pad = say_places(of_blocks(c).position)[1] - 1
    if c.embed.pad not in (None, pad):
        raise ValueError(f"embed.pad is {c.embed.pad}, where RoBERTa with trunk.position.offset {pad + 1} has {pad}")
    return say_encoder(c) | {"pad_token_id": pad}


def hear(theirs: Theirs, head: config.Head) -> config.Transformer:
    pad, length = theirs.get("pad_token_id", 1), theirs.whole("max_position_embeddings", 512)
    if type(pad) is not int or not 0 <= pad < length - 1:
        raise theirs.wrong("pad_token_id", f"places begin after it, and there are {length} (max_position_embeddings); "
                           f"expected a whole number below {length - 1}")  # fmt: skip
    return hear_encoder(theirs, head, offset=pad + 1)


def vocabulary(theirs: Theirs) -> config.Head:
    return encoders.with_gelu(theirs, encoders.tied_words(theirs))


HEADS = {
    "RobertaForMaskedLM": vocabulary,
    "RobertaModel": body,
    "RobertaForSequenceClassification": classes,
    "RobertaForTokenClassification": tags,
    "RobertaForQuestionAnswering": ends,
}
enter(Family("roberta", "RoBERTa", HEADS, say, hear, prefix="roberta.", alone=("RobertaModel",)))
