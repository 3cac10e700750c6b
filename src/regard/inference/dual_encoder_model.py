"""Towers that can be asked: which text goes with a picture, and which picture with a text.

    model = regard.load("runs/emoji-clip")
    model.match(["heart.png"], ["a red heart", "a green apple"])      # (1, 2) probabilities: a row sums to one
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import config, heads
from regard.config import ConfigError, DataError
from regard.generate.hf_inputs import TowersCalledLikeHF
from regard.generate.layout import Packable
from regard.generate.session import still
from regard.generate.spelling import Spelt

if TYPE_CHECKING:  # tokenizers are loaded with the first model that needs them
    from regard.hub.folder import Folder
    from regard.text import Tokenizer

WRITING = ("generate", "stream", "complete", "translate", "translations", "align", "caption", "paint", "session")


class Towers(Spelt, TowersCalledLikeHF, Packable, heads.Towers):
    """Two towers, of which the first sees and the second reads, with the tokenizer of the second."""

    def __init__(self, c: config.Towers) -> None:
        super().__init__(c)
        self.target_tokenizer: Tokenizer | None = None
        self.begin: int | None = None
        self.context: int | None = None
        self.task: config.Task | None = None  # what it was trained to be asked
        self.origin: Folder | None = None  # where it was read

    def match(self, pictures: Sequence[Any], texts: Sequence[str]) -> Tensor:  # (B, C)
        """How likely each text is the one that goes with a picture, among these texts."""
        with still(list(self.modules())):
            return (self.factor * self.see(pictures) @ self.read(texts).mT).softmax(-1)

    def embeddings(self, things: Sequence[Any], *, raw: bool = False) -> Tensor:  # (B, D)
        """One vector for each text and each picture, which is named by its file; of length 1 unless `raw`."""
        from regard.generate.embed import embeddings

        return embeddings(self, things, raw=raw)

    def see(self, pictures: Sequence[Any]) -> Tensor:  # (B, D)
        """The vector of each picture, of length 1: files by name, bytes (C, H, W), or whatever else the sense takes."""
        from regard.generate.mixtures import shown

        with still(list(self.modules())):
            return self.vectors(0, shown(self.c.towers[0].embed, pictures, self.device))

    def read(self, texts: Sequence[str]) -> Tensor:  # (B, D)
        """The vector of each text, of length 1."""
        from regard.tasks.phrases import listed
        from regard.tasks.rows import Rows
        from regard.tasks.specials import Specials

        if self.tokenizer is None:
            raise DataError("this model has no tokenizer to read a text with; put a tokenizer.json beside it")
        around = Specials.of(self.tokenizer).single
        most = None if self.context is None else self.context - len(around)
        phrases = isinstance(self.task, config.Contrast) and self.task.phrases
        rows = [around(self.ids(listed(text) if phrases else text, most)) for text in texts]
        wide = Rows(max(4, *map(len, rows)))
        given = {"ids": wide.padded(rows, Specials.of(self.tokenizer).fill), "real": wide.there(rows)}
        with still(list(self.modules())):
            return self.vectors(1, {name: table.to(self.device) for name, table in given.items()})

    def ids(self, text: str, most: int | None) -> list[int]:
        assert self.tokenizer is not None
        found = self.tokenizer.encode(text)
        if not found or (most is not None and len(found) > most):
            raise DataError(f"text: {text!r:.60} has {len(found)} tokens; expected 1 to {most or 'more'}, so say it in "
                            "other words")  # fmt: skip
        return found

    @property
    def speaks(self) -> "Tokenizer | None":
        return self.tokenizer

    @property
    def device(self) -> torch.device:
        return self.scale.device

    def save(self, path: str | Path) -> None:
        """Weights, config and tokenizer as a folder."""
        from regard.hub import folder

        folder.write(Path(path), self, self.tokenizer, self.context, task=self.task, origin=self.origin)

    def __getattr__(self, name: str) -> Any:
        if name in WRITING:
            raise ConfigError("two towers compare what they are shown and write nothing; ask them match, see or read")
        return super().__getattr__(name)
