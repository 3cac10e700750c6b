"""Heads of PEFT adapters: an adapter for another task replaces the head of its base model.

base      embed │ trunk ▓▓▓▓ │ cls.predictions ...          BertForMaskedLM
adapter             A, B     │ classifier                   trained on BertForSequenceClassification
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config.errors import DataError
from regard.core.model import HEADS
from regard.hub import name_table
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import Family, FamilyClass, match_family
from regard.hub.name_table import file_name
from regard.hub.peft_save import PEFT_PREFIX, PEFT_TASKS, PeftAdapter, hf_tensor_names
from regard.hub.weights import MatchedName, name_spellings
from regard.hub.write_folder import preferred_architecture


def find_name_row(name: str, rows: list[name_table.NameRow] | None, family: Family | None) -> MatchedName | None:
    """The row for a tensor name in an adapter, in any of its spellings."""
    prefix, name = ("", name) if family is None else (family.prefix, file_name(name, family.name))
    return next((found for found in name_spellings(rows, name, prefix) if found.row.transform != "unused"), None)


def name_rows(known: FamilyClass | None, c: config.Model) -> list[name_table.NameRow] | None:
    return known.family.rows(known.architecture, c) if known else None


def match_head(model: Any, adapter: PeftAdapter, given: list[str]) -> tuple[FamilyClass | None, set[str]]:
    """The model's family, and the weights its head still lacks, after the head was replaced by the adapter's if
    necessary."""
    said = adapter.ours.get("architecture")
    name = said if isinstance(said, str) else preferred_architecture(model.task, model.source_folder)
    known = match_family(model.c, name)
    if isinstance(adapter.ours.get("head"), dict):
        head = config.from_dict(config.Transformer, {**config.to_dict(model.c), "head": adapter.ours["head"]}).head
        if isinstance(adapter.ours.get("task"), dict):
            model.task = config.from_dict(config.Recipe, {"task": adapter.ours["task"]}).task
        return (known, set()) if head == model.c.head else replace_head(model, head, known, name, adapter)
    if known is None or all(find_name_row(each, name_rows(known, model.c), known.family) for each in given):
        return known, set()
    return find_architecture(model, adapter, known, given)


def find_architecture(
    model: Any, adapter: PeftAdapter, known: FamilyClass, given: list[str]
) -> tuple[FamilyClass | None, set[str]]:
    """The architecture of the family with all these names, for the adapter's task; the model gets its head."""
    family, ends = (
        known.family,
        tuple(end for end, task in PEFT_TASKS.items() if task == adapter.settings.get("task_type")),
    )
    for name in (name for name in family.heads if not ends or name.endswith(ends)):
        if all(find_name_row(each, family.rows(name, model.c), family) for each in given):
            sizes = [
                len(adapter.tensors[PEFT_PREFIX + each]) for each in given if PEFT_PREFIX + each in adapter.tensors
            ]
            labels = {str(number): f"LABEL_{number}" for number in range(min(sizes, default=2))}
            said = model.source_folder.said if model.source_folder is not None else family.to_hf(model.c, None)
            head = family.heads[name](
                HFConfig({**said, "architectures": [name], "id2label": labels}, str(adapter.path))
            )
            model.source_folder = (
                None if model.source_folder is None else replace(model.source_folder, architecture=name)
            )
            return replace_head(model, head, known, name, adapter)
    return known, set()  # names without a match are reported later


def replace_head(
    model: Any, head: config.Head, known: FamilyClass | None, name: str | None, adapter: PeftAdapter
) -> tuple[FamilyClass | None, set[str]]:
    """Give a model another head, that of the given architecture; equal tensors of the old head are kept.

    Returns the family of the new model, and the names that its head still lacks.
    """
    old, c = head_tensors(model, known), replace(model.c, head=head)
    with torch.device("meta"):  # check the size before memory is allocated: a file may contain any number
        outline = HEADS[head.kind](head, c.trunk, model.embed)
    size = sum(weight.numel() for weight in outline.parameters() if weight.is_meta)
    if size > sum(tensor.numel() for tensor in (*adapter.tensors.values(), *(each[2] for each in old.values()))):
        raise DataError(f"{adapter.path}: it is for another head, of {size:,} weights, and has not as many; load the "
                        "model that it was trained on")  # fmt: skip
    model.c, model.head = c, HEADS[head.kind](head, c.trunk, model.embed).to(next(model.parameters()))
    after, lacking = match_family(c, name), set[str]()
    with torch.no_grad():
        for their, (row, piece, place) in head_tensors(model, after).items():
            kept = row.convert(old[their][0].convert(old[their][2], back=True)) if their in old else None
            if kept is not None and kept.shape == place.shape:
                place.copy_(kept)
            else:
                lacking.add(piece)
    return after, lacking


def head_tensors(model: Any, known: FamilyClass | None) -> dict[str, tuple[name_table.NameRow, str, Tensor]]:
    """The tensors of the head alone, by the family's names: table row, our name, and tensor."""
    mine, prefix = name_table.model_tensors(model), known.family.prefix if known else ""
    shared = {id(weight) for name, weight in model.named_parameters(remove_duplicate=False) if name[:5] != "head."}
    return {their.removeprefix(prefix): (row, piece, mine[piece])
            for their, (row, piece) in hf_tensor_names(model, name_rows(known, model.c)).items()
            if piece.startswith("head.") and id(mine[piece]) not in shared}  # fmt: skip
