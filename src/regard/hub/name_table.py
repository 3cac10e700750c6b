"""Name tables: one text file a checkpoint family, our tensor names and theirs, read in both directions.

    transformer.h.{i}.ln_1.{w}             trunk.blocks.{i}.attn_norm.{w}
    transformer.h.{i}.attn.c_attn.weight   trunk.blocks.{i}.attn.qkv.weight     flip

Theirs, ours, and how the numbers differ. {i} is a layer, {j} a stage of layers and {last} the number of the last one,
{w} is weight or bias (gamma or beta in old files); `qkv/q` is one part of a fused linear. A word in the third place:
`flip` transposes, `row` is stored as a table of one row, `flat` is such a row stored as a vector, `reverse` begins at
the other end; `tied` may be stored but repeats another row, `old` is an earlier name of another row, `unused` is of no
use to us.

    [BertForMaskedLM]
    cls.predictions.bias                   head.bias

What stands under the names of classes in brackets is theirs alone: heads differ, the rest does not. A name without a
row is an error, on both sides. Without a table (None) the names are our own.

Some models of `transformers` call their modules otherwise while they run; adapters are for what runs, and have those:

    file      vit.encoder.layer.3.attention.attention.query
    running   vit.layers.3.attention.q_proj
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.config.errors import did_you_mean, name_some
from regard.core.layers import FusedLinear
from regard.models.lora import base_state_dict, merged_state_dict

ATTENTION = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
AFTER = ((".attention.output.dense", ".attention.o_proj"), (".intermediate.dense", ".mlp.fc1"),
         (".output.dense", ".mlp.fc2"))  # fmt: skip
ONCE = (*((f".attention.attention.{old}", f".attention.{new}") for old, new in ATTENTION), *AFTER)
CELLS = (*((f".attention.self.{old}", f".attention.{new}") for old, new in ATTENTION), *AFTER)
# By family: pieces of a file's names, and those of the running model; the first that is there is replaced first.
RUNTIME_NAMES = {
    "vit": (("encoder.layer.", "layers."), *ONCE),
    "deit": (("encoder.layer.", "layers."), *ONCE),
    "swin": CELLS,
}


def runtime_name(name: str, family: str) -> str:
    """The name of a part while the model runs."""
    for old, new in RUNTIME_NAMES.get(family, ()):
        name = name.replace(old, new)
    return name


def file_name(name: str, family: str) -> str:
    """The same in a file; what has a file's name already keeps it."""
    for old, new in RUNTIME_NAMES.get(family, ()):
        name = name.replace(new, old)
    return name


# Our own names in folders of format 1, and what they are now.
RENAMED_PARTS = {"head.vocabulary": "head.lm", "head.pooled": "head.pooling", "embed.seen": "embed.prefix"}
RENAMED_PATTERN = re.compile(rf"(?:^|(?<=\.))({'|'.join(map(re.escape, RENAMED_PARTS))})(?=\.)")


def current_name(name: str) -> str:
    """A tensor of ours under its name of today."""
    return RENAMED_PATTERN.sub(lambda found: RENAMED_PARTS[found[1]], name)


HOLES = {"{i}": r"(?P<i>\d+)", "{j}": r"(?P<j>\d+)", "{w}": r"(?P<w>weight|bias|gamma|beta)"}
OLD = {"gamma": "weight", "beta": "bias"}
READ_ONLY_KINDS = ("tied", "old", "unused")  # rows that are read and never written


@dataclass(frozen=True)
class NameRow:
    theirs: str
    ours: str
    transform: str = ""

    def translate(self, name: str, back: bool = False) -> str | None:
        """The name on the other side, if this row speaks of it."""
        source, target = (self.ours, self.theirs) if back else (self.theirs, self.ours)
        found = re.fullmatch(name_pattern(source), name)
        if found is None:
            return None
        for hole, text in found.groupdict().items():
            target = target.replace(f"{{{hole}}}", OLD.get(text, text))
        return target

    def convert(self, x: Tensor, back: bool = False) -> Tensor:
        if self.transform == "flip":
            return x.mT
        if self.transform in ("row", "flat"):
            return x[None] if back == (self.transform == "row") else x[0]
        return x.flip(0) if self.transform == "reverse" else x


@cache
def name_pattern(name: str) -> str:
    text = re.escape(name)
    for hole, regex in HOLES.items():
        text = text.replace(re.escape(hole), regex, 1).replace(re.escape(hole), f"(?P={hole[1:-1]})")
    return text


