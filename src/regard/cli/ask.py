"""regard generate: a prompt in, text out while it is being made."""

import sys
import warnings
from dataclasses import asdict
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.mistakes import talk
from regard.cli.output import (
    Checkpoint,
    Json,
    as_json,
    exactly,
    faint,
    in_options,
    spoken,
    text_in,
    with_options_of,
    with_torch,
)
from regard.config.reader import value_in

ABOUT = {
    "new": "Tokens to make, at most.",
    "temperature": "Below 1 more certain, above 1 more daring; 0 is always the likeliest.",
    "top_k": "Choose among the k likeliest tokens.",
    "top_p": "Choose among the likeliest tokens that together reach this probability.",
    "min_p": "Choose among tokens at least this probable, as a part of the likeliest one's probability.",
    "repetition": "Above 1: tokens already seen become less likely.",
    "stop": "End before this text; may be given several times.",
    "seed": "The same seed makes the same text.",
}


@with_options_of(config.Sampling, ABOUT)
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to go on from; - reads stdin.")] = None,
    *,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")] = None,
    count: Annotated[int, typer.Option(help="How many texts; lines of --- part them.")] = 1,
    json: Json = False,
    **settings: Any,
) -> None:
    """Go on from a prompt, and show the text while it is made."""
    given = {name: word for name, word in settings.items() if word is not None}
    given = {name: value_in(word) if isinstance(word, str) else word for name, word in given.items()}
    sampling = asdict(in_options(config.Sampling, given))
    begin = beginning(prompt, file)
    if count < 1:
        raise config.ConfigError(f"--count: {count} is less than 1")
    with_torch()
    from regard.generate.model import load

    model = load(checkpoint)
    if isinstance(model.task, config.Classify | config.Regress):
        raise config.ConfigError(f"{checkpoint}: it was trained for {model.task.kind!r} and writes no text; use "
                                 f"`regard classify {checkpoint}`")  # fmt: skip
    if model.c.encoder is not None:
        raise config.ConfigError(f"{checkpoint}: it reads one text and writes another, and goes on from none; use "
                                 f"`regard translate TEXT --model {checkpoint}`")  # fmt: skip
    if json:
        return as_json(answer(model.complete([begin] * count, **sampling), sampling))
    if count > 1:
        return exactly("\n---\n".join(made.text for made in model.complete([begin] * count, **sampling)))
    if sys.stdout.isatty():  # who looks on sees the whole text; who pipes gets what is new
        print(faint(begin), end="", file=sys.stderr, flush=True)
    last = "\n"
    with warnings.catch_warnings(record=True) as notes:  # they wait, lest they stand in the middle of the text
        for part in model.stream(begin, **sampling):
            print(last := part, end="", flush=True)
    if sys.stdout.isatty() and not last.endswith("\n"):
        print()
    for note in notes:
        talk(f"note: {note.message}")


def beginning(prompt: str | None, file: str | None) -> str:
    """The prompt, from wherever it comes; nothing at all is for the model to refuse, or to begin by itself."""
    if prompt is not None and file is not None:
        raise config.ConfigError(f"--file {file}: there is a PROMPT as well; keep one of the two")
    place = "-" if prompt == "-" else file
    return text_in(place) if place is not None else spoken(prompt or "", "PROMPT")


def answer(texts: list[Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """All there is to know about some completions of one prompt; with the seed, the same texts can be made again."""
    told = [{"text": made.text, "tokens": len(made.ids), "reason": made.reason, "seconds": made.seconds}
            for made in texts]  # fmt: skip
    first = texts[0]
    return {"prompt": first.prompt, "text": first.text, "texts": told, "sampling": sampling | {"seed": first.seed}}
