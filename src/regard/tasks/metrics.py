"""How good answers are: numbers between what was said and what was meant, each as the field defines it.

    accuracy, f1, macro_f1, matthews       classes           (GLUE, scikit-learn)
    confusion                              classes, as a table
    pearson, spearman                      numbers           (GLUE: STS-B)
    entities, entity_f1                    tags of words     (CoNLL: Tjong Kim Sang and De Meulder 2003)
    exact, overlap                         answers as text   (SQuAD: Rajpurkar et al. 2016)
    perplexity, bits, bits_per_byte        texts

Where a number has no meaning (no positive at all, no spread) it is 0, as scikit-learn has it.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
MARKS = str.maketrans("", "", string.punctuation)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def same(said: Sequence[object], meant: Sequence[object]) -> int:
    """How many there are; refused where the two are not one to one."""
    if len(said) != len(meant):
        raise ValueError(f"{len(said)} answers for {len(meant)} questions")
    return len(said)


# ---------------------------------------------------------------- classes


def accuracy(said: Sequence[object], meant: Sequence[object]) -> float:
    return ratio(sum(a == b for a, b in zip(said, meant, strict=True)), same(said, meant))


def harmonic(right: int, said: int, meant: int) -> float:
    """F1, the harmonic mean of precision right/said and recall right/meant."""
    return ratio(2 * right, said + meant)


def f1(said: Sequence[Hashable], meant: Sequence[Hashable], positive: Hashable = 1) -> float:
    same(said, meant)
    right = sum(a == b == positive for a, b in zip(said, meant, strict=True))
    return harmonic(right, said.count(positive), meant.count(positive))


def macro_f1(said: Sequence[Hashable], meant: Sequence[Hashable]) -> float:
    """The mean of F1 over every class that was said or meant."""
    classes = {*said, *meant}
    return ratio(sum(f1(said, meant, each) for each in classes), len(classes))


def matthews(said: Sequence[Hashable], meant: Sequence[Hashable]) -> float:
    """Matthews' correlation of classes, two or more (Gorodkin 2004): 1 all right, 0 no better than chance."""
    count, right = same(said, meant), sum(a == b for a, b in zip(said, meant, strict=True))
    ours, theirs = Counter(said), Counter(meant)
    both = sum(ours[each] * theirs[each] for each in ours)
    spread = (count**2 - sum(n**2 for n in ours.values())) * (count**2 - sum(n**2 for n in theirs.values()))
    return ratio(right * count - both, math.sqrt(spread))


def confusion(said: Sequence[int], meant: Sequence[int], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """How often each class was meant (outside) and which was said then (inside); the diagonal is right."""
    same(said, meant)
    counts = Counter(zip(meant, said, strict=True))
    return {right: {name: counts[row, column] for column, name in enumerate(classes)}
            for row, right in enumerate(classes)}  # fmt: skip


# ---------------------------------------------------------------- numbers


def pearson(said: Sequence[float], meant: Sequence[float]) -> float:
    """How nearly the two lie on a line: covariance over both deviations."""
    if not same(said, meant) or min(said) == max(said) or min(meant) == max(meant):  # rounding would make a line of it
        return 0.0
    x, y = centred(said), centred(meant)
    spread = math.sqrt(product(x, x) * product(y, y))
    return max(-1.0, min(1.0, ratio(product(x, y), spread)))


def centred(values: Sequence[float]) -> list[float]:
    middle = math.fsum(values) / len(values)
    return [value - middle for value in values]


def product(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def spearman(said: Sequence[float], meant: Sequence[float]) -> float:
    """Pearson's of the ranks: do the two have the same order?"""
    return pearson(ranks(said), ranks(meant))


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


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
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


def entity_f1(said: Sequence[Sequence[str]], meant: Sequence[Sequence[str]]) -> float:
    """F1 of entities: one counts as found if its kind, its first and its last word are right."""
    right = ours = theirs = 0
    for a, b in zip(said, meant, strict=True):
        same(a, b)
        found, there = entities(a), entities(b)
        right, ours, theirs = right + len(found & there), ours + len(found), theirs + len(there)
    return harmonic(right, ours, theirs)


# ---------------------------------------------------------------- answers


def normal(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles, as SQuAD's own script has it."""
    return ARTICLES.sub(" ", text.lower().translate(MARKS)).split()


def exact(said: str, meant: Iterable[str]) -> float:
    """1 if the answer is one of those that count as right, else 0."""
    return float(any(normal(said) == normal(each) for each in meant))


def overlap(said: str, meant: Iterable[str]) -> float:
    """F1 between the words of the answer and of the nearest one that counts as right."""
    return max((common(normal(said), normal(each)) for each in meant), default=0.0)


def common(said: list[str], meant: list[str]) -> float:
    if not said or not meant:  # no answer is right where there is none
        return float(said == meant)
    return harmonic((Counter(said) & Counter(meant)).total(), len(said), len(meant))


# ---------------------------------------------------------------- texts


def perplexity(loss: float) -> float:
    """Among how many words a model wavers: exp of the mean loss in nats."""
    return math.exp(min(loss, 700.0))


def bits(loss: float) -> float:
    return loss / math.log(2)


def bits_per_byte(total: float, size: int) -> float:
    """A loss summed over a text, in bits for each byte of it: the same scale for every tokenizer."""
    return ratio(bits(total), size)
