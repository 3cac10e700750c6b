"""What is shown of pairs: pictures with the text that a model gives to each, and texts with the picture it draws."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.inputs.senses import Example
from regard.report.pictures import named, picture, uri
from regard.tasks.pictured import WORDS
from regard.train.reading import Asked

SHOWN = 12  # rows on the page
AMONG = 1000  # texts that a picture's own is looked for among
Row = dict[str, Any]


def paired(validation: Asked, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Rows of what was kept back, from everywhere alike."""
    rows, count = validation.rows, len(validation.rows)
    some = min(count, SHOWN)
    places = [place * count // some for place in range(some)]
    made = ROWS[validation.task.c.kind](validation, model, tokenizer, places)
    return {"name": rows.name, "count": count, "rows": made}


def texts(examples: Sequence[Example], tokenizer: Any) -> list[str]:
    return [tokenizer.decode(example[WORDS].tolist()) for example in examples]


def judged(examples: Sequence[Example], places: Sequence[int], said: Sequence[str], meant: Sequence[str]) -> list[Row]:
    """What was said of each and what was meant, under the picture itself or its name."""
    rows = zip(examples, places, said, meant, strict=True)
    return [looked_at(each, place) | {"said": a, "meant": b, "right": a == b} for each, place, a, b in rows]


def looked_at(example: Example, place: int) -> Row:
    drawn, name = picture(example), named(example, place)
    return {"asked": [[name]]} if drawn is None else {"asked": [], "picture": drawn, "name": name}


def told(validation: Asked, model: Any, tokenizer: Any, places: Sequence[int]) -> list[Row]:
    examples = [validation.rows[place] for place in places]
    return judged(examples, places, model.caption(things(examples)), texts(examples, tokenizer))


def found(validation: Asked, model: Any, tokenizer: Any, places: Sequence[int]) -> list[Row]:
    """Of each picture the nearest text, among those of all."""
    rows = validation.rows
    every = sorted({*places, *range(min(len(rows), AMONG))})
    known = texts([rows[place] for place in every], tokenizer)
    examples = [rows[place] for place in places]
    near = (model.see(things(examples)) @ model.read(known).mT).argmax(-1).tolist()
    return judged(examples, places, [known[best] for best in near], texts(examples, tokenizer))


def painted(validation: Asked, model: Any, tokenizer: Any, places: Sequence[int]) -> list[Row]:
    """Of each text a picture that was drawn for it."""
    asked = texts([validation.rows[place] for place in places], tokenizer)
    images: Tensor = model.paint(asked, seed=0)
    return [{"asked": [[text]], "picture": uri(image), "name": text}
            for text, image in zip(asked, images.to(torch.uint8).cpu(), strict=True)]  # fmt: skip


def things(examples: Sequence[Example]) -> list[Tensor]:
    """What was seen, as a sense keeps it."""
    return [next(iter(example.values())) for example in examples]


ROWS: dict[str, Callable[[Asked, Any, Any, Sequence[int]], list[Row]]] = {
    "caption": told, "contrast": found, "draw": painted,
}  # fmt: skip
