"""Files of a folder: what a name in it may lead to.

A folder may come from anywhere, and a link in it may point anywhere: at a password file, a device, a pipe that never
ends. A link is followed inside its folder, and inside the cache of the hub, whose folders are all links:

    models--org--name/snapshots/3f9c.../model.safetensors  ->  models--org--name/blobs/a81b...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.config import DataError

LARGEST = 64 << 20  # bytes: no settings are longer
LONGEST = 1500  # characters of a sentence


@contextmanager
def shortly() -> Iterator[None]:
    """What a file says is told in a sentence, and a value in it may be as long as the file."""
    try:
        yield
    except DataError as problem:
        if len(told := str(problem)) <= LONGEST:
            raise
        raise DataError(f"{told[: LONGEST - 300]} … {told[-200:]}") from None


def own(folder: Path, name: str, largest: int | None = LARGEST) -> Path:
    """The path of a file in a folder, if it is a file and the folder's own."""
    path = folder / name
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as problem:  # also a circle of links, and a name that cannot be one
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{path}: {reason.lower()}; fetch or write the folder again") from None
    if not real.is_relative_to(home) and not real.is_relative_to(cache(home)):
        raise DataError(f"{path}: a link that leads out of the folder, to {real}; put the file itself there")
    if not real.is_file():
        raise DataError(f"{path}: not a regular file; fetch or write the folder again")
    if largest is not None and (size := real.stat().st_size) > largest:
        raise DataError(f"{path}: {size:,} bytes are more than settings ever have; fetch or write the folder again")
    return path


def cache(home: Path) -> Path:
    """Where the links of a folder may lead: for a snapshot of the hub all that is kept of its model."""
    of = home.parent.parent
    return of / "blobs" if home.parent.name == "snapshots" and of.name.startswith("models--") else home
