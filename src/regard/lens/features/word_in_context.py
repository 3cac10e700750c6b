"""A word in context: how alike the vectors of one word are in two texts, layer by layer.

    compare_contexts(model, "a river bank", "money in the bank", "bank")     a cosine at each place of the stream
    context_similarity(model, texts, "bank")                                 the same for each pair of many texts

A word of several tokens has their mean. Contextual vectors fill a narrow cone, so any two of them have a high cosine
(Ethayarajh 2019): `baseline`, the mean cosine of different tokens of the two texts, stands beside it. A low cosine says
that the vectors differ, not that the difference is one of meaning: position and syntax are in them as well.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import find_trunk, recording, residual_places
from regard.lens.result import LensResult, Picture, Table, Value

Word = str | int | Sequence[int]  # a text, or the ids of its tokens
Text = str | Tensor | Sequence[int] | Prompt


@dataclass(frozen=True, eq=False)
class ContextComparison(LensResult):
    """The cosine of one word's vectors in two texts at each place, and the mean over pairs of other tokens."""

    word: str
    places: tuple[str, ...]  # embed, 0.mlp, 1.mlp, ...
    cosine: Tensor  # (P,)
    baseline: Tensor  # (P,)

    def table(self) -> Table:
        columns = self.cosine.tolist(), self.baseline.tolist()
        rows = tuple((place, float(x), float(y)) for place, x, y in zip(self.places, *columns, strict=True))
        return Table(f"How alike are the vectors of {self.word!r} in the two texts?",
                     ("place", "cosine", "other tokens"), rows,
                     "Beside it the mean cosine of different tokens of the two texts. A difference may be of position "
                     "or syntax as well as of meaning.")  # fmt: skip

    def picture(self) -> Picture:
        values = torch.stack([self.cosine, self.baseline])
        return Picture("lines", f"How alike are the vectors of {self.word!r} in the two texts?", values,
                       [self.word, "other tokens"], self.places, "cosine")  # fmt: skip


@dataclass(frozen=True, eq=False)
class ContextSimilarity(LensResult):
    """The cosine of one word's vectors in each pair of texts, at each place."""

    word: str
    texts: tuple[str, ...]
    places: tuple[str, ...]
    cosine: Tensor  # (P, T, T)

    def at(self, place: str) -> Tensor:  # (T, T)
        if place not in self.places:
            raise ConfigError(f"place {place!r}: there are {', '.join(self.places)}")
        return self.cosine[self.places.index(place)]

    def table(self) -> Table:
        pairs = [(i, j) for i in range(len(self.texts)) for j in range(i)]
        rows = list[tuple[Value, ...]]()
        for place, cosine in zip(self.places, self.cosine, strict=True):
            rows.append((place, *(float(cosine[i, j]) for i, j in pairs)))
        names = "; ".join(f"{number}: {text}" for number, text in enumerate(self.texts, 1))
        return Table(f"In which texts are the vectors of {self.word!r} alike?",
                     ("place", *(f"{j + 1}, {i + 1}" for i, j in pairs)), tuple(rows), names)  # fmt: skip

    def picture(self) -> Picture:
        return Picture("grid", f"In which texts are the vectors of {self.word!r} alike, at {self.places[-1]}?",
                       self.cosine[-1], self.texts, self.texts, "cosine")  # fmt: skip


def compare_contexts(  #: S077
    model: Any, first: Text, second: Text, word: Word, *, index: int | tuple[int, int] | None = None,
    halves: bool = False,
) -> ContextComparison:  # fmt: skip
    """Contextual similarity of one word in two texts: the cosine of its vectors at each place of the residual stream.

    `index` says which occurrence is meant, 0 the first, where there are several; a pair has one for each text. Of an
    encoder-decoder it is the encoder that reads the texts. `halves` adds the places between attention and feed-forward.
    """
    numbers = index if isinstance(index, tuple) else (index, index)
    one, other = (read_vectors(model, text, word, number, halves)
                  for text, number in zip((first, second), numbers, strict=True))  # fmt: skip
    cosine = F.cosine_similarity(one.word, other.word, dim=-1)
    baseline = torch.stack([mean_cosine(x, y) for x, y in zip(one.others, other.others, strict=True)])
    return ContextComparison(word_text(word), one.places, cosine, baseline)


def context_similarity(
    model: Any, texts: Sequence[Text], word: Word, *, index: Sequence[int | None] | None = None, halves: bool = False
) -> ContextSimilarity:
    """The same for every pair of several texts: at each place a matrix of cosines."""
    if len(texts) < 2 or isinstance(texts, str | Tensor):
        raise DataError("texts: expected a list of at least two")
    numbers = [None] * len(texts) if index is None else list(index)
    if len(numbers) != len(texts):
        raise ConfigError(f"index: {len(numbers)} for {len(texts)} texts; give one for each")
    found = [read_vectors(model, text, word, number, halves) for text, number in zip(texts, numbers, strict=True)]
    unit = F.normalize(torch.stack([each.word for each in found], 1), dim=-1)  # (P, T, D)
    names = tuple(text if isinstance(text, str) else f"text {i}" for i, text in enumerate(texts, 1))
    return ContextSimilarity(word_text(word), names, found[0].places, unit @ unit.mT)


