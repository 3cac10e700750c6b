"""A class for every word, and the entities that words make together.

    words      Ada      Lovelace          wrote
    pieces     Ada      Love     ##lace   wrote        a word's first piece speaks for it, as in training
    labels     B-PER    I-PER             O
    entities   Ada Lovelace: PER                       B- begins one, I- of the same kind goes on

A text longer than the model reads at once is read in parts that overlap; a piece is told where most stands around it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard import config
from regard.config import ConfigError
from regard.generate.classes import labels
from regard.generate.frames import Reader, Refuse, attempts, called
from regard.generate.session import still
from regard.tasks.losses import asked
from regard.tasks.words import Joints
from regard.text import Framed

if TYPE_CHECKING:
    from regard.generate.model import Transformer


class Tagged(NamedTuple):
    """A word, or several that are one entity: from which character to which, its label, how likely that is."""

    text: str
    start: int
    stop: int
    label: str
    score: float


def tags(
    model: "Transformer", texts: Sequence[str], *, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: Refuse | None = None,
) -> list[Any]:  # fmt: skip
    """The words of each text with their labels, lists of Tagged; None for a text that `refuse` was told of."""
    check(model)
    reader, head = Reader.of(model), model.c.head
    joints, classes = Joints.of(reader.tokenizer), labels(model, head.out)  # type: ignore[union-attr, arg-type]
    names = names or ["text"] * len(texts)
    frames = attempts(((text, None, name) for text, name in zip(texts, names, strict=True)), reader.frame, refuse)
    parts = [(place, part) for place, frame in enumerate(frames) if frame is not None
             for part in stretches(frame, reader.longest)]  # fmt: skip
    shares = [torch.zeros(len(frame or ()), len(classes)) for frame in frames]
    done: set[int] = set()
    for rows, given in reader.batches([part.frame for _, part in parts]):
        with still(list(model.modules())):
            said = asked(model, given).float().softmax(-1).cpu()
        for row, found in zip(rows, said, strict=True):
            place, part = parts[row]
            shares[place][part.first : part.last] = found[part.skip : part.skip + part.last - part.first]
            done.add(place)
        if progress is not None:
            progress(len(done))
    found = zip(texts, frames, shares, strict=True)
    return [None if frame is None else list(words(text, frame, share, joints, classes)) for text, frame, share in found]


def check(model: "Transformer") -> None:
    head, task = model.c.head, model.task
    wrong = called(model, "ForQuestionAnswering") or (task is not None and not isinstance(task, config.Tag))
    if wrong or not isinstance(head, config.Each):
        kind = head.kind if task is None else task.kind
        raise ConfigError(f"was trained for {kind!r} and has no label for every word; name a model that was trained "
                          "for tag (ForTokenClassification)")  # fmt: skip


# ---------------------------------------------------------------- long texts


class Part(NamedTuple):
    """A stretch of a frame between its special tokens: it tells of tokens first to last, from its own `skip` on."""

    frame: Framed
    first: int
    last: int
    skip: int


def stretches(frame: Framed, longest: int | None) -> Iterator[Part]:
    """A frame in parts that can be read at once; each tells of its middle, and who begins or ends of that too."""
    size = len(frame)
    if longest is None or size <= longest:
        yield Part(frame, 0, size, 0)
        return
    text = [place for place, owner in enumerate(frame.owners) if owner is not None]
    begin, end = text[0], text[-1] + 1
    room = longest - begin - (size - end)
    step = max(1, room // 2)
    starts = [*range(begin, end - room, step), end - room]
    borders = [0, *((a + b + room) // 2 for a, b in zip(starts, starts[1:], strict=False)), size]
    for start, first, last in zip(starts, borders, borders[1:], strict=False):
        inside = [*range(begin), *range(start, start + room), *range(end, size)]
        part = Framed(*([column[place] for place in inside] for column in
                        (frame.ids, frame.segments, frame.owners, frame.spans)))  # fmt: skip
        skip = inside.index(first)
        yield Part(part, first, min(last, size), skip)


# ---------------------------------------------------------------- pieces, words, entities


def words(text: str, frame: Framed, shares: Tensor, joints: Joints, classes: Sequence[str]) -> Iterator[Tagged]:
    """The pieces of a text as words, each with the label of its first piece."""
    inside = [place for place, owner in enumerate(frame.owners) if owner is not None]
    numbers = joints.words(torch.tensor([[frame.ids[place] for place in inside]]))[0].tolist()
    first = [place for at, place in enumerate(inside) if not at or numbers[at] != numbers[at - 1]]
    for place, after in zip(first, [*first[1:], inside[-1] + 1], strict=True):
        start, stop = frame.spans[place][0], frame.spans[after - 1][1]
        share, label = shares[place].max(-1)
        start += len(text[start:stop]) - len(text[start:stop].lstrip())
        yield Tagged(text[start:stop], start, stop, classes[int(label)], float(share))


def entities(text: str, tagged: Sequence[Tagged]) -> list[Tagged]:
    """Words with B- and I- as whole entities, with the mean of their scores; those outside (O) are left out."""
    groups: list[list[Tagged]] = []
    before = ""
    for word in tagged:
        begins, kind = word.label.startswith("B-"), kind_of(word.label)
        if kind and not begins and kind == before:
            groups[-1].append(word)
        elif kind:
            groups.append([word])
        before = kind
    return [
        Tagged(text[some[0].start : some[-1].stop], some[0].start, some[-1].stop, kind_of(some[0].label),
               sum(word.score for word in some) / len(some))
        for some in groups
    ]  # fmt: skip


def kind_of(label: str) -> str:
    """PER of B-PER and I-PER; nothing of O."""
    return "" if label == "O" else label[2:] if label[:2] in ("B-", "I-") else label
