"""Weight reader: safetensors headers, and tensors read in a few threads straight into their place.

    8 bytes    how long the header is
    header     {"h.0.ln_1.bias": {"dtype": "F32", "shape": [768], "data_offsets": [0, 3072]}, ...}
    numbers    one tensor after the other

A header may come from anywhere: safetensors compares it with the file before anything in it is believed.

    file     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
             │ as they stand there     │ transposed
             ▼                         ▼
    model    ░░░░░░░░░░░░    a buffer ░░░░ ──► ░░░░

Files are read and not mapped. A model whose weights are a mapped file changes when that file is written to, and its
process is killed (SIGBUS) when the file is cut short or the disk goes away.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from ctypes import CDLL, c_char, c_size_t, c_void_p
from dataclasses import dataclass
from functools import partial
from math import prod
from mmap import PAGESIZE
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.config.errors import DataError
from regard.hub.name_table import NameRow

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, without its numbers."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int = 0  # the byte of the file that it begins with

    @property
    def ghost(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors in a file, in the order in which they stand there."""
    with open_safetensors(path) as file:
        slices, begin = {name: file.get_slice(name) for name in file.offset_keys()}, tensor_offsets(path)
        # a type that is not named here is compressed somehow, and not a float
        return {
            name: StoredTensor(
                path, name, tuple(each.get_shape()), TYPES.get(each.get_dtype(), torch.uint8), begin[name]
            )
            for name, each in slices.items()
        }


def read_metadata(path: Path) -> dict[str, str]:
    """The words that were stored beside the tensors in a file."""
    with open_safetensors(path) as file:
        return dict(file.metadata() or {})


