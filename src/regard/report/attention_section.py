"""What the lens sees in a trained model's heads, packed for the page: maps, roles, likeness.

Heads that look from the same tokens at the same stand in one group: an encoder's, a decoder's, those that look across.
"""

import base64
import math
from typing import Any

import torch
from torch import Tensor

from regard import config, lens
from regard.heads import Towers
from regard.lens.views import Read, View
from regard.report import sensed
from regard.report.named import ORDER, called, place
from regard.report.run import Run
from regard.report.sensed import reads_text
from regard.report.shown import Shown, shown
from regard.report.words import ordinary
from regard.tasks import Batch

LONGEST = 64  # tokens of the sentence whose maps are drawn
ROOM = 900_000  # bytes for all maps
COMPARED = 256  # heads that are compared one by one


def inside(run: Run, model: Any, tokenizer: Any, batch: Batch | None) -> dict[str, Any]:
    """The parts of the page about heads; `absent` says in a sentence why they are not there."""
    try:
        if isinstance(model, Towers):
            raise config.ConfigError("towers have two, each with its own input; regard.looking shows them")
        if why := lens.refusal(model):
            raise config.ConfigError(why)
        if not reads_text(model):
            return looked(model, None, sensed.shown(model, batch))
        return looked(model, tokenizer, shown(run, model, tokenizer, batch, longest(run, model)))
    except (config.ConfigError, config.DataError, config.RunError) as problem:
        return {"absent": f"No picture of the heads: {problem}."}


def longest(run: Run, model: Any) -> int:
    """As many tokens as the model was trained on, and as there is room for on the page."""
    context = 512 if run.recipe is None else run.recipe.train.context
    heads = sum(model.c.trunk.heads)
    heads = heads if model.c.encoder is None else 2 * heads + sum(model.c.encoder.trunk.heads)
    return max(4, min(LONGEST, context, math.isqrt(ROOM // heads)))


def looked(model: Any, tokenizer: Any, read: Shown) -> dict[str, Any]:
    speaks = getattr(model, "target_tokenizer", None) or tokenizer
    marks, vocabulary = ((), None) if speaks is None else (lens.delimiters(speaks), torch.tensor(ordinary(speaks)))
    heads = lens.heads(model, read.some["ids"], marks=marks, vocabulary=vocabulary, **beside(read.some))
    maps, several = grouped(lens.views(model, read.one["ids"], **beside(read.one))), model.encoder is not None
    few = {name: table[:2] for name, table in read.some.items()}
    alike = grouped(lens.views(model, few["ids"], **beside(few)))
    return {
        "attention": {"note": read.note, "groups": [packed_maps(name, views, tokenizer, speaks)
                                                    for name, views in maps.items()]},
        "roles": [{"name": role.name, "does": role.does} for role in lens.ROLES
                  if any(role.name in head.scores for head in heads)],
        "heads": [described(head, several) for name in maps for head in heads if place(head.where) == name],
        "likeness": likeness([view for views in alike.values() for view in views], several),
    }  # fmt: skip


def beside(inputs: Batch) -> Batch:
    """What a model reads besides ids."""
    return {name: table for name, table in inputs.items() if name != "ids"}


def grouped(views: list[View]) -> dict[str, list[View]]:
    """Attentions by whose they are, as a reader meets them: the encoder's, the decoder's own, those across."""
    names = dict.fromkeys(place(view.where) for view in views)
    order = sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else 0)
    return {name: [view for view in views if place(view.where) == name] for name in order}


def packed_maps(name: str, views: list[View], reads: Any, speaks: Any) -> dict[str, Any]:
    """One group's maps, with the tokens along both sides."""
    view = views[0]
    queries, keys = (reads if name == "encoder" else speaks), (speaks if name == "decoder" else reads)
    return {
        "name": name, "own": view.own, "heads": [each.pattern.shape[1] for each in views],
        "queries": pieces(view.q, queries), "keys": pieces(view.k, keys), "grid": sensed.grid(view.q),
        "maps": packed(torch.cat([each.pattern for each in views], 1)[0].sqrt()),
    }  # fmt: skip


def pieces(read: Read, tokenizer: Any) -> list[str]:
    """The tokens of the first row as they are called: words, or places."""
    if read.ids is None or tokenizer is None:
        return sensed.pieces(read)
    return [tokenizer.piece(id) for id in read.ids[0].tolist()]


def described(head: lens.Head, several: bool) -> dict[str, Any]:
    scores = {name: [round(number, 3) for number in (one.value, one.chance, one.lift)]
              for name, one in head.scores.items()}  # fmt: skip
    return {
        "name": called(head.where, head.head, several), "layer": head.layer, "role": head.role, "scores": scores,
        "entropy": round(head.entropy, 2), "relative": round(head.relative, 3),
        "distance": None if head.distance is None else round(head.distance, 1),
    }  # fmt: skip


def likeness(views: list[View], several: bool) -> dict[str, Any]:
    """How alike heads are, within their groups; of some layers only, where heads are very many."""
    every = -(-sum(each.pattern.shape[1] for each in views) // COMPARED)
    views = views[::every]
    values = lens.similarity(views)
    heads = [(view.where, head) for view in views for head in range(view.pattern.shape[1])]
    return {
        "size": len(values), "values": packed(values.nan_to_num(0.0)),
        "layers": [int(where.rsplit(".", 2)[1]) for where, _ in heads],
        "groups": [place(where) for where, _ in heads],
        "names": [called(where, head, several) for where, head in heads],
    }  # fmt: skip


def packed(values: Tensor) -> str:
    """Numbers from 0 to 1 as bytes, in base64: a thousandth is not seen in a picture."""
    return base64.b64encode((values.clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()).decode()
