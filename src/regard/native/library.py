"""The C library of CPU kernels, panels.c, and its functions on tensors: compiled here, cached, loaded on demand.

    panels.c ── cc -O3 -march=native ──► $REGARD_CACHE/native/panels-3f9a…-77c1….so ──► map_f32, ..., attend
                                                              source, content

It shares torch's thread pool, so the two never compete. Without a compiler, or with REGARD_NATIVE=0, there is no
library and torch does the work; the same on systems other than Linux, which cannot load a file by descriptor.

Loading a library executes it. A path may change between a check and its use, a descriptor cannot: the folder and the
file are opened once, without following links, checked by descriptor, and loaded by it. The SHA-256 in the name reveals
an incomplete or changed file, which is built again.
"""

import ctypes
import errno
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.files import atomic
from regard.files.content_cache import cache_dir

LARGEST = 1 << 26  # bytes: larger files are not this library
SOURCE = Path(__file__).with_name("panels.c")
COMPILER_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared", "-nostartfiles")
WIDE = ("-mprefer-vector-width=512",)  # x86 compilers avoid the widest vectors by default
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int
SHAPES = {
    **{f"map_{kind}": [POINTER] * 7 + [NUMBER] for kind in ("f32", "bf16", "int8")},
    "halves": [],
    "side": [],
    "in_large_pages": [POINTER, ctypes.c_long],
    "weigh": [POINTER] * 3 + [NUMBER],
    "ranked": [POINTER] * 4 + [NUMBER],
    "take_over": [POINTER] * 5 + [NUMBER],
    "attend": [POINTER] * 9 + [ctypes.c_float, NUMBER],
}


LOADED: list[Any] = []  # the library or None, once loading was tried


def load_library() -> Any:
    """The loaded library, or None if it cannot be loaded."""
    if not LOADED:
        LOADED.append(open_library())
    return LOADED[0]


def is_loaded() -> bool:
    """Whether it has been loaded successfully."""
    return bool(LOADED) and LOADED[0] is not None


def open_library() -> Any:
    if os.environ.get("REGARD_NATIVE") == "0" or sys.platform != "linux":
        return None
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    threads, compiler = find_openmp(), next((found for name in wanted if (found := shutil.which(name))), None)
    if threads is None or compiler is None:
        return None
    compiler = os.path.abspath(compiler)
    try:
        ctypes.CDLL(threads, mode=ctypes.RTLD_GLOBAL)
        made = open_built_library(compiler)
    except UntrustedFolderError as problem:
        warnings.warn(f"{problem}; torch does the work of the library in C", stacklevel=4)
        return None
    except (OSError, subprocess.SubprocessError):  # unwritable folder, or failing compiler
        return None
    for name, kinds in SHAPES.items():
        function = getattr(made, name)
        function.argtypes, function.restype = kinds, NUMBER if name in ("halves", "side") else None
    return made


def find_openmp() -> str | None:
    """The OpenMP library that torch has loaded, if it is GNU's."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"(/\S*libgomp\S*)", maps)
    return found[1] if found else None


class UntrustedFolderError(PermissionError):
    """Raised for a folder in which other users could place a library."""


def open_built_library(compiler: str) -> Any:
    """Load the library by its descriptor, which stays open: the loader identifies a library by its path."""
    folder = open_folder(cache_dir(None) / "native")
    try:
        made = load_descriptor(build_library(folder, compiler))
    finally:
        os.close(folder)
    return made


def load_descriptor(library: int) -> Any:
    try:
        return ctypes.CDLL(f"/proc/self/fd/{library}")
    except OSError:
        os.close(library)
        raise


def open_folder(path: Path) -> int:
    """A descriptor of the folder, created if missing, that only this user may write to: no link, no other owner."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as problem:
        if problem.errno not in (errno.ELOOP, errno.ENOTDIR):  # errors of O_NOFOLLOW for a link
            raise
        raise UntrustedFolderError(
            f"{path}: a link or a file, where what is loaded must be in a folder of our own"
        ) from None
    about = os.fstat(folder)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        os.close(folder)
        raise UntrustedFolderError(
            f"{path}: others may write here, and what is loaded must be ours alone; chmod 700 it"
        )
    return folder


