"""Packaged models: trained models in the package, by name; folders as `save` writes them."""

from importlib.resources import files
from pathlib import Path

DEFAULT_TRANSLATOR = "en-fr"


def packaged_model(name: str | Path) -> Path | None:
    """The folder of a packaged model; a model or run of that name on disk takes precedence."""
    mine = any((Path(name) / inner).exists() for inner in ("config.json", "config.toml", "checkpoints"))
    return packaged_dir() / str(name) if not mine and str(name) in packaged_names() else None


def packaged_names() -> list[str]:
    return sorted(each.name for each in packaged_dir().iterdir() if (each / "config.json").is_file())


def packaged_dir() -> Path:
    return Path(str(files(__package__).joinpath("models")))


def packaged_card(name: str) -> str:
    """The model card of a packaged model: what it is, how it was made and what it cannot do."""
    card = (packaged_dir() / name / "README.md").read_text(encoding="utf8")
    return card.split("\n---\n", 1)[1]  # after the table of keys


def packaged_title(name: str) -> str:
    """The headline of its card."""
    return next(line.removeprefix("# ") for line in packaged_card(name).splitlines() if line.startswith("# "))


def packaged_facts(name: str) -> dict[str, str]:
    """The table on the card: shape, data, parameters, size, figure, limits, recipe."""
    top = packaged_card(name).partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in top.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0]}
