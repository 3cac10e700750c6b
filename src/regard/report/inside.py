"""What the lens sees in a trained model's heads, packed for the page: maps, roles, likeness."""

import base64
import math
from typing import Any

import torch
from torch import Tensor

from regard import config, lens
from regard.report.run import Run
from regard.report.words import ids_of, ordinary

LONGEST = 64  # tokens of the sentence whose maps are drawn
ROOM = 900_000  # bytes for all maps
COMPARED = 256  # heads that are compared one by one


def inside(run: Run, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The parts of the page about heads; `absent` says in a sentence why they are not there."""
    beside = "" if model.encoder is None else "the model has an encoder of its own, and the page shows one trunk"
    if why := lens.refusal(model) or beside:
        return {"absent": f"No picture of the heads: {why}."}
    said, note = sentence(run, tokenizer, longest(run, model))
    if len(said) < 4:
        return {"absent": f"No picture of the heads: {note or 'there is no sentence to read'}; set report.sentence."}
    rows = texts(run, tokenizer, longest(run, model), said)
    vocabulary = torch.tensor(ordinary(tokenizer))
    heads = lens.heads(model, rows, marks=lens.delimiters(tokenizer), vocabulary=vocabulary)
    maps = lens.patterns(model, torch.tensor([said]))
    likeness, layers = alike(lens.views(model, rows[:2]))
    asked = [role for role in lens.ROLES if all(role.name in head.scores for head in heads)]
    return {
        "attention": {"tokens": [tokenizer.piece(i) for i in said], "heads": list(model.c.trunk.heads),
                      "maps": packed(torch.cat(maps, 1)[0].sqrt()), "note": note},
        "roles": [{"name": role.name, "does": role.does} for role in asked],
        "heads": [described(head) for head in heads],
        "likeness": {"layers": layers, "values": packed(likeness), "size": len(likeness)},
    }  # fmt: skip


def longest(run: Run, model: Any) -> int:
    """As many tokens as the model was trained on, and as there is room for on the page."""
    context = 512 if run.recipe is None else run.recipe.train.context
    return max(4, min(LONGEST, context, math.isqrt(ROOM // sum(model.c.trunk.heads))))


def sentence(run: Run, tokenizer: Any, most: int) -> tuple[list[int], str]:
    """The tokens whose maps are drawn: of the sentence asked for, or else the model's own words."""
    asked = None if run.recipe is None else run.recipe.report.sentence
    note = ""
    if asked:
        try:
            return tokenizer.encode(asked)[:most], ""
        except config.DataError as problem:
            note = f"report.sentence cannot be read by the tokenizer ({problem})"
    if not run.samples:
        return [], note
    middle = sorted(run.last_samples, key=lambda sample: sample["temperature"])[len(run.last_samples) // 2]
    return ids_of(tokenizer, middle["text"].strip())[:most], "; ".join(filter(None, [note, "the model's own words"]))


def texts(run: Run, tokenizer: Any, count: int, said: list[int]) -> Tensor:
    """(B, N) what the roles are read on: the last samples in pieces, or the sentence where there are none."""
    ids = [i for sample in run.last_samples for i in ids_of(tokenizer, sample["text"])] if run.samples else []
    rows = min(len(ids) // count, 12)
    return torch.tensor(ids[: rows * count]).view(rows, count) if rows else torch.tensor([said])


def described(head: lens.Head) -> dict[str, Any]:
    scores = {name: [round(number, 3) for number in (one.value, one.chance, one.lift)]
              for name, one in head.scores.items()}  # fmt: skip
    return {
        "layer": head.layer, "head": head.head, "role": head.role, "scores": scores, "entropy": round(head.entropy, 2),
        "relative": round(head.relative, 3), "distance": round(head.distance or 0.0, 1),
    }  # fmt: skip


def alike(views: list[lens.View]) -> tuple[Tensor, list[int]]:
    """How alike the heads are, and which layers they stand in: some layers only, where heads are very many."""
    every = -(-sum(each.pattern.shape[1] for each in views) // COMPARED)
    layers = list(range(0, len(views), every))
    found = lens.similarity([views[i] for i in layers])
    return found.nan_to_num(0.0), [i for i in layers for _ in range(views[i].pattern.shape[1])]


def packed(values: Tensor) -> str:
    """Numbers from 0 to 1 as bytes, in base64: a thousandth is not seen in a picture."""
    return base64.b64encode((values.clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()).decode()
