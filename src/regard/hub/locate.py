"""Locating a model: a run, checkpoint, folder or hub id to a local folder, downloaded where needed.

    regard.load("org/name")      regard.load("org/name@v1.2")      regard.load("hf:gpt2")
    regard.load("runs/lab")      regard.load("runs/lab@128")

A run stands for its newest complete checkpoint, and @128 for its snapshot or checkpoint of that step. Local paths come
before hub ids, and what looks like a local path is never requested from the hub. `huggingface_hub` keeps the cache and
honours HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. A download consists of the weights in safetensors, in one format, and the
small files beside them; never code or pickles.
"""

import glob
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.config.errors import DataError, did_you_mean, name_some
from regard.files.atomic import restore_folder
from regard.files.manifest import verify_manifest
from regard.hub.weights import WEIGHTS_FILE, WEIGHTS_INDEX, shard_names

STEP_PATTERN = re.compile(r"step-(\d+)")


def find_folder(path: Path) -> Path:
    """The folder with the model files: a run stands for its newest checkpoint, or for its best one if it keeps that."""
    with suppress(OSError):
        restore_folder(Path(os.path.abspath(path)))
    if path.is_file():
        raise DataError(f"{path}: a file; name the folder it is in")
    if not path.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.glob("*") if each.is_dir()))
        hub = f", or {HUB_ID_PREFIX}{path} for a model of the hub" if REPO_ID.fullmatch(str(path)) else ""
        raise DataError(f"{path}: no such folder{near} name a run, a checkpoint or a Hugging Face folder{hub}")
    if (path / "config.json").is_file():
        return path
    if (path / "checkpoints").is_dir() or (path / "config.toml").is_file():
        return default_checkpoint(path)
    there = name_some(sorted(each.name for each in path.iterdir())) or "nothing"
    raise DataError(f"{path}: holds {there}; expected config.json and {WEIGHTS_FILE}, or a run with checkpoints")


