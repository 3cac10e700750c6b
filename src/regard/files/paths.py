"""Path checks: which paths from a user or a folder may be opened.

A downloaded folder is untrusted, and a link in it may point anywhere: to a password file, a device, an endless pipe.
A link is followed only within its folder, and within the hub cache, whose folders consist of links:

    models--org--name/snapshots/3f9c.../model.safetensors  ->  models--org--name/blobs/a81b...
"""

import stat
from pathlib import Path

from regard.config.errors import DataError


def check_regular_file(path: Path, remedy: str = "name a file") -> None:
    """Refuse pipes, devices and sockets: opening one may block forever, and reading one may never end.

    Missing files are left to the caller that opens them.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(f"{path}: not a regular file; {remedy}")


def check_inside(path: Path, folder: Path) -> Path:
    """Refuse a link that leads out of a folder; returns its target."""
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as problem:  # also circular links and invalid names
        reason = getattr(problem, "strerror", None) or str(problem)
        raise DataError(f"{path}: {reason.lower()}; fetch or write the folder again") from None
    if not real.is_relative_to(home) and not real.is_relative_to(hub_blobs(home)):
        raise DataError(f"{path}: a link that leads out of the folder, to {real}; put the file itself there")
    return real


def hub_blobs(home: Path) -> Path:
    """The folder that links may lead to: for a hub snapshot the model's cache."""
    of = home.parent.parent
    return of / "blobs" if home.parent.name == "snapshots" and of.name.startswith("models--") else home
