"""Store: files named by what they are made from, so that none is ever out of date, and written whole or not at all.

A file that is being written is locked. A lock dies with its writer: what a killed one left is known by that, and swept.
"""

import fcntl
import hashlib
import json
import os
import secrets
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

STALE = 24 * 3600.0  # seconds after which a half-written file belongs to nobody, where there are no locks


def place(cache: str | Path | None) -> Path:
    """The folder to keep things in: the given one, $REGARD_CACHE, or `regard` in $XDG_CACHE_HOME or ~/.cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "regard"
    return Path(cache or os.environ.get("REGARD_CACHE") or usual).expanduser()


def key(about: Any) -> str:
    """A name made of what something is made from."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def put(path: Path, parts: "Iterable[bytes | array[int]]") -> None:
    """Writes a file whole, or not at all."""
    with writing(path) as file:
        for part in parts:
            file.write(part)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file written aside, synced, and renamed at the end: at any moment there is the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    with beside(path) as file:
        aside = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            with suppress(OSError):  # then it is swept one day
                aside.unlink(missing_ok=True)
            raise


def beside(path: Path) -> IO[bytes]:
    """A new file next to another, locked as long as it is open."""
    while True:
        file = path.with_name(f".{path.name[:16]}.{secrets.token_hex(4)}.part").open("xb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # nobody swept it before it was locked
            return file
        file.close()


def sweep(folder: Path) -> None:
    """Removes what a killed run left half-written."""
    for path in folder.glob("*.part"):
        with suppress(OSError), path.open("rb") as file:
            dead = unlocked(file) and path.name.startswith(".")  # `beside` made it, and who asked for it is dead
            # removed with the lock in hand: whoever is about to lock it waits, and then sees that it is gone
            if dead or time.time() - path.stat().st_mtime > STALE:
                path.unlink()


def unlocked(file: IO[bytes]) -> bool:
    """Whether nobody has the file locked; then we do."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def get(path: Path) -> Any:
    """The JSON in a file, None where there is none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
