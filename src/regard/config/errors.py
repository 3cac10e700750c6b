"""User errors: errors that a user can correct, each in one sentence; the command line turns them into exit codes.

    UserError
      ConfigError   2   a setting or an argument is wrong (also a ValueError)
      DataError     3   a text, a tokenizer or a checkpoint cannot be used (also a ValueError)
      RunError      1   the run itself failed, its state is saved (also a RuntimeError)

Any other exception is a bug in the library, and is reported as one: a plain ValueError too.
"""

import errno
import re
import shutil
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class UserError(Exception):
    """An error that the user can correct; the message is one sentence that says how."""


class ConfigError(UserError, ValueError):
    """A setting or an argument that cannot be used."""


class DataError(UserError, ValueError):
    """A file or folder with wrong contents."""


class RunError(UserError, RuntimeError):
    """A run that could not continue."""


def unwritable_error(path: object, problem: OSError) -> RunError:
    """The error for a path that cannot be written."""
    reason = (problem.strerror or str(problem)).lower()
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += f", {free_disk_bytes(Path(str(path))) / 1e6:,.1f} MB are free"
    return RunError(f"{path}: cannot be written ({reason}); free some space or choose another folder")


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk of a path, which need not exist."""
    there = next((place for place in (path, *path.absolute().parents) if place.exists()), Path("/"))
    return shutil.disk_usage(there).free


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an exception means lack of memory, on the GPU or the CPU; recognised without importing torch."""
    named = isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError"
    return named or (isinstance(problem, RuntimeError) and "can't allocate memory" in str(problem))


LONGEST = 64  # longest name to compare: the time grows with its length


def did_you_mean(name: str, table: Iterable[str]) -> str:
    """The clause "; did you mean 'causal'?", or ";" if no name in the table is similar."""
    if len(name) > LONGEST:
        return ";"
    known = {each.lower(): each for each in table}  # ignore case
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {known[near[0]]!r}?" if near else ";"


def name_some(names: Iterable[object], most: int = 3) -> str:
    """The first few of many names: "a, b, c and 5 more"."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(str(name)[:99] for name in listed[:most]) + more


def parse_call(text: str) -> tuple[str, tuple[int, ...]]:
    """A name and its integer arguments: "topk(32)" is ("topk", (32,)), "auto" is ("auto", ())."""
    found = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\))?\s*", text, re.ASCII)
    if found is None:
        raise ConfigError(f"{text!r} is not a name, alone or with whole numbers such as topk(32)")
    return found[1], tuple(int(number) for number in (found[2] or "").split(",") if number)
