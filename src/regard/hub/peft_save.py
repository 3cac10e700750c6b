"""Low-rank adapters in a folder, in the words of `peft`: adapter_config.json and adapter_model.safetensors.

    base_model.model.<their name of a map>.lora_A.weight    (r, in)
    base_model.model.<their name of a map>.lora_B.weight    (out, r)
    base_model.model.<their name of a weight>               what learned whole, and takes the place of the base's

Names go through the family's table. Where q, k and v are one map of theirs and three of ours, or the other way round,
the same change is said in the other's maps: side by side as one of a higher rank, or as three that read by one A. A
model of no family has its own names, which nobody else reads. `regard.hub.adapting` is the way back.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import config, lora
from regard.config.errors import unwritable
from regard.hub import names
from regard.hub.families import Kin, kin
from regard.hub.folder import check_place, wanted
from regard.hub.inside import running
from regard.hub.manifest import seal, write_json
from regard.hub.weights import tensors_to
from regard.hub.whole import whole

SETTINGS, TENSORS, OURS = "adapter_config.json", "adapter_model.safetensors", "regard.json"
PREFIX = "base_model.model."
TASKS = {
    "ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM", "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM", "ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}  # fmt: skip
ANSWERS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")  # of these peft takes the head from the adapter
Table = dict[str, tuple[names.Row, str]]  # their names: the row that says it, and ours


@dataclass(frozen=True)
class Adapter:
    """What the two files say: `settings` in peft's words, and tensors by their names; `ours` is a third one, of what
    only we understand, the head and the task."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    ours: dict[str, Any] = field(default_factory=dict)
    path: Path = Path(SETTINGS)


class Change(NamedTuple):
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


def write(path: str | Path, adapter: Adapter) -> Path:
    """Save an adapter in a folder of its own. What stood there stays until all is written."""
    path = Path(path)
    try:
        check_place(path)
        with whole(path) as folder:
            write_files(folder, adapter)
            seal(folder)
    except OSError as problem:
        raise unwritable(path, problem) from problem
    return path


def write_files(folder: Path, adapter: Adapter) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / SETTINGS, adapter.settings)
    write_json(folder / OURS, adapter.ours)
    tensors_to(folder / TENSORS, adapter.tensors)


# ---------------------------------------------------------------- what a model wears, in their words


def gathered(model: Any, base: str | None = None) -> Adapter:
    """The adapters of a model and what learned with them; `base` is the name of the model that they are for."""
    worn, learned = lora.worn(model), lora.learned(model)
    if not worn:
        raise config.ConfigError("the model wears no adapters; model.adapt(...) puts some on")
    known = kin(model.c, wanted(model.task, model.origin))
    rows = known.family.rows(known.architecture, model.c) if known else None
    trained = {name for name, weight in model.named_parameters(remove_duplicate=False) if weight.requires_grad}
    with lora.aside(model):
        table = spoken(model, rows, known.family.name if known else "")
        saved = modules(table, trained - learned.keys())
        others = beside(model, table, saved)
    changes = {their: change for path, part in worn.items()
               for their, change in in_their_maps(path, part, table, rows is None)}  # fmt: skip
    if inside := [name for name in changes if within(f"{name}.weight", saved)]:
        raise config.ConfigError(f"lora.whole: what it names holds {inside[0]}, which has an adapter; leave out one")
    flipped = rows is not None and any(table[f"{name}.weight"][0].how == "flip" for name in changes)
    drop = max(low.dropout for part in worn.values() for low in part.lora.values())
    task = task_of(known, model.c, saved)
    said = {**about(task, saved, base), **sizes(changes), "target_modules": targets(changes, table, saved),
            "lora_dropout": drop, "fan_in_fan_out": flipped}  # fmt: skip
    tensors = {f"{PREFIX}{name}.lora_{side}.weight": x for name, change in changes.items()
               for side, x in (("A", change.a), ("B", change.b.contiguous()))}  # fmt: skip
    ours = {"format": 1, "architecture": known and known.architecture, "head": config.tree(model.c.head),
            "task": model.task and config.tree(model.task)}  # fmt: skip
    return Adapter(said, {**tensors, **{PREFIX + name: x for name, x in others.items()}}, ours)


def spoken(model: nn.Module, rows: list[names.Row] | None, family: str = "") -> Table:
    """Their name of every tensor of ours, also where it is stored once and has several, with the row that says it; as
    files have it, or as a `family`'s models that run."""
    mine = names.tensors(model)
    pieces, found = {} if rows is None else names.parts(mine), Table()
    for name in model.state_dict():
        several = sorted(pieces.get(name, ()))
        apart = len(several) > 1 and all(names.theirs(rows, part) for part in several)
        for piece in several if apart else [name]:
            if (known := names.theirs(rows, piece)) is not None:
                found[known[1]] = known[0], piece
            for row in (row for row in rows or () if row.how == "tied"):
                if (their := row.translate(piece, back=True)) is not None:
                    found.setdefault(their, (row, piece))
    return {running(their, family): each for their, each in found.items()}


