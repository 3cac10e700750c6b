"""What is asked of generation, by the names of its settings: to draw a text, or to search for the likeliest one."""

from dataclasses import fields
from typing import Any

from regard import config
from regard.config.search import Search

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


def sampling(settings: dict[str, Any]) -> config.Sampling:
    """Settings by name; one stop string may stand for a list of one."""
    stop = settings.get("stop", ())
    return config.make(config.Sampling, settings | {"stop": (stop,) if isinstance(stop, str) else stop})


def searching(settings: dict[str, Any]) -> Search:
    """Settings by name; those of drawing are refused, unless they change nothing."""
    drawn = {name: value for name, value in settings.items() if name in DRAWN.keys() - FOUND.keys()}
    if meant := next((name for name, value in drawn.items() if value not in (DRAWN[name], [])), None):
        why = "a text is searched for as a whole" if meant == "stop" else "beams find the likeliest text and draw none"
        raise config.ConfigError(f"{meant}: {why}; leave out {meant}, or beams")
    return config.make(Search, {name: value for name, value in settings.items() if name not in drawn})
