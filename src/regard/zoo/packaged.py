"""Packaged models: trained models that come with the package, by name; folders as `save` writes them."""

from importlib.resources import files
from pathlib import Path

DEFAULT_TRANSLATOR = "en-fr"


def packaged_model(name: str | Path) -> Path | None:
    """The folder of a model that comes with the package; a model or a run of that name on the disk goes before it."""
    mine = any((Path(name) / inner).exists() for inner in ("config.json", "config.toml", "checkpoints"))
    return packaged_dir() / str(name) if not mine and str(name) in packaged_names() else None


def packaged_names() -> list[str]:
    return sorted(each.name for each in packaged_dir().iterdir() if (each / "config.json").is_file())


def packaged_dir() -> Path:
    return Path(str(files(__package__).joinpath("models")))