def in_their_maps(path: str, part: Any, table: Table, own: bool) -> Iterator[tuple[str, Change]]:
    """The changes of one of our maps, as changes of theirs; `own` where the names are ours."""
    lows = {name: Change(low.a.detach(), low.b.detach(), low.scale) for name, low in part.lora.items()}
    if own:
        yield from ((path if name == lora.WHOLE else f"{path}/{name}", low) for name, low in lows.items())
        return
    theirs = {piece: their.removesuffix(".weight") for their, (_, piece) in table.items()}
    if f"{path}.weight" in theirs:
        yield theirs[f"{path}.weight"], joined(part, lows)
        return
    for name in part.sizes:
        low = lows.get(name) or lows.get(lora.WHOLE)
        if low is not None:
            b = low.b if name in lows else low.b[lora.rows(part, name)]
            yield theirs[f"{path}/{name}.weight"], low._replace(b=b)


def joined(part: nn.Linear, lows: dict[str, Change]) -> Change:
    """Changes of parts as one of the whole map: the As below each other, each B in its own rows and columns."""
    if lora.WHOLE in lows:
        return lows[lora.WHOLE]
    a, scale = torch.cat([low.a for low in lows.values()]), max(low.scale for low in lows.values())
    b, column = a.new_zeros(part.out_features, len(a)), 0
    for name, low in lows.items():
        b[lora.rows(part, name), column : column + low.rank] = low.b * (low.scale / scale)
        column += low.rank
    return Change(a, b, scale)


# ---------------------------------------------------------------- adapter_config.json


def task_of(known: Kin | None, c: config.Transformer, saved: list[str]) -> str | None:
    """What peft calls the task, where its class for that task suits the model."""
    task = next((task for end, task in TASKS.items() if known and known.architecture.endswith(end)), None)
    if task in ANSWERS and not saved:
        return None  # it would look for a head, which is the base's own
    heard = c.encoder is not None and not isinstance(c.encoder.embed, config.Embed | None)
    return None if heard else task  # it would give words to an encoder that reads something else


def about(task: str | None, saved: list[str], base: str | None) -> dict[str, Any]:
    """Whose adapters these are."""
    return {"peft_type": "LORA", "task_type": task, "base_model_name_or_path": base, "inference_mode": True,
            "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": saved or None}  # fmt: skip


def sizes(changes: dict[str, Change]) -> dict[str, Any]:
    """The usual rank and alpha, and those of maps that have others."""
    [(rank, _)] = Counter(change.rank for change in changes.values()).most_common(1)
    [(alpha, _)] = Counter(change.alpha for change in changes.values()).most_common(1)
    ranks = {their: change.rank for their, change in changes.items() if change.rank != rank}
    alphas = {their: change.alpha for their, change in changes.items() if change.alpha != alpha}
    return {"r": rank, "lora_alpha": alpha, "rank_pattern": ranks, "alpha_pattern": alphas}


def targets(changes: Iterable[str], table: Table, saved: list[str]) -> list[str]:
    """The last words of their names, where every map of that word has an adapter; whole names of all others."""
    every = {name.rpartition(".")[0] for name in table if not within(name, saved)}
    found = set(changes)
    plain = {last(name) for name in found} - {last(name) for name in every - found}
    return sorted({last(name) if last(name) in plain else name for name in found})


def last(name: str) -> str:
    return name.rpartition(".")[2]


# ---------------------------------------------------------------- what learned whole


def modules(table: Table, trained: Iterable[str]) -> list[str]:
    """Their parts that hold what learned whole; none lies inside another."""
    ours = set(trained)
    holders = {name.rpartition(".")[0] for name, (_, piece) in table.items() if re.sub(r"/[^.]+", "", piece) in ours}
    if "" in holders:
        raise config.ConfigError("lora.whole: it names a weight that stands by itself in the family's files, which an "
                                 "adapter's file has no place for; leave it out")  # fmt: skip
    return sorted(name for name in holders if not within(name, holders - {name}))


def within(name: str, above: Iterable[str]) -> bool:
    return any(name.startswith(f"{each}.") for each in above)


@torch.no_grad()
def beside(model: nn.Module, table: Table, saved: list[str]) -> dict[str, Tensor]:
    """All tensors of those parts, as their library stores them."""
    mine = names.tensors(model)
    return {their: row.convert(mine[piece].detach(), back=True).contiguous()
            for their, (row, piece) in table.items() if within(their, saved)}  # fmt: skip
