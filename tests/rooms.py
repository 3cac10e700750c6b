"""Which room imports which: the architecture, read from the imports themselves and held to its order.

A room is a folder or a file of src/regard. It may import itself and the rooms above it in ROOMS, never one below.
`python tests/rooms.py` draws the rooms and exits 1 when a line breaks a rule. Every import counts, also one inside a
function or under TYPE_CHECKING: a late import is still a need.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "regard"

ROOMS = (
    "config",
    "files",
    "core",
    "text",
    "data",
    "native",
    "gpu",
    "attention",
    "inputs",
    "models",
    "zoo",
    "hub",
    "measure",
    "lens",
    "tasks",
    "generation",
    "inference",
    "engine",
    "chat",
    "training",
    "evaluation",
    "doctor",
    "studies",
    "report",
    "web",
    "serve",
    "cli",
)
DOORS = ("__init__", "__main__")  # regard itself: it names what the rooms offer, so it may reach them all

# The rooms that are read in an hour need nothing else than this and the standard library.
ONLY = {"config": set(), "files": set(), "core": {"torch"}}

# Who alone may import a library. Nobody: it serves the tests.
OWNERS = {
    "tokenizers": {"text"},
    "jinja2": {"text"},
    "huggingface_hub": {"hub"},
    "safetensors": {"hub"},
    "gguf": {"hub"},
    "matplotlib": {"report"},
    "sacrebleu": {"evaluation"},
    "llguidance": {"generation"},
    "tensorboard": {"training"},
    "triton": {"gpu"},
    "fastapi": {"web", "serve"},
    "pydantic": {"web", "serve"},
    "pydantic_core": {"web", "serve"},
    "starlette": {"web", "serve"},
    "uvicorn": {"web", "serve"},
    "prometheus_client": {"web", "serve"},
    "transformers": {"hub"},  # regard check compares with it where it is installed
    "peft": set(),
    "hypothesis": set(),
    "pytest": set(),
    "sklearn": set(),
    "scipy": set(),
    "openai": set(),
    "schemathesis": set(),
}

# Code from data. `model.eval()` is another eval; `ast.literal_eval` reads values only.
CODE = {"eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "torch.save"}
PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def offences(package: Path) -> list[str]:
    """The lines that break a rule, as `file:line: what is wrong`."""
    found = []
    for path in files(package):
        tree, room = parse(path), room_of(path, package)
        if room not in (*ROOMS, *DOORS):
            found.append((path, 1, f"there is no room {room!r}; the rooms are {', '.join(ROOMS)}"))
            continue
        found += [(path, line, wrong) for name, line in imports(tree, path, package) if (wrong := refusal(room, name))]
        found += [(path, line, f"{name} runs or writes code as data") for name, line in code_from_data(tree)]
    return [f"{path.relative_to(package.parent)}:{line}: {wrong}" for path, line, wrong in sorted(set(found))]


def refusal(room: str, name: str) -> str | None:
    """Why `room` may not import `name` (None if it may)."""
    library, _, rest = name.partition(".")
    if library == "regard":
        return refusal_inside(room, rest.partition(".")[0])
    if library in PICKLES:
        return f"{library} executes what it reads"
    if library in ONLY.get(room, {library}) or library in sys.stdlib_module_names:
        return None if room in OWNERS.get(library, {room}) else owned(library, room)
    if library == "compression":  # a package of the standard library since Python 3.14
        return None
    return f"{room} imports {library}; it has only {' and '.join([*sorted(ONLY[room]), 'the standard library'])}"


def refusal_inside(room: str, other: str) -> str | None:
    if room in DOORS or other == room:
        return None
    if other not in ROOMS:
        return f"{room} imports regard.{other or '__init__'}, which is no room: import from the room that owns the name"
    if ROOMS.index(other) > ROOMS.index(room):
        return f"{room} imports {other}, which lies below it"
    if room == "core" and other != "config":
        return f"core imports {other}; it has only torch, the standard library and config"
    return None


def owned(library: str, room: str) -> str:
    owners = OWNERS[library]
    return f"{room} imports {library}; only {' and '.join(sorted(owners)) if owners else 'tests'} may"


def imports(tree: ast.AST, path: Path, package: Path) -> Iterator[tuple[str, int]]:
    """Every imported name in full, with its line: `from .masks import Mask` in core is `regard.core.masks.Mask`."""
    here = ("regard", *path.relative_to(package).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else ()
            start = [*above, *([node.module] if node.module else [])]
            yield from ((".".join([*start, alias.name]), node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield from ((str(word.value), node.lineno) for word in node.args[:1] if isinstance(word, ast.Constant))


def code_from_data(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Uses of eval, exec, torch.load, ..., also under another name (`from torch import load as read`)."""
    known = aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = dotted(node).partition(".")
            if (name := known.get(first, first) + dot + rest) in CODE:
                yield name, node.lineno
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle", node.value.lineno


def aliases(tree: ast.AST) -> dict[str, str]:
    """What the names that a file imports stand for: {"read": "torch.load"}."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return known


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text; a part that is not a name is `?`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def diagram(package: Path) -> str:
    """One line a room: how long it is, which rooms it uses, which libraries."""
    rows = [f"{'room':<10} {'lines':>6}  uses"]
    for room in (*ROOMS, *DOORS):
        if paths := [path for path in files(package) if room_of(path, package) == room]:
            lines = sum(len(path.read_text(encoding="utf8").splitlines()) for path in paths)
            rows.append(f"{room:<10} {lines:>6,}  {', '.join(uses(room, paths, package)) or '-'}")
    return "\n".join(rows)


def uses(room: str, paths: list[Path], package: Path) -> list[str]:
    """The rooms above that a room imports, in their order, then its libraries."""
    names = {name for path in paths for name, _ in imports(parse(path), path, package)}
    rooms = {name.split(".")[1] for name in names if name.startswith("regard.")} - {room}
    libraries = {name.split(".")[0] for name in names} - {"regard"} - sys.stdlib_module_names
    return [*(other for other in ROOMS if other in rooms), *sorted(libraries)]


def files(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """The syntax of a file, once for all tests that read sources; a file that is written anew is parsed anew."""
    return parse_version(path, path.stat().st_mtime_ns)


@cache
def parse_version(path: Path, written: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf8"))


def room_of(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def main(package: Path = PACKAGE) -> int:
    print(diagram(package))
    found = offences(package)
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
