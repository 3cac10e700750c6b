"""Does it fit? What a rank must hold against what a device has, and what would help where it does not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from regard.measure.activations import Activations
from regard.measure.memory import Memory


@dataclass(frozen=True)
class Fit:
    """Bytes a rank needs and the device has, and each remedy that would be enough."""

    needs: int
    has: float
    remedies: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.needs <= self.has


@dataclass(frozen=True)
class Load:
    """What is to be fitted: a whole step's memory on one rank, its activations both ways, and the largest block."""

    memory: Memory
    held: Activations
    block: int
    batch: int
    ranks: int

    def fit(self, has: float) -> Fit:
        needs = self.memory.over(self.ranks, self.block).total
        return Fit(needs, has, tuple(self.remedies(has)) if needs > has else ())

    def remedies(self, has: float) -> Iterator[str]:
        """Each change that would do by itself; if none would, checkpointing with more ranks."""
        lighter = replace(self.memory, activations=self.held.checkpointed)
        alone = [*self.smaller(has), *self.again(lighter, has), *self.spread(self.memory, has)]
        yield from alone or (f"checkpointing and {more}" for more in self.spread(lighter, has))

    def smaller(self, has: float) -> Iterator[str]:
        state = replace(self.memory, activations=0).over(self.ranks, self.block).total
        batch = int((has - state) * self.batch // max(self.memory.activations, 1))
        if 1 <= batch < self.batch:
            yield f"a batch of {batch}"

    def again(self, lighter: Memory, has: float) -> Iterator[str]:
        if lighter.over(self.ranks, self.block).total <= has:
            yield "checkpointing every block (a third more arithmetic)"

    def spread(self, memory: Memory, has: float) -> Iterator[str]:
        left = has - memory.activations - 2 * self.block
        if left > 0:
            ranks = -(-(memory.weights + memory.gradients + memory.optimizer) // int(left))
            yield f"{max(ranks, self.ranks + 1):,} ranks"
