"""Mistakes that a user can mend, each in one sentence; the command line turns them into exit codes.

ConfigError (2, in `reader`): a setting is wrong.  DataError (3): a text, a tokenizer or a checkpoint cannot be used.
RunError (1): the run itself failed, with what there is saved.
"""

import errno
import shutil
from pathlib import Path


class DataError(ValueError):
    """A file or folder that is not what it should be."""


class RunError(RuntimeError):
    """A run that could not go on."""


def unwritable(path: object, problem: OSError) -> RunError:
    """What to say where the system refuses to write."""
    reason = (problem.strerror or str(problem)).lower()
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += f", {free(Path(str(path))) / 1e6:,.1f} MB are free"
    return RunError(f"{path}: cannot be written ({reason}); free some space or choose another folder")


def free(path: Path) -> int:
    """Bytes that are left on the disk where a path is, or would be."""
    there = next((place for place in (path, *path.absolute().parents) if place.exists()), Path("/"))
    return shutil.disk_usage(there).free
