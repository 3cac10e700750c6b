"""How does a text go on? It is cut at a random place: the encoder reads the first part, the decoder tells the second.

    text     the cat sat on the mat
    source   the cat sat                target   on the mat
"""

from dataclasses import dataclass

import torch

from regard import config
from regard.tasks.spans import Corrupted
from regard.tasks.task import enter


@enter("prefix")
@dataclass(frozen=True, eq=False)
class Prefix(Corrupted):
    c: config.Prefix = config.Prefix()

    def corrupted(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        place = int(torch.randint(1, len(ids), (), generator=chance))  # something on either side
        return ids[:place], ids[place:]
