"""Names that a person mistyped: the nearest one there is."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, table: Iterable[str]) -> str:
    """The clause "; did you mean 'causal'?", or a bare ";" when no name in the table is near."""
    known = {each.lower(): each for each in table}  # capitals are no other word
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {known[near[0]]!r}?" if near else ";"
