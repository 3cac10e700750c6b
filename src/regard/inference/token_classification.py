"""Token classification with a trained model: a label for every word, and entities of several words.

    words      Ada      Lovelace          wrote
    pieces     Ada      Love     ##lace   wrote        a word's first piece counts, as in training
    labels     B-PER    I-PER             O
    entities   Ada Lovelace: PER                       B- begins one, I- of the same type continues it

A text longer than the context window is split into overlapping parts; each token takes its label from the part with
most context around it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError
from regard.inference.batching import count_inputs
from regard.inference.classification import label_names
from regard.inference.text_inputs import OnBadInput, TextInputs, architecture_ends_with, try_each
from regard.tasks.collate import WordBoundaries
from regard.tasks.losses import model_outputs
from regard.text.special_tokens import EncodedText

if TYPE_CHECKING:
    from regard.inference.model import Model


class TaggedSpan(NamedTuple):
    """A labelled word or entity: its text, first and last character, label and probability."""

    text: str
    start: int
    stop: int
    label: str
    score: float


def tag_texts(
    model: "Model", texts: Sequence[str], *, entities: bool = False, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: OnBadInput | None = None,
) -> list[Any]:  # fmt: skip
    """The words of each text with their labels, or their `entities`, lists of TaggedSpan; None for a text whose error
    `refuse` handled."""
    check_tagger(model)
    reader, head = TextInputs.of(model), model.c.head
    joints, classes = WordBoundaries.of(reader.tokenizer), label_names(model, head.out)  # type: ignore[union-attr, arg-type]
    names = names or ["text"] * len(texts)
    frames = try_each(((text, None, name) for text, name in zip(texts, names, strict=True)), reader.frame, refuse)
    parts = [(place, part) for place, frame in enumerate(frames) if frame is not None
             for part in split_frame(frame, reader.longest)]  # fmt: skip
    shares = [torch.zeros(len(frame or ()), len(classes)) for frame in frames]
    rows = reader.run(model, [part.frame for _, part in parts],
                      lambda given: model_outputs(model, given).float().softmax(-1).cpu(),
                      count_inputs(progress, [place for place, _ in parts]))  # fmt: skip
    for (place, part), row in zip(parts, rows, strict=True):
        shares[place][part.first : part.last] = row[part.skip : part.skip + part.last - part.first]

    def words(text: str, frame: EncodedText, share: Tensor) -> list[TaggedSpan]:
        tagged = list(word_labels(text, frame, share, joints, classes))
        return merge_entities(text, tagged) if entities else tagged

    found = zip(texts, frames, shares, strict=True)
    return [None if frame is None else words(text, frame, share) for text, frame, share in found]


def check_tagger(model: "Model") -> None:
    head, task = model.c.head, model.task
    wrong = architecture_ends_with(model, "ForQuestionAnswering") or (
        task is not None and not isinstance(task, config.TokenClassification)
    )
    if wrong or not isinstance(head, config.TokenHead):
        kind = head.kind if task is None else task.kind
        raise ConfigError(f"was trained for {kind!r} and has no label for every word; name a model that was trained "
                          "for tag (ForTokenClassification)")  # fmt: skip


def uses_entity_labels(model: "Model") -> bool:
    """Whether labels mark entities: whether any begins with B- or I-."""
    check_tagger(model)
    return any(name.startswith(("B-", "I-")) for name in label_names(model, model.c.head.out))  # type: ignore[union-attr, arg-type]


# ---------------------------------------------------------------- long texts


class FrameSlice(NamedTuple):
    """A part of an encoded text between its special tokens: tokens `first` to `last` take their labels from it, from
    its own index `skip` on."""

    frame: EncodedText
    first: int
    last: int
    skip: int


def split_frame(frame: EncodedText, longest: int | None) -> Iterator[FrameSlice]:
    """Split an encoded text into parts that fit the model; each labels its middle, the first and the last also their
    ends."""
    size = len(frame)
    if longest is None or size <= longest:
        yield FrameSlice(frame, 0, size, 0)
        return
    text = [place for place, owner in enumerate(frame.owners) if owner is not None]
    begin, end = text[0], text[-1] + 1
    room = longest - begin - (size - end)
    step = max(1, room // 2)
    starts = [*range(begin, end - room, step), end - room]
    borders = [0, *((a + b + room) // 2 for a, b in zip(starts, starts[1:], strict=False)), size]
    for start, first, last in zip(starts, borders, borders[1:], strict=False):
        inside = [*range(begin), *range(start, start + room), *range(end, size)]
        part = EncodedText(*([column[place] for place in inside] for column in
                        (frame.ids, frame.segments, frame.owners, frame.spans)))  # fmt: skip
        skip = inside.index(first)
        yield FrameSlice(part, first, min(last, size), skip)


# ---------------------------------------------------------------- pieces, words, entities


def word_labels(
    text: str, frame: EncodedText, shares: Tensor, joints: WordBoundaries, classes: Sequence[str]
) -> Iterator[TaggedSpan]:
    """The words of a text, each with the label of its first token."""
    inside = [place for place, owner in enumerate(frame.owners) if owner is not None]
    numbers = joints.words(torch.tensor([[frame.ids[place] for place in inside]]))[0].tolist()
    first = [place for at, place in enumerate(inside) if not at or numbers[at] != numbers[at - 1]]
    for place, after in zip(first, [*first[1:], inside[-1] + 1], strict=True):
        start, stop = frame.spans[place][0], frame.spans[after - 1][1]
        share, label = shares[place].max(-1)
        start += len(text[start:stop]) - len(text[start:stop].lstrip())
        yield TaggedSpan(text[start:stop], start, stop, classes[int(label)], float(share))


def merge_entities(text: str, tagged: Sequence[TaggedSpan]) -> list[TaggedSpan]:
    """Merge words with B- and I- labels into entities, with the mean of their scores; words outside (O) are dropped."""
    groups: list[list[TaggedSpan]] = []
    before = ""
    for word in tagged:
        begins, kind = word.label.startswith("B-"), entity_type(word.label)
        if kind and not begins and kind == before:
            groups[-1].append(word)
        elif kind:
            groups.append([word])
        before = kind
    return [
        TaggedSpan(text[some[0].start : some[-1].stop], some[0].start, some[-1].stop, entity_type(some[0].label),
               sum(word.score for word in some) / len(some))
        for some in groups
    ]  # fmt: skip


def entity_type(label: str) -> str:
    """The type of a label: PER for B-PER and I-PER, empty for O."""
    return "" if label == "O" else label[2:] if label[:2] in ("B-", "I-") else label
