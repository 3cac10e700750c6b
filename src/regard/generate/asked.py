"""What is asked of generation, by the names of its settings: to draw a text, or to search for the likeliest one."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from regard import config
from regard.config.search import Search

if TYPE_CHECKING:
    from regard.text import Tokenizer

DRAWN, FOUND = ({field.name: field.default for field in fields(c)} for c in (config.Sampling, Search))


def is_search(settings: dict[str, Any]) -> bool:
    """Beams search, one of them as well; what is only said about beams needs them."""
    if "beams" in settings:
        return True
    if lonely := next((name for name in settings if name in FOUND.keys() - DRAWN.keys()), None):
        raise config.ConfigError(f"{lonely}: a setting of beam search; set beams as well, as in beams=4")
    return False


def one_text(settings: dict[str, Any], verb: str, other: str) -> None:
    """Refuses to find several texts and to show one."""
    if settings.get("best", 1) != 1:
        raise config.ConfigError(f"best: {verb} gives the best text alone; model.{other} gives the others with their "
                                 "scores, and model.search gives them in ids")  # fmt: skip


def whole_picture(settings: dict[str, Any]) -> None:
    """Refuses what might end a picture before its last pixel."""
    if ends := next((name for name in settings if name in ("new", "stop", "no_repeat", "regex", "schema")), None):
        raise config.ConfigError(f"{ends}: a picture ends with its last pixel; leave it out")


def start_once(before: list[int], ids: list[int]) -> list[int]:
    """Ids after the special tokens that every text begins with; a rendered template may have written them already."""
    return ids if before and ids[: len(before)] == before else [*before, *ids]


def sampling(settings: dict[str, Any], tokenizer: "Tokenizer | None" = None) -> config.Sampling:
    """Settings by name; one stop string may stand for a list of one."""
    stop = settings.get("stop", ())
    stops = {"stop": (stop,) if isinstance(stop, str) else stop}
    return config.make(config.Sampling, settings | stops | nudges(settings, tokenizer))


def nudges(settings: dict[str, Any], tokenizer: "Tokenizer | None") -> dict[str, Any]:
    """A bias as {id or text: number}, or as it is typed, ["17=2.5", " the=-5"]: by ids."""
    bias = settings.get("bias", ())
    if isinstance(bias, Mapping):
        pairs = list(bias.items())
    elif all(isinstance(each, str) for each in bias):
        pairs = [typed(each) for each in bias]
    else:
        return {"bias": bias}
    return {"bias": [{"id": numbered(token, tokenizer), "add": add} for token, add in pairs]}


def typed(line: str) -> tuple[int | str, float]:
    """17=-100 names a token by its id, ' the'=-100 by its text."""
    token, _, number = line.rpartition("=")
    try:
        if not token:
            raise ValueError
        return (int(token) if token.isdecimal() else token), float(number)
    except ValueError:
        raise config.ConfigError(f"bias: {line!r} is not a token and a number, as in 17=-100 or ' the'=-5") from None


def numbered(token: Any, tokenizer: "Tokenizer | None") -> Any:
    """The id of a token that is given by its text."""
    if not isinstance(token, str):
        return token
    if tokenizer is None:
        raise config.ConfigError(f"bias: {token!r} is a text, and this model has no tokenizer; give the token's id")
    ids = tokenizer.encode(token)
    if len(ids) != 1:
        raise config.ConfigError(f"bias: {token!r} is {len(ids)} tokens, {' '.join(map(tokenizer.piece, ids))}; give "
                                 "one token, by its text or its id")  # fmt: skip
    return ids[0]


def searching(settings: dict[str, Any], tokenizer: "Tokenizer | None" = None) -> Search:
    """Settings by name; those of drawing are refused, unless they change nothing."""
    drawn = {name: value for name, value in settings.items() if name in DRAWN.keys() - FOUND.keys()}
    if meant := next((name for name, value in drawn.items() if value not in (DRAWN[name], [])), None):
        why = "a text is searched for as a whole" if meant == "stop" else "beams find the likeliest text and draw none"
        raise config.ConfigError(f"{meant}: {why}; leave out {meant}, or beams")
    found = {name: value for name, value in settings.items() if name not in drawn}
    return config.make(Search, found | nudges(found, tokenizer))
