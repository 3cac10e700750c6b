"""A model in a folder: config.json, model.safetensors, its tokenizer, and MANIFEST.json, which is written last.

A model of a family (GPT-2, Llama) is stored in that family's words, with our whole config under the key `regard`, so
`transformers` opens it; others are stored in our own. A run holds such folders under checkpoints/step-NNNNNN.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard import config
from regard.config import DataError, Task
from regard.config.errors import unwritable
from regard.core.model import Transformer
from regard.heads import Towers
from regard.hub import bodies, names, pictures
from regard.hub.beside import LARGEST, carry, carry_terms, unchanged
from regard.hub.card import card
from regard.hub.families import FAMILIES, Kin, heard, kin, settled
from regard.hub.families.theirs import table_in
from regard.hub.fetch import located
from regard.hub.finding import STEP, found, kept, newest, steps, weights
from regard.hub.manifest import NAME, seal, strangers, verify, write_json
from regard.hub.places import own, shortly
from regard.hub.plausible import bounded, plausible
from regard.hub.pooling import Pooling, pooling
from regard.hub.provenance import CARD, Parent, parent_in, parent_named
from regard.hub.weights import ONE, as_stored, few, listed, pour, tensors_from, tensors_to, their_type
from regard.hub.whole import remove, sweep, whole
from regard.text import Tokenizer
from regard.text.files import EARLIER, kind_in
from regard.text.pieces import files_of

__all__ = ["Folder", "fill", "kept", "newest", "read", "remove", "steps", "sweep", "tensors_from", "tensors_to",
           "verify", "words", "write"]  # fmt: skip

FORMAT = 1
BEGIN = "decoder_start_token_id"
ROLES = {"bos_token_id": "start", "eos_token_id": "end", "pad_token_id": "pad"}
NAMED = ("id2label", "label2id", "problem_type")
ALIKE = ("dtype", *ROLES, BEGIN, *NAMED)  # what config.json says in the same words for every model
PROBLEMS = {"regress": "regression", "classify": "single_label_classification"}
ANSWERS = {"answer": "ForQuestionAnswering", "tag": "ForTokenClassification"}  # two classes with one kind of head


@dataclass(frozen=True)
class Folder:
    """What a folder says before any tensor is read; `family` is None where the names of the tensors are our own.

    `said` is its config.json as it stands: what is saved again unchanged keeps every word of it.
    """

    path: Path
    config: config.Model
    family: str | None = None
    architecture: str | None = None
    context: int | None = None
    tokenizer_path: Path | None = None
    target_path: Path | None = None  # the target's own tokenizer
    begin: int | None = None  # the id that a target begins with
    task: Task | None = None  # what the model was trained to be asked
    said: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, torch.dtype] = field(default_factory=dict)  # what its tensors are stored in

    @property
    def pooling(self) -> Pooling | None:
        """How one vector for a text is made, where a folder of sentence-transformers says it; read when asked for."""
        return pooling(self.path)


# ---------------------------------------------------------------- writing


def write(
    path: str | Path, model: Transformer | Towers, tokenizer: Tokenizer | None = None, context: int | None = None,
    more: Callable[[Path], object] | None = None, target: Tokenizer | None = None, begin: int | None = None,
    task: config.Task | None = None, origin: Folder | None = None, base: str | None = None,
) -> Path:  # fmt: skip
    """Save a model; `more` may add files before the folder is sealed. What stood there stays until all is written.

    A model that is still as its `origin` says it keeps what stood there beside the weights. `base` names the model
    whose weights training began with, where there is no origin; its licence and data are said in the card.
    """
    with sealed(Path(path), model, tokenizer, target) as folder:
        write_files(folder, model, tokenizer, context, target, begin, task, origin, base=base)
        if more is not None:
            more(folder)
    return Path(path)


@contextmanager
def sealed(
    path: Path, model: Transformer | Towers, tokenizer: Tokenizer | None, target: Tokenizer | None
) -> Iterator[Path]:
    """A folder to write such a model into; when the block ends it is whole, and stands at `path`."""
    own = model.c.encoder.embed if model.c.encoder is not None and target is not None else None
    for side, embed, name in ((tokenizer, own or model.c.embed, "encoder.embed" if own else "embed"),
                              (target, model.c.embed, "embed")):  # fmt: skip
        if side is not None and len(side) > embed.vocab:
            raise DataError(f"{path}: the tokenizer has {len(side)} tokens, and {name}.vocab is {embed.vocab}")
    try:
        check_place(path)
        with whole(path) as folder:
            yield folder
            seal(folder)
    except OSError as problem:
        raise unwritable(path, problem) from problem


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
    origin: Folder | None = None, ours: bool = False, base: str | None = None,
) -> None:  # fmt: skip
    """All but the seal; in words of `ours`, if it is said, also where a family has a class for the model."""
    c, speaks = model.c, tokenizer if target is None else target
    known = kin(c, wanted(task, origin))
    spoken = None if ours else known
    roles = speaks.roles if speaks is not None else {}
    ids = {key: roles.get(role, c.embed.pad if role == "pad" else None) for key, role in ROLES.items()}
    ids |= {} if begin is None else {BEGIN: begin}
    tensors = names.save(model, spoken.family.rows(spoken.architecture, c) if spoken else None)
    tensors = tensors if origin is None else as_stored(tensors, origin.types)
    facts = {"dtype": their_type(tensors), **ids}
    said = settings(c, known, context, facts, task, answers(c, task, origin))
    same = origin is not None and unchanged(origin.said, c, known)
    if same and origin is not None:
        old = "torch_dtype" in origin.said and "dtype" not in origin.said
        said = {**origin.said, "torch_dtype" if old else "dtype": facts["dtype"], "regard": said["regard"]}
        if task is not None and task.kind == "regress":  # which an earlier save did not say
            said["problem_type"] = PROBLEMS[task.kind]
    if ours:
        said = {"model_type": "regard", **{name: said[name] for name in (*ALIKE, "regard") if name in said}}
    write_json(folder / "config.json", bodies.unsaid(said))
    write_json(folder / "generation_config.json", {key: ident for key, ident in ids.items() if ident is not None})
    tensors_to(folder / ONE, tensors)
    segments = isinstance(c.embed, config.Embed) and c.embed.segments > 1
    write_words(folder, tokenizer, target, origin if same else None, segments)
    pictures.write(c, folder, known)
    count = sum(parameter.numel() for parameter in model.parameters())
    write_card(folder, origin, base, c, lambda *of: card(c, spoken, count, context, tokenizer is not None, *of))


def write_card(
    folder: Path, origin: Folder | None, base: str | None, c: config.Model, text: Callable[[Parent, bool], str]
) -> None:
    """README.md, and the terms of use of the model that this one was made from."""
    parent = parent_in(origin.path) if origin is not None else parent_named(base) if base else Parent()
    if parent.folder is not None:
        carry_terms(parent.folder, folder)
    same = origin is not None and settled(origin.config) == settled(c)
    (folder / CARD).write_text(text(parent, same), encoding="utf8")


def wanted(task: config.Task | None, origin: Folder | None) -> str | None:
    """What a class should be called where several have the same head: as it was, or by what it was trained to do."""
    if origin is not None and origin.architecture is not None:
        return origin.architecture
    return ANSWERS.get(task.kind) if task is not None else None


def write_words(
    folder: Path, tokenizer: Tokenizer | None, target: Tokenizer | None, origin: Folder | None, segments: bool = False
) -> None:
    """Tokenizers, in their old files if they came out of such, and what else an origin has beside its weights."""
    same = origin is not None and (tokenizer is None or tokenizer.text() == text_of(origin))
    path = origin.tokenizer_path if same and origin is not None else None
    if path is None or path.name not in EARLIER:
        for each, side in ((tokenizer, ""), (target, "target_")):
            if each is not None:
                each.save(folder, side)
                if segments and not side:
                    say_segments(folder / "tokenizer_config.json")
    if origin is not None:
        carry(origin.path, folder, words=same)


def say_segments(path: Path) -> None:
    """Let a tokenizer of `transformers` tell first texts from second ones, which it does only where it is said."""
    said = table_in(path)
    write_json(path, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} | said)


def text_of(origin: Folder) -> str | None:
    return None if origin.tokenizer_path is None else Tokenizer.load(origin.tokenizer_path).text()


def settings(
    c: config.Model, known: Kin | None, context: int | None, facts: dict[str, Any],
    task: config.Task | None, answers: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """config.json: the family's settings if there is one, and always all of ours."""
    ours = {"format": FORMAT, "config": config.tree(c), "context": context}
    ours |= {} if task is None else {"task": config.tree(task)}
    if known is None:
        return {"model_type": "regard", **facts, **answers, "regard": ours}
    kind = {"architectures": [known.architecture], "model_type": known.family.name}
    return {**kind, **facts, **known.family.say(c, context), **answers, "regard": ours}


