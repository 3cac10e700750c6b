"""Name tables: one text file for each family maps its tensor names to ours and back.

    transformer.h.{i}.ln_1.{w}             trunk.blocks.{i}.attn_norm.{w}
    transformer.h.{i}.attn.c_attn.weight   trunk.blocks.{i}.attn.qkv.weight     flip

The columns are the family's name, our name, and the transform. {i} is a layer, {j} a stage and {last} the number of the
last stage, {w} is weight or bias (gamma or beta in old files); `qkv/q` is one part of a fused linear. Transforms:
`flip` transposes, `row` is stored as a matrix of one row, `flat` is such a row stored as a vector, `reverse` has the
opposite order; `tied` may be stored but repeats another row, `old` is an earlier name of another row, `unused` is
ignored.

    [BertForMaskedLM]
    cls.predictions.bias                   head.bias

Rows under class names in brackets apply to these classes alone: heads differ, the body does not. A name without a row
is an error, on both sides. Without a table (None) the names are our own.

Some models of `transformers` have other module names at run time than in their files; adapters use the former:

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
# By family: parts of names in files and at run time; replaced in this order.
RUNTIME_NAMES = {
    "vit": (("encoder.layer.", "layers."), *ONCE),
    "deit": (("encoder.layer.", "layers."), *ONCE),
    "swin": CELLS,
}


def runtime_name(name: str, family: str) -> str:
    """The name of a module at run time."""
    for old, new in RUNTIME_NAMES.get(family, ()):
        name = name.replace(old, new)
    return name


def file_name(name: str, family: str) -> str:
    """The name in a file; a name that is one already is kept."""
    for old, new in RUNTIME_NAMES.get(family, ()):
        name = name.replace(new, old)
    return name


# Our own names in folders of format 1, and the current ones.
RENAMED_PARTS = {"head.vocabulary": "head.lm", "head.pooled": "head.pooling", "embed.seen": "embed.prefix"}
RENAMED_PATTERN = re.compile(rf"(?:^|(?<=\.))({'|'.join(map(re.escape, RENAMED_PARTS))})(?=\.)")


def current_name(name: str) -> str:
    """The current name of one of our tensors."""
    return RENAMED_PATTERN.sub(lambda found: RENAMED_PARTS[found[1]], name)


HOLES = {"{i}": r"(?P<i>\d+)", "{j}": r"(?P<j>\d+)", "{w}": r"(?P<w>weight|bias|gamma|beta)"}
OLD = {"gamma": "weight", "beta": "bias"}
READ_ONLY_KINDS = ("tied", "old", "unused")  # rows that are read but never written


@dataclass(frozen=True)
class NameRow:
    """One row of a name table: a name of the family, ours, and the transform between the tensors."""

    theirs: str
    ours: str
    transform: str = ""

    def translate(self, name: str, back: bool = False) -> str | None:
        """The name on the other side, if this row matches."""
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
    """The rows of a family's table for one architecture, by default the first."""
    parts = table_sections(table_text(family, last))
    if architecture is None:
        architecture = next((names[0] for names, _ in parts if names), None)
    return [row for names, each in parts if not names or architecture in names for row in each]


def all_name_rows(family: str, last: int = 3) -> list[NameRow]:
    """The rows of all architectures of a family."""
    return list(parse_rows(table_text(family, last)))


def table_text(family: str, last: int) -> str:
    if family not in known_families():
        known = known_families()
        raise ValueError(f"no name table {family!r}{did_you_mean(family, known)} there are {', '.join(known)}")
    text = files(__package__).joinpath("maps", f"{family}.txt").read_text(encoding="utf8")
    return text.replace("{last}", str(last))


def table_sections(text: str) -> list[tuple[tuple[str, ...], list[NameRow]]]:
    """The rows of a table by section, each with its class names; none for the section of all classes."""
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
    """Our tensors by name: all, and each part of fused linears (`attn.qkv/q.weight`). Adapters are not part of a
    checkpoint: the weights are those of the base, or copies with the adapters `merged`."""
    named: dict[str, Tensor] = merged_state_dict(model) if merged else base_state_dict(model)
    for name, module in model.named_modules():
        if isinstance(module, FusedLinear):
            for part, (weight, bias) in module.named_parts(named[f"{name}.weight"]).items():
                named[f"{name}/{part}.weight"] = weight
                if bias is not None:
                    named[f"{name}/{part}.bias"] = bias
    return named


def untied_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Each of our tensors under its first name; tied ones appear once."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in base_state_dict(model).items():
        first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())


def fused_parts(mine: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """The parts of each fused linear: `attn.qkv.weight` has `attn.qkv/q.weight`, ..."""
    found: dict[str, set[str]] = {}
    for name in mine:
        if "/" in name:
            found.setdefault(re.sub(r"/[^.]+", "", name), set()).add(name)
    return found


class TensorMove(NamedTuple):
    """The target of a stored tensor; `again` is another stored tensor with the same target, which must be equal."""

    theirs: str
    row: NameRow
    ours: str
    again: str | None = None


def plan_moves(model: nn.Module, state: Mapping[str, Tensor], family: str | list[NameRow] | None) -> list[TensorMove]:
    """The target of each tensor of a checkpoint, by names, shapes and dtypes alone: no data is needed on either side.

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
    """Check that stored copies of a tied tensor are equal."""
    rows = {move.theirs: move.row for move in known}
    for move in known:
        if move.again is not None:
            one, other = (rows[name].convert(read(name)) for name in (move.again, move.theirs))
            if not torch.equal(one, other):
                raise ValueError(f"{move.theirs}: the model ties it to {move.ours}, and the checkpoint has two "
                                 "different tensors")  # fmt: skip


def check_shape(name: str, row: NameRow, tensor: Tensor, ours: str, mine: Mapping[str, Tensor]) -> None:
    """Check that the target exists and has the tensor's shape and kind."""
    if ours not in mine:
        raise ValueError(f"{name}: the checkpoint has it, and this model has no {ours}; the config differs")
    try:
        shape = row.convert(tensor).shape
    except (RuntimeError, IndexError):  # a vector cannot be transposed
        shape = tensor.shape
    if shape != mine[ours].shape:
        raise ValueError(f"{name}: {tuple(shape)} in the checkpoint, {tuple(mine[ours].shape)} in {ours}")
    if tensor.is_floating_point() != mine[ours].is_floating_point():
        raise ValueError(f"{name}: {tensor.dtype} in the checkpoint, as if quantised, {mine[ours].dtype} in {ours}")


@torch.no_grad()
def export_tensors(model: nn.Module, family: str | list[NameRow] | None) -> dict[str, Tensor]:
    """The model's tensors under the family's names, in its layout: tied ones once, adapters merged."""
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
    """The row that matches a name of the family, and our name."""
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
