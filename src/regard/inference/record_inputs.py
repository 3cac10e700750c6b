"""Record inputs: images, sounds and other inputs besides text, as records for their processor.

    "cat.png", Path("cat.png")       a file                  {"bytes": ..., "path": ...}         as datasets of the hub
    a PIL image, an array, a tensor  as a column holds it    {"array": ..., "sampling_rate": n}  have images and sounds
    (samples, rate)                  a sound                 {"tags": [...], "edges": [...]}     a record, by columns

Pixel values are those of the model's records, from 0 to `embed.max_value` (255 by default).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.data.records import Record
from regard.inputs.processors import build_processor

CONTENT_KEYS = {"bytes", "path", "array", "sampling_rate"}  # keys of a dict that is one value and not a record


def input_record(thing: Any, column: str, number: int) -> Record:
    """The record of one input; `number` names inputs without a name."""
    if isinstance(thing, Record):
        return thing
    if isinstance(thing, Mapping) and not (thing and thing.keys() <= CONTENT_KEYS):
        return Record(dict(thing), f"record {number}")
    if not isinstance(thing, str | Path):
        return Record({column: thing}, f"{column} {number}")
    if not Path(thing).is_file():
        raise DataError(f"{thing}: no such file; name an image, or another input of the model")
    return Record({column: thing}, str(thing))


def input_records(front: Any, things: Sequence[Any]) -> list[Record]:
    """The records of inputs for this front end."""
    column = build_processor(front).column
    return [input_record(thing, column, number) for number, thing in enumerate(things, 1)]


def front_end_inputs(front: Any, records: Sequence[Record], device: torch.device) -> dict[str, Tensor]:
    """Records as the arguments of this front end."""
    reader = build_processor(front)
    batch = reader.collate([reader.example(record, reader.column) for record in records], None)
    return {name: table.to(device) for name, table in batch.items()}
