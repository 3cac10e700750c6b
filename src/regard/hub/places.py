"""Files of a folder: what a name in it may lead to (see `config.paths`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.config import DataError
from regard.config.paths import check_inside

LARGEST = 16 << 20  # bytes: no settings are longer, and lists in JSON take twenty times as much memory
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
    real = check_inside(path, folder)
    if not real.is_file():
        raise DataError(f"{path}: not a regular file; fetch or write the folder again")
    if largest is not None and (size := real.stat().st_size) > largest:
        raise DataError(f"{path}: {size:,} bytes are more than settings ever have; fetch or write the folder again")
    return path

