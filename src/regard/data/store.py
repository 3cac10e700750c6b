"""Store: files named by what they are made from, so that none is ever out of date, and written whole or not at all."""

import hashlib
import json
import os
import secrets
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

STALE = 24 * 3600.0  # seconds after which a half-written file belongs to nobody


def place(cache: str | Path | None) -> Path:
    """The folder to keep things in: the given one, $REGARD_CACHE, or ~/.cache/regard."""
    return Path(cache or os.environ.get("REGARD_CACHE") or "~/.cache/regard").expanduser()


def key(about: Any) -> str:
    """A name made of what something is made from."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def put(path: Path, parts: "Iterable[bytes | array[int]]") -> None:
    """Writes a file aside, syncs it, and renames it: at any moment there is the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    aside = path.with_name(f".{path.name[:16]}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Removes what a killed run left half-written."""
    for path in folder.glob("*.part"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()


def get(path: Path) -> Any:
    """The JSON in a file, None where there is none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
