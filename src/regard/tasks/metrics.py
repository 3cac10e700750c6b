"""Metrics: predictions against labels, each as the field defines it.

    accuracy, f1, macro_f1, matthews_correlation     classes           (GLUE, scikit-learn)
    confusion_matrix                                 classes, as a table
    pearson, spearman                                numbers           (GLUE: STS-B)
    entity_spans, entity_f1                          tags of words     (CoNLL: Tjong Kim Sang and De Meulder 2003)
    exact_match, token_f1                            answers as text   (SQuAD: Rajpurkar et al. 2016)
    perplexity, bits_per_token, bits_per_byte        texts

Where a number has no meaning (no positive at all, no spread) it is 0, as scikit-learn has it.
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
    """How many there are; refused where the two are not one to one."""
    if len(predictions) != len(labels):
        raise ValueError(f"{len(predictions)} answers for {len(labels)} questions")
    return len(predictions)


# ---------------------------------------------------------------- classes


def accuracy(predictions: Sequence[object], labels: Sequence[object]) -> float:
    return safe_ratio(
        sum(a == b for a, b in zip(predictions, labels, strict=True)), check_same_length(predictions, labels)
    )


def f1_from_counts(right: int, predictions: int, labels: int) -> float:
    """F1, the harmonic mean of precision right/said and recall right/meant."""
    return safe_ratio(2 * right, predictions + labels)


def f1(predictions: Sequence[Hashable], labels: Sequence[Hashable], positive: Hashable = 1) -> float:
    check_same_length(predictions, labels)
    right = sum(a == b == positive for a, b in zip(predictions, labels, strict=True))
    return f1_from_counts(right, predictions.count(positive), labels.count(positive))


def macro_f1(predictions: Sequence[Hashable], labels: Sequence[Hashable]) -> float:
    """The mean of F1 over every class that was said or meant."""
    classes = {*predictions, *labels}
    return safe_ratio(sum(f1(predictions, labels, each) for each in classes), len(classes))


def matthews_correlation(predictions: Sequence[Hashable], labels: Sequence[Hashable]) -> float:
    """Matthews' correlation of classes, two or more (Gorodkin 2004): 1 all right, 0 no better than chance."""
    count, right = check_same_length(predictions, labels), sum(a == b for a, b in zip(predictions, labels, strict=True))
    ours, theirs = Counter(predictions), Counter(labels)
    both = sum(ours[each] * theirs[each] for each in ours)
    spread = (count**2 - sum(n**2 for n in ours.values())) * (count**2 - sum(n**2 for n in theirs.values()))
    return safe_ratio(right * count - both, math.sqrt(spread))


def confusion_matrix(
    predictions: Sequence[int], labels: Sequence[int], classes: Sequence[str]
) -> dict[str, dict[str, int]]:
    """How often each class was meant (outside) and which was said then (inside); the diagonal is right."""
    check_same_length(predictions, labels)
    counts = Counter(zip(labels, predictions, strict=True))
    return {right: {name: counts[row, column] for column, name in enumerate(classes)}
            for row, right in enumerate(classes)}  # fmt: skip


# ---------------------------------------------------------------- numbers


def pearson(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """How nearly the two lie on a line: covariance over both deviations."""
    if (
        not check_same_length(predictions, labels) or min(predictions) == max(predictions) or min(labels) == max(labels)
    ):  # rounding would make a line of it
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
    """Pearson's of the ranks: do the two have the same order?"""
    return pearson(ranks(predictions), ranks(labels))


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the least; equal values share the mean of their ranks."""
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
    """(kind, first, last) of every entity in a sentence of tags such as B-PER, I-PER, O; as conlleval reads them.

    IOB2 and IOB alike: an entity begins at a B, and at an I where another kind or nothing stood before.
    """
    found, kind, first = set(), "", 0
    for place, tag in enumerate([*tags, "O"]):
        letter, _, name = tag.partition("-")
        name = name or "_"  # conlleval's name for none
        if kind and (letter != "I" or name != kind):
            found.add((kind, first, place - 1))
            kind = ""
        if letter in ("B", "I") and not kind:
            kind, first = name, place
    return found


def entity_f1(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    """F1 of entities: one counts as found if its kind, its first and its last word are right."""
    right = ours = theirs = 0
    for a, b in zip(predictions, labels, strict=True):
        check_same_length(a, b)
        found, there = entity_spans(a), entity_spans(b)
        right, ours, theirs = right + len(found & there), ours + len(found), theirs + len(there)
    return f1_from_counts(right, ours, theirs)


# ---------------------------------------------------------------- answers


def normalize_answer(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles, as SQuAD's own script has it."""
    return ARTICLES.sub(" ", text.lower().translate(MARKS)).split()


def exact_match(predictions: str, labels: Iterable[str]) -> float:
    """1 if the answer is one of those that count as right, else 0."""
    return float(any(normalize_answer(predictions) == normalize_answer(each) for each in labels))


def token_f1(predictions: str, labels: Iterable[str]) -> float:
    """F1 between the words of the answer and of the nearest one that counts as right."""
    return max((overlap_f1(normalize_answer(predictions), normalize_answer(each)) for each in labels), default=0.0)


def overlap_f1(predictions: list[str], labels: list[str]) -> float:
    if not predictions or not labels:  # no answer is right where there is none
        return float(predictions == labels)
    return f1_from_counts((Counter(predictions) & Counter(labels)).total(), len(predictions), len(labels))


# ---------------------------------------------------------------- texts


def perplexity(loss: float) -> float:
    """Among how many words a model wavers: exp of the mean loss in nats."""
    return math.exp(min(loss, 700.0))


def bits_per_token(loss: float) -> float:
    return loss / math.log(2)


def bits_per_byte(total: float, size: int) -> float:
    """A loss summed over a text, in bits for each byte of it: the same scale for every tokenizer."""
    return safe_ratio(bits_per_token(total), size)
