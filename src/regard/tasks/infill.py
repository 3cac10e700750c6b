"""Holes are filled: spans become one mask each, whatever their length, and all is told (BART: Lewis et al. 2020).

    text     the cat sat on the mat
    source   the [M] on [M] the mat         a span of two, and one of none: how much is missing must be told too
    target   the cat sat on the mat
"""

import math
from dataclasses import dataclass

import torch

from regard import config
from regard.tasks.spans import Corrupted, spread
from regard.tasks.specials import Specials
from regard.tasks.task import enter


@enter("infill")
@dataclass(frozen=True, eq=False)
class Infill(Corrupted):
    c: config.Infill = config.Infill()

    @classmethod
    def needs(cls, c: config.Infill, specials: Specials) -> tuple[str, ...]:
        return (*super().needs(c, specials), *(() if "mask" in specials.roles else ("mask",)))

    def corrupted(self, ids: list[int], chance: torch.Generator) -> tuple[list[int], list[int]]:
        noise = math.floor(len(ids) * self.c.rate + float(torch.rand((), generator=chance)))  # the rate on average
        return self.filled(ids, spread(len(ids) - noise, self.lengths(noise, chance), 0, chance)), ids

    def lengths(self, noise: int, chance: torch.Generator) -> list[int]:
        """Of spans, drawn until they hold so many tokens; the last one is cut to fit."""
        found: list[int] = []
        while (left := noise - sum(found)) > 0:
            found.append(min(left, int(torch.poisson(torch.tensor(self.c.mean), generator=chance))))
        while len(found) > noise:  # so many empty ones that the source would be longer than the text
            found.remove(0)
        return found

    def filled(self, ids: list[int], holes: list[tuple[int, int]]) -> list[int]:
        source, last = [], 0
        for start, stop in holes:
            source += [*ids[last:start], self.specials["mask"]]
            last = stop
        return [*source, *ids[last:]]
