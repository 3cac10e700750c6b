"""ProcessRanks: the ranks of one run, the rows that each takes, and the reductions between them.

    a micro-batch     0 1 2 3 4 5 6      made on every rank: it is a function of the step, and so are its counts
    rank 0 of 2       0   2   4   6
    rank 1 of 2         1   3   5

So a recipe means the same on any number of ranks, and a run may resume with more or fewer of them. Gradients are
averaged over ranks, so each rank's share of the loss is multiplied by the number of ranks.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from ctypes import string_at
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from regard import config
from regard.tasks.task import LossPart

PROBLEM_KEY = "problem"  # where in the store the first thing that went wrong is told
ERROR_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (config.ConfigError, config.DataError, config.RunError)
}  # fmt: skip
SHORT, LONG = 0.005, 0.25  # seconds between two looks at which processes are there
FIRST_ROW = slice(1)  # row
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class ProcessRanks:
    """This process among `size` of them; `local` is its number on its machine.

    `store` is a table that all read and write without waiting for each other; `host` the group for tensors in the
    host's memory, None where the usual one takes them.
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    strategy: str = "none"  # or "ddp": every rank has the whole model; or "fsdp": each has a part
    store: Any = None
    host: Any = None
    meetings: Iterator[int] = field(default_factory=count, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        return self.strategy == "fsdp"

    # ---------------------------------------------------------------- a batch

    def share(self, batch: Any, parts: Mapping[str, LossPart]) -> tuple[Any, Mapping[str, LossPart]]:
        """This rank's rows, and the step's parts as they count for them."""
        if self.size == 1:
            return batch, parts
        mine, counted = self.rows(batch)
        times = self.size if counted else 0
        return mine, {name: LossPart(part.count, part.weight * times) for name, part in parts.items()}

    def rows(self, batch: Any) -> tuple[Any, bool]:
        """This rank's rows, or the first one and that it counts not: all must ask a model that lies in parts."""
        mine = take_rows(batch, slice(self.rank, None, self.size))
        if len(mine if isinstance(mine, Tensor) else next(iter(mine.values()))):
            return mine, True
        return take_rows(batch, FIRST_ROW), False

    # ---------------------------------------------------------------- numbers

    def mean(self, tensor: Tensor) -> Tensor:
        return self.sum(tensor) / self.size if self.size > 1 else tensor

    def sum(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.host if tensor.device.type == "cpu" else None)
        return tensor

    def max(self, number: int) -> int:
        """The largest number that any rank has."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.host)
        return int(found)

    def leader(self, number: float) -> float:
        """The number that the first rank has."""
        return float(self.sum(torch.tensor(number if self.is_main else 0.0, dtype=torch.float64)))

    def gather_lists(self, items: list[Any]) -> list[Any]:
        """What all have found, one rank after the other."""
        if self.size == 1:
            return items
        text = json.dumps(items).encode()
        sent = torch.frombuffer(bytearray(text.ljust(self.max(len(text)))), dtype=torch.uint8)  # spaces say nothing
        heard = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(heard, sent, group=self.host)
        return [item for each in heard for item in json.loads(string_at(each.data_ptr(), len(each)))]

    # ---------------------------------------------------------------- waiting

    def barrier(self) -> None:
        """Wait for all, however long one of them works; what goes wrong for it is raised here too."""
        if self.size == 1:
            return
        key, pause = f"meeting {next(self.meetings)}", SHORT
        there = self.store.add(key, 1)
        while there < self.size:
            self.check_problems()
            time.sleep(pause)
            pause = min(LONG, 1.5 * pause)
            there = self.store.add(key, 0)

    def broadcast(self, say: Callable[[], str]) -> str:
        """What the first rank has to say, however long it thinks."""
        if self.size == 1:
            return say()
        key = f"told {next(self.meetings)}"
        if self.is_main:
            self.store.set(key, say())
        self.barrier()
        return str(self.store.get(key).decode())

    def check_problems(self) -> None:
        """Raise what went wrong for another rank."""
        if (told := self.store.get(PROBLEM_KEY)) and json.loads(told)["rank"] != self.rank:
            raise parse_problem(told)

    def main_first(self, work: Callable[[], Made]) -> Made:
        """The first rank does it, then one of each machine, then the others: what is kept on a disk is made once."""
        made: list[Made] = []
        turn = min(1, self.rank) + min(1, self.local)
        for now in range(3):
            if now == turn:
                made.append(work())
            self.barrier()
        return made[0]


SINGLE_PROCESS = ProcessRanks()


def take_rows(batch: Any, rows: slice) -> Any:
    return {name: table[rows] for name, table in batch.items()} if isinstance(batch, Mapping) else batch[rows]


def parse_problem(message: bytes) -> Exception:
    """What another rank told, as what it was there."""
    said = json.loads(message)
    return ERROR_KINDS.get(said["kind"], config.RunError)(said["text"])
