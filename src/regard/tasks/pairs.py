"""Pairs for next sentence: a part of a document, and what follows it, or a part of another document.

    document   s1 s2 s3 s4 s5 s6 s7            one pair: s1 s2 │ s3 s4              it follows: 0
               └─ a ──┘└─ b ┘                            s5 s6 │ another's t8 t9    it does not: 1

Sentences are gathered until they fill a row, and cut in two at a random place (Devlin et al. 2019). Half of the pairs
then give their second part away for one of another document, and what they gave away begins the next pair. One row in
ten is shorter, so that short texts are known too. A sentence that is left over alone makes no pair.
"""

from collections.abc import Iterator, Sequence

import torch

from regard.config import DataError
from regard.tasks.rows import Example, trimmed
from regard.tasks.specials import Specials

SHORT = 0.1  # of the rows
FOLLOWS = ("follows", "does not follow")  # the answers 0 and 1
Pair = tuple[list[int], list[int], int, int]  # first, second, 0 if it follows, tokens cut


def pairs(documents: Sequence[Example], place: int, room: int, chance: torch.Generator) -> list[Pair]:
    """The pairs that begin in the document at `place`, each with room for so many tokens."""
    return list(made(documents, place, room, chance))


def made(documents: Sequence[Example], place: int, room: int, chance: torch.Generator) -> Iterator[Pair]:
    if len(documents) < 2:
        raise DataError("task.next_sentence: there is one document, and a second part that does not follow must come "
                        "from another; name more text, or set it to false")  # fmt: skip
    left = sentences(documents[place])
    while len(left) > 1:
        goal = upto(2, room, chance) if float(torch.rand((), generator=chance)) < SHORT else room
        some = gathered(left, goal)
        cut = upto(1, len(some) - 1, chance)
        first, follows = joined(some[:cut]), int(torch.randint(2, (), generator=chance))  #: S088
        if follows == 0:
            second, left = joined(some[cut:]), left[len(some) :]
        else:
            second = elsewhere(documents, place, max(1, goal - len(first)), chance)
            left = left[cut:]
        a, b = trimmed(first[::-1], second, room)  # from the front of the first: the two still meet in the middle
        yield a[::-1], b, follows, len(first) + len(second) - len(a) - len(b)


def gathered(left: list[list[int]], goal: int) -> list[list[int]]:
    """Two sentences or more, until they reach the goal."""
    count = total = 0
    while count < len(left) and (total < goal or count < 2):
        total, count = total + len(left[count]), count + 1
    return left[:count]


def elsewhere(documents: Sequence[Example], place: int, goal: int, chance: torch.Generator) -> list[int]:
    """Sentences from a random place of another document, until they reach the goal or it ends."""
    other = upto(0, len(documents) - 2, chance)
    document = documents[other + (other >= place)]
    sizes = document["sentences"]
    first = upto(0, len(sizes) - 1, chance)
    stop = first
    while stop < len(sizes) and sum(sizes[first:stop]) < goal:
        stop += 1
    begin = sum(sizes[:first])
    return list(document["ids"][begin : begin + sum(sizes[first:stop])])


def sentences(document: Example) -> list[list[int]]:
    ids = list(document["ids"])
    ends = torch.tensor([0, *document["sentences"]]).cumsum(0).tolist()
    return [ids[start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]


def joined(some: Sequence[Sequence[int]]) -> list[int]:
    return [id for ids in some for id in ids]


def upto(least: int, most: int, chance: torch.Generator) -> int:
    return int(torch.randint(least, most + 1, (), generator=chance))


def separators(specials: Specials, two: bool) -> tuple[str, ...]:
    """The roles that are missing for two texts in one row."""
    return ("cls", "sep") if two and not specials.pair.between else ()
