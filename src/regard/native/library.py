"""panels.c as a library: built by the machine's own compiler in a second, kept in the cache folder, loaded on demand.

    panels.c ── cc -O3 -march=native ──► $REGARD_CACHE/native/panels-3f9a…-77c1….so ──► map_f32, ..., attend
                                                              source, content

It shares torch's threads, so the two never wait for each other. Without a compiler, or with REGARD_NATIVE=0, there is
no library, and torch does the work; the same on systems other than Linux, which can not load a file by descriptor.

To load a library is to run it. A name may lead elsewhere between a check and its use, a descriptor may not: the folder
and the file are opened once, without following links, checked by what was opened, and loaded by that descriptor. The
sha256 in the name tells a torn or changed file, which is built again.
"""

import ctypes
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch  # noqa: F401  its OpenMP must be there first

from regard.data.store import place

LARGEST = 1 << 26  # bytes: a file that is larger is not this library
SOURCE = Path(__file__).with_name("panels.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared", "-nostartfiles")
WIDE = ("-mprefer-vector-width=512",)  # x86 compilers shy away from the widest vectors unless told
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


FOUND: list[Any] = []  # the library, or None, once somebody has asked for it


def library() -> Any:
    """The loaded library, or None where there can be none."""
    if not FOUND:
        FOUND.append(loaded())
    return FOUND[0]


def ready() -> bool:
    """Whether it was asked for, and is there."""
    return bool(FOUND) and FOUND[0] is not None


def loaded() -> Any:
    if os.environ.get("REGARD_NATIVE") == "0" or sys.platform != "linux":
        return None
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    threads, compiler = openmp(), next((found for name in wanted if (found := shutil.which(name))), None)
    if threads is None or compiler is None:
        return None
    compiler = os.path.abspath(compiler)
    try:
        ctypes.CDLL(threads, mode=ctypes.RTLD_GLOBAL)
        made = open_library(compiler)
    except NotOurs as problem:
        warnings.warn(f"{problem}; torch does the work of the library in C", stacklevel=4)
        return None
    except (OSError, subprocess.SubprocessError):  # a folder that cannot be written, a compiler that cannot
        return None
    for name, kinds in SHAPES.items():
        function = getattr(made, name)
        function.argtypes, function.restype = kinds, NUMBER if name in ("halves", "side") else None
    return made


def openmp() -> str | None:
    """The file of the OpenMP that torch has loaded, if it is GNU's."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"(/\S*libgomp\S*)", maps)
    return found[1] if found else None


class NotOurs(PermissionError):
    """A folder in which others could put a library of theirs."""


def open_library(compiler: str) -> Any:
    """Load the library by its descriptor, which stays open: the loader knows a library by the name it was opened by."""
    folder = open_folder(place(None) / "native")
    try:
        made = load_descriptor(built(folder, compiler))
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
    """A descriptor of the folder, made unless it is there, that only we may write to: no link, and not another's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as problem:
        if problem.errno not in (errno.ELOOP, errno.ENOTDIR):  # what O_NOFOLLOW says of a link
            raise
        raise NotOurs(f"{path}: a link or a file, where what is loaded must be in a folder of our own") from None
    about = os.fstat(folder)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        os.close(folder)
        raise NotOurs(f"{path}: others may write here, and what is loaded must be ours alone; chmod 700 it")
    return folder


def built(folder: int, compiler: str) -> int:
    """A descriptor of the library's file in the folder, made unless it is there and whole.

    Its name says for which source, compiler and processor it is, and the sha256 of its content.
    """
    flags = (*FLAGS, *(WIDE if platform.machine() == "x86_64" else ()))
    told = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    key = hashlib.sha256(b"\0".join([SOURCE.read_bytes(), told, " ".join(flags).encode(), processor()])).hexdigest()
    for name in sorted(os.listdir(folder)):
        if name.startswith(f"panels-{key[:16]}"):
            library = open_whole(folder, name)
            if library is not None:
                return library
            with suppress(OSError):  # torn, changed, or never ours: no reason to look at it again
                os.unlink(name, dir_fd=folder)
    return compile_into(folder, f"panels-{key[:16]}", [compiler, *flags])


def open_whole(folder: int, name: str) -> int | None:
    """A descriptor of a file in the folder, if it is ours, a plain file, and has the content that its name says."""
    try:
        library = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)  # never wait for a pipe
    except OSError:
        return None
    about = os.fstat(library)
    ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    if ours and about.st_size <= LARGEST and name.endswith(f"-{digest(library)}.so"):
        return library
    os.close(library)
    return None


def digest(library: int) -> str:
    with open(library, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_into(folder: int, name: str, words: list[str]) -> int:
    """Compile the source in a folder of its own inside the folder, and move the library out of it, synced and whole.

    The compiler stands in that folder by its descriptor: a path to it could lead elsewhere by now.
    """
    aside = f"aside-{secrets.token_hex(8)}"
    os.mkdir(aside, 0o700, dir_fd=folder)
    desk = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        # -nodefaultlibs: OpenMP is torch's own, found when the library is loaded
        words = [*words, "-o", "panels.so", str(SOURCE.resolve()), "-lm", "-nodefaultlibs"]
        subprocess.run(words, cwd=f"/proc/{os.getpid()}/fd/{desk}", capture_output=True, check=True, timeout=120)
        library = os.open("panels.so", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=desk)
        os.fchmod(library, 0o700)
        os.fsync(library)
        os.rename("panels.so", f"{name}-{digest(library)}.so", src_dir_fd=desk, dst_dir_fd=folder)
        os.fsync(folder)
    finally:
        with suppress(OSError):
            os.unlink("panels.so", dir_fd=desk)
        os.close(desk)
        os.rmdir(aside, dir_fd=folder)
    return library


def processor() -> bytes:
    """What this processor can do: a folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return next((line for line in lines if line.lower().startswith((b"flags", b"features"))), b"")
