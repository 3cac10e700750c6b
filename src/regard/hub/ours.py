"""A model in our own words, also where a family would have a class for it."""

from pathlib import Path
from typing import Any

from regard.hub.folder import sealed, write_files


def save_own(model: Any, path: Path) -> Path:
    """Save a model under our own model type, with our own names of tensors."""
    with sealed(path, model, model.tokenizer, model.target_tokenizer) as folder:
        write_files(folder, model, model.tokenizer, model.context, model.target_tokenizer, model.begin, model.task,
                    model.origin, ours=True)  # fmt: skip
    return path
