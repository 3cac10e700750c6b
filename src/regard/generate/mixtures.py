"""Models of what is seen and of text: captions for pictures, and pictures for captions.

    caption(regard.load("runs/emoji-caption"), ["heart.png"])        ["red heart"]
    paint(regard.load("runs/emoji-draw"), ["red heart"], seed=0)     bytes (1, 3, 16, 16)

A picture is whatever its sense takes: the name of a file, bytes (C, H, W), rows of numbers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from regard import config
from regard.config import ConfigError, DataError
from regard.core.cache import Cache
from regard.data import Record
from regard.generate.asked import is_search, sampling, searching, whole_picture
from regard.generate.beam import search
from regard.generate.limits import Limits
from regard.generate.session import Session
from regard.inputs import palette
from regard.inputs.senses import sense
from regard.tasks.caption import Caption, at_most, front_of
from regard.tasks.draw import Draw
from regard.tasks.rows import Rows
from regard.tasks.task import build

if TYPE_CHECKING:
    from regard.generate.model import Transformer
    from regard.text import Tokenizer

BEAMS, NEW = 4, 30  # beams of a caption, and the most tokens that it has


def shown(front: Any, things: Sequence[Any], device: torch.device) -> dict[str, Tensor]:
    """Things of any kind as the arguments of the front end that sees them."""
    reader = sense(front)
    examples = [reader.example(Record({reader.column: thing}, place(thing, number)), reader.column)
                for number, thing in enumerate(things, 1)]  # fmt: skip
    return {name: table.to(device) for name, table in reader.batch(examples, None).items()}


def place(thing: Any, number: int) -> str:
    if isinstance(thing, str | Path) and not Path(thing).is_file():
        raise DataError(f"{thing}: no such file; name a picture, or whatever the model sees")
    return str(thing) if isinstance(thing, str | Path) else f"picture {number}"


def words(model: Any) -> "Tokenizer":
    if model.tokenizer is None:
        raise DataError("this model has no tokenizer to say words with; put a tokenizer.json beside it")
    found: Tokenizer = model.tokenizer
    return found


def where(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


# ---------------------------------------------------------------- captions


class Shown:
    """A model with a picture before its eyes: who reads the first words through it reads the picture before them."""

    def __init__(self, model: "Transformer", given: dict[str, Tensor]) -> None:
        self.model, self.given, self.before = model, given, at_most(model.c)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: Tensor, *, cache: Cache, **rest: Any) -> Any:
        return self.model(ids, cache=cache, **(self.given if cache.fresh else {}), **rest)

    def cache(self, batch: int, capacity: int) -> Cache:
        """Room for the picture too, which comes in one piece with the first words."""
        made = self.model.cache(batch, capacity + self.before)
        made.first = max(0, made.first - self.before)
        return made


def caption(model: "Transformer", pictures: Sequence[Any], **settings: Any) -> list[str]:
    """The text that goes with each picture: by beam search with the settings of `config.Search`, or with a temperature
    drawn with those of `config.Sampling`."""
    tokenizer, front = words(model), front_of(model.c)
    if front is None:
        raise ConfigError("this model sees nothing to write about; one of task 'caption' does")
    task = build(config.Caption(), tokenizer, model.c, rows=Rows(model.context or NEW), sense=sense(front),
                 cross=model.encoder is not None)  # fmt: skip
    assert isinstance(task, Caption)
    given = task.given(shown(front, pictures, where(model)))
    begin, limits = [[task.specials.begin()]] * len(pictures), model.limits
    settings = {"new": min(NEW, model.context or NEW)} | settings
    if "temperature" in settings:
        return drawn(model, begin, given, settings, tokenizer)
    whole = {"beams": BEAMS, "length_penalty": 0.0}  # whole probabilities: long ones are no better
    c = searching(whole | settings, tokenizer)
    if model.encoder is not None:
        found = search(model, begin, c, limits, source=given["source"], source_real=given.get("source_real"))
    else:
        found = search(cast("Transformer", Shown(model, given)), begin, c, limits)
    return [tokenizer.decode([id for id in one[0].ids if id not in limits.ends]) for one in found]


def drawn(
    model: "Transformer", begin: list[list[int]], given: dict[str, Tensor], settings: dict[str, Any],
    tokenizer: "Tokenizer",
) -> list[str]:  # fmt: skip
    if is_search(settings):
        raise ConfigError("beams: a caption is searched for or drawn; leave out beams, or temperature")
    c = sampling(settings, tokenizer)
    rules = model.rules(c, len(begin))
    if model.encoder is not None:
        session = Session(model, begin, c, model.limits, source=given["source"], source_real=given.get("source_real"),
                          rules=rules)  # fmt: skip
    else:
        session = Session(cast("Transformer", Shown(model, given)), begin, c, model.limits, rules=rules)
    said = model.listened(session)
    return [tokenizer.decode([id for id in row if id not in model.limits.ends]) for row in said]


# ---------------------------------------------------------------- pictures


def paint(model: "Transformer", texts: Sequence[str], **settings: Any) -> Tensor:
    """A picture for each text, bytes (B, C, rows, columns). The settings are those of `config.Sampling`, but for new
    and stop."""
    whole_picture(settings)
    tokenizer, c = words(model), model.task
    if not isinstance(c, config.Draw):
        raise ConfigError("this model draws no pictures for a text; one of task 'draw' does")
    task = build(c, tokenizer, model.c, rows=Rows(model.context or 1), sense=sense(c.pixels))
    assert isinstance(task, Draw)
    most = task.room - task.around
    told = task.heard([ids(tokenizer, task.read(text), most) for text in texts]).tolist()
    colours = Limits(known=task.first + c.pixels.palette, never=frozenset(range(task.first)))
    said = model.listened(Session(model, told, sampling({**settings, "new": c.pixels.count}), colours))
    return palette.shown(torch.tensor(said) - task.first, c.pixels)


def ids(tokenizer: "Tokenizer", text: str, most: int) -> list[int]:
    found = tokenizer.encode(text)
    if not text.strip() or len(found) > most:
        raise DataError(f"text: {text!r:.60} has {len(found)} tokens; expected 1 to {most}, so say it in fewer words")
    return found
