"""How many bytes the words have that a model is asked for: the fair measure between models with different tokens."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from regard.tasks.chunks import NOTHING
from regard.text import Tokenizer
from regard.text.streams import Stream


class Sizes:
    """Counts on the way what batches ask for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.total = tokenizer, 0
        self.stream: Stream | None = None

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches, counted on the way."""
        for batch in batches:
            if isinstance(batch, Tensor):  # windows of one text, each going on where the one before ended
                self.put(batch[:, 1:].flatten().tolist(), int(batch[0, 0]))
            else:
                self.documents(batch)
            yield batch
        self.end()

    def documents(self, batch: dict[str, Tensor]) -> None:
        """Rows of their own, with documents in them: a run of labels is told in one go."""
        for ids, labels in zip(batch["ids"].tolist(), batch["labels"].tolist(), strict=True):
            self.end()
            for before, told in zip(ids, labels, strict=True):
                if told == NOTHING:
                    self.end()
                else:
                    self.put([told], before)

    def put(self, ids: list[int], before: int) -> None:
        if self.stream is None:
            self.stream = self.tokenizer.stream()
            self.stream.put(before)
        self.total += sum(len(self.stream.put(id).encode()) for id in ids)

    def end(self) -> None:
        self.total += 0 if self.stream is None else len(self.stream.flush().encode())
        self.stream = None
