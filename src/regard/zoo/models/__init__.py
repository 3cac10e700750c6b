"""Models that come with the package, ready to be asked: folders as `save` writes them, by their names."""

from importlib.resources import files
from pathlib import Path

TRANSLATOR = "en-fr"


def packaged(name: str | Path) -> Path | None:
    """The folder of a model that comes with the package; what stands under that name on the disk goes before it."""
    if Path(name).exists() or str(name) not in names():
        return None
    return home() / str(name)


def names() -> list[str]:
    return sorted(each.name for each in home().iterdir() if (each / "config.json").is_file())


def home() -> Path:
    return Path(str(files(__package__)))
