"""A model in a folder: config.json, model.safetensors, its tokenizer, and MANIFEST.json, which is written last.

A model of a family (GPT-2, Llama) is stored in that family's words, with our whole config under the key `regard`, so
`transformers` opens it; others are stored in our own. A run holds such folders under checkpoints/step-NNNNNN.
"""

import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import config
from regard.config import DataError, Task
from regard.config.errors import unwritable
from regard.config.names import did_you_mean
from regard.core.model import Transformer
from regard.heads import Towers
from regard.hub import names
from regard.hub.card import card
from regard.hub.families import Family, family_of, heard, settled
from regard.hub.families.theirs import table_in
from regard.hub.manifest import NAME, seal, strangers, verify, write_json
from regard.hub.weights import MANY, ONE, few, pour, shards, tensors_from, tensors_to, their_type
from regard.hub.whole import mend, remove, sweep, whole
from regard.text import Tokenizer

__all__ = ["Folder", "fill", "newest", "read", "remove", "steps", "sweep", "tensors_from", "tensors_to", "verify",
           "words", "write"]  # fmt: skip

FORMAT = 1
STEP = re.compile(r"step-(\d+)")
BEGIN = "decoder_start_token_id"
ROLES = {"bos_token_id": "start", "eos_token_id": "end", "pad_token_id": "pad"}


@dataclass(frozen=True)
class Folder:
    """What a folder says before any tensor is read; `family` is None where the names of the tensors are our own."""

    path: Path
    config: config.Model
    family: str | None = None
    context: int | None = None
    tokenizer_path: Path | None = None
    target_path: Path | None = None  # the target's own tokenizer
    begin: int | None = None  # the id that a target begins with
    task: Task | None = None  # what the model was trained to be asked


# ---------------------------------------------------------------- writing


def write(
    path: str | Path, model: Transformer | Towers, tokenizer: Tokenizer | None = None, context: int | None = None,
    more: Callable[[Path], object] | None = None, target: Tokenizer | None = None, begin: int | None = None,
    task: config.Task | None = None,
) -> Path:  # fmt: skip
    """Save a model; `more` may add files before the folder is sealed. What stood there stays until all is written."""
    path = Path(path)
    own = model.c.encoder.embed if model.c.encoder is not None and target is not None else None
    for side, embed, name in ((tokenizer, own or model.c.embed, "encoder.embed" if own else "embed"),
                              (target, model.c.embed, "embed")):  # fmt: skip
        if side is not None and len(side) > embed.vocab:
            raise DataError(f"{path}: the tokenizer has {len(side)} tokens, and {name}.vocab is {embed.vocab}")
    try:
        check_place(path)
        with whole(path) as folder:
            write_files(folder, model, tokenizer, context, target, begin, task)
            if more is not None:
                more(folder)
            seal(folder)
    except OSError as problem:
        raise unwritable(path, problem) from problem
    return path


def check_place(path: Path) -> None:
    """Never replace what was not written here; a run's own checkpoints are replaced, also damaged ones."""
    if path.is_file():
        raise DataError(f"{path}: a file stands there; name a folder")
    own = path.parent.name == "checkpoints" and STEP.fullmatch(path.name)
    if path.is_dir() and not own and (others := strangers(path)):
        raise DataError(f"{path}: holds {few(others)}, not written by a save; choose another folder or move it away")


def write_files(
    folder: Path, model: Transformer | Towers, tokenizer: Tokenizer | None, context: int | None,
    target: Tokenizer | None = None, begin: int | None = None, task: config.Task | None = None,
) -> None:  # fmt: skip
    family, c, speaks = family_of(model.c), model.c, tokenizer if target is None else target
    roles = speaks.roles if speaks is not None else {}
    ids = {key: roles.get(role, c.embed.pad if role == "pad" else None) for key, role in ROLES.items()}
    ids |= {} if begin is None else {BEGIN: begin}
    facts = {"dtype": their_type(model), **ids, **labels(task)}
    write_json(folder / "config.json", settings(c, family, context, facts, task))
    write_json(folder / "generation_config.json", {key: ident for key, ident in ids.items() if ident is not None})
    tensors_to(folder / ONE, names.save(model, family.name if family else None))
    if tokenizer is not None:
        tokenizer.save(folder)
    if target is not None:
        target.save(folder, "target_")
    count = sum(parameter.numel() for parameter in model.parameters())
    text = card(c, family, count, context, tokenizer is not None)
    (folder / "README.md").write_text(text, encoding="utf8")


