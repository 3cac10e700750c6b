"""A kernel of your own: a Python file that enters it in the table as ours do, with @kernel("mine") above a function."""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from regard.config import DataError
from regard.core.kernels import KERNELS


def entered(path: Path) -> list[str]:
    """The names of the kernels that a file enters. It is run, as any Python file is: give only what you trust."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; name a Python file that enters a kernel")
    before = dict(KERNELS)
    spec = spec_from_file_location(f"yours_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: this is no Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and inspect look for it
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        told = f"{place(problem, path)}{type(problem).__name__}: {problem}"
        raise DataError(f"{path}: {told}; mend it first") from problem
    names = [name for name, one in KERNELS.items() if before.get(name) is not one]
    if not names:
        raise DataError(f'{path}: it enters no kernel; write @kernel("name") above a function (regard.core.kernels)')
    return names


def place(problem: Exception, path: Path) -> str:
    """The line of the file where it went wrong."""
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}: "
    lines = [each.lineno for each in traceback.extract_tb(problem.__traceback__) if each.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""
