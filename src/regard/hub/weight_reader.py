"""Weight reader: parses safetensors headers, and reads tensors in a few threads directly into their target memory.

    8 bytes    the length of the header
    header     {"h.0.ln_1.bias": {"dtype": "F32", "shape": [768], "data_offsets": [0, 3072]}, ...}
    data       one tensor after the other

Files are untrusted: safetensors validates the header against the file first.

    file     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
             │ same layout             │ transposed
             ▼                         ▼
    model    ░░░░░░░░░░░░    a buffer ░░░░ ──► ░░░░

Files are read and not memory-mapped. A model on a mapped file changes when the file is written to, and its process is
killed (SIGBUS) when the file is truncated or the disk disappears.
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
    """The metadata of a tensor in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int = 0  # byte offset in the file

    @property
    def ghost(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, in their order."""
    with open_safetensors(path) as file:
        slices, begin = {name: file.get_slice(name) for name in file.offset_keys()}, tensor_offsets(path)
        # other dtypes are compressed formats, and not floats
        return {
            name: StoredTensor(
                path, name, tuple(each.get_shape()), TYPES.get(each.get_dtype(), torch.uint8), begin[name]
            )
            for name, each in slices.items()
        }


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata strings of a file."""
    with open_safetensors(path) as file:
        return dict(file.metadata() or {})


def tensor_offsets(path: Path) -> dict[str, int]:
    """The offset of each tensor in a file that safetensors has validated: its API does not give offsets."""
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
    """The first line of a library's error, which may quote a whole file."""
    line = next(iter(str(problem).splitlines()), "") or type(problem).__name__
    return line if len(line) < 200 else f"{line[:200]}…"


PIECE = 2 << 20  # bytes per read
THREADS = 4  # parallel reads are faster, and so are page faults of new memory
SHARE = 20  # all staging buffers together are at most 1/SHARE of the weights, or a single buffer
ALONE = 24 << 10  # elements for which torch uses no threads of its own: they would wait for ours
READY = 256 << 10  # bytes above which pages are populated in advance
SYSTEM, WRITTEN = CDLL(None), 23  # MADV_POPULATE_WRITE (Linux 5.14)
TURNED = ("flip", "row", "flat", "reverse")


class ReadRequest(NamedTuple):
    """A tensor in a file, its table row, and its target tensor."""

    of: StoredTensor
    row: NameRow
    place: Tensor

    @property
    def transposed(self) -> bool:
        return self.row.transform in TURNED and not self.stored_transposed

    @property
    def stored_transposed(self) -> bool:
        """Whether the target's memory layout equals the file's, although its axes are transposed."""
        return self.row.transform == "flip" and self.place.T.is_contiguous()


class WeightReader:
    """Reads tensors from open files. They stay open for the whole block, so that all data is from one version."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths, self.files, self.ends = dict.fromkeys(paths), dict[Path, int](), ExitStack()
        self.desks, self.crossing = SimpleQueue[Tensor](), Lock()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for path in self.paths:
                self.files[path] = stack.enter_context(open(path, "rb", buffering=0)).fileno()
            self.pool = ThreadPoolExecutor(THREADS)
            stack.callback(self.pool.shutdown, cancel_futures=True)  # before the files are closed
            self.ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()

    def fill(self, wanted: list[ReadRequest]) -> None:
        """Read all tensors into their targets and check that they are finite; the first error is raised."""
        largest = max((each.place.nbytes for each in wanted if each.transposed), default=0)
        enough = sum(each.place.nbytes for each in wanted) // SHARE // max(1, largest)
        for _ in range(min(THREADS, max(1, enough))):
            self.desks.put(torch.empty(largest, dtype=torch.uint8, device="cpu"))
        mode = torch.is_inference_mode_enabled()  # inference mode is per thread, and the caller may be in it
        torch.set_num_threads(torch.get_num_threads())  # after a fork torch rebuilds its pool: do it in one thread

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
        """Read some rows of a tensor, from `start` on, into their target."""
        straight = place.is_cpu and place.dtype == of.dtype and place.is_contiguous()
        if straight:
            touch_pages(place)
        came = self.into(place if straight else torch.empty(place.shape, dtype=of.dtype, device="cpu"), of, start)
        if not all_finite(came, place.dtype):
            narrower = f" as {str(place.dtype).removeprefix('torch.')}" if place.dtype != of.dtype else ""
            raise DataError(f"{of.path}: {of.name} has values that are not finite{narrower}, so its outputs would "
                            "not be finite; fetch or write the weights again")  # fmt: skip
        if not straight:
            self.put(came, place)

    @torch.no_grad()
    def read_transformed(self, of: StoredTensor, row: NameRow, place: Tensor) -> None:
        """Read a tensor with a transform: into a staging buffer in the file's layout, then into its target."""
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
            with self.crossing:  # one transfer to another device at a time
                place.copy_(numbers)
        elif place.is_contiguous() and numbers.is_contiguous():
            for part, new in zip(small_parts(place), small_parts(numbers), strict=True):
                part.copy_(new)
        else:
            place.copy_(numbers)  # a transposing copy uses no threads

    def tensor(self, of: StoredTensor) -> Tensor:
        return self.into(torch.empty(of.shape, dtype=of.dtype, device="cpu"), of)

    def into(self, place: Tensor, of: StoredTensor, start: int = 0) -> Tensor:
        """Read the bytes of a tensor unchanged."""
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
    """Slices of rows of about PIECE bytes, each with its first row."""
    size = max(of.size, place.nbytes)
    if size <= PIECE or not of.shape:
        yield place, 0
        return
    step = max(1, PIECE * len(place) // size)
    for start in range(0, len(place), step):
        yield place[start : start + step], start


def small_parts(x: Tensor) -> tuple[Tensor, ...]:
    """A tensor in parts that torch processes without threads."""
    return x.view(-1).split(ALONE) if x.is_cpu and x.is_contiguous() and x.numel() > ALONE else (x,)


def tensor_buffer(x: Tensor) -> memoryview:
    """The memory of a tensor as a writable buffer."""
    return memoryview((c_char * x.nbytes).from_address(x.data_ptr()) if x.nbytes else b"")


def touch_pages(place: Tensor) -> None:
    """Populate all pages of new memory at once, which is faster than one page fault after another."""
    first, end = -(-place.data_ptr() // PAGESIZE) * PAGESIZE, (place.data_ptr() + place.nbytes) // PAGESIZE * PAGESIZE
    if end - first >= READY and sys.platform == "linux":
        SYSTEM.madvise(c_void_p(first), c_size_t(end - first), WRITTEN)  # older kernels refuse, without harm


def all_finite(x: Tensor, kind: torch.dtype | None = None) -> bool:
    """Whether all values are finite, also as another dtype: true if the least and the largest are."""
    if not x.is_floating_point() or not x.numel():
        return True
    if kind in (None, x.dtype) and bool(torch.stack([part.sum() for part in small_parts(x)]).isfinite().all()):
        return True  # a non-finite value makes the sum non-finite; a sum that only overflowed is checked below
    edges = torch.stack([edge for part in small_parts(x) for edge in torch.aminmax(part)])
    return bool(edges.to(kind or x.dtype).isfinite().all())
