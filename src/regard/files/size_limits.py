"""Size limits: the memory that reading a file may need, known from its header before it is allocated.

A file of one kilobyte can declare gigabytes: compressed zeros, a false header, one word ten million times. Every
reader computes the declared size and checks it here first.

    REGARD_MAX_BYTES=8G      limit of a file in memory; 512 MiB by default

A file may always expand to four times its own size on disk.
"""

import os
import re
from pathlib import Path

from regard.config.errors import ConfigError, DataError

LIMIT_VARIABLE = "REGARD_MAX_BYTES"
DEFAULT = 512 << 20
FACTOR = 4  # of a file's own size
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def max_bytes(path: Path | None = None) -> int:
    """The memory limit for the contents of a file."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    found = re.fullmatch(r"([0-9]{1,18})([KMGT]?)(i?B)?", text, re.IGNORECASE)
    if text and (found is None or not int(found[1])):
        raise ConfigError(f"{LIMIT_VARIABLE}: {text[:40]!r} in the environment is no size; write bytes, or as 8G")
    most = int(found[1]) << UNITS[found[2].upper()] if found else DEFAULT
    return most if path is None else max(most, FACTOR * stored_bytes(path))


def stored_bytes(path: Path) -> int:
    """The bytes that a file occupies on disk: a sparse file has any length."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0
    return min(found.st_size, 512 * found.st_blocks)


def check_bytes(count: int, where: object, path: Path | None = None) -> None:
    """Raise before an allocation of so many bytes, if they exceed the limit; `path` is the file being read."""
    if count > (most := max_bytes(path)):
        more = f"{LIMIT_VARIABLE}={-(-count >> 30)}G" if count < 1 << 50 else LIMIT_VARIABLE
        raise DataError(f"{where}: takes {format_bytes(count)} in memory by its header, and {format_bytes(most)} are "
                        f"the most; name a smaller file, or, if you trust this one, set {more} in the "
                        "environment")  # fmt: skip


def format_bytes(number: float) -> str:
    """Format bytes in powers of 1,024: 12 B, 2 KiB, 1.5 GiB."""
    if number >= 1 << 60:  # a false header may declare more than a float can hold
        return "more than an EiB"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.{3 if number < 999.5 else 4}g} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