def build_library(folder: int, compiler: str) -> int:
    """A descriptor of the library's file in the folder, built if missing or damaged.

    Its name contains hashes of source, compiler and processor, and the SHA-256 of its content.
    """
    flags = (*COMPILER_FLAGS, *(WIDE if platform.machine() == "x86_64" else ()))
    told = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    key = hashlib.sha256(
        b"\0".join([SOURCE.read_bytes(), told, " ".join(flags).encode(), processor_features()])
    ).hexdigest()
    for name in sorted(os.listdir(folder)):
        if name.startswith(f"panels-{key[:16]}"):
            library = open_verified(folder, name)
            if library is not None:
                return library
            with suppress(OSError):  # incomplete, changed or foreign: do not check it again
                os.unlink(name, dir_fd=folder)
    return compile_into(folder, f"panels-{key[:16]}", [compiler, *flags])


def open_verified(folder: int, name: str) -> int | None:
    """A descriptor of a file in the folder, if we own it, it is a regular file, and its content matches its name."""
    try:
        library = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)  # no wait for pipes
    except OSError:
        return None
    about = os.fstat(library)
    ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    if ours and about.st_size <= LARGEST and name.endswith(f"-{library_digest(library)}.so"):
        return library
    os.close(library)
    return None


def library_digest(library: int) -> str:
    with open(library, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_into(folder: int, name: str, words: list[str]) -> int:
    """Compile the source in a temporary subfolder, and move the library out of it, synced and complete.

    All paths are relative to the folder's descriptor: its name could lead elsewhere by now.
    """
    place = Path(f"/proc/{os.getpid()}/fd/{folder}")
    atomic.recover_folders(place)
    with atomic.temporary_folder(place / name) as desk:
        # -nodefaultlibs: use torch's OpenMP, resolved when the library is loaded
        words = [*words, "-o", "panels.so", str(SOURCE.resolve()), "-lm", "-nodefaultlibs"]
        subprocess.run(words, cwd=desk, capture_output=True, check=True, timeout=120)
        library = os.open(desk / "panels.so", os.O_RDONLY | os.O_NOFOLLOW)
        os.fchmod(library, 0o700)
        atomic.replace_file(desk / "panels.so", place / f"{name}-{library_digest(library)}.so")
        os.fsync(folder)
    return library


def processor_features() -> bytes:
    """The processor's features: several machines may share a folder."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return next((line for line in lines if line.lower().startswith((b"flags", b"features"))), b"")


KINDS = {torch.float32: "map_f32", torch.bfloat16: "map_bf16", torch.int8: "map_int8"}
MAX_ROWS = 16  # rows up to which a product is limited by memory bandwidth, not by arithmetic


def can_multiply(x: Tensor) -> bool:
    """Whether `packed_linear` can take these rows: on the CPU, in fp32, without gradients."""
    return (
        x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
        and not (torch.is_grad_enabled() and x.requires_grad)
    )  # fmt: skip


def pack_panels(weight: Tensor) -> Tensor:
    """Pack a weight (N, K) of any strides in the order of reading: (N/P, K, P, 1), in bf16 (N/P, K/2, P, 2)."""
    made, pair = load_library(), 2 if weight.dtype == torch.bfloat16 else 1
    short, odd = -len(weight) % made.side(), weight.shape[1] % 2
    weight = F.pad(weight, (0, odd, 0, short)) if short or odd else weight
    table = weight.unflatten(1, (-1, pair)).unflatten(0, (-1, made.side())).transpose(1, 2)
    out = torch.empty(table.shape, dtype=table.dtype)
    made.in_large_pages(out.data_ptr(), out.nbytes)
    return out.copy_(table)


def unpack_panels(table: Tensor, N: int, K: int) -> Tensor:
    """The weight (N, K) of packed panels."""
    return table.transpose(1, 2).reshape(len(table) * table.shape[2], -1)[:N, :K]


def gather_rows(table: Tensor, ids: Tensor, K: int) -> Tensor:
    """Some rows (..., K) of a packed weight."""
    return table[ids // table.shape[2], :, ids % table.shape[2]].flatten(-2)[..., :K]


def packed_linear(
    x: Tensor, table: Tensor, N: int, scale: Tensor | None, bias: Tensor | None, into: Tensor | None = None
) -> Tensor:
    """x (..., K) times a packed weight (N, K) -> (..., N), each row independent of the others; or written `into` a
    table.

    Beyond a few rows x is rounded to bf16 if the weight is bf16 or int8 and the processor has bf16 products.
    """
    x = (F.pad(x, (0, 1)) if x.shape[-1] % 2 else x).contiguous()
    out = x.new_empty(*x.shape[:-1], N) if into is None else into
    K, threads = x.shape[-1], torch.get_num_threads()
    made, M = load_library(), x.numel() // K
    kind = torch.bfloat16 if made.halves() else torch.float32
    many = table.dtype != torch.float32 and M > MAX_ROWS
    room = torch.empty((M + threads * table.shape[2]) * K, dtype=kind) if many else None
    places = (None if each is None else each.data_ptr() for each in (table, scale, bias, x, out, room))
    getattr(made, KINDS[table.dtype])(*places, (ctypes.c_long * 3)(M, N, K), threads)
    return out


def decode_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
    """Decode attention, softmax(q k'·scale + table) v for a few queries; only allowed slots are read.

    q (B, H, Q, d), k (B, G, K, d), v (B, G, K, e); the table broadcasts to (B, H, Q, K), boolean or additive. If k and
    v have fewer rows, each serves several consecutive rows of q: beams of one text, which share its source.
    """
    q, k, v = q.contiguous(), *(each if each.stride(-1) == 1 else each.contiguous() for each in (k, v))
    (B, H, Q, d), (sources, G, K, e) = q.shape, v.shape
    steps: Any = (ctypes.c_long * 9)(0, 0, 0, *k.stride()[:3], *v.stride()[:3])
    allowed = added = None
    if table is not None:
        table = (table if table.dtype == torch.bool else table.float()).expand(B, H, Q, K)
        table = table if table.stride(-1) == 1 else table.contiguous()
        steps[:3] = table.stride()[:3]
        allowed, added = (table.data_ptr(), None) if table.dtype == torch.bool else (None, table.data_ptr())
    out, room = q.new_empty(B, H, Q, e), q.new_empty(B, H, Q, K)
    sizes = (ctypes.c_long * 8)(B, H, Q, G, K, d, e, B // sources)
    load_library().attend(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        allowed,
        added,
        steps,
        room.data_ptr(),
        out.data_ptr(),
        sizes,
        scale,
        torch.get_num_threads(),
    )
    return out


def logsumexp_rows(logits: Tensor) -> Tensor:
    """Row-wise logsumexp: (R, V) -> (R, 1)."""
    if not is_readable(logits):
        return logits.logsumexp(-1, keepdim=True)
    out = logits.new_empty(len(logits), 1)
    load_library().weigh(logits.data_ptr(), out.data_ptr(), (ctypes.c_long * 2)(*logits.shape), torch.get_num_threads())
    return out


def topk_rows(table: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of each row, largest first, and their indices: (R, count)."""
    best = table.new_empty(len(table), count)
    places = torch.empty_like(best, dtype=torch.long)
    sizes = (ctypes.c_long * 3)(*table.shape, count)
    load_library().ranked(table.data_ptr(), best.data_ptr(), places.data_ptr(), sizes, torch.get_num_threads())
    return best, places


def copy_slots(table: Tensor, rows: Tensor, start: int, end: int, alike: Tensor) -> None:
    """Copy slots `start` to `end` of row rows[b] to each row b of a table (B, H, S, d), in place.

    The first `alike` (B,) of them are equal already, and not copied in C.
    """
    if start >= end:
        return
    if not is_readable(table):
        part = table[:, :, start:end]
        part.copy_(part[rows])
        return
    (B, H, S, d), threads = table.shape, torch.get_num_threads()
    room, sizes = table.new_empty(threads * B * (end - start) * d), (ctypes.c_long * 6)(B, H, S, d, start, end)
    places = (each.data_ptr() for each in (table, rows.contiguous(), alike.contiguous(), room))
    load_library().take_over(*places, sizes, threads)


def is_readable(table: Tensor) -> bool:
    """Whether the library is loaded and can read a table of these strides."""
    return is_loaded() and table.device.type == "cpu" and table.dtype == torch.float32 and table.is_contiguous()
