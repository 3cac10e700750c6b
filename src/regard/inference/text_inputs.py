"""Text inputs of a model: ids with the special tokens of its training, truncated to its length, in batches.

    texts ── frames ──►  [CLS] how are you ? [SEP]  ── batch ──►  {"ids": (B, N), "real": (B, N), "segment": (B, N)}

A published model gets the special tokens of its tokenizer.json, a model trained here those of its training. Texts of
similar length share a batch.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.generation.limits import GenerationLimits, trunk_context
from regard.inference.batching import OnBatch, length_batches, run_batched
from regard.tasks.collate import RowPadding, TaskSpecialTokens, tokenize_with_offsets, truncate_pair
from regard.text.special_tokens import EncodedText
from regard.text.tokenizer import Tokenizer

T = TypeVar("T")
OnBadInput = Callable[
    [int, DataError], object
]  # called with the index of a text that failed, and the error; the others continue
ENDLESS = 1 << 20  # tokens: tokenizers write a huge number for an unknown limit


@dataclass(frozen=True)
class TextInputs:
    """The text encoding of one model; `longest` is its token limit, and `trained` is True for one trained here."""

    c: config.Transformer
    tokenizer: Tokenizer
    device: torch.device
    longest: int | None = None
    trained: bool = False
    begin: int | None = None  # the decoder start token

    @classmethod
    def of(cls, model: Any, longest: int | None = None) -> "TextInputs":
        c = model.c.text if isinstance(model.c, config.DualEncoder) else model.c
        if not isinstance(reading_front_end(c), config.TextEmbedding):
            raise ConfigError(
                f"embed.kind: this model reads {reading_front_end(c).kind!r} and no text; name one that takes text"
            )
        if model.tokenizer is None:
            raise DataError("this model has no tokenizer; put a tokenizer.json beside it")
        card = model.tokenizer.card.get("model_max_length")
        known = [
            card if isinstance(card, int) and 0 < card < ENDLESS else None,
            longest,
            max_input_tokens(c, model.context),
        ]
        most = min((each for each in known if each is not None), default=None)
        device = next(model.parameters()).device
        return cls(c, model.tokenizer, device, most, model.task is not None, model.decoder_start_id)

    # ---------------------------------------------------------------- from texts to ids

    def frames(
        self, texts: Sequence[str], others: Sequence[str] | None = None, names: Sequence[str] | None = None,
        refuse: OnBadInput | None = None,
    ) -> list[EncodedText | None]:  # fmt: skip
        """Encode each text, or each pair, with its special tokens; `names` stand in error messages.

        A text that cannot be encoded raises, or is None where `refuse` handles the error.
        """
        names = names or number_texts(len(texts))
        second: Sequence[str | None] = others or [None] * len(texts)
        found = try_each(zip(texts, second, names, strict=True), self.frame, refuse)
        cut = [place for place, frame in enumerate(found)
               if frame is not None and self.longest is not None and len(frame) > self.longest]  # fmt: skip
        for place in cut:
            found[place] = self.collate(texts[place], second[place], self.longest)
        if cut:
            many = "1 text has" if len(cut) == 1 else f"{len(cut):,} texts have"
            warnings.warn(f"{many} more than the {self.longest} tokens that this model reads at once, the first is "
                          f"{names[cut[0]]}; they are cut there", stacklevel=4)  # fmt: skip
        return found

    def frame(self, text: str, other: str | None = None, name: str = "text") -> EncodedText:
        """Encode one text or pair, without truncation."""
        for part in (text,) if other is None else (text, other):
            check_text(part, name)
            if not part.strip():
                raise DataError(f"{name}: {part!r} is empty; give it some words")
        try:
            found = self.collate(text, other)
        except DataError as problem:
            raise DataError(f"{name}: {problem}") from None
        if all(owner is None for owner in found.owners):
            raise DataError(f"{name}: {text[:40]!r} has no tokens; give it some words")
        if (largest := max(found.ids)) >= (vocab := reading_front_end(self.c).vocab):
            raise DataError(f"{name}: id {largest} is outside the model's vocabulary of {vocab}; use the tokenizer of "
                            "its training")  # fmt: skip
        return found

    def collate(self, text: str, other: str | None = None, longest: int | None = None) -> EncodedText:
        return (self.as_trained if self.trained else self.tokenizer.encode_with_specials)(text, other, longest)

    def as_trained(self, text: str, other: str | None = None, longest: int | None = None) -> EncodedText:
        """Encode a text as the objectives of training do."""
        around = self.specials.single if other is None else self.specials.pair
        with self.tokenizer.with_special_tokens(text, other or ""):
            (first, spans), (second, more) = (
                tokenize_with_offsets(self.tokenizer, text),
                tokenize_with_offsets(self.tokenizer, other or ""),
            )
        if longest is not None:
            first, second = truncate_pair(first, second, longest - len(around))
        before, after = len(around.before), len(around.after)
        between = 0 if other is None else len(around.between)
        pair = (first, None) if other is None else (first, second)
        none: list[tuple[int, int]] = [(0, 0)]
        return EncodedText(
            ids=around(*pair),
            segments=around.segments(*pair),
            owners=[None] * before + [0] * len(first) + [None] * between + [1] * len(second) + [None] * after,
            spans=none * before + spans[: len(first)] + none * between + more[: len(second)] + none * after,
        )

    @cached_property
    def specials(self) -> TaskSpecialTokens:
        return TaskSpecialTokens.of(self.tokenizer)

    def with_segments(self, role: str) -> "TextInputs":
        """A reader whose tokenizer parses this special token in texts."""
        return replace(self, tokenizer=self.tokenizer.without_special(role))

    # ---------------------------------------------------------------- from ids to batches

    def run(
        self, model: Any, rows: Sequence[EncodedText | None], forward: Callable[[dict[str, Tensor]], Iterable[Any]],
        on_batch: OnBatch | None = None,
    ) -> list[Any]:  # fmt: skip
        """The results of `forward` for each text, in batches of similar length; None for a text that was refused."""
        batches = length_batches([None if row is None else len(row) for row in rows])
        return run_batched(model, rows, batches, lambda some: forward(self.batch(some)), on_batch)

    def batch(self, rows: Sequence[EncodedText]) -> dict[str, Tensor]:
        """The inputs of forward by name. The decoder behind an encoder reads the same ids, shifted by one."""
        ids = [row.ids for row in rows]
        wide = RowPadding(max(4, *map(len, ids)))
        fill, real = self.specials.fill, wide.real_mask(ids)
        given = {"ids": wide.pad(ids, fill), "real": real}
        if reading_front_end(self.c).segments > 1:
            given["segment"] = wide.pad([row.segments for row in rows], 0)
        if self.c.encoder is not None:
            begin = self.specials.begin() if self.begin is None else self.begin
            later = wide.pad([[begin, *row[:-1]] for row in ids], fill)
            given = {"ids": later, "real": real, "source": given["ids"], "source_real": real}
        return {name: table.to(self.device) for name, table in given.items()}


def encode_model_inputs(model: Any, text: str | None, source: str | None, pair: str | None) -> dict[str, Tensor]:
    """The forward inputs of one text, with its source or its pair, for this kind of model."""
    if model.c.encoder is not None:
        from regard.inference.translation import encode_pair

        if pair is not None or source is None:
            raise ConfigError("source: an encoder-decoder needs one beside the target; give source='...'")
        return encode_pair(model, source, text)
    if source is not None:
        raise ConfigError("source: this model has no encoder; give one text, and for a pair of texts pair='...'")
    if text is None:
        raise ConfigError("prompt: give a text")
    if all(not mask.ahead for mask in (variants[False, False] for variants in model.trunk.masks)):
        if pair is not None:
            raise ConfigError("pair: a decoder reads one text; write both into it")
        return {"ids": torch.tensor(model.encode_prompts([text])[1], device=next(model.parameters()).device)}
    reader = TextInputs.of(model)
    if not reader.trained and "mask" in reader.tokenizer.special_ids:  # [MASK] is parsed as the token, as in fill_mask
        reader = reader.with_segments("mask")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [row] = reader.frames([text], None if pair is None else [pair])
    assert row is not None
    return {name: table[:, : len(row)] for name, table in reader.batch([row]).items() if name != "real"}


def try_each(given: Iterable[tuple[Any, ...]], make: Callable[..., T], refuse: OnBadInput | None) -> list[T | None]:
    """The results of `make` for all arguments; a DataError goes to `refuse`, and its result is None."""
    made: list[T | None] = []
    for place, each in enumerate(given):
        try:
            made.append(make(*each))
        except DataError as problem:
            if refuse is None:
                raise
            refuse(place, problem)
            made.append(None)
    return made


def architecture_ends_with(model: Any, ending: str) -> bool:
    """Whether the class name of a published model ends so: several classes share one kind of head."""
    found = getattr(getattr(model, "source_folder", None), "architecture", None)
    return found is not None and found.endswith(ending)


def reading_front_end(c: config.Transformer) -> Any:
    """The front end of the encoder, or of the only trunk."""
    return c.embed if c.encoder is None or c.encoder.embed is None else c.encoder.embed


def max_input_tokens(c: config.Transformer, context: int | None) -> int | None:
    """The context window of the encoder, or of the only trunk."""
    return trunk_context(c.trunk if c.encoder is None else c.encoder.trunk, GenerationLimits(context=context))


def check_text(text: Any, name: str) -> None:
    """Refuse inputs that are no strings: images, tensors, paths."""
    if not isinstance(text, str):
        raise DataError(f"{name}: {type(text).__name__} is no text; give a string")


def check_is_list(inputs: Any) -> None:
    """Refuse a single input where a list is expected: a string would be a list of characters."""
    if isinstance(inputs, str | bytes | Path | Mapping) or not hasattr(inputs, "__len__"):
        raise ConfigError(f"inputs: {inputs!r:.60} is one alone; give a list of them, as in [...]")


def number_texts(count: int) -> list[str]:
    return ["text"] if count == 1 else [f"text {place}" for place in range(1, count + 1)]