def labels(task: config.Task | None) -> dict[str, Any]:
    """The names of classes, as `transformers` has them."""
    classes = getattr(task, "classes", ())
    return {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}
            } if classes else {}  # fmt: skip


def answers(c: config.Model, task: config.Task | None, origin: Folder | None) -> dict[str, Any]:
    """What a head's answers are called and what kind they are, as `transformers` has it.

    Without problem_type it would put a single answer through a sigmoid.
    """
    head = None if isinstance(c, config.Towers) else c.head
    if not isinstance(head, config.Pooled | config.Each) or head.out is None:
        return labels(task)
    said = {} if origin is None else {key: origin.said[key] for key in NAMED if origin.said.get(key)}
    if len(said.get("id2label") or ()) != head.out:  # another head by now
        said = {}
    said = said if getattr(task, "kind", None) != "regress" else {}
    if isinstance(head, config.Pooled):
        # a published model with one answer may mean a share: its own words stand, whatever they leave out
        alone = "regress" if task is None and origin is None and head.out == 1 else ""
        kind = PROBLEMS.get(alone if task is None else task.kind)
        said = ({} if kind is None else {"problem_type": kind}) | said
    return said | labels(task)


# ---------------------------------------------------------------- reading


@shortly()
def read(path: str | Path) -> Folder:
    """What a folder says: a run (its newest whole checkpoint, or its best one with train.best), a checkpoint, a Hugging
    Face folder or id; or a GGUF file."""
    if Path(path).suffix == ".gguf":
        from regard.hub import gguf

        return gguf.read(Path(path))
    try:
        path = located(path)
        folder = found(path)
        needed = {*weights(folder), "config.json", "tokenizer.json", "target_tokenizer.json"}
        if folder == path and (folder / NAME).is_file() and (wrong := verify(folder, needed)):
            raise DataError(f"{wrong}; use another checkpoint, or remove {NAME} to trust the folder as it is")
        where, stored = str(folder / "config.json"), listed(folder)
        said = bodies.completed(table_in(own(folder, "config.json")), stored)
        bounded(said, where)
        c, known, context = understood(said, where)
        plausible(c, stored, where)
        c = pictures.read(c, folder, known)
        mine, target = speaking(folder)
        begin = said.get(BEGIN) if isinstance(said.get(BEGIN), int) else None
        family, architecture = (known.family.name, known.architecture) if known else (None, None)
        task = asked(said, where) or pictures.task(c, said)
        types = {name: each.dtype for name, each in stored.items() if each.dtype.is_floating_point}
        return Folder(folder, c, family, architecture, context, mine, target, begin, task, said, types)
    except OSError as problem:
        raise DataError(f"{path}: {(problem.strerror or str(problem)).lower()}; name a folder to read") from None


