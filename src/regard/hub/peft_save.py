"""PEFT adapters written: adapter_config.json and adapter_model.safetensors of a model with LoRA.

    base_model.model.<their name of a linear>.lora_A.weight    (r, in)
    base_model.model.<their name of a linear>.lora_B.weight    (out, r)
    base_model.model.<their name of a weight>                  modules_to_save: takes the place of the base's

Names go through the family's table. Where q, k and v are one linear of theirs and three of ours, or the other way
round, the same change is written for the other's: side by side as one of a higher rank, or as three that share one A.
A model of no family has our own names, which other libraries do not read. `regard.hub.peft_load` is the way back.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import unwritable_error
from regard.files.atomic import replace_folder
from regard.files.manifest import write_json_plain, write_manifest
from regard.hub import name_table
from regard.hub.families.registry import FamilyClass, match_family
from regard.hub.name_table import runtime_name
from regard.hub.weights import save_tensors
from regard.hub.write_folder import check_replaceable, preferred_architecture
from regard.models import lora

ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_EXTRAS = "adapter_config.json", "adapter_model.safetensors", "regard.json"
PEFT_PREFIX = "base_model.model."
PEFT_TASKS = {
    "ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM", "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM", "ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}  # fmt: skip
ANSWERS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")  # of these peft takes the head from the adapter
Table = dict[str, tuple[name_table.NameRow, str]]  # their names: the row that says it, and ours


@dataclass(frozen=True)
class PeftAdapter:
    """What the two files say: `settings` in peft's words, and tensors by their names; `ours` is a third one, of what
    only we understand, the head and the task."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    ours: dict[str, Any] = field(default_factory=dict)
    path: Path = Path(ADAPTER_CONFIG)


class LowRankChange(NamedTuple):
    """s·B A, the change of one map."""

    a: Tensor
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def alpha(self) -> float:
        """Divided by the rank it is the scale."""
        exact = self.scale * self.rank
        return round(exact) if abs(exact - round(exact)) < 1e-9 * exact else exact


# ---------------------------------------------------------------- files


def save_adapter(path: str | Path, adapter: PeftAdapter) -> Path:
    """Save an adapter in a folder of its own. What stood there stays until all is written."""
    path = Path(path)
    try:
        check_replaceable(path)
        with replace_folder(path) as folder:
            write_adapter_files(folder, adapter)
            write_manifest(folder)
    except OSError as problem:
        raise unwritable_error(path, problem) from problem
    return path


def write_adapter_files(folder: Path, adapter: PeftAdapter) -> None:
    folder.mkdir(exist_ok=True)
    write_json_plain(folder / ADAPTER_CONFIG, adapter.settings)
    write_json_plain(folder / ADAPTER_EXTRAS, adapter.ours)
    save_tensors(folder / ADAPTER_WEIGHTS, adapter.tensors)


# ---------------------------------------------------------------- the adapters of a model, in PEFT's names


def collect_adapter(model: Any, base: str | None = None) -> PeftAdapter:
    """The adapters of a model and what learned with them; `base` is the name of the model that they are for."""
    adapted, learned = lora.adapted_modules(model), lora.adapter_parameters(model)
    if not adapted:
        raise config.ConfigError("the model has no adapters; model.adapt(...) attaches some")
    known = match_family(model.c, preferred_architecture(model.task, model.source_folder))
    rows = known.family.rows(known.architecture, model.c) if known else None
    trained = {name for name, weight in model.named_parameters(remove_duplicate=False) if weight.requires_grad}
    table = hf_tensor_names(model, rows, known.family.name if known else "")
    saved = modules_to_save(table, trained - learned.keys())
    others = saved_module_tensors(model, table, saved)
    changes = {their: change for path, part in adapted.items()
               for their, change in changes_in_hf_layout(path, part, table, rows is None)}  # fmt: skip
    if inside := [name for name in changes if is_within(f"{name}.weight", saved)]:
        raise config.ConfigError(
            f"lora.modules_to_save: what it names holds {inside[0]}, which has an adapter; leave out one"
        )
    flipped = rows is not None and any(table[f"{name}.weight"][0].transform == "flip" for name in changes)
    drop = max(low.dropout for part in adapted.values() for low in part.lora.values())
    task = peft_task_type(known, model.c, saved)
    said = {
        **peft_metadata(task, saved, base),
        **rank_and_alpha(changes),
        "target_modules": target_modules(changes, table, saved),
        "lora_dropout": drop,
        "fan_in_fan_out": flipped,
    }
    tensors = {f"{PEFT_PREFIX}{name}.lora_{side}.weight": x for name, change in changes.items()
               for side, x in (("A", change.a), ("B", change.b.contiguous()))}  # fmt: skip
    ours = {"format": 1, "architecture": known and known.architecture, "head": config.to_dict(model.c.head),
            "task": model.task and config.to_dict(model.task)}  # fmt: skip
    return PeftAdapter(said, {**tensors, **{PEFT_PREFIX + name: x for name, x in others.items()}}, ours)