@dataclass(frozen=True, eq=False)
class ContextVectors:
    """One word's vector at each place (P, D), and those of the other tokens (P, N, D)."""

    word: Tensor
    others: Tensor
    places: tuple[str, ...]


def read_vectors(model: Any, text: Text, word: Word, index: int | None, halves: bool) -> ContextVectors:
    model = unwrap_model(model)
    trunk = "encoder" if getattr(model, "encoder", None) is not None else "trunk"
    find_trunk(model, trunk)
    prompt = read_source(model, text) if trunk == "encoder" else read_prompt(model, text)
    ids = prompt.given["source"] if trunk == "encoder" else prompt.ids
    if ids.is_floating_point():
        raise ConfigError("text: this model reads an image or a sound, which has no words; give one that reads text")
    if len(ids) != 1:
        raise DataError(f"text: {len(ids)} rows of ids; give one text at a time")
    at = find_word(model, ids[0].tolist(), text if isinstance(text, str) else None, word, index)
    places = residual_places(model, halves, trunk)
    with recording(model, prompt, *(place.address for place in places)) as run:
        x = torch.stack([run.seen[place.address][0].float().cpu() for place in places])  # (P, N, D)
    if x.shape[1] != ids.shape[1]:
        raise ConfigError(f"text: this model makes {x.shape[1]} vectors of {ids.shape[1]} ids, so a word has none of "
                          "its own; give a model with a vector for each token")  # fmt: skip
    rest = [i for i in range(ids.shape[1]) if i not in at]
    return ContextVectors(x[:, at].mean(1), x[:, rest], tuple(place.name for place in places))


def mean_cosine(x: Tensor, y: Tensor) -> Tensor:
    """The mean cosine of each vector of one text (N, D) to each of the other (M, D); nan where a text has none."""
    return (F.normalize(x, dim=-1).mean(0) * F.normalize(y, dim=-1).mean(0)).sum()


def read_source(model: Any, text: Text) -> Prompt:
    """What an encoder-decoder's encoder reads; the decoder is given one token, which the encoder knows nothing of."""
    if isinstance(text, str | Prompt):
        return read_prompt(model, text if isinstance(text, Prompt) else "", source=text)  # type: ignore[arg-type]
    ids = torch.atleast_2d(torch.as_tensor(text))
    return read_prompt(model, ids[:, :1], source=ids)


# ---------------------------------------------------------------- where a word stands


def find_word(model: Any, ids: list[int], text: str | None, word: Word, index: int | None) -> list[int]:
    """The places of a word's tokens among the ids of a text."""
    if isinstance(word, str) and text is not None:
        found = places_in_text(model.tokenizer, ids, text, word)
    else:
        found = [list(range(i, i + len(run))) for run in word_ids(model, word) for i in places_of(ids, run)]
        found.sort()
    name, where = word_text(word), repr(text) if text is not None else "the ids"
    if not found:
        raise DataError(f"word {name!r}: it does not occur in {where:.80}; give a word of the text")
    if index is None and len(found) > 1:
        raise DataError(f"word {name!r}: it occurs {len(found)} times in {where:.80}; say which one with index=0 to "
                        f"{len(found) - 1}")  # fmt: skip
    if index is not None and not 0 <= index < len(found):
        raise DataError(f"index {index}: {name!r} occurs {len(found)} times in {where:.80}, from 0 on")
    return found[index or 0]


def places_in_text(tokenizer: Any, ids: list[int], text: str, word: str) -> list[list[int]]:
    """By the characters that tokens stand for: whole words, in capitals or not."""
    framed = tokenizer.encode_with_specials(text)
    own = [(id, span) for id, span, owner in zip(framed.ids, framed.spans, framed.owners, strict=True) if owner == 0]
    begin = next(iter(places_of(ids, [id for id, _ in own])), None)
    if begin is None:
        raise DataError(f"text {text!r:.60}: the model reads other tokens than its tokenizer makes of it; give ids")
    found = []
    for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
        covers = [begin + i for i, (_, (start, stop)) in enumerate(own) if start < match.end() and stop > match.start()]
        found += [covers] if covers else []
    return found


def places_of(ids: list[int], run: list[int]) -> list[int]:
    """Where a run of ids begins among others."""
    return [i for i in range(len(ids) - len(run) + 1) if ids[i : i + len(run)] == run] if run else []


def word_ids(model: Any, word: Word) -> list[list[int]]:
    """The ids that a word may have: as given, or at the beginning of a text and after a space."""
    if isinstance(word, int):
        return [[word]]
    if not isinstance(word, str):
        return [list(word)]
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ConfigError(f"word {word!r}: this model has no tokenizer; give the ids of its tokens")
    found = {tuple(tokenizer.encode(each)) for each in (word, f" {word}")}
    return [list(ids) for ids in sorted(found)]


def word_text(word: Word) -> str:
    return word if isinstance(word, str) else str(word) if isinstance(word, int) else " ".join(map(str, word))
