"""Which pieces make a word, told from their ids alone; and which characters each piece stands for.

    WordPiece   un ##afford ##able cat       a piece with ## goes on with the word before
    others      ␣un afford able ␣cat !       a piece that begins with a letter goes on after one that ends with one
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import DataError
from regard.text import Tokenizer
from regard.text.files import calm
from regard.text.spelling import PREFIX


@dataclass(frozen=True, eq=False)
class Joints:
    """For every id: may it go on with a word (`head`), and may a word go on after it (`tail`)?"""

    head: Tensor  # (V,)
    tail: Tensor  # (V,)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Joints":
        tokens = [tokenizer.token(id) for id in range(len(tokenizer))]
        plain = torch.tensor([id not in tokenizer.specials for id in range(len(tokens))])
        if any(token.startswith(PREFIX) for token in tokens):
            return cls(torch.tensor([token.startswith(PREFIX) for token in tokens]) & plain, plain)
        spelt = tokenizer.spelling or [token.replace("▁", " ").encode() for token in tokens]
        head = torch.tensor([bool(piece) and letter(piece[0]) for piece in spelt])
        return cls(head & plain, torch.tensor([bool(piece) and letter(piece[-1]) for piece in spelt]) & plain)

    def words(self, ids: Tensor) -> Tensor:  # (B, N) -> (B, N)
        """The number of the word that each piece belongs to, from 0 on in each row."""
        goes_on = self.head[ids[:, 1:]] & self.tail[ids[:, :-1]]
        return F.pad((~goes_on).cumsum(-1), (1, 0))


def letter(byte: int) -> bool:
    """A letter or digit; a byte beyond ASCII is a part of one, most likely."""
    return byte >= 0x80 or chr(byte).isalnum()


def pieces(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text, and from which to which character each one stands."""
    with calm("the text cannot be encoded"):
        found = tokenizer.encoder(text).encode(text, add_special_tokens=False)
    return found.ids, found.offsets


def cover(offsets: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    """The first and the last piece that hold a character from `start` up to `stop`."""
    held = [place for place, (first, last) in enumerate(offsets) if first < stop and last > start]
    if not held:
        raise DataError(f"characters {start} to {stop} became no token")
    return held[0], held[-1]
