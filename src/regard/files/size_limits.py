"""Size limits: the bytes that reading a file may take, known from its header before memory is allocated.

A file of one kilobyte can promise gigabytes: zeros that were compressed, a header that lies, one word ten million
times. Every reader adds up what a file promises and checks it here first.

    REGARD_MAX_BYTES=8G      what a file may become in memory; 512 MiB where nothing is set

A file that is large itself may always become four times its own size: it hides nothing.
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
    """The bytes that what is read from a file may take in memory."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    found = re.fullmatch(r"([0-9]{1,18})([KMGT]?)(i?B)?", text, re.IGNORECASE)
    if text and (found is None or not int(found[1])):
        raise ConfigError(f"{LIMIT_VARIABLE}: {text[:40]!r} in the environment is no size; write bytes, or as 8G")
    most = int(found[1]) << UNITS[found[2].upper()] if found else DEFAULT
    return most if path is None else max(most, FACTOR * stored_bytes(path))


def stored_bytes(path: Path) -> int:
    """How many bytes of a file stand on the disk: a file with holes is as long as its writer likes."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0
    return min(found.st_size, 512 * found.st_blocks)


def check_bytes(count: int, where: object, path: Path | None = None) -> None:
    """Refuse what would take so many bytes in memory, before it does; `path` is the file that it is read from."""
    if count > (most := max_bytes(path)):
        more = f"{LIMIT_VARIABLE}={-(-count >> 30)}G" if count < 1 << 50 else LIMIT_VARIABLE
        raise DataError(f"{where}: takes {format_bytes(count)} in memory by its header, and {format_bytes(most)} are "
                        f"the most; name a smaller file, or, if you trust this one, set {more} in the "
                        "environment")  # fmt: skip


def format_bytes(number: float) -> str:
    """Bytes for people, in powers of 1,024: 12 B, 2 KiB, 1.5 GiB."""
    if number >= 1 << 60:  # a header that lies may name a number that no float holds
        return "more than an EiB"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.{3 if number < 999.5 else 4}g} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
