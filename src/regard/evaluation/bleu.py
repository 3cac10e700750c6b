"""BLEU and chrF of translations, by sacrebleu, each with the signature of how it was computed.

    bleu   precision of word n-grams, n = 1 to 4, against references (Papineni et al. 2002; Post 2018)
    chrf   F-score of character n-grams, n = 1 to 6: more tolerant of word endings (Popović 2015)

Scores are comparable if their signatures are equal. Published ones often use lower-cased, tokenised text: `lowercase`,
and `bleu_tokenize="none"` for text that is tokenised already.
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
    """Settings of translation and scoring.

    With `by_group` a source that occurs several times is translated once, and all its targets are references.
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
    """Scores from 0 to 100, with the signature of each."""

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
    """Score translations against one reference each, and grouped by source if requested."""
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
    """Score each text against all its references."""
    library, most = import_sacrebleu(), max(map(len, references))
    streams = [[right[place] if place < len(right) else None for right in references] for place in range(most)]
    ways = {  # force: no warning about text that is tokenised already, which the caller has chosen
        "bleu": library.BLEU(lowercase=scoring.lowercase, tokenize=scoring.bleu_tokenize, force=True),
        "chrf": library.CHRF(lowercase=scoring.lowercase),
    }
    scores = {name: float(way.corpus_score(translations, streams).score) for name, way in ways.items()}
    return TranslationScores(scores, {name: str(way.get_signature()) for name, way in ways.items()})
