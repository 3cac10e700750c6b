"""Cache directory, content keys, and JSON files read tolerantly or strictly.

A cached file is named by a hash of everything that it depends on, so it is never out of date.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from regard.config.errors import DataError
from regard.files.paths import check_regular_file


def cache_dir(cache: str | Path | None) -> Path:
    """The cache directory: the given one, $REGARD_CACHE, or `regard` in $XDG_CACHE_HOME or ~/.cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "regard"
    return Path(cache or os.environ.get("REGARD_CACHE") or usual).expanduser()


def content_key(about: Any) -> str:
    """A content key: a hash of everything that a file depends on."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def read_json_or_none(path: Path) -> Any:
    """The JSON in a file; None if it is missing or invalid."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


MAX_JSON_BYTES = 16 << 20  # largest JSON file


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    check_regular_file(path, "fetch or write the folder again")
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise DataError(f"{path}: {size:,} bytes are more than settings ever have; fetch or write the folder again")
        found = json.loads(path.read_bytes())
    except DataError:
        raise
    except OSError as problem:
        raise DataError(f"{path}: {(problem.strerror or str(problem)).lower()}") from None
    except (ValueError, RecursionError) as problem:
        reason = "nested too deeply" if isinstance(problem, RecursionError) else problem
        raise DataError(f"{path}: not valid JSON ({reason}); fetch or write the folder again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a table of settings, found {json.dumps(found)[:40]}; fetch it again")
    return found


def read_json_table(path: Path) -> dict[str, Any]:
    found = read_json_or_none(path)
    return found if isinstance(found, dict) else {}
