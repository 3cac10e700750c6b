"""Name tables: one text file a checkpoint family, read in both directions.

    transformer.h.{i}.ln_1.{w}             trunk.blocks.{i}.attn_norm.{w}
    transformer.h.{i}.attn.c_attn.weight   trunk.blocks.{i}.attn.qkv.weight     flip

Theirs, ours, and how the numbers differ. {i} is a layer, {w} is weight or bias; `qkv/q` is one part of a fused map.
A word in the third place: `flip` transposes, `row` is stored as a table of one row, `tied` may be stored but says
what another row says already, `unused` is of no use to us. A name without a row is an error, on both sides.
Without a table (None) the names are our own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

import torch
from torch import Tensor, nn

from regard.config.names import did_you_mean
from regard.core.layers import Fused

HOLES = {"{i}": r"(?P<i>\d+)", "{w}": r"(?P<w>weight|bias)"}


@dataclass(frozen=True)
class Row:
    theirs: str
    ours: str
    how: str = ""

    def translate(self, name: str, back: bool = False) -> str | None:
        """The name on the other side, if this row speaks of it."""
        source, target = (self.ours, self.theirs) if back else (self.theirs, self.ours)
        found = re.fullmatch(pattern(source), name)
        if found is None:
            return None
        for hole, text in found.groupdict().items():
            target = target.replace(f"{{{hole}}}", text)
        return target

    def convert(self, x: Tensor, back: bool = False) -> Tensor:
        if self.how == "flip":
            return x.mT
        if self.how == "row":
            return x[None] if back else x[0]
        return x


def pattern(name: str) -> str:
    text = re.escape(name)
    for hole, regex in HOLES.items():
        text = text.replace(re.escape(hole), regex, 1).replace(re.escape(hole), f"(?P={hole[1:-1]})")
    return text


def families() -> list[str]:
    names = (path.name for path in files(__package__).joinpath("maps").iterdir())
    return sorted(name.removesuffix(".txt") for name in names if name.endswith(".txt"))


def table(family: str) -> list[Row]:
    """The rows of a family's table."""
    if family not in families():
        known = families()
        raise ValueError(f"no name table {family!r}{did_you_mean(family, known)} there are {', '.join(known)}")
    text = files(__package__).joinpath("maps", f"{family}.txt").read_text(encoding="utf8")
    return list(rows(text))


def rows(text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        match line.split("#")[0].split():
            case []:
                continue
            case [theirs, "unused"]:
                row = Row(theirs, "", "unused")
            case [theirs, ours]:
                row = Row(theirs, ours)
            case [theirs, ours, "flip" | "row" | "tied" as how] if ours != "unused":
                row = Row(theirs, ours, how)
            case _:
                raise ValueError(
                    f"line {number} of a name table: {line.strip()!r} is not 'theirs ours [flip|row|tied]'"
                )
        holes = [set(re.findall(r"{.*?}", side)) for side in (row.theirs, row.ours)]
        if not holes[0] <= set(HOLES) or (row.ours and holes[0] != holes[1]):
            raise ValueError(f"line {number} of a name table: both names have the same holes out of {', '.join(HOLES)}")
        yield row


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Our tensors by name: whole, and for fused maps each part as well (`attn.qkv/q.weight`)."""
    named: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
    for name, module in model.named_modules():
        if isinstance(module, Fused):
            for part, (weight, bias) in module.parts().items():
                named[f"{name}/{part}.weight"] = weight
                if bias is not None:
                    named[f"{name}/{part}.bias"] = bias
    return named


def once(model: nn.Module) -> dict[str, Tensor]:
    """Each of our tensors under its first name; a tied one has several."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())


def parts(mine: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """`attn.qkv.weight` has the parts `attn.qkv/q.weight`, ... if it is a fused map's."""
    found: dict[str, set[str]] = {}
    for name in mine:
        if "/" in name:
            found.setdefault(re.sub(r"/[^.]+", "", name), set()).add(name)
    return found


@torch.no_grad()
def load(model: nn.Module, state: Mapping[str, Tensor], family: str | list[Row] | None) -> None:
    """Copy a checkpoint's tensors into the model. Every name on both sides is accounted for, or nothing is copied."""
    table_rows = table(family) if isinstance(family, str) else family
    mine, given = tensors(model), dict[str, Tensor]()
    first = {id(tensor): name for name, tensor in once(model).items()}
    for name, tensor in state.items():
        row, ours = find(table_rows, name)
        if row.how == "unused":
            continue
        tensor = fitting(name, row.convert(tensor), ours, mine)
        ours = first.get(id(mine[ours]), ours)
        before = given.setdefault(ours, tensor)
        if before is not tensor and not torch.equal(before, tensor):
            raise ValueError(f"{name}: the model ties it to {ours}, and the checkpoint has two different tensors")
    covered = set(given) | {name for name, apart in parts(mine).items() if apart <= set(given)}
    missing = [name for name in first.values() if name not in covered]
    if missing:
        raise ValueError(f"the checkpoint has nothing for {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}")
    for name, tensor in given.items():
        mine[name].copy_(tensor)


def fitting(name: str, tensor: Tensor, ours: str, mine: Mapping[str, Tensor]) -> Tensor:
    """The tensor, if there is a place for it and it is of the shape and the kind of that place."""
    if ours not in mine:
        raise ValueError(f"{name}: the checkpoint has it, and this model has no {ours}; the config differs")
    if tensor.shape != mine[ours].shape:
        raise ValueError(f"{name}: {tuple(tensor.shape)} in the checkpoint, {tuple(mine[ours].shape)} in {ours}")
    if tensor.is_floating_point() != mine[ours].is_floating_point():
        raise ValueError(f"{name}: {tensor.dtype} in the checkpoint, as if quantised, {mine[ours].dtype} in {ours}")
    return tensor


@torch.no_grad()
def save(model: nn.Module, family: str | list[Row] | None) -> dict[str, Tensor]:
    """The model's tensors under the family's names, as its own library stores them: tied ones once."""
    table_rows = table(family) if isinstance(family, str) else family
    mine, out = tensors(model), dict[str, Tensor]()
    pieces = {} if table_rows is None else parts(mine)
    for name in once(model):
        several = sorted(pieces.get(name, ()))
        apart = len(several) > 1 and all(theirs(table_rows, part) for part in several)
        for piece in several if apart else [name]:
            found = theirs(table_rows, piece)
            if found is None:
                raise ValueError(f"{piece}: the family has no name for it; this model is not of that family")
            row, their = found
            out[their] = row.convert(mine[piece].detach(), back=True).contiguous()
    return out


def find(table_rows: list[Row] | None, name: str) -> tuple[Row, str]:
    if table_rows is None:
        return Row(name, name), name
    for row in table_rows:
        ours = row.translate(name)
        if ours is not None:
            return row, ours
    raise ValueError(f"{name}: the checkpoint has it, and the name table has no row for it")


def theirs(table_rows: list[Row] | None, name: str) -> tuple[Row, str] | None:
    if table_rows is None:
        return Row(name, name), name
    for row in table_rows:
        if row.how not in ("tied", "unused") and (their := row.translate(name, back=True)) is not None:
            return row, their
    return None
