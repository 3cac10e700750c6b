"""What is shown of what is no text: pictures themselves, everything else by its name; and the tokens of one of them.

    patch 2,3      the fourth patch of the third row        whole     a learned token that stands for all
    17             the eighteenth token of a sound
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard import config, tasks
from regard.config import DataError
from regard.inputs.senses import Example
from regard.lens.views import Read
from regard.report.pictures import named, picture
from regard.report.shown import Shown
from regard.tasks import Batch
from regard.tasks.sensed import answered
from regard.train.evaluate import moved
from regard.train.health import given

Row = dict[str, Any]
WHOLE = "whole"
FEW = 4  # rows that are read for what heads do


def reads_text(model: Any) -> bool:
    return isinstance(getattr(model.c, "embed", None), config.Embed)


def seen(task: Any, model: Any, batch: Batch, examples: Sequence[Example], places: Sequence[int]) -> list[Row]:
    """What the model takes each for, or which number it gives; with the picture or the name of what it was shown."""
    said, meant = answered(model, batch).float(), batch["label"].tolist()
    shown = [looked_at(example, place) for example, place in zip(examples, places, strict=True)]
    if isinstance(task.c, config.Regress):
        return [row | {"said": f"{a:.3g}", "meant": f"{b:.3g}"}
                for row, a, b in zip(shown, said[:, 0].tolist(), meant, strict=True)]  # fmt: skip
    sure, best = said.softmax(-1).max(-1)
    names = task.c.classes
    return [row | {"said": names[a], "meant": names[b], "sure": round(share, 3), "right": a == b}
            for row, a, b, share in zip(shown, best.tolist(), meant, sure.tolist(), strict=True)]  # fmt: skip


def missed(task: Any, model: Any, batch: Batch, device: Any) -> list[float]:
    """How far off each answer is: how sure it is of the wrong class, or how far the number is away."""
    if not isinstance(task, tasks.Sensed):
        raise DataError(f"{task.c.kind!r} is not asked of one row at a time")
    said, meant = answered(model, moved(batch, device)).float().cpu(), batch["label"]
    if isinstance(task.c, config.Regress):
        return (said[:, 0] - meant).abs().tolist()  # type: ignore[no-any-return]
    sure, best = said.softmax(-1).max(-1)
    return torch.where(best == meant, torch.zeros_like(sure), sure).tolist()


def looked_at(example: Example, place: int) -> Row:
    drawn, name = picture(example), named(example, place)
    return {"asked": [[name]]} if drawn is None else {"asked": [], "picture": drawn, "name": name}


def shown(model: Any, batch: Batch | None) -> Shown:
    """One row for maps and a few for roles."""
    if batch is None:
        raise DataError("there is nothing that was kept back to show it")
    whole = given(batch, model)
    return Shown({name: table[:1] for name, table in whole.items()},
                 {name: table[:FEW] for name, table in whole.items()}, "one that it never trained on")  # fmt: skip


def pieces(read: Read) -> list[str]:
    """What to call the tokens of the first row: by their places in a picture, or by their numbers."""
    if read.image and read.at.shape[-1] == 2:
        return [WHOLE if row != row else f"{int(row)},{int(column)}" for row, column in read.at[0].tolist()]
    return [str(int(order)) for order in read.order[0].tolist()]


def grid(read: Read) -> list[int] | None:
    """Rows and columns, of the tokens of a picture."""
    if not read.image or read.at.shape[-1] != 2:
        return None
    most: Tensor = read.at[0].nan_to_num(0).amax(0)
    return [int(size) + 1 for size in most.tolist()]
