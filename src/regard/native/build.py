"""panels.c as a library: built by the machine's own compiler in a second, kept in the cache folder, loaded on demand.

    panels.c ── cc -O3 -march=native ──► $REGARD_CACHE/native/panels-3f9a….so ──► map_f32, ..., attend

It shares torch's threads, so the two never wait for each other. Without a compiler, or with REGARD_NATIVE=0, there is
no library, and torch does the work.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch  # noqa: F401  its OpenMP must be there first

from regard.data.store import place

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
    threads, compiler = openmp(), os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if threads is None or compiler is None:
        return None
    try:
        ctypes.CDLL(threads, mode=ctypes.RTLD_GLOBAL)
        made = ctypes.CDLL(str(built(compiler)))
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


def built(compiler: str) -> Path:
    """The library's file, made unless it is there; its name says for which source, compiler and processor."""
    folder = place(None) / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (about := folder.stat()).st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError(f"{folder}: others may write here; what is loaded must be ours alone")
    flags = (*FLAGS, *(WIDE if platform.machine() == "x86_64" else ()))
    told = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    key = hashlib.sha256(b"\0".join([SOURCE.read_bytes(), told, " ".join(flags).encode(), processor()])).hexdigest()
    path = folder / f"panels-{key[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as desk:
            fresh = Path(desk) / "panels.so"
            words = [compiler, *flags, "-o", str(fresh), str(SOURCE), "-lm"]
            # -nodefaultlibs: OpenMP is torch's own, found when the library is loaded
            subprocess.run([*words, "-nodefaultlibs"], capture_output=True, check=True, timeout=120)
            os.replace(fresh, path)
    return path


def processor() -> bytes:
    """What this processor can do: a folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return next((line for line in lines if line.lower().startswith((b"flags", b"features"))), b"")
