"""BLEU and chrF: sacrebleu's own figures under its own signatures, plain and with several right answers."""

import sys

import pytest
import sacrebleu

from regard.config.errors import ConfigError
from regard.evaluation.bleu import TranslationScoring, score_translations

SOURCES = ["the cat", "a dog", "the cat", "an owl"]
SAID = ["Le chat s'est assis .", "Un chien dort ici.", "Le chat s'est assis .", "Une chouette"]
MEANT = ["Le chat s'est assis.", "un Chien dort là.", "Le chat est assis là.", "Une chouette vola."]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("bleu_tokenize", ["13a", "intl", "zh", "char", "none"])
def test_the_figures_are_sacrebleu_s(lowercase, bleu_tokenize):
    found = score_translations(
        SOURCES, SAID, MEANT, TranslationScoring(lowercase=lowercase, bleu_tokenize=bleu_tokenize)
    )
    bleu = sacrebleu.corpus_bleu(SAID, [MEANT], lowercase=lowercase, tokenize=bleu_tokenize, force=True)
    cased = (lambda texts: [text.lower() for text in texts]) if lowercase else list

    assert found.scores["bleu"] == pytest.approx(bleu.score)
    assert found.scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(cased(SAID), [cased(MEANT)]).score)
    assert f"tok:{bleu_tokenize}" in found.signatures["bleu"]
    assert all(f"case:{'lc' if lowercase else 'mixed'}" in signature for signature in found.signatures.values())


def test_bleu_worked_by_hand():
    """Of 5 words 4 are right, of 4 pairs 3, of 3 runs of three 2, of 2 runs of four 1; as long as it should be."""
    said, meant = "a b c d e", "a b c d f"

    assert score_translations([""], [said], [meant]).scores["bleu"] == pytest.approx(
        100 * (4 * 3 * 2 / (5 * 4 * 3 * 2)) ** 0.25
    )
    assert score_translations([""], [meant], [meant]).scores == pytest.approx({"bleu": 100, "chrf": 100})


def test_a_group_is_translated_once_and_all_its_targets_are_right():
    found = score_translations(SOURCES, SAID, MEANT, TranslationScoring(by_group=True))
    said, first = [SAID[0], SAID[1], SAID[3]], [MEANT[0], MEANT[1], MEANT[3]]
    theirs = sacrebleu.BLEU(force=True).corpus_score(said, [first, [MEANT[2], None, None]])

    assert found.scores["grouped bleu"] == pytest.approx(theirs.score)
    assert "nrefs:var" in found.signatures["grouped bleu"]
    assert found.scores["grouped bleu"] > found.scores["bleu"]
    assert found.scores.keys() == found.signatures.keys() == {"bleu", "chrf", "grouped bleu", "grouped chrf"}


def test_sources_that_differ_are_groups_of_one():
    found = score_translations(["1", "2", "3", "4"], SAID, MEANT, TranslationScoring(by_group=True)).scores

    assert (found["bleu"], found["chrf"]) == (found["grouped bleu"], found["grouped chrf"])


def test_without_sacrebleu_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ConfigError, match=r"sacrebleu, which is not here; pip install 'regard\[metrics\]'"):
        score_translations(SOURCES, SAID, MEANT)
