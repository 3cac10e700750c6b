"""ProcessRanks: the ranks of one run, the rows that each takes, and the reductions between them.

    a micro-batch     0 1 2 3 4 5 6      built on every rank: batch and counts are functions of the step
    rank 0 of 2       0   2   4   6
    rank 1 of 2         1   3   5

A recipe therefore trains the same on any number of ranks, and a run may resume with another number. Gradients are
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

PROBLEM_KEY = "problem"  # store key of the first error
ERROR_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (config.ConfigError, config.DataError, config.RunError)
}  # fmt: skip
SHORT, LONG = 0.005, 0.25  # polling intervals in seconds while waiting for other ranks
FIRST_ROW = slice(1)  # one row
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class ProcessRanks:
    """This process as one of `size` ranks; `local` is its rank on its machine.

    `store` is a key-value store that ranks use without waiting for each other; `host` is the group for CPU tensors,
    None where the default group takes them.
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    strategy: str = "none"  # or "ddp": every rank has the whole model; or "fsdp": each has a shard
    store: Any = None
    host: Any = None
    meetings: Iterator[int] = field(default_factory=count, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        return self.strategy == "fsdp"

    # ---------------------------------------------------------------- a batch

    def share(self, batch: Any, parts: Mapping[str, LossPart]) -> tuple[Any, Mapping[str, LossPart]]:
        """This rank's rows, and the label counts scaled for its share of the loss."""
        if self.size == 1:
            return batch, parts
        mine, counted = self.rows(batch)
        times = self.size if counted else 0
        return mine, {name: LossPart(part.count, part.weight * times) for name, part in parts.items()}

    def rows(self, batch: Any) -> tuple[Any, bool]:
        """This rank's rows. Without any, the first row with weight zero: with FSDP every rank must run the model."""
        mine = take_rows(batch, slice(self.rank, None, self.size))
        if len(mine if isinstance(mine, Tensor) else next(iter(mine.values()))):
            return mine, True
        return take_rows(batch, FIRST_ROW), False

    # ---------------------------------------------------------------- reductions

    def mean(self, tensor: Tensor) -> Tensor:
        return self.sum(tensor) / self.size if self.size > 1 else tensor

    def sum(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.host if tensor.device.type == "cpu" else None)
        return tensor

    def max(self, number: int) -> int:
        """The maximum over ranks."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.host)
        return int(found)

    def leader(self, number: float) -> float:
        """The number of rank 0."""
        return float(self.sum(torch.tensor(number if self.is_main else 0.0, dtype=torch.float64)))

    def gather_lists(self, items: list[Any]) -> list[Any]:
        """The lists of all ranks, concatenated in rank order."""
        if self.size == 1:
            return items
        text = json.dumps(items).encode()
        sent = torch.frombuffer(bytearray(text.ljust(self.max(len(text)))), dtype=torch.uint8)  # JSON ignores spaces
        heard = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(heard, sent, group=self.host)
        return [item for each in heard for item in json.loads(string_at(each.data_ptr(), len(each)))]

    # ---------------------------------------------------------------- waiting

    def barrier(self) -> None:
        """Wait for all ranks, however long one works; an error on another rank is raised here too."""
        if self.size == 1:
            return
        # polls the store: a collective would time out, and would not see the error of another rank
        key, pause = f"meeting {next(self.meetings)}", SHORT
        there = self.store.add(key, 1)
        while there < self.size:
            self.check_problems()
            time.sleep(pause)
            pause = min(LONG, 1.5 * pause)
            there = self.store.add(key, 0)

    def broadcast(self, say: Callable[[], str]) -> str:
        """The string of rank 0, however long it takes to compute."""
        if self.size == 1:
            return say()
        key = f"told {next(self.meetings)}"
        if self.is_main:
            self.store.set(key, say())
        self.barrier()
        return str(self.store.get(key).decode())

    def check_problems(self) -> None:
        """Raise the error of another rank, if any."""
        if (told := self.store.get(PROBLEM_KEY)) and json.loads(told)["rank"] != self.rank:
            raise parse_problem(told)

    def main_first(self, work: Callable[[], Made]) -> Made:
        """Run `work` on rank 0, then on one rank of each machine, then on the others: files on a shared disk are made
        once."""
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
    """The error of another rank, with its class where that is known."""
    said = json.loads(message)
    return ERROR_KINDS.get(said["kind"], config.RunError)(said["text"])