def weight_files(folder: Path) -> set[str]:
    """The names of the weight files."""
    if (folder / WEIGHTS_FILE).is_file():
        return {WEIGHTS_FILE}
    if (folder / WEIGHTS_INDEX).is_file():
        return {WEIGHTS_INDEX, *shard_names(folder)}
    pickles = sorted(each.name for each in folder.iterdir() if each.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickles:
        raise DataError(
            f"{folder}: {name_some(pickles)} may run code when it is opened, so it is not; if you trust it, convert it "
            "with "
            f"transformers: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(another) writes {WEIGHTS_FILE}"
        )  # fmt: skip
    raise DataError(f"{folder}: there is no {WEIGHTS_FILE}; fetch or write the folder again")


# ---------------------------------------------------------------- runs


def list_checkpoints(run: str | Path) -> list[Path]:
    """The checkpoints of a run, oldest first, complete or not."""
    return list_step_folders(Path(run) / "checkpoints")


def list_snapshots(run: str | Path) -> list[Path]:
    """The snapshots of a run (train.snapshots), oldest first."""
    return list_step_folders(Path(run) / "snapshots")


def list_step_folders(parent: Path) -> list[Path]:
    return sorted((each for each in parent.glob("step-*") if STEP_PATTERN.fullmatch(each.name)), key=folder_step)


def folder_step(folder: Path) -> int:
    """The training step of a folder."""
    return int(folder.name.removeprefix("step-"))


def parse_step_address(text: str) -> tuple[Path, int] | None:
    """Run and step of an address such as "runs/lab@128"; None for any other text."""
    run, at, step = text.rpartition("@")
    known = at and re.fullmatch(r"[0-9]+", step) and (Path(run) / "config.toml").is_file() and not Path(text).exists()
    return (Path(run), int(step)) if known else None


def find_step_folder(run: Path, step: int) -> Path:
    """The snapshot or checkpoint of one step of a run."""
    there = {folder_step(each): each for each in (*list_checkpoints(run), *list_snapshots(run))}
    if step in there:
        return there[step]
    steps = name_some([f"{each:,}" for each in sorted(there)], 20) or "none"
    raise DataError(f"{run}@{step}: step {step:,} is not saved, only {steps}; name one of these, or train with "
                    "train.snapshots")  # fmt: skip


def default_checkpoint(run: str | Path) -> Path:
    """The checkpoint that a run stands for: the best one, where train.keep_best keeps it and it is complete, or the
    newest."""
    link = Path(run) / "best"
    if not link.is_symlink():
        return newest_checkpoint(run)
    folder = Path(run) / "checkpoints" / Path(os.readlink(link)).name
    if not STEP_PATTERN.fullmatch(folder.name) or not folder.is_dir() or not link.is_dir() or not link.samefile(folder):
        return newest_checkpoint(run)
    if wrong := verify_manifest(folder):
        warnings.warn(f"{wrong}; so the best checkpoint is not used, but the newest", stacklevel=2)
        return newest_checkpoint(run)
    return folder


def newest_checkpoint(run: str | Path) -> Path:
    """The newest complete checkpoint of a run; damaged ones are skipped with a warning."""
    damaged: list[str] = []
    for folder in reversed(list_checkpoints(run)):
        if wrong := verify_manifest(folder):
            damaged.append(wrong)
            continue
        if damaged:
            warnings.warn(f"{damaged[0]}; {folder.name} is used in its place", stacklevel=2)
        return folder
    reason = f"all checkpoints are damaged: {damaged[0]}" if damaged else "there is no checkpoint yet"
    raise DataError(f"{Path(run) / 'checkpoints'}: {reason}; train it again in another folder, or name another run")


HUB_ID_PREFIX = "hf:"
REPO_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*", re.ASCII)
BESIDE = re.compile(  # 1_Pooling/config.json counts as well
    r"(?:\d+_\w+/)?[^/]+\.(?:json|txt|model|spm|jinja)|README\.md|(?:LICEN[CS]E|NOTICE|USE_POLICY)(?:[._-][\w.-]*)?"
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")


def locate_model(path: str | Path) -> Path:
    """The folder of a path, a step of a run or a hub id, which is downloaded."""
    if (step := parse_step_address(str(path))) is not None:
        return find_step_folder(*step)
    asked = parse_repo_id(str(path))
    return Path(path) if asked is None else download_model(*asked)


def parse_repo_id(text: str) -> tuple[str, str | None] | None:
    """Repository and revision of a hub id; None for a local path."""
    path, (name, _, revision) = Path(text), text.removeprefix(HUB_ID_PREFIX).partition("@")
    if path.exists():
        return None
    if text.startswith(HUB_ID_PREFIX):
        if not REPO_ID.fullmatch(name):
            raise DataError(
                f"{text}: not the id of a model on the hub; write {HUB_ID_PREFIX}owner/name or owner/name@v1"
            )
        return name, revision or None
    here = path.parent.exists() or text.startswith((".", "/", "~"))
    return None if here or name.count("/") != 1 or not REPO_ID.fullmatch(name) else (name, revision or None)


def download_model(name: str, revision: str | None = None) -> Path:
    """Download a model, except for files in the cache; returns its folder."""
    from huggingface_hub import HfApi, errors, snapshot_download

    with hub_errors(name, revision):
        try:
            found = HfApi().model_info(name, revision=revision)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except connection_errors():  # offline: use the cache
            kept = snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=["config.json"])
            return Path(kept)
        files = sorted(each.rfilename for each in found.siblings or ())
        wanted = [file for file in files if BESIDE.fullmatch(file)] + choose_weight_files(name, revision, files)
        return Path(snapshot_download(name, revision=revision, allow_patterns=[glob.escape(file) for file in wanted]))


def choose_weight_files(name: str, revision: str | None, files: list[str]) -> list[str]:
    """The weight files of a repository; of several formats only one."""
    from huggingface_hub import hf_hub_download

    if WEIGHTS_FILE in files:
        return [WEIGHTS_FILE]
    if WEIGHTS_INDEX in files:
        named = shard_names(Path(hf_hub_download(name, WEIGHTS_INDEX, revision=revision)).parent, there=False)
        return [WEIGHTS_INDEX, *named]
    if old := [file for file in files if file.endswith(PICKLES)]:
        raise DataError(f"{name}: the hub has it only as {name_some(old)}, which may run code when it is opened, so it "
                        "is "
                        f"not fetched; convert it at huggingface.co/spaces/safetensors/convert, or, if you trust it, "
                        f"with transformers: from_pretrained({name!r}).save_pretrained(folder)")  # fmt: skip
    raise DataError(
        f"{name}: the hub has no {WEIGHTS_FILE} there, only {name_some(files) or 'nothing'}; name another model"
    )


@contextmanager
def hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Report errors of the hub in one sentence."""
    from huggingface_hub import constants, errors

    said, page = f"{name}@{revision}" if revision else name, f"https://huggingface.co/{name}"
    try:
        yield
    except errors.GatedRepoError:
        told = f"its owners ask for consent: give it at {page}, then log in with `hf auth login` or set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        told = ("no such folder here and no such model on the hub; if it is a private one, log in with `hf auth login` "
                "or set HF_TOKEN")  # fmt: skip
    except errors.RevisionNotFoundError:
        told = f"the model has no revision {revision!r}; {page}/tree/main lists them"
    except errors.LocalEntryNotFoundError:
        why = ("HF_HUB_OFFLINE is set; unset it once to fetch the model" if constants.HF_HUB_OFFLINE else
               "the hub cannot be reached; check the network, or name a folder here")  # fmt: skip
        told = f"not in the cache ({constants.HF_HUB_CACHE}), and {why}"
    except errors.HFValidationError:
        told = "not the id of a model on the hub; write owner/name"
    except connection_errors() as problem:
        told = f"the hub cannot be reached ({short_reason(problem)}); try again, or name a folder here"
    else:
        return
    raise DataError(f"{said}: {told}")


def connection_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a failed connection or an HTTP error status, for every version of the hub client."""
    from huggingface_hub import errors

    return errors.HfHubHTTPError.__mro__[1], errors.OfflineModeIsEnabled, ConnectionError, TimeoutError


def short_reason(problem: Any) -> str:
    """A short reason: the HTTP status, or the name of the exception."""
    number = getattr(getattr(problem, "response", None), "status_code", None)
    return f"it answers {number}" if number else type(problem).__name__