def settings(
    c: config.Model, family: Family | None, context: int | None, facts: dict[str, Any],
    task: config.Task | None = None,
) -> dict[str, Any]:  # fmt: skip
    """config.json: the family's settings if there is one, and always all of ours."""
    ours = {"format": FORMAT, "config": config.tree(c), "context": context}
    ours |= {} if task is None else {"task": config.tree(task)}
    if family is None or isinstance(c, config.Towers):
        return {"model_type": "regard", **facts, "regard": ours}
    kind = {"architectures": [family.architecture], "model_type": family.name}
    return {**kind, **facts, **family.say(c, context), "regard": ours}


def labels(task: config.Task | None) -> dict[str, Any]:
    """The names of classes, as `transformers` has them."""
    classes = getattr(task, "classes", ())
    return {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}
            } if classes else {}  # fmt: skip


# ---------------------------------------------------------------- reading


def read(path: str | Path) -> Folder:
    """What a folder says: a run (its newest whole checkpoint), a checkpoint, or a Hugging Face folder."""
    try:
        folder = found(Path(path))
        needed = {*weights(folder), "config.json", "tokenizer.json", "target_tokenizer.json"}
        if folder == Path(path) and (folder / NAME).is_file() and (wrong := verify(folder, needed)):
            raise DataError(f"{wrong}; use another checkpoint, or remove {NAME} to trust the folder as it is")
        said = table_in(folder / "config.json")
        c, family, context = understood(said, str(folder / "config.json"))
        names = ("tokenizer.json", "target_tokenizer.json")
        mine, target = (folder / name if (folder / name).is_file() else None for name in names)
        begin = said.get(BEGIN) if isinstance(said.get(BEGIN), int) else None
        return Folder(folder, c, family, context, mine, target, begin, asked(said, str(folder / "config.json")))
    except OSError as problem:
        raise DataError(f"{path}: {(problem.strerror or str(problem)).lower()}; name a folder to read") from None


def words(folder: Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint; a model that reads no text has none."""
    return Tokenizer.load(folder) if (folder / "tokenizer.json").is_file() else None


def asked(said: dict[str, Any], where: str) -> config.Task | None:
    """What the model was trained to be asked, where it was trained here."""
    ours = said.get("regard")
    task = ours.get("task") if isinstance(ours, dict) else None
    if not isinstance(task, dict):
        return None
    try:
        return config.make(config.Recipe, {"task": task}).task
    except config.ConfigError as problem:
        raise DataError(f"{where}: regard.{problem}") from None


def fill(model: Transformer | Towers, folder: Folder) -> None:
    """The folder's weights into a model of its config, in the types that the model has."""
    pour(model, folder.path, folder.family)


def found(path: Path) -> Path:
    """The folder with the files: a run stands for its newest checkpoint."""
    with suppress(OSError):
        mend(Path(os.path.abspath(path)))
    if path.is_file():
        raise DataError(f"{path}: a file; name the folder it is in")
    if not path.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.glob("*") if each.is_dir()))
        raise DataError(f"{path}: no such folder{near} name a run, a checkpoint or a Hugging Face folder")
    if (path / "config.json").is_file():
        return path
    if (path / "checkpoints").is_dir() or (path / "config.toml").is_file():
        return newest(path)
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


def understood(said: dict[str, Any], path: str) -> tuple[config.Model, str | None, int | None]:
    """The config, the family of the tensors' names, and the length."""
    if said.get("model_type") == "regard":
        c, context = ours_in(said, path)
        return c, None, context
    c, family, longest = heard(said, path)
    if "regard" in said:
        mine, context = ours_in(said, path)
        if isinstance(mine, config.Transformer) and settled(mine) == settled(c):
            return mine, family.name, context or longest
        warnings.warn(f"{path}: was changed after it was written here; 'regard' in it is left aside", stacklevel=4)
    return c, family.name, longest


def ours_in(said: dict[str, Any], path: str) -> tuple[config.Model, int | None]:
    match said.get("regard"):
        case {"format": 1, "config": tree, "context": int() | None as context}:
            try:
                if isinstance(tree, dict) and tree.get("kind") == "towers":
                    return config.make(config.Towers, tree), context
                return config.make(config.Transformer, tree), context
            except config.ConfigError as problem:
                raise DataError(f"{path}: regard.config: {problem}") from None
        case {"format": int(number)} if number > FORMAT:
            raise DataError(f"{path}: format {number}; this version reads up to {FORMAT}; install a newer one")
        case _:
            raise DataError(f"{path}: expected 'regard' with a format, a config and a context; write the folder again")


# ---------------------------------------------------------------- runs


def steps(run: str | Path) -> list[Path]:
    """The checkpoints of a run, oldest first, whole or not."""
    folders = [each for each in (Path(run) / "checkpoints").glob("step-*") if STEP.fullmatch(each.name)]
    return sorted(folders, key=lambda each: int(each.name.removeprefix("step-")))


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
