"""PEFT adapter saving: writes adapter_config.json and adapter_model.safetensors of a model with LoRA.

    base_model.model.<their name of a linear>.lora_A.weight    (r, in)
    base_model.model.<their name of a linear>.lora_B.weight    (out, r)
    base_model.model.<their name of a weight>                  modules_to_save: replaces the base's

Names are translated by the family's table. Where q, k and v are one linear there and three here, or the reverse, the
same update is written for the other layout: concatenated as one of a higher rank, or as three that share one A. A model
without a family keeps our own names, which other libraries do not read. `regard.hub.peft_load` is the inverse.
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
ANSWERS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")  # tasks for which peft takes the head from the adapter
Table = dict[str, tuple[name_table.NameRow, str]]  # names of the family: the table row, and our name


@dataclass(frozen=True)
class PeftAdapter:
    """The files of an adapter: `settings` with peft's keys, and tensors by their names; `ours` is our own third file,
    with the head and the task."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    ours: dict[str, Any] = field(default_factory=dict)
    path: Path = Path(ADAPTER_CONFIG)


class LowRankChange(NamedTuple):
    """A low-rank update s·B A of one linear."""

    a: Tensor
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def alpha(self) -> float:
        """The alpha of the adapter config: the scale times the rank."""
        exact = self.scale * self.rank
        return round(exact) if abs(exact - round(exact)) < 1e-9 * exact else exact


# ---------------------------------------------------------------- files


def save_adapter(path: str | Path, adapter: PeftAdapter) -> Path:
    """Save an adapter in a folder of its own. A previous folder is replaced only when all is written."""
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
    """The adapters of a model and the weights trained with them; `base` is the name of the base model."""
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
    """The family's names of our tensors, all of them where a tensor has several, with the table rows; as in files, or
    with a `family` as at run time."""
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
    """The updates of one of our linears as updates of the family's; `own` where the names are ours."""
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
    """Updates of the parts as one of the fused linear: the As stacked, each B in its own rows and columns."""
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
    """The task type of peft, if peft's class for it suits the model."""
    task = next((task for end, task in PEFT_TASKS.items() if known and known.architecture.endswith(end)), None)
    if task in ANSWERS and not saved:
        return None  # peft would look for a head in the adapter, which the base has
    heard = c.encoder is not None and not isinstance(c.encoder.embed, config.TextEmbedding | None)
    return None if heard else task  # peft would give token ids to an encoder of other inputs


def peft_metadata(task: str | None, saved: list[str], base: str | None) -> dict[str, Any]:
    """The constant fields of adapter_config.json, with task and base model."""
    return {"peft_type": "LORA", "task_type": task, "base_model_name_or_path": base, "inference_mode": True,
            "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": saved or None}  # fmt: skip


def rank_and_alpha(changes: dict[str, LowRankChange]) -> dict[str, Any]:
    """The most common rank and alpha, and patterns for the other linears."""
    [(rank, _)] = Counter(change.rank for change in changes.values()).most_common(1)
    [(alpha, _)] = Counter(change.alpha for change in changes.values()).most_common(1)
    ranks = {their: change.rank for their, change in changes.items() if change.rank != rank}
    alphas = {their: change.alpha for their, change in changes.items() if change.alpha != alpha}
    return {"r": rank, "lora_alpha": alpha, "rank_pattern": ranks, "alpha_pattern": alphas}


def target_modules(changes: Iterable[str], table: Table, saved: list[str]) -> list[str]:
    """The last name component where all linears of that name have an adapter; full names of the others."""
    every = {name.rpartition(".")[0] for name in table if not is_within(name, saved)}
    found = set(changes)
    plain = {last_component(name) for name in found} - {last_component(name) for name in every - found}
    return sorted({last_component(name) if last_component(name) in plain else name for name in found})


def last_component(name: str) -> str:
    return name.rpartition(".")[2]


# ---------------------------------------------------------------- modules_to_save


def modules_to_save(table: Table, trained: Iterable[str]) -> list[str]:
    """The family's modules that hold fully trained weights; none inside another."""
    ours = set(trained)
    holders = {name.rpartition(".")[0] for name, (_, piece) in table.items() if re.sub(r"/[^.]+", "", piece) in ours}
    if "" in holders:
        raise config.ConfigError("lora.modules_to_save: it names a weight outside every module in the family's "
                                 "files, which an adapter's file cannot store; leave it out")  # fmt: skip
    return sorted(name for name in holders if not is_within(name, holders - {name}))


def is_within(name: str, above: Iterable[str]) -> bool:
    return any(name.startswith(f"{each}.") for each in above)


@torch.no_grad()
def saved_module_tensors(model: nn.Module, table: Table, saved: list[str]) -> dict[str, Tensor]:
    """All tensors of these modules, in the family's layout."""
    mine = name_table.model_tensors(model)
    return {their: row.convert(mine[piece].detach(), back=True).contiguous()
            for their, (row, piece) in table.items() if is_within(their, saved)}  # fmt: skip
