"""An adapter for another task than its base's brings a head: the one it was trained with, or that of a class of theirs.

    base      embed │ trunk ▓▓▓▓ │ cls.predictions ...          BertForMaskedLM
    adapter             A, B     │ classifier                   trained on BertForSequenceClassification
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config import DataError
from regard.core.model import HEADS
from regard.hub import names
from regard.hub.adapters import PREFIX, TASKS, Adapter, spoken
from regard.hub.families import Family, Kin, kin
from regard.hub.families.theirs import Theirs
from regard.hub.folder import wanted
from regard.hub.inside import filed
from regard.hub.weights import Found, spellings


def look(name: str, rows: list[names.Row] | None, family: Family | None) -> Found | None:
    """The row of a name, as an adapter may spell it."""
    prefix, name = ("", name) if family is None else (family.prefix, filed(name, family.name))
    return next((found for found in spellings(rows, name, prefix) if found.row.how != "unused"), None)


def rows_of(known: Kin | None, c: config.Model) -> list[names.Row] | None:
    return known.family.rows(known.architecture, c) if known else None


def headed(model: Any, adapter: Adapter, given: list[str]) -> tuple[Kin | None, set[str]]:
    """The model's family, and what its head still lacks: an adapter for another task brings a head of its own."""
    said = adapter.ours.get("architecture")
    name = said if isinstance(said, str) else wanted(model.task, model.origin)
    known = kin(model.c, name)
    if isinstance(adapter.ours.get("head"), dict):
        head = config.make(config.Transformer, {**config.tree(model.c), "head": adapter.ours["head"]}).head
        if isinstance(adapter.ours.get("task"), dict):
            model.task = config.make(config.Recipe, {"task": adapter.ours["task"]}).task
        return (known, set()) if head == model.c.head else another(model, head, known, name, adapter)
    if known is None or all(look(each, rows_of(known, model.c), known.family) for each in given):
        return known, set()
    return other_class(model, adapter, known, given)


def other_class(model: Any, adapter: Adapter, known: Kin, given: list[str]) -> tuple[Kin | None, set[str]]:
    """The class of the family that has parts of all these names, and of the task that is said; with its head."""
    family, ends = known.family, tuple(end for end, task in TASKS.items() if task == adapter.settings.get("task_type"))
    for name in (name for name in family.heads if not ends or name.endswith(ends)):
        if all(look(each, family.rows(name, model.c), family) for each in given):
            sizes = [len(adapter.tensors[PREFIX + each]) for each in given if PREFIX + each in adapter.tensors]
            labels = {str(number): f"LABEL_{number}" for number in range(min(sizes, default=2))}
            said = model.origin.said if model.origin is not None else family.say(model.c, None)
            head = family.heads[name](Theirs({**said, "architectures": [name], "id2label": labels}, str(adapter.path)))
            model.origin = None if model.origin is None else replace(model.origin, architecture=name)
            return another(model, head, known, name, adapter)
    return known, set()  # and what has no place is told


def another(
    model: Any, head: config.Head, known: Kin | None, name: str | None, adapter: Adapter
) -> tuple[Kin | None, set[str]]:
    """Give a model another head, as the class of this name has it; of the old one what is called alike stays.

    The family that the model is of then, and what the head still lacks.
    """
    old, c = own(model, known), replace(model.c, head=head)
    with torch.device("meta"):  # how large it is, before room is made: whoever writes a file may write any number
        outline = HEADS[head.kind](head, c.trunk, model.embed)
    size = sum(weight.numel() for weight in outline.parameters() if weight.is_meta)
    if size > sum(tensor.numel() for tensor in (*adapter.tensors.values(), *(each[2] for each in old.values()))):
        raise DataError(f"{adapter.path}: it is for another head, of {size:,} weights, and has not as many; load the "
                        "model that it was trained on")  # fmt: skip
    model.c, model.head = c, HEADS[head.kind](head, c.trunk, model.embed).to(next(model.parameters()))
    after, lacking = kin(c, name), set[str]()
    with torch.no_grad():
        for their, (row, piece, place) in own(model, after).items():
            kept = row.convert(old[their][0].convert(old[their][2], back=True)) if their in old else None
            if kept is not None and kept.shape == place.shape:
                place.copy_(kept)
            else:
                lacking.add(piece)
    return after, lacking


def own(model: Any, known: Kin | None) -> dict[str, tuple[names.Row, str, Tensor]]:
    """What a head shares with nobody, by its name there: the row that says it, our name, and the tensor."""
    mine, prefix = names.tensors(model), known.family.prefix if known else ""
    shared = {id(weight) for name, weight in model.named_parameters(remove_duplicate=False) if name[:5] != "head."}
    return {their.removeprefix(prefix): (row, piece, mine[piece])
            for their, (row, piece) in spoken(model, rows_of(known, model.c)).items()
            if piece.startswith("head.") and id(mine[piece]) not in shared}  # fmt: skip
