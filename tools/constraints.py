"""Is what is installed what constraints.txt says? `python tools/constraints.py`, as `make audit` does.

Versions are compared and not hashes: one constraints.txt is for every system, and torch alone has another file, with
another hash, for each of its builds (+cpu, +cu130, macOS). Who needs hashes has them for one machine by
`pip hash` or `uv pip compile --generate-hashes`.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
BESIDE = {"regard", "pip", "setuptools", "wheel"}  # ours, and what a virtual environment begins with


def plain(name: str) -> str:
    """A name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_constraints(path: Path) -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf8").splitlines())
    return {plain(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def find_differences(constraints: dict[str, str], installed: dict[str, str]) -> list[str]:
    """A line for each package that is installed in another version than is said, or of which nothing is said."""
    found = []
    for name, version in sorted(installed.items()):
        said = constraints.get(name)
        if said is None:
            found.append(f"{name} {version} is installed, and constraints.txt does not name it")
        elif version.partition("+")[0] != said.partition("+")[0]:  # a build of the same version is that version
            found.append(f"{name} {version} is installed, where constraints.txt says {said}")
    return found


def main() -> int:
    installed = {plain(each.metadata["Name"]): each.version for each in distributions()}
    found = find_differences(read_constraints(CONSTRAINTS), {k: v for k, v in installed.items() if k not in BESIDE})
    print("\n".join(found) or "what is installed is what constraints.txt says")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
