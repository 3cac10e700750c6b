"""BART (Lewis et al. 2020): an encoder-decoder after the original one, with learned places and a norm on the words.

A sequence is classified by the decoder's last vector: it reads the source once more, one place later, as
`model(target, source=source)`, where the target is the source behind the start token and without its end.
"""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.pairs import hear_embed, hear_side, say_sides, sides
from regard.hub.families.settled import length
from regard.hub.families.table import Family, enter
from regard.hub.families.theirs import Theirs, bare, say_labels
from regard.hub.families.theirs import count as labels

OFFSET = 2  # places begin there, as they did where padding had a place of its own


def say(c: config.Transformer, context: int | None) -> dict[str, Any]:
    longest = length(sides(c)[1], context, 1024)
    tied = not isinstance(c.head, config.Vocabulary) or c.head.tied
    words = {"max_position_embeddings": longest, "tie_word_embeddings": tied}
    ends = {} if c.embed.end is None else {"eos_token_id": c.embed.end}
    return say_sides(c) | words | ends | say_labels(c.head)


def hear(theirs: Theirs, head: config.Head, place: str = "post") -> config.Transformer:
    theirs.only("tie_word_embeddings", True)
    position = config.Learned(length=theirs.whole("max_position_embeddings", 1024), offset=OFFSET)
    around: dict[str, Any] = {"position": position, "place": place, "embed_norm": True}
    embed = hear_embed(theirs)
    if isinstance(head, config.Pooled):  # theirs looks for the end of a source, and it is the last word of both
        embed = replace(embed, end=end(theirs))
    return config.Transformer(
        embed=embed,
        trunk=hear_side(theirs, "decoder", **around),
        encoder=config.Encoder(trunk=hear_side(theirs, "encoder", **around)),
        head=head,
        init="bert",
    )


def end(theirs: Theirs) -> int:
    found = theirs.get("eos_token_id", 2)
    if type(found) is not int:
        raise theirs.wrong("eos_token_id", "expected one whole number")
    return found


def vocabulary(theirs: Theirs) -> config.Head:
    return config.Vocabulary(bias=True)


def pooled(theirs: Theirs, usual: int = 3) -> config.Head:
    """Three labels unless said: entailed, contradicted, neither."""
    many = labels(theirs) if theirs.get("id2label") or theirs.get("num_labels") else usual
    return config.Pooled(place="last", dense=True, out=many)


def ends(theirs: Theirs) -> config.Head:
    return config.Each(out=2)


def heads(name: str) -> dict[str, Any]:
    classes = {"ForConditionalGeneration": vocabulary, "Model": bare, "ForSequenceClassification": pooled,
               "ForQuestionAnswering": ends}  # fmt: skip
    return {name + each: head for each, head in classes.items()}


enter(Family("bart", "BART", heads("Bart"), say, hear, prefix="model.", alone=("BartModel",)))
