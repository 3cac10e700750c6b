"""Whether what was read from a folder goes back as it came: every tensor under its name, byte for byte."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config import DataError
from regard.hub import names
from regard.hub.families import FAMILIES
from regard.hub.weights import spelt, stored


@dataclass(frozen=True)
class Back:
    """`same` tensors go back; `unwritten` ones need not, as they are tied, old or unused; the rest must be empty."""

    same: int
    unwritten: tuple[str, ...]
    changed: tuple[str, ...]
    lacking: tuple[str, ...]  # in the file, and not written though they should be
    added: tuple[str, ...]  # written, and not in the file

    @property
    def whole(self) -> bool:
        return not (self.changed or self.lacking or self.added)


def back(model: Any) -> Back:
    """What saving a model as it was read would write, against its files.

    Weights that are held in another type than the files have are compared in the files' own.
    """
    origin = model.origin
    if origin is None:
        raise DataError("this model was not read from a folder; there is nothing to compare it with")
    files = stored(origin.path)
    family = None if origin.family is None else FAMILIES[origin.family]
    rows = None if family is None else family.rows(origin.architecture, origin.config)
    if family is not None and rows is not None:
        files, aside = spelt(files, rows, family)
    else:
        aside = []
    written = names.save(model, rows)
    only = [name for name in files if name not in written]
    passed = [name for name in only if (row := names.find(rows, name)) is not None and row[0].how in names.READ]
    changed = [name for name, x in files.items() if name in written and not alike(written[name], x)]
    return Back(
        same=len(written) - len(changed) - len(added := [name for name in written if name not in files]),
        unwritten=tuple(sorted([*passed, *aside])), changed=tuple(sorted(changed)),
        lacking=tuple(sorted(set(only) - set(passed))), added=tuple(sorted(added)),
    )  # fmt: skip


def alike(ours: Tensor, theirs: Tensor) -> bool:
    """To the byte: two zeros of another sign are not the same."""
    mine, other = (x.to("cpu", theirs.dtype).flatten().contiguous().view(torch.uint8) for x in (ours, theirs))
    return ours.shape == theirs.shape and torch.equal(mine, other)
