"""Models that come with the package, ready to be asked: folders as `save` writes them, by their names."""

from importlib.resources import files
from pathlib import Path

TRANSLATOR = "en-fr"


def packaged(name: str | Path) -> Path | None:
    """The folder of a model that comes with the package; a model or a run of that name on the disk goes before it."""
    mine = any((Path(name) / inner).exists() for inner in ("config.json", "config.toml", "checkpoints"))
    return home() / str(name) if not mine and str(name) in names() else None


def names() -> list[str]:
    return sorted(each.name for each in home().iterdir() if (each / "config.json").is_file())


def home() -> Path:
    return Path(str(files(__package__)))