def known_families() -> list[str]:
    names = (path.name for path in files(__package__).joinpath("maps").iterdir())
    return sorted(name.removesuffix(".txt") for name in names if name.endswith(".txt"))


def load_name_table(family: str, architecture: str | None = None, last: int = 3) -> list[NameRow]:
    """The rows of a family's table for one of its classes; for the first of them unless said."""
    parts = table_sections(table_text(family, last))
    if architecture is None:
        architecture = next((names[0] for names, _ in parts if names), None)
    return [row for names, each in parts if not names or architecture in names for row in each]


def all_name_rows(family: str, last: int = 3) -> list[NameRow]:
    """The rows of all classes of a family."""
    return list(parse_rows(table_text(family, last)))


def table_text(family: str, last: int) -> str:
    if family not in known_families():
        known = known_families()
        raise ValueError(f"no name table {family!r}{did_you_mean(family, known)} there are {', '.join(known)}")
    text = files(__package__).joinpath("maps", f"{family}.txt").read_text(encoding="utf8")
    return text.replace("{last}", str(last))


def table_sections(text: str) -> list[tuple[tuple[str, ...], list[NameRow]]]:
    """The rows of a table, by the classes that they are for; none: for all."""
    names: tuple[str, ...] = ()
    found: list[tuple[tuple[str, ...], list[NameRow]]] = [((), [])]
    for number, line in enumerate(text.splitlines(), 1):
        said = line.split("#")[0].strip()
        if said.startswith("["):
            names = tuple(said.strip("[]").split())
            if not said.endswith("]") or not names:
                raise ValueError(f"line {number} of a name table: {said!r} is not '[Class Class ...]'")
            found.append((names, []))
        elif said:
            found[-1][1].append(parse_row(number, said))
    return found


def parse_rows(text: str) -> Iterator[NameRow]:
    for _, each in table_sections(text):
        yield from each


def parse_row(number: int, line: str) -> NameRow:
    match line.split():
        case [theirs, "unused"]:
            row = NameRow(theirs, "", "unused")
        case [theirs, ours]:
            row = NameRow(theirs, ours)
        case [theirs, ours, "flip" | "row" | "flat" | "reverse" | "tied" | "old" as how] if ours != "unused":
            row = NameRow(theirs, ours, how)
        case _:
            hows = "flip|row|flat|reverse|tied|old"
            raise ValueError(f"line {number} of a name table: {line!r} is not 'theirs ours [{hows}]'")
    holes = [set(re.findall(r"{.*?}", side)) for side in (row.theirs, row.ours)]
    if not holes[0] <= set(HOLES) or (row.ours and holes[0] != holes[1]):
        raise ValueError(f"line {number} of a name table: both names have the same holes out of {', '.join(HOLES)}")
    return row


def model_tensors(model: nn.Module, merged: bool = False) -> dict[str, Tensor]:
    """Our tensors by name: whole, and for fused maps each part as well (`attn.qkv/q.weight`). Adapters have no place in
    a checkpoint: the weights beneath them are meant, or copies with the adapters `merged`."""
    named: dict[str, Tensor] = merged_state_dict(model) if merged else base_state_dict(model)
    for name, module in model.named_modules():
        if isinstance(module, FusedLinear):
            for part, (weight, bias) in module.named_parts(named[f"{name}.weight"]).items():
                named[f"{name}/{part}.weight"] = weight
                if bias is not None:
                    named[f"{name}/{part}.bias"] = bias
    return named


def untied_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Each of our tensors under its first name; a tied one has several."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in base_state_dict(model).items():
        first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())


