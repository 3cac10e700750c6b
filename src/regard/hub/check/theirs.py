"""The other library: `transformers`, imported here alone and only when somebody asks to be compared with it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from regard.config import ConfigError, DataError
from regard.hub.check.questions import Question
from regard.hub.families import kin
from regard.hub.families.near import why
from regard.hub.folder import Folder

# What a class of theirs answers with, by the first of the names that it has.
ANSWERS = (
    ("prediction_logits", "seq_relationship_logits", "sop_logits"), ("start_logits", "end_logits"),
    ("logits_per_image",), ("logits",), ("text_embeds",), ("image_embeds",), ("last_hidden_state", "pooler_output"),
)  # fmt: skip


def library() -> Any:
    if find_spec("transformers") is None:
        raise ConfigError("check: compares with `transformers`, which is not installed; pip install transformers")
    with quiet():
        found: Any = import_module("transformers")
        found.utils.logging.set_verbosity_error()
        found.utils.logging.disable_progress_bar()
    return found


def version() -> str:
    return str(library().__version__)


def class_of(found: Folder) -> Any:
    """Their class for what is in a folder."""
    name = found.architecture
    if found.path.is_file():
        raise DataError(f"{found.path}: one file, and folders are compared; `regard convert {found.path} FOLDER` makes "
                        "one")  # fmt: skip
    if name is None:
        if (known := kin(found.config)) is None:
            raise DataError(f"{found.path}: `transformers` has no class to compare it with ({why(found.config)})")
        raise DataError(f"{found.path}: in our own words, which `transformers` does not read; `regard convert "
                        f"{found.path} FOLDER` writes it as a {known.architecture}, which can be compared")  # fmt: skip
    with quiet():
        there = getattr(library(), name, None)
    if there is None:
        raise ConfigError(f"check: transformers {version()} has no class {name}; install a newer one")
    return there


def opened(found: Folder, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
    """Their model in a folder, with no code from anywhere else. What it has and the files have not is told."""
    kind = class_of(found)
    try:
        with quiet():
            model, report = kind.from_pretrained(
                str(found.path), dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as problem:
        first = str(problem).strip().split("\n")[0]
        raise DataError(f"{found.path}: `transformers` cannot open it ({first}); fetch or write it again") from None
    if lacking := sorted(report["missing_keys"]):
        warnings.warn(f"{found.path}: there is nothing for {', '.join(lacking[:3])}, and `transformers` makes it up; "
                      "what comes of it is not compared", stacklevel=2)  # fmt: skip
    return model.to(device).eval()


def answers(theirs: Any, asked: Question) -> list[Tensor]:
    """What theirs says, tensor by tensor, in the shapes of ours."""
    with quiet():
        told = theirs(**asked.theirs)
    names = next(names for names in ANSWERS if getattr(told, names[0], None) is not None)
    found = [getattr(told, name) for name in names if getattr(told, name, None) is not None]
    return [torch.stack(found, -1)] if names[0] == "start_logits" else found


@contextmanager
def quiet() -> Iterator[None]:
    """Their warnings are about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
