"""Metrics of predictions against labels, by their standard definitions.

    accuracy, f1, macro_f1, matthews_correlation     classes           (GLUE, scikit-learn)
    confusion_matrix                                 classes, as a table
    pearson, spearman                                numbers           (GLUE: STS-B)
    entity_spans, entity_f1                          tags of words     (CoNLL: Tjong Kim Sang and De Meulder 2003)
    exact_match, token_f1                            answers as text   (SQuAD: Rajpurkar et al. 2016)
    perplexity, bits_per_token, bits_per_byte        texts

An undefined value (no positives, zero variance) is 0, as in scikit-learn.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
MARKS = str.maketrans("", "", string.punctuation)


def safe_ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def check_same_length(predictions: Sequence[object], labels: Sequence[object]) -> int:
    """The number of pairs; raises if the lengths differ."""
    if len(predictions) != len(labels):
        raise ValueError(f"{len(predictions)} answers for {len(labels)} questions")
    return len(predictions)


# ---------------------------------------------------------------- classes


def accuracy(predictions: Sequence[object], labels: Sequence[object]) -> float:
    return safe_ratio(
        sum(a == b for a, b in zip(predictions, labels, strict=True)), check_same_length(predictions, labels)
    )


def f1_from_counts(right: int, predictions: int, labels: int) -> float:
    """F1, the harmonic mean of precision (right / predictions) and recall (right / labels)."""
    return safe_ratio(2 * right, predictions + labels)


def f1(predictions: Sequence[Hashable], labels: Sequence[Hashable], positive: Hashable = 1) -> float:
    check_same_length(predictions, labels)
    right = sum(a == b == positive for a, b in zip(predictions, labels, strict=True))
    return f1_from_counts(right, predictions.count(positive), labels.count(positive))


def macro_f1(predictions: Sequence[Hashable], labels: Sequence[Hashable]) -> float:
    """Macro F1: the mean of F1 over every class among predictions or labels."""
    classes = {*predictions, *labels}
    return safe_ratio(sum(f1(predictions, labels, each) for each in classes), len(classes))


def matthews_correlation(predictions: Sequence[Hashable], labels: Sequence[Hashable]) -> float:
    """Matthews correlation for two or more classes (Gorodkin 2004): 1 all right, 0 no better than chance."""
    count, right = check_same_length(predictions, labels), sum(a == b for a, b in zip(predictions, labels, strict=True))
    ours, theirs = Counter(predictions), Counter(labels)
    both = sum(ours[each] * theirs[each] for each in ours)
    spread = (count**2 - sum(n**2 for n in ours.values())) * (count**2 - sum(n**2 for n in theirs.values()))
    return safe_ratio(right * count - both, math.sqrt(spread))


def confusion_matrix(
    predictions: Sequence[int], labels: Sequence[int], classes: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Confusion matrix: counts by label (outer) and prediction (inner); the diagonal is right."""
    check_same_length(predictions, labels)
    counts = Counter(zip(labels, predictions, strict=True))
    return {right: {name: counts[row, column] for column, name in enumerate(classes)}
            for row, right in enumerate(classes)}  # fmt: skip


# ---------------------------------------------------------------- numbers


def pearson(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Pearson correlation: covariance over the product of standard deviations."""
    if (
        not check_same_length(predictions, labels) or min(predictions) == max(predictions) or min(labels) == max(labels)
    ):  # constant up to rounding, which would give a correlation
        return 0.0
    x, y = center(predictions), center(labels)
    spread = math.sqrt(dot_product(x, x) * dot_product(y, y))
    return max(-1.0, min(1.0, safe_ratio(dot_product(x, y), spread)))


def center(values: Sequence[float]) -> list[float]:
    middle = math.fsum(values) / len(values)
    return [value - middle for value in values]


def dot_product(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def spearman(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Spearman correlation: Pearson's of the ranks."""
    return pearson(ranks(predictions), ranks(labels))


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1 for the least; ties share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, start = [0.0] * len(values), 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for place in order[start:stop]:
            found[place] = (start + 1 + stop) / 2
        start = stop
    return found


# ---------------------------------------------------------------- entities


def entity_spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(kind, first, last) of every entity in a sentence of tags such as B-PER, I-PER, O, as in conlleval.

    IOB2 and IOB alike: an entity starts at a B, and at an I after another kind or after none.
    """
    found, kind, first = set(), "", 0
    for place, tag in enumerate([*tags, "O"]):
        letter, _, name = tag.partition("-")
        name = name or "_"  # conlleval's name for an empty kind
        if kind and (letter != "I" or name != kind):
            found.add((kind, first, place - 1))
            kind = ""
        if letter in ("B", "I") and not kind:
            kind, first = name, place
    return found


def entity_f1(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    """Entity F1: an entity is right if its kind, first and last word are."""
    right = ours = theirs = 0
    for a, b in zip(predictions, labels, strict=True):
        check_same_length(a, b)
        found, there = entity_spans(a), entity_spans(b)
        right, ours, theirs = right + len(found & there), ours + len(found), theirs + len(there)
    return f1_from_counts(right, ours, theirs)


# ---------------------------------------------------------------- answers


def normalize_answer(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles, as in the SQuAD script."""
    return ARTICLES.sub(" ", text.lower().translate(MARKS)).split()


def exact_match(predictions: str, labels: Iterable[str]) -> float:
    """1 if the answer equals one of the right ones, else 0."""
    return float(any(normalize_answer(predictions) == normalize_answer(each) for each in labels))


def token_f1(predictions: str, labels: Iterable[str]) -> float:
    """Word F1 with the closest right answer."""
    return max((overlap_f1(normalize_answer(predictions), normalize_answer(each)) for each in labels), default=0.0)


def overlap_f1(predictions: list[str], labels: list[str]) -> float:
    if not predictions or not labels:  # for no words the empty answer is right
        return float(predictions == labels)
    return f1_from_counts((Counter(predictions) & Counter(labels)).total(), len(predictions), len(labels))


# ---------------------------------------------------------------- texts


def perplexity(loss: float) -> float:
    """Perplexity: exp of the mean loss in nats."""
    return math.exp(min(loss, 700.0))


def bits_per_token(loss: float) -> float:
    return loss / math.log(2)


def bits_per_byte(total: float, size: int) -> float:
    """Bits per byte of a text from its summed loss: comparable between tokenizers."""
    return safe_ratio(bits_per_token(total), size)
