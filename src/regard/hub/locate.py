"""Models of the hub: an id becomes a folder of the cache, fetched if it is not there yet.

    regard.load("org/name")      regard.load("org/name@v1.2")      regard.load("hf:gpt2")

What is on the disk goes before it, and what looks like a place on the disk is never asked for elsewhere. The library
`huggingface_hub` keeps the cache and heeds HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. Of a repository come the weights in
safetensors, once, and the small files beside them; never code, and nothing that could run when it is opened.
"""

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.config import DataError
from regard.hub.weights import MANY, ONE, few, shards

PREFIX = "hf:"
NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*", re.ASCII)
BESIDE = re.compile(  # 1_Pooling/config.json is beside them too
    r"(?:\d+_\w+/)?[^/]+\.(?:json|txt|model|spm|jinja)|README\.md|(?:LICEN[CS]E|NOTICE|USE_POLICY)(?:[._-][\w.-]*)?"
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")


def located(path: str | Path) -> Path:
    """The folder that a path or an id means; an id is fetched."""
    asked = hub_id(str(path))
    return Path(path) if asked is None else fetched(*asked)


def hub_id(text: str) -> tuple[str, str | None] | None:
    """The repository and the revision that a text means; None where it means a place on the disk."""
    path, (name, _, revision) = Path(text), text.removeprefix(PREFIX).partition("@")
    if path.exists():
        return None
    if text.startswith(PREFIX):
        if not NAME.fullmatch(name):
            raise DataError(f"{text}: not the id of a model on the hub; write {PREFIX}owner/name or owner/name@v1")
        return name, revision or None
    here = path.parent.exists() or text.startswith((".", "/", "~"))
    return None if here or name.count("/") != 1 or not NAME.fullmatch(name) else (name, revision or None)


def fetched(name: str, revision: str | None = None) -> Path:
    """The folder of a model in the cache, after what it lacks has come from the hub."""
    from huggingface_hub import HfApi, errors, snapshot_download

    with plainly(name, revision):
        try:
            found = HfApi().model_info(name, revision=revision)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except unreachable():  # what was fetched before is still there
            kept = snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=["config.json"])
            return Path(kept)
        files = [each.rfilename for each in found.siblings or ()]
        wanted = [file for file in files if BESIDE.fullmatch(file)] + chosen(name, revision, files)
        return Path(snapshot_download(name, revision=revision, allow_patterns=[glob.escape(file) for file in wanted]))


def chosen(name: str, revision: str | None, files: list[str]) -> list[str]:
    """The files of the weights; of a repository that has them in several forms those of one."""
    from huggingface_hub import hf_hub_download

    if ONE in files:
        return [ONE]
    if MANY in files:
        named = shards(Path(hf_hub_download(name, MANY, revision=revision)).parent, there=False)
        return [MANY, *named]
    if old := [file for file in files if file.endswith(PICKLES)]:
        raise DataError(f"{name}: the hub has it only as {few(old)}, which may run code when it is opened, so it is "
                        f"not fetched; convert it at huggingface.co/spaces/safetensors/convert, or, if you trust it, "
                        f"with transformers: from_pretrained({name!r}).save_pretrained(folder)")  # fmt: skip
    raise DataError(f"{name}: the hub has no {ONE} there, only {few(files) or 'nothing'}; name another model")


@contextmanager
def plainly(name: str, revision: str | None) -> Iterator[None]:
    """What the hub answers, in one sentence."""
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
    except unreachable() as problem:
        told = f"the hub cannot be reached ({reason(problem)}); try again, or name a folder here"
    else:
        return
    raise DataError(f"{said}: {told}")


def unreachable() -> tuple[type[Exception], ...]:
    """What is raised where the hub does not answer, or with a number; by whatever library it is asked with."""
    from huggingface_hub import errors

    return errors.HfHubHTTPError.__mro__[1], errors.OfflineModeIsEnabled, ConnectionError, TimeoutError


def reason(problem: Any) -> str:
    """A few words: the number of the answer, or the name of what went wrong."""
    number = getattr(getattr(problem, "response", None), "status_code", None)
    return f"it answers {number}" if number else type(problem).__name__