def hf_tensor_names(model: nn.Module, rows: list[name_table.NameRow] | None, family: str = "") -> Table:
    """Their name of every tensor of ours, also where it is stored once and has several, with the row that says it; as
    files have it, or as a `family`'s models that run."""
    mine = name_table.model_tensors(model)
    pieces, found = {} if rows is None else name_table.fused_parts(mine), Table()
    for name in lora.base_state_dict(model):
        several = sorted(pieces.get(name, ()))
        apart = len(several) > 1 and all(name_table.hf_name(rows, part) for part in several)
        for piece in several if apart else [name]:
            if (known := name_table.hf_name(rows, piece)) is not None:
                found[known[1]] = known[0], piece
            for row in (row for row in rows or () if row.transform == "tied"):
                if (their := row.translate(piece, back=True)) is not None:
                    found.setdefault(their, (row, piece))
    return {runtime_name(their, family): each for their, each in found.items()}


def changes_in_hf_layout(path: str, part: Any, table: Table, own: bool) -> Iterator[tuple[str, LowRankChange]]:
    """The changes of one of our maps, as changes of theirs; `own` where the names are ours."""
    lows = {name: LowRankChange(low.a.detach(), low.b.detach(), low.scale) for name, low in part.lora.items()}
    if own:
        yield from ((path if name == lora.WHOLE_LINEAR else f"{path}/{name}", low) for name, low in lows.items())
        return
    theirs = {piece: their.removesuffix(".weight") for their, (_, piece) in table.items()}
    if f"{path}.weight" in theirs:
        yield theirs[f"{path}.weight"], stack_changes(part, lows)
        return
    for name in part.sizes:
        low = lows.get(name) or lows.get(lora.WHOLE_LINEAR)
        if low is not None:
            b = low.b if name in lows else low.b[lora.adapter_rows(part, name)]
            yield theirs[f"{path}/{name}.weight"], low._replace(b=b)


def stack_changes(part: nn.Linear, lows: dict[str, LowRankChange]) -> LowRankChange:
    """Changes of parts as one of the whole map: the As below each other, each B in its own rows and columns."""
    if lora.WHOLE_LINEAR in lows:
        return lows[lora.WHOLE_LINEAR]
    a, scale = torch.cat([low.a for low in lows.values()]), max(low.scale for low in lows.values())
    b, column = a.new_zeros(part.out_features, len(a)), 0
    for name, low in lows.items():
        b[lora.adapter_rows(part, name), column : column + low.rank] = low.b * (low.scale / scale)
        column += low.rank
    return LowRankChange(a, b, scale)


# ---------------------------------------------------------------- adapter_config.json


def peft_task_type(known: FamilyClass | None, c: config.Transformer, saved: list[str]) -> str | None:
    """What peft calls the task, where its class for that task suits the model."""
    task = next((task for end, task in PEFT_TASKS.items() if known and known.architecture.endswith(end)), None)
    if task in ANSWERS and not saved:
        return None  # it would look for a head, which is the base's own
    heard = c.encoder is not None and not isinstance(c.encoder.embed, config.TextEmbedding | None)
    return None if heard else task  # it would give words to an encoder that reads something else


def peft_metadata(task: str | None, saved: list[str], base: str | None) -> dict[str, Any]:
    """Whose adapters these are."""
    return {"peft_type": "LORA", "task_type": task, "base_model_name_or_path": base, "inference_mode": True,
            "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": saved or None}  # fmt: skip


def rank_and_alpha(changes: dict[str, LowRankChange]) -> dict[str, Any]:
    """The usual rank and alpha, and those of maps that have others."""
    [(rank, _)] = Counter(change.rank for change in changes.values()).most_common(1)
    [(alpha, _)] = Counter(change.alpha for change in changes.values()).most_common(1)
    ranks = {their: change.rank for their, change in changes.items() if change.rank != rank}
    alphas = {their: change.alpha for their, change in changes.items() if change.alpha != alpha}
    return {"r": rank, "lora_alpha": alpha, "rank_pattern": ranks, "alpha_pattern": alphas}


def target_modules(changes: Iterable[str], table: Table, saved: list[str]) -> list[str]:
    """The last words of their names, where every map of that word has an adapter; whole names of all others."""
    every = {name.rpartition(".")[0] for name in table if not is_within(name, saved)}
    found = set(changes)
    plain = {last_component(name) for name in found} - {last_component(name) for name in every - found}
    return sorted({last_component(name) if last_component(name) in plain else name for name in found})


def last_component(name: str) -> str:
    return name.rpartition(".")[2]


# ---------------------------------------------------------------- what learned whole


def modules_to_save(table: Table, trained: Iterable[str]) -> list[str]:
    """Their parts that hold what learned whole; none lies inside another."""
    ours = set(trained)
    holders = {name.rpartition(".")[0] for name, (_, piece) in table.items() if re.sub(r"/[^.]+", "", piece) in ours}
    if "" in holders:
        raise config.ConfigError("lora.modules_to_save: it names a weight that stands by itself in the family's "
                                 "files, which an adapter's file has no place for; leave it out")  # fmt: skip
    return sorted(name for name in holders if not is_within(name, holders - {name}))


def is_within(name: str, above: Iterable[str]) -> bool:
    return any(name.startswith(f"{each}.") for each in above)


@torch.no_grad()
def saved_module_tensors(model: nn.Module, table: Table, saved: list[str]) -> dict[str, Tensor]:
    """All tensors of those parts, as their library stores them."""
    mine = name_table.model_tensors(model)
    return {their: row.convert(mine[piece].detach(), back=True).contiguous()
            for their, (row, piece) in table.items() if is_within(their, saved)}  # fmt: skip
