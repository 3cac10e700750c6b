"""Where a model's files are: in a folder of its own, or in the newest whole checkpoint of a run."""

import os
import re
import warnings
from contextlib import suppress
from pathlib import Path

from regard.config import DataError
from regard.config.names import did_you_mean
from regard.hub.fetch import NAME, PREFIX
from regard.hub.manifest import verify
from regard.hub.weights import MANY, ONE, few, shards
from regard.hub.whole import mend

STEP = re.compile(r"step-(\d+)")


def found(path: Path) -> Path:
    """The folder with the files: a run stands for its newest checkpoint, or for its best one if it keeps that."""
    with suppress(OSError):
        mend(Path(os.path.abspath(path)))
    if path.is_file():
        raise DataError(f"{path}: a file; name the folder it is in")
    if not path.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.glob("*") if each.is_dir()))
        hub = f", or {PREFIX}{path} for a model of the hub" if NAME.fullmatch(str(path)) else ""
        raise DataError(f"{path}: no such folder{near} name a run, a checkpoint or a Hugging Face folder{hub}")
    if (path / "config.json").is_file():
        return path
    if (path / "checkpoints").is_dir() or (path / "config.toml").is_file():
        return kept(path)
    there = few([each.name for each in path.iterdir()]) or "nothing"
    raise DataError(f"{path}: holds {there}; expected config.json and {ONE}, or a run with checkpoints")


def weights(folder: Path) -> set[str]:
    """The files that hold the weights."""
    if (folder / ONE).is_file():
        return {ONE}
    if (folder / MANY).is_file():
        return {MANY, *shards(folder)}
    pickles = [each.name for each in folder.iterdir() if each.suffix in (".bin", ".pt", ".pth", ".ckpt")]
    if pickles:
        raise DataError(
            f"{folder}: {few(pickles)} may run code when it is opened, so it is not; if you trust it, convert it with "
            f"transformers: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(another) writes {ONE}"
        )
    raise DataError(f"{folder}: there is no {ONE}; fetch or write the folder again")


# ---------------------------------------------------------------- runs


def steps(run: str | Path) -> list[Path]:
    """The checkpoints of a run, oldest first, whole or not."""
    folders = [each for each in (Path(run) / "checkpoints").glob("step-*") if STEP.fullmatch(each.name)]
    return sorted(folders, key=lambda each: int(each.name.removeprefix("step-")))


def kept(run: str | Path) -> Path:
    """The checkpoint that a run stands for: the best one, where train.best keeps it and it is whole, or the newest."""
    link = Path(run) / "best"
    if not link.is_symlink():
        return newest(run)
    folder = Path(run) / "checkpoints" / Path(os.readlink(link)).name
    if not STEP.fullmatch(folder.name) or not folder.is_dir() or not link.is_dir() or not link.samefile(folder):
        return newest(run)
    if wrong := verify(folder):
        warnings.warn(f"{wrong}; so the best checkpoint is not used, but the newest", stacklevel=2)
        return newest(run)
    return folder


def newest(run: str | Path) -> Path:
    """The newest whole checkpoint of a run; a damaged one is reported and passed over."""
    damaged: list[str] = []
    for folder in reversed(steps(run)):
        if wrong := verify(folder):
            damaged.append(wrong)
            continue
        if damaged:
            warnings.warn(f"{damaged[0]}; {folder.name} is used in its place", stacklevel=2)
        return folder
    reason = f"no checkpoint is whole: {damaged[0]}" if damaged else "there is no checkpoint yet"
    raise DataError(f"{Path(run) / 'checkpoints'}: {reason}; train it again in another folder, or name another run")
