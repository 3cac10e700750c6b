"""regard generate: a prompt in, text out while it is being made."""

import sys
import warnings
from dataclasses import asdict, make_dataclass
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.mistakes import talk
from regard.cli.output import (
    Checkpoint,
    Dtype,
    Json,
    Specials,
    Weights,
    as_json,
    exactly,
    faint,
    in_specials,
    spoken,
    text_in,
    visible,
    with_options_of,
    with_torch,
)
from regard.config.reader import value_in

ABOUT = {
    "new": "Tokens to make, at most.",
    "shortest": "Tokens to make before the text may end.",
    "temperature": "Below 1 more certain, above 1 more daring; 0 is always the likeliest.",
    "top_k": "Choose among the k likeliest tokens.",
    "top_p": "Choose among the likeliest tokens that together reach this probability.",
    "min_p": "Choose among tokens at least this probable, as a part of the likeliest one's probability.",
    "typical": "Choose among the tokens about as surprising as expected that together reach this probability.",
    "repetition": "Above 1: tokens already seen become less likely.",
    "frequency": "Above 0: each time that a token was said makes it less likely.",
    "presence": "Above 0: tokens that were said become less likely, however often.",
    "no_repeat": "Never say a run of so many tokens twice.",
    "bias": "Make a token likelier, as in 17=2.5 or ' the'=-5; -inf forbids it. May be given several times.",
    "regex": "The text matches this regular expression.",
    "schema": "The text is JSON that keeps to this JSON schema.",
    "stop": "End before this text; may be given several times.",
    "seed": "The same seed makes the same text.",
    "beams": "Search for the likeliest text, with so many beginnings at a time.",
    "best": "With --beams: how many of the texts found to show; lines of --- part them.",
    "length_penalty": "With --beams: 0 favours short texts, 1 compares them a token, above 1 favours long ones.",
    "draft": "A small model of the same vocabulary guesses tokens ahead: the same text, sooner.",
    "lookup": "What came after the last so many tokens before is guessed ahead: the same text, sooner.",
    "guess": "Tokens guessed at a time; 5 unless said.",
}
Beams = make_dataclass("Beams", [(name, "int | None", None) for name in ("beams", "best", "length_penalty")])

Ahead = make_dataclass("Ahead", [("draft", "str | None", None), ("lookup", "int | None", None),
                                 ("guess", "int | None", None)])  # fmt: skip


@with_options_of(Ahead, ABOUT)
@with_options_of(Beams, ABOUT)
@with_options_of(config.Sampling, ABOUT)
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to go on from; - reads stdin.")] = None,
    *,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")] = None,
    count: Annotated[int, typer.Option(help="How many texts; lines of --- part them.")] = 1,
    interactive: Annotated[bool, typer.Option("--interactive", help="Write a text in turns with the model.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show how each token was chosen, or the tree of a search.")]
    = False,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: Json = False,
    **settings: Any,
) -> None:
    """Go on from a prompt, and show the text while it is made."""
    given = {name: word for name, word in settings.items() if word is not None}
    given = {name: typed(name, word) for name, word in given.items()}
    ahead = {name: given.pop(name) for name in ("draft", "lookup", "guess") if name in given}
    search = looked_over(given, count, explain, interactive)
    if ahead and (explain or interactive or search):
        raise config.ConfigError(f"--{next(iter(ahead))}: tokens are guessed ahead for a text that is drawn and shown; "
                                 "leave out --explain, --interactive and --beams")  # fmt: skip
    if interactive:
        from regard.cli.chat import go_on

        return go_on(checkpoint, prompt, file, count, json, given, weights, dtype, in_specials(specials))
    begin, how = beginning(prompt, file), in_specials(specials)
    with_torch()
    from regard.generate.opening import load_to_answer

    model = load_to_answer(checkpoint, dtype=dtype, weights=weights, specials=how)
    check(model, checkpoint)
    if explain:
        return explained(model.explain_generation(begin, **given), json)
    if "draft" in ahead:
        ahead["draft"] = load_to_answer(ahead["draft"], dtype=dtype, weights=weights)
    if json or search or count > 1:
        return at_once(model, model.complete([begin] * count, **given, **ahead), given, json)
    stream(model, begin, given | ahead)


def stream(model: Any, begin: str, given: dict[str, Any]) -> None:
    """The text while it is made."""
    if sys.stdout.isatty():  # who looks on sees the whole text; who pipes gets what is new
        print(faint(begin), end="", file=sys.stderr, flush=True)
    last = "\n"
    with warnings.catch_warnings(record=True) as notes:  # they wait, lest they stand in the middle of the text
        try:
            for part in model.stream(begin, **given):
                print(visible(last := part), end="", flush=True)
        finally:
            if sys.stdout.isatty() and not last.endswith("\n"):
                print()
    for note in notes:
        talk(f"note: {note.message}")


