"""BLEU and chrF of translations, by sacrebleu, each with the signature that says how it was computed.

    bleu   how many runs of one to four words people wrote too (Papineni et al. 2002; Post 2018)
    chrf   the same of one to six characters: kinder to endings (Popović 2015)

Figures can be compared where their signatures are the same. The literature's are often of lower-cased words that were
tokenised beforehand: `lowercase`, and `bleu_tokenize="none"` for texts that are in words already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

from regard import config
from regard.config.generation import BeamSearchParams

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class TranslationScoring:
    """How translations are made, and how they are compared.

    With `by_group` sources that stand there several times are translated once, and each of their targets is right.
    """

    num_beams: int = BeamSearchParams.num_beams
    length_penalty: float = BeamSearchParams.length_penalty
    lowercase: bool = False
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    by_group: bool = False

    def __post_init__(self) -> None:
        BeamSearchParams(num_beams=self.num_beams, length_penalty=self.length_penalty)

    @property
    def search(self) -> dict[str, Any]:
        return {"num_beams": self.num_beams, "length_penalty": self.length_penalty}


@dataclass(frozen=True)
class TranslationScores:
    """Scores from 0 to 100, and how each came about."""

    scores: dict[str, float]
    signatures: dict[str, str]


def import_sacrebleu() -> Any:
    try:
        return import_module("sacrebleu")
    except ImportError:
        raise config.ConfigError("BLEU and chrF are counted by sacrebleu, which is not here; pip install "
                                 "'regard[metrics]'") from None  # fmt: skip


def score_translations(
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    scoring: TranslationScoring | None = None,
) -> TranslationScores:
    """What was said for each source against what was meant; grouped as well if asked for."""
    scoring = scoring or TranslationScoring()
    found = compute_scores(translations, [[each] for each in references], scoring)
    if not scoring.by_group:
        return found
    right: dict[str, list[str]] = {}
    for source, each in zip(sources, references, strict=True):
        right.setdefault(source, []).append(each)
    told = dict(zip(sources, translations, strict=True))
    grouped = compute_scores(list(told.values()), list(right.values()), scoring)
    return TranslationScores(found.scores | by_group(grouped.scores), found.signatures | by_group(grouped.signatures))


def by_group(named: dict[str, Value]) -> dict[str, Value]:
    return {f"grouped {name}": value for name, value in named.items()}


def compute_scores(
    translations: Sequence[str], references: Sequence[Sequence[str]], scoring: TranslationScoring
) -> TranslationScores:
    """Each text against all that are right for it."""
    library, most = import_sacrebleu(), max(map(len, references))
    streams = [[right[place] if place < len(right) else None for right in references] for place in range(most)]
    ways = {  # force: how texts look when they are in words already is no news to a caller that set it
        "bleu": library.BLEU(lowercase=scoring.lowercase, tokenize=scoring.bleu_tokenize, force=True),
        "chrf": library.CHRF(lowercase=scoring.lowercase),
    }
    scores = {name: float(way.corpus_score(translations, streams).score) for name, way in ways.items()}
    return TranslationScores(scores, {name: str(way.get_signature()) for name, way in ways.items()})
