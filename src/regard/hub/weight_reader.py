"""Numbers of tensors out of their files and to where they stay, in a few threads.

    file     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
             │ as they stand there     │ turned
             ▼                         ▼
    model    ░░░░░░░░░░░░      a desk ░░░░ ──► ░░░░

Files are read and not mapped. A model whose weights are a mapped file changes when somebody writes into that file, and
its process is killed (SIGBUS) when somebody cuts the file short or the disk goes away.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import CDLL, c_char, c_size_t, c_void_p
from functools import partial
from math import prod
from mmap import PAGESIZE
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import NamedTuple, Self

import torch
from torch import Tensor

from regard.config import DataError
from regard.hub.headers import Stored
from regard.hub.names import Row

PIECE = 2 << 20  # bytes that are read at once
THREADS = 4  # a disk is quicker when several ask, and so is new memory
SHARE = 20  # all desks together are one part in so many of the weights, or one desk
ALONE = 24 << 10  # numbers for which torch takes no threads of its own: they would wait for ours
READY = 256 << 10  # bytes for which the system is asked to have memory ready
SYSTEM, WRITTEN = CDLL(None), 23  # MADV_POPULATE_WRITE (Linux 5.14)
TURNED = ("flip", "row", "flat", "reverse")


class Wanted(NamedTuple):
    """A tensor in a file, how it differs from ours, and the place of ours."""

    of: Stored
    row: Row
    place: Tensor

    @property
    def turned(self) -> bool:
        return self.row.how in TURNED and not self.lying

    @property
    def lying(self) -> bool:
        """Whether ours lies in memory as theirs does in the file, though its axes have other names."""
        return self.row.how == "flip" and self.place.T.is_contiguous()


class Reader:
    """Files that are open as long as the block runs, so that all numbers are of one time."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths, self.files, self.ends = dict.fromkeys(paths), dict[Path, int](), ExitStack()
        self.desks, self.crossing = SimpleQueue[Tensor](), Lock()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for path in self.paths:
                self.files[path] = stack.enter_context(open(path, "rb", buffering=0)).fileno()
            self.pool = ThreadPoolExecutor(THREADS)
            stack.callback(self.pool.shutdown, cancel_futures=True)  # before a file is closed under its reader
            self.ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()

    def fill(self, wanted: list[Wanted]) -> None:
        """The numbers of tensors to their places, all of them finite; of what is wrong the first is told."""
        largest = max((each.place.nbytes for each in wanted if each.turned), default=0)
        enough = sum(each.place.nbytes for each in wanted) // SHARE // max(1, largest)
        for _ in range(min(THREADS, max(1, enough))):
            self.desks.put(torch.empty(largest, dtype=torch.uint8, device="cpu"))
        mode = torch.is_inference_mode_enabled()  # each thread has its own, and a model may be opened inside
        torch.set_num_threads(torch.get_num_threads())  # forked, torch makes its pool anew: here, not in two threads

        def done(work: Callable[[], None]) -> None:
            with torch.inference_mode(mode):
                work()

        for _ in self.pool.map(done, (work for each in wanted for work in self.works(each))):
            pass

    def works(self, each: Wanted) -> Iterator[Callable[[], None]]:
        if each.turned:
            yield partial(self.turn, *each)
        else:
            place = each.place.T if each.lying else each.place
            yield from (partial(self.bring, each.of, *part) for part in cut(each.of, place))

    @torch.no_grad()
    def bring(self, of: Stored, place: Tensor, start: int = 0) -> None:
        """Some rows of a tensor, from `start` on, to their place."""
        straight = place.is_cpu and place.dtype == of.dtype and place.is_contiguous()
        if straight:
            ready(place)
        came = self.into(place if straight else torch.empty(place.shape, dtype=of.dtype, device="cpu"), of, start)
        if not finite(came, place.dtype):
            narrower = f" as {str(place.dtype).removeprefix('torch.')}" if place.dtype != of.dtype else ""
            raise DataError(f"{of.path}: {of.name} holds numbers that are not finite{narrower}, so the model would "
                            "answer nothing else; fetch or write the weights again")  # fmt: skip
        if not straight:
            self.put(came, place)

    @torch.no_grad()
    def turn(self, of: Stored, row: Row, place: Tensor) -> None:
        """A tensor that its table turns: on a desk in the order of the file, and then to its place."""
        desk = self.desks.get()
        try:
            held = desk[: place.nbytes].view(place.dtype).view(of.shape)
            for part, start in cut(of, held):
                self.bring(of, part, start)
            self.put(row.convert(held), place)
        finally:
            self.desks.put(desk)

    def put(self, numbers: Tensor, place: Tensor) -> None:
        if not place.is_cpu:
            with self.crossing:  # to another device one after the other
                place.copy_(numbers)
        elif place.is_contiguous() and numbers.is_contiguous():
            for part, new in zip(little(place), little(numbers), strict=True):
                part.copy_(new)
        else:
            place.copy_(numbers)  # a matrix is turned without threads

    def tensor(self, of: Stored) -> Tensor:
        return self.into(torch.empty(of.shape, dtype=of.dtype, device="cpu"), of)

    def into(self, place: Tensor, of: Stored, start: int = 0) -> Tensor:
        """The bytes of a tensor as they are."""
        at, room = of.place + start * prod(of.shape[1:]) * of.dtype.itemsize, raw(place)
        while room:
            try:
                count = os.preadv(self.files[of.path], [room], at)
            except OSError as problem:
                told = (problem.strerror or str(problem)).lower()
                raise DataError(f"{of.path}: {told} at byte {at:,}; fetch or write the file again") from None
            if not count:
                raise DataError(f"{of.path}: ended at byte {at:,} while it was read; fetch or write the file again")
            room, at = room[count:], at + count
        return place


def cut(of: Stored, place: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows of a place, so many at a time as make a piece, and the first of them."""
    size = max(of.size, place.nbytes)
    if size <= PIECE or not of.shape:
        yield place, 0
        return
    step = max(1, PIECE * len(place) // size)
    for start in range(0, len(place), step):
        yield place[start : start + step], start


def little(x: Tensor) -> tuple[Tensor, ...]:
    """A tensor in parts for which torch takes no threads."""
    return x.view(-1).split(ALONE) if x.is_cpu and x.is_contiguous() and x.numel() > ALONE else (x,)


def raw(x: Tensor) -> memoryview:
    """The bytes of a tensor in memory, to be written."""
    return memoryview((c_char * x.nbytes).from_address(x.data_ptr()) if x.nbytes else b"")


def ready(place: Tensor) -> None:
    """New memory, all pages of a place at once: one by one, when they are first written to, they take longer."""
    first, end = -(-place.data_ptr() // PAGESIZE) * PAGESIZE, (place.data_ptr() + place.nbytes) // PAGESIZE * PAGESIZE
    if end - first >= READY and sys.platform == "linux":
        SYSTEM.madvise(c_void_p(first), c_size_t(end - first), WRITTEN)  # an older system says no, and nothing is lost


def finite(x: Tensor, kind: torch.dtype | None = None) -> bool:
    """Whether all are numbers, and stay numbers as another kind: then the least and the largest are and do."""
    if not x.is_floating_point() or not x.numel():
        return True
    if kind in (None, x.dtype) and bool(torch.stack([part.sum() for part in little(x)]).isfinite().all()):
        return True  # what is not finite stays so in a sum; one that only grew too large is looked at again
    edges = torch.stack([edge for part in little(x) for edge in torch.aminmax(part)])
    return bool(edges.to(kind or x.dtype).isfinite().all())
