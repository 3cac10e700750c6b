"""Path checks: which of the names that a user or a folder gives may be opened at all.

A folder may come from anywhere, and a link in it may point anywhere: at a password file, a device, a pipe that never
ends. A link is followed inside its folder, and inside the cache of the hub, whose folders are all links:

    models--org--name/snapshots/3f9c.../model.safetensors  ->  models--org--name/blobs/a81b...
"""

import stat
from pathlib import Path

from regard.config.errors import DataError


def check_regular_file(path: Path, remedy: str = "name a file") -> None:
    """Refuse pipes, devices and sockets: to open one may wait forever, and to read one may never end.

    What is not there at all is left to the caller that opens it.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(f"{path}: not a regular file; {remedy}")


def check_inside(path: Path, folder: Path) -> Path:
    """Refuse a link that leads out of a folder; returns where it leads."""
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as problem:  # also a circle of links, and a name that cannot be one
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{path}: {reason.lower()}; fetch or write the folder again") from None
    if not real.is_relative_to(home) and not real.is_relative_to(hub_blobs(home)):
        raise DataError(f"{path}: a link that leads out of the folder, to {real}; put the file itself there")
    return real


def hub_blobs(home: Path) -> Path:
    """Where the links of a folder may lead: for a snapshot of the hub all that is kept of its model."""
    of = home.parent.parent
    return of / "blobs" if home.parent.name == "snapshots" and of.name.startswith("models--") else home
