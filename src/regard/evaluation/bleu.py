"""Translations against those that people wrote: BLEU and chrF by sacrebleu, each with the signature that says how.

    bleu   how many runs of one to four words people wrote too (Papineni et al. 2002; Post 2018)
    chrf   the same of one to six characters: kinder to endings (Popović 2015)

Figures can be compared where their signatures are the same. The literature's are often of lower-cased words that were
told apart beforehand: `lower`, and `tokenise="none"` for texts that are in words already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

from regard import config
from regard.config.search import Search

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How translations are made, and how they are compared.

    With `group` sources that stand there several times are translated once, and each of their targets is right.
    """

    beams: int = Search.beams
    length_penalty: float = Search.length_penalty
    lower: bool = False
    tokenise: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    group: bool = False

    def __post_init__(self) -> None:
        Search(beams=self.beams, length_penalty=self.length_penalty)

    @property
    def search(self) -> dict[str, Any]:
        return {"beams": self.beams, "length_penalty": self.length_penalty}


@dataclass(frozen=True)
class Judged:
    """Scores from 0 to 100, and how each came about."""

    scores: dict[str, float]
    signatures: dict[str, str]


def sacrebleu() -> Any:
    try:
        return import_module("sacrebleu")
    except ImportError:
        raise config.ConfigError("BLEU and chrF are counted by sacrebleu, which is not here; pip install "
                                 "'regard[metrics]'") from None  # fmt: skip


def judged(sources: Sequence[str], said: Sequence[str], meant: Sequence[str], how: Scoring | None = None) -> Judged:
    """What was said for each source against what was meant; grouped as well if asked for."""
    how = how or Scoring()
    found = compared(said, [[each] for each in meant], how)
    if not how.group:
        return found
    right: dict[str, list[str]] = {}
    for source, each in zip(sources, meant, strict=True):
        right.setdefault(source, []).append(each)
    told = dict(zip(sources, said, strict=True))
    grouped = compared(list(told.values()), list(right.values()), how)
    return Judged(found.scores | apart(grouped.scores), found.signatures | apart(grouped.signatures))


def apart(named: dict[str, Value]) -> dict[str, Value]:
    return {f"grouped {name}": value for name, value in named.items()}


def compared(said: Sequence[str], meant: Sequence[Sequence[str]], how: Scoring) -> Judged:
    """Each text against all that are right for it."""
    library, most = sacrebleu(), max(map(len, meant))
    streams = [[right[place] if place < len(right) else None for right in meant] for place in range(most)]
    ways = {  # force: how texts look when they are in words already is no news to who set `tokenise`
        "bleu": library.BLEU(lowercase=how.lower, tokenize=how.tokenise, force=True),
        "chrf": library.CHRF(lowercase=how.lower),
    }
    scores = {name: float(way.corpus_score(said, streams).score) for name, way in ways.items()}
    return Judged(scores, {name: str(way.get_signature()) for name, way in ways.items()})