def speaking(folder: Path) -> tuple[Path | None, Path | None]:
    """The files of the tokenizers of what a model reads and of what it says, if that is another."""
    names = [name for name in ("tokenizer.json", "target_tokenizer.json") if (folder / name).is_file()]
    if "tokenizer.json" not in names and (kind := kind_in(folder)) is not None:  # as people wrote them before
        names = list(files_of(kind))
    paths = {name: own(folder, name, LARGEST) for name in names}
    first = paths.get("tokenizer.json") or next(iter(paths.values()), None)
    return first, paths.get("target_tokenizer.json") or paths.get("target.spm")


def words(folder: Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint; a model that reads no text has none."""
    return Tokenizer.load(folder) if (folder / "tokenizer.json").is_file() else None


def tokenizer_of(found: Folder) -> Tokenizer | None:
    """The tokenizer of a model that was read, if it has one."""
    if found.path.suffix == ".gguf":
        from regard.hub import gguf

        return gguf.words(found.path)
    return None if found.tokenizer_path is None else Tokenizer.load(found.tokenizer_path)


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


@shortly()
def fill(model: Transformer | Towers, folder: Folder, device: torch.device | None = None) -> None:
    """The folder's weights into a model of its config, in the types that the model has.

    One that was built without numbers, on torch's meta device, gets room for them on the device.
    """
    if folder.path.suffix == ".gguf":
        from regard.hub import gguf

        return gguf.pour(model, folder, device)
    if folder.family is None or folder.architecture is None:
        return pour(model, folder.path, None, device=device)
    family = FAMILIES[folder.family]
    return pour(model, folder.path, family.rows(folder.architecture, folder.config), family, device)


def understood(said: dict[str, Any], path: str) -> tuple[config.Model, Kin | None, int | None]:
    """The config, the family of the tensors' names and its class, and the length."""
    if said.get("model_type") == "regard":
        c, context = ours_in(said, path)
        return c, None, context
    try:
        c, family, architecture, longest = heard(said, path)
    except ArithmeticError as problem:  # exp of a billion, a part of nothing
        raise DataError(f"{path}: a number in it is out of all proportion ({problem}); fetch it again") from None
    if "regard" in said:
        mine, context = ours_in(said, path)
        if type(mine) is type(c) and settled(mine) == settled(c):
            return mine, Kin(family, architecture), context or longest
        warnings.warn(f"{path}: was changed after it was written here; 'regard' in it is left aside", stacklevel=4)
    return c, Kin(family, architecture), longest


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