def at_once(model: Any, texts: list[Any], given: dict[str, Any], json: bool) -> None:
    """Texts that are whole: several, or found by a search."""
    every = [one for made in texts for one in (made, *made.others)]
    as_json(answer(model, every, given)) if json else exactly("\n---\n".join(one.text for one in every))


def explained(made: Any, json: bool) -> None:
    from regard.generate.telling import told

    as_json(asdict(made)) if json else print(told(made))


def looked_over(given: dict[str, Any], count: int, explain: bool, interactive: bool) -> bool:
    """Whether a text is searched for. Mistakes are told before a model is loaded, by the names that were typed."""
    from regard.generate import asked

    if count < 1:
        raise config.ConfigError(f"--count: {count} is less than 1")
    if explain and (count > 1 or interactive):
        raise config.ConfigError("--explain: one text at a time is explained; leave out --count and --interactive")
    try:
        search = asked.is_search(given)
        for line in given.get("bias", ()):
            asked.typed(line)
        plain = {name: value for name, value in given.items() if name != "bias"}
        asked.searching(plain) if search else asked.sampling(plain)
    except config.ConfigError as problem:
        name, _, rest = str(problem).partition(":")
        raise config.ConfigError(f"--{name.replace('_', '-')}:{rest}") from None
    if search and (count > 1 or interactive):
        raise config.ConfigError("--beams: a search finds the same texts each time, and only at their end; leave out "
                                 "--count and --interactive, or ask for the --best")  # fmt: skip
    return search


def typed(name: str, word: Any) -> Any:
    """A setting as it was typed: a number, a name; a regex or a schema is a text, whatever it looks like."""
    return value_in(word) if isinstance(word, str) and name not in ("regex", "schema", "draft") else word


def check(model: Any, name: str) -> None:
    """Refuses who writes no text, with the verb that it is for."""
    if isinstance(model.task, config.Classify | config.Regress):
        raise config.ConfigError(f"{name}: it was trained for {model.task.kind!r} and writes no text; use "
                                 f"`regard classify {name}`")  # fmt: skip
    if model.c.encoder is not None:
        raise config.ConfigError(f"{name}: it reads one text and writes another, and goes on from none; use "
                                 f"`regard translate TEXT --model {name}`")  # fmt: skip
    if model.task is None and (verb := verb_of(model)) is not None:
        raise config.ConfigError(f"{name}: it reads texts and goes on from none; use `regard {verb} {name}`")


def verb_of(model: Any) -> str | None:
    """What a published model is for that does not write from left to right."""
    from regard.core.masks import mask

    name = model.origin.architecture or ""
    match model.c.head:
        case _ if isinstance(model.c, config.Towers) or name.endswith("WithProjection"):
            return "embed"
        case config.Each():
            return "answer" if name.endswith("ForQuestionAnswering") else "tag"
        case config.Pooled(out=int()):
            return "classify"
        case config.Vocabulary() | config.Both(vocabulary=config.Vocabulary()):
            return "fill" if any(mask(text).ahead for text in model.c.trunk.masks) else None
    return "embed"


def beginning(prompt: str | None, file: str | None) -> str:
    """The prompt, from wherever it comes; nothing at all is for the model to refuse, or to begin by itself."""
    if prompt is not None and file is not None:
        raise config.ConfigError(f"--file {file}: there is a PROMPT as well; keep one of the two")
    place = "-" if prompt == "-" else file
    return text_in(place) if place is not None else spoken(prompt or "", "PROMPT")


def answer(model: Any, texts: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    """All there is to know about completions of one prompt; with the settings, the same texts can be made again."""
    from regard.generate.asked import is_search, sampling, searching

    first, search = texts[0], is_search(given)
    ids = model.encoded([first.prompt])[1]
    usual = model.usual(ids, model.manner.found, given.get("new")) if search else model.usual(ids)
    c = asdict((searching if search else sampling)(usual | given, model.speaks))
    told = [{"text": made.text, "tokens": len(made.ids), "reason": made.reason, "seconds": made.seconds}
            | ({"score": made.score} if search else {})
            | ({"guessed": made.guessed, "kept": made.kept} if made.guessed else {}) for made in texts]  # fmt: skip
    how = {"search": c} if search else {"sampling": c | {"seed": first.seed}}
    return {"prompt": first.prompt, "text": first.text, "texts": told, **how}
