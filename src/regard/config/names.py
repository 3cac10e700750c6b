"""Names that a person mistyped: the nearest one there is."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, table: Iterable[str]) -> str:
    """The clause "; did you mean 'causal'?", or a bare ";" when no name in the table is near."""
    known = {each.lower(): each for each in table}  # capitals are no other word
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {known[near[0]]!r}?" if near else ";"


def called(text: str) -> tuple[str, tuple[int, ...]]:
    """A name and its whole numbers: "topk(32)" is ("topk", (32,)), "auto" is ("auto", ())."""
    found = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\))?\s*", text, re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a name, alone or with whole numbers such as topk(32)")
    return found[1], tuple(int(number) for number in (found[2] or "").split(",") if number)
