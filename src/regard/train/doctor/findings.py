"""What the doctor says: for every check a verdict, the evidence for it in one sentence, and what to type."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["fine", "look", "wrong"]


@dataclass(frozen=True)
class Finding:
    """`fine`: nothing to do. `look`: worth knowing, and perhaps meant. `wrong`: training will not do what it should."""

    check: str
    verdict: Verdict
    evidence: str
    remedy: str = ""
    ends: bool = False  # nothing can be asked of the model before this is mended


def fine(evidence: str) -> Finding:
    return Finding("", "fine", evidence)


def look(evidence: str, remedy: str = "") -> Finding:
    return Finding("", "look", evidence, remedy)


def wrong(evidence: str, remedy: str, ends: bool = False) -> Finding:
    return Finding("", "wrong", evidence, remedy, ends)