def tensor_offsets(path: Path) -> dict[str, int]:
    """Where each tensor begins in a file that safetensors has found whole: it says all but that."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        said = json.loads(file.read(length))
    return {name: 8 + length + each["data_offsets"][0] for name, each in said.items() if name != "__metadata__"}


def open_safetensors(path: Path) -> AbstractContextManager[Any]:
    try:
        made: AbstractContextManager[Any] = safe_open(path, "pt")
        return made
    except (SafetensorError, OSError, ValueError) as problem:
        raise DataError(
            f"{path}: not whole safetensors ({shorten_error(problem)}); fetch or write the file again"
        ) from None


def shorten_error(problem: object) -> str:
    """The first words of what a library says: it may quote a whole file."""
    line = next(iter(str(problem).splitlines()), "") or type(problem).__name__
    return line if len(line) < 200 else f"{line[:200]}…"


PIECE = 2 << 20  # bytes that are read at once
THREADS = 4  # a disk is quicker when several ask, and so is new memory
SHARE = 20  # all desks together are one part in so many of the weights, or one desk
ALONE = 24 << 10  # numbers for which torch takes no threads of its own: they would wait for ours
READY = 256 << 10  # bytes for which the system is asked to have memory ready
SYSTEM, WRITTEN = CDLL(None), 23  # MADV_POPULATE_WRITE (Linux 5.14)
TURNED = ("flip", "row", "flat", "reverse")


class ReadRequest(NamedTuple):
    """A tensor in a file, how it differs from ours, and the place of ours."""

    of: StoredTensor
    row: NameRow
    place: Tensor

    @property
    def transposed(self) -> bool:
        return self.row.transform in TURNED and not self.stored_transposed

    @property
    def stored_transposed(self) -> bool:
        """Whether ours lies in memory as theirs does in the file, though its axes have other names."""
        return self.row.transform == "flip" and self.place.T.is_contiguous()


class WeightReader:
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

    def fill(self, wanted: list[ReadRequest]) -> None:
        """The numbers of tensors to their places, all of them finite; of what is wrong the first is told."""
        largest = max((each.place.nbytes for each in wanted if each.transposed), default=0)
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

    def works(self, each: ReadRequest) -> Iterator[Callable[[], None]]:
        if each.transposed:
            yield partial(self.read_transformed, *each)
        else:
            place = each.place.T if each.stored_transposed else each.place
            yield from (partial(self.bring, each.of, *part) for part in row_pieces(each.of, place))

    @torch.no_grad()
    def bring(self, of: StoredTensor, place: Tensor, start: int = 0) -> None:
        """Some rows of a tensor, from `start` on, to their place."""
        straight = place.is_cpu and place.dtype == of.dtype and place.is_contiguous()
        if straight:
            touch_pages(place)
        came = self.into(place if straight else torch.empty(place.shape, dtype=of.dtype, device="cpu"), of, start)
        if not all_finite(came, place.dtype):
            narrower = f" as {str(place.dtype).removeprefix('torch.')}" if place.dtype != of.dtype else ""
            raise DataError(f"{of.path}: {of.name} holds numbers that are not finite{narrower}, so the model would "
                            "answer nothing else; fetch or write the weights again")  # fmt: skip
        if not straight:
            self.put(came, place)

    @torch.no_grad()
    def read_transformed(self, of: StoredTensor, row: NameRow, place: Tensor) -> None:
        """A tensor that its table turns: on a desk in the order of the file, and then to its place."""
        desk = self.desks.get()
        try:
            held = desk[: place.nbytes].view(place.dtype).view(of.shape)
            for part, start in row_pieces(of, held):
                self.bring(of, part, start)
            self.put(row.convert(held), place)
        finally:
            self.desks.put(desk)

    def put(self, numbers: Tensor, place: Tensor) -> None:
        if not place.is_cpu:
            with self.crossing:  # to another device one after the other
                place.copy_(numbers)
        elif place.is_contiguous() and numbers.is_contiguous():
            for part, new in zip(small_parts(place), small_parts(numbers), strict=True):
                part.copy_(new)
        else:
            place.copy_(numbers)  # a matrix is turned without threads

    def tensor(self, of: StoredTensor) -> Tensor:
        return self.into(torch.empty(of.shape, dtype=of.dtype, device="cpu"), of)

    def into(self, place: Tensor, of: StoredTensor, start: int = 0) -> Tensor:
        """The bytes of a tensor as they are."""
        at, room = of.place + start * prod(of.shape[1:]) * of.dtype.itemsize, tensor_buffer(place)
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


def row_pieces(of: StoredTensor, place: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows of a place, so many at a time as make a piece, and the first of them."""
    size = max(of.size, place.nbytes)
    if size <= PIECE or not of.shape:
        yield place, 0
        return
    step = max(1, PIECE * len(place) // size)
    for start in range(0, len(place), step):
        yield place[start : start + step], start


def small_parts(x: Tensor) -> tuple[Tensor, ...]:
    """A tensor in parts for which torch takes no threads."""
    return x.view(-1).split(ALONE) if x.is_cpu and x.is_contiguous() and x.numel() > ALONE else (x,)


def tensor_buffer(x: Tensor) -> memoryview:
    """The bytes of a tensor in memory, to be written."""
    return memoryview((c_char * x.nbytes).from_address(x.data_ptr()) if x.nbytes else b"")


def touch_pages(place: Tensor) -> None:
    """New memory, all pages of a place at once: one by one, when they are first written to, they take longer."""
    first, end = -(-place.data_ptr() // PAGESIZE) * PAGESIZE, (place.data_ptr() + place.nbytes) // PAGESIZE * PAGESIZE
    if end - first >= READY and sys.platform == "linux":
        SYSTEM.madvise(c_void_p(first), c_size_t(end - first), WRITTEN)  # an older system says no, and nothing is lost


def all_finite(x: Tensor, kind: torch.dtype | None = None) -> bool:
    """Whether all are numbers, and stay numbers as another kind: then the least and the largest are and do."""
    if not x.is_floating_point() or not x.numel():
        return True
    if kind in (None, x.dtype) and bool(torch.stack([part.sum() for part in small_parts(x)]).isfinite().all()):
        return True  # what is not finite stays so in a sum; one that only grew too large is looked at again
    edges = torch.stack([edge for part in small_parts(x) for edge in torch.aminmax(part)])
    return bool(edges.to(kind or x.dtype).isfinite().all())