def fused_parts(mine: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """`attn.qkv.weight` has the parts `attn.qkv/q.weight`, ... if it is a fused map's."""
    found: dict[str, set[str]] = {}
    for name in mine:
        if "/" in name:
            found.setdefault(re.sub(r"/[^.]+", "", name), set()).add(name)
    return found


class TensorMove(NamedTuple):
    """Where a tensor of theirs goes; `again` is another of theirs that goes there too, and is the same."""

    theirs: str
    row: NameRow
    ours: str
    again: str | None = None


def plan_moves(model: nn.Module, state: Mapping[str, Tensor], family: str | list[NameRow] | None) -> list[TensorMove]:
    """Where each tensor of a checkpoint goes, by shapes and kinds alone: neither side needs numbers.

    Every name on both sides is accounted for, or it is an error.
    """
    table_rows = load_name_table(family) if isinstance(family, str) else family
    mine, given = model_tensors(model), dict[str, TensorMove]()
    first = {id(tensor): name for name, tensor in untied_tensors(model).items()}
    found = {name: known for name in state if (known := find_row(table_rows, name)) is not None}
    if strange := [name for name in state if name not in found]:
        raise ValueError(f"{name_some(strange, 10)}: the checkpoint has it, and the name table has no row for it")
    out = []
    for name, tensor in state.items():
        row, ours = found[name]
        if row.transform == "unused":
            continue
        check_shape(name, row, tensor, ours, mine)
        ours = first.get(id(mine[ours]), ours)
        out.append(TensorMove(name, row, ours, given[ours].theirs if ours in given else None))
        given.setdefault(ours, out[-1])
    covered = set(given) | {name for name, apart in fused_parts(mine).items() if apart <= set(given)}
    missing = [name for name in first.values() if name not in covered]
    if missing:
        raise ValueError(f"the checkpoint has nothing for {name_some(missing, 10)}")
    return out


@torch.no_grad()
def load_tensors(model: nn.Module, state: Mapping[str, Tensor], family: str | list[NameRow] | None) -> None:
    """Copy a checkpoint's tensors into the model. Every name on both sides is accounted for, or nothing is copied."""
    known = plan_moves(model, state, family)
    check_tied(known, state.__getitem__)
    mine = model_tensors(model)
    for move in known:
        if move.again is None:
            mine[move.ours].copy_(move.row.convert(state[move.theirs]))


def check_tied(known: list[TensorMove], read: Callable[[str], Tensor]) -> None:
    """What the model ties, a checkpoint may have twice, if both are the same."""
    rows = {move.theirs: move.row for move in known}
    for move in known:
        if move.again is not None:
            one, other = (rows[name].convert(read(name)) for name in (move.again, move.theirs))
            if not torch.equal(one, other):
                raise ValueError(f"{move.theirs}: the model ties it to {move.ours}, and the checkpoint has two "
                                 "different tensors")  # fmt: skip


def check_shape(name: str, row: NameRow, tensor: Tensor, ours: str, mine: Mapping[str, Tensor]) -> None:
    """Whether there is a place for the tensor, and it is of the shape and the kind of that place."""
    if ours not in mine:
        raise ValueError(f"{name}: the checkpoint has it, and this model has no {ours}; the config differs")
    try:
        shape = row.convert(tensor).shape
    except (RuntimeError, IndexError):  # there is nothing to flip in a vector
        shape = tensor.shape
    if shape != mine[ours].shape:
        raise ValueError(f"{name}: {tuple(shape)} in the checkpoint, {tuple(mine[ours].shape)} in {ours}")
    if tensor.is_floating_point() != mine[ours].is_floating_point():
        raise ValueError(f"{name}: {tensor.dtype} in the checkpoint, as if quantised, {mine[ours].dtype} in {ours}")


@torch.no_grad()
def export_tensors(model: nn.Module, family: str | list[NameRow] | None) -> dict[str, Tensor]:
    """The model's tensors under the family's names, as its own library stores them: tied ones once, adapters merged."""
    table_rows = load_name_table(family) if isinstance(family, str) else family
    mine, out = model_tensors(model, merged=True), dict[str, Tensor]()
    pieces = {} if table_rows is None else fused_parts(mine)
    for name in untied_tensors(model):
        several = sorted(pieces.get(name, ()))
        apart = len(several) > 1 and all(hf_name(table_rows, part) for part in several)
        for piece in several if apart else [name]:
            found = hf_name(table_rows, piece)
            if found is None:
                raise ValueError(f"{piece}: the family has no name for it; this model is not of that family")
            row, their = found
            out[their] = row.convert(mine[piece].detach(), back=True).contiguous()
    return out


def find_row(table_rows: list[NameRow] | None, name: str) -> tuple[NameRow, str] | None:
    """The row that speaks of one of their names, and our name for it."""
    if table_rows is None:
        return NameRow(name, name), name
    for row in table_rows:
        ours = row.translate(name)
        if ours is not None:
            return row, ours
    return None


def hf_name(table_rows: list[NameRow] | None, name: str) -> tuple[NameRow, str] | None:
    if table_rows is None:
        return NameRow(name, name), name
    for row in table_rows:
        if row.transform not in READ_ONLY_KINDS and (their := row.translate(name, back=True)) is not None:
            return row, their
    return None
