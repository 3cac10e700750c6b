"""Model folder writer: a format that `transformers` opens, or our own, with tokenizer, preprocessor and licence.

An unchanged model that was loaded from a folder keeps its extra files byte for byte, and its config.json key by key: it
may contain more than this package interprets.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import DataError, name_some, unwritable_error
from regard.core.model import Transformer
from regard.files.atomic import replace_folder
from regard.files.content_cache import read_json_object
from regard.files.manifest import unlisted_files, write_json_plain, write_manifest
from regard.hub import image_preprocessor, name_table, read_folder
from regard.hub.families.canonical import canonicalize
from regard.hub.families.registry import FamilyClass, match_family, parse_hf_config
from regard.hub.locate import STEP_PATTERN
from regard.hub.model_card import render_card
from regard.hub.provenance import CARD, ParentModel, find_parent, parent_from_name
from regard.hub.read_folder import (
    ALIKE,
    ANSWERS,
    BEGIN,
    FOLDER_FORMAT,
    MAX_COPIED_BYTES,
    NAMED,
    PROBLEMS,
    ROLES,
    ModelFolder,
)
from regard.hub.sentence_pooling import BERT_LIKE, list_modules
from regard.hub.validate import own_file
from regard.hub.weights import WEIGHTS_FILE, save_tensors, to_stored_dtype, torch_dtype_name
from regard.models.dual_encoder import DualEncoder
from regard.models.lora import adapter_parameters
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import SLOW_TOKENIZER_FILES


def save_in_own_format(model: Any, path: Path) -> Path:
    """Save a model under our own model type and tensor names."""
    with open_model_folder(path, model, model.tokenizer, model.target_tokenizer) as folder:
        write_model_files(
            folder,
            model,
            model.tokenizer,
            model.context,
            model.target_tokenizer,
            model.decoder_start_id,
            model.task,
            model.source_folder,
            ours=True,
        )
    return path


# ---------------------------------------------------------------- writing


def save_model(
    path: str | Path, model: Transformer | DualEncoder, tokenizer: Tokenizer | None = None, context: int | None = None,
    more: Callable[[Path], object] | None = None, target: Tokenizer | None = None, begin: int | None = None,
    task: config.Task | None = None, origin: ModelFolder | None = None, base: str | None = None,
) -> Path:  # fmt: skip
    """Save a model; `more` may add files before the manifest is written. A previous folder is replaced only when all is
    written.

    Adapters are merged in the folder; the model itself is not changed, and may be in use meanwhile. A model that is
    unchanged since its `origin` keeps the other files of that folder. `base` names the pretrained model of a training
    run, where there is no origin; its licence and data go into the card.
    """
    with open_model_folder(Path(path), model, tokenizer, target) as folder:
        write_model_files(folder, model, tokenizer, context, target, begin, task, origin, base=base)
        if more is not None:
            more(folder)
    return Path(path)


@contextmanager
def open_model_folder(
    path: Path, model: Transformer | DualEncoder, tokenizer: Tokenizer | None, target: Tokenizer | None
) -> Iterator[Path]:
    """A temporary folder for the files of a model; when the block ends, it replaces `path` atomically."""
    own = model.c.encoder.embed if model.c.encoder is not None and target is not None else None
    for side, embed, name in ((tokenizer, own or model.c.embed, "encoder.embed" if own else "embed"),
                              (target, model.c.embed, "embed")):  # fmt: skip
        if side is not None and len(side) > embed.vocab:
            raise DataError(f"{path}: the tokenizer has {len(side)} tokens, and {name}.vocab is {embed.vocab}")
    try:
        check_replaceable(path)
        with replace_folder(path) as folder:
            yield folder
            write_manifest(folder)
    except OSError as problem:
        raise unwritable_error(path, problem) from problem


def check_replaceable(path: Path) -> None:
    """Refuse to replace files that were not written here; a run's own checkpoints are replaced, also damaged ones."""
    if path.is_file():
        raise DataError(f"{path}: a file exists there; name a folder")
    own = path.parent.name in ("checkpoints", "snapshots") and STEP_PATTERN.fullmatch(path.name)
    if path.is_dir() and not own and (others := unlisted_files(path)):
        raise DataError(
            f"{path}: holds {name_some(sorted(others))}, not written by a save; choose another folder or move it away"
        )


def write_model_files(
    folder: Path, model: Transformer | DualEncoder, tokenizer: Tokenizer | None, context: int | None,
    target: Tokenizer | None = None, begin: int | None = None, task: config.Task | None = None,
    origin: ModelFolder | None = None, ours: bool = False, base: str | None = None,
) -> None:  # fmt: skip
    """Write all files except the manifest; `ours` selects our own format even where a family matches."""
    c, speaks = model.c, tokenizer if target is None else target
    known = match_family(c, preferred_architecture(task, origin))
    spoken = None if ours else known
    roles = speaks.special_ids if speaks is not None else {}
    ids = {key: roles.get(role, c.embed.pad_id if role == "pad" else None) for key, role in ROLES.items()}
    ids |= {} if begin is None else {BEGIN: begin}
    tensors = name_table.export_tensors(model, spoken.family.rows(spoken.architecture, c) if spoken else None)
    tensors = tensors if origin is None else to_stored_dtype(tensors, origin.types)
    facts = {"dtype": torch_dtype_name(tensors), **ids}
    said = config_json(c, known, context, facts, task, problem_type_fields(c, task, origin))
    same = origin is not None and is_unchanged(origin.said, c, known)
    if same and origin is not None:
        old = "torch_dtype" in origin.said and "dtype" not in origin.said
        said = {**origin.said, "torch_dtype" if old else "dtype": facts["dtype"], "regard": said["regard"]}
        if task is not None and task.kind == "regression":  # older saves lack it
            said["problem_type"] = PROBLEMS[task.kind]
    if ours:
        said = {"model_type": "regard", **{name: said[name] for name in (*ALIKE, "regard") if name in said}}
    write_json_plain(folder / "config.json", read_folder.without_pooler_note(said))
    write_json_plain(folder / "generation_config.json", {key: ident for key, ident in ids.items() if ident is not None})
    save_tensors(folder / WEIGHTS_FILE, tensors)
    segments = isinstance(c.embed, config.TextEmbedding) and c.embed.segments > 1
    write_tokenizers(folder, tokenizer, target, origin if same else None, segments)
    image_preprocessor.write_preprocessor(c, folder, known)
    adapters = adapter_parameters(model)
    count = sum(weight.numel() for name, weight in model.named_parameters() if name not in adapters)
    write_model_card(
        folder, origin, base, c, lambda *of: render_card(c, spoken, count, context, tokenizer is not None, *of)
    )


def preferred_architecture(task: config.Task | None, origin: ModelFolder | None) -> str | None:
    """The architecture to prefer where several have the same head: that of the origin, or of the task."""
    if origin is not None and origin.architecture is not None:
        return origin.architecture
    return ANSWERS.get(task.kind) if task is not None else None


def write_tokenizers(
    folder: Path,
    tokenizer: Tokenizer | None,
    target: Tokenizer | None,
    origin: ModelFolder | None,
    segments: bool = False,
) -> None:
    """Write the tokenizers, in their original files if unchanged, and copy the other files of the origin."""
    same = origin is not None and (tokenizer is None or tokenizer.text() == tokenizer_text(origin))
    path = origin.tokenizer_path if same and origin is not None else None
    if path is None or path.name not in SLOW_TOKENIZER_FILES:
        for each, side in ((tokenizer, ""), (target, "target_")):
            if each is not None:
                each.save(folder, side)
                if segments and not side:
                    write_segment_names(folder / "tokenizer_config.json")
    if origin is not None:
        copy_extra_files(origin.path, folder, words=same)


def tokenizer_text(origin: ModelFolder) -> str | None:
    return None if origin.tokenizer_path is None else Tokenizer.load(origin.tokenizer_path).text()


def config_json(
    c: config.Model, known: FamilyClass | None, context: int | None, facts: dict[str, Any],
    task: config.Task | None, answers: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The contents of config.json: the family's settings if there is a family, and always our own config."""
    ours = {"format": FOLDER_FORMAT, "config": config.to_dict(c), "context": context}
    ours |= {} if task is None else {"task": config.to_dict(task)}
    if known is None:
        return {"model_type": "regard", **facts, **answers, "regard": ours}
    kind = {"architectures": [known.architecture], "model_type": known.family.name}
    return {**kind, **facts, **known.family.to_hf(c, context), **answers, "regard": ours}


def write_model_card(
    folder: Path,
    origin: ModelFolder | None,
    base: str | None,
    c: config.Model,
    text: Callable[[ParentModel, bool], str],
) -> None:
    """Write README.md, and copy the terms of use of the model that this one was made from."""
    parent = find_parent(origin.path) if origin is not None else parent_from_name(base) if base else ParentModel()
    if parent.folder is not None:
        carry_terms(parent.folder, folder)
    same = origin is not None and canonicalize(origin.config) == canonicalize(c)
    (folder / CARD).write_text(text(parent, same), encoding="utf8")


def write_segment_names(path: Path) -> None:
    """List token_type_ids in tokenizer_config.json: a tokenizer of `transformers` returns segments only then."""
    said = read_json_object(path)
    write_json_plain(path, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} | said)


def problem_type_fields(c: config.Model, task: config.Task | None, origin: ModelFolder | None) -> dict[str, Any]:
    """The label names and the problem type of a head, as `transformers` has them.

    Without problem_type it would apply a sigmoid to a single output.
    """
    head = None if isinstance(c, config.DualEncoder) else c.head
    if not isinstance(head, config.PoolingHead | config.TokenHead) or head.out is None:
        return id2label(task)
    said = {} if origin is None else {key: origin.said[key] for key in NAMED if origin.said.get(key)}
    if len(said.get("id2label") or ()) != head.out:  # the head has changed
        said = {}
    said = said if getattr(task, "kind", None) != "regression" else {}
    if isinstance(head, config.PoolingHead):
        # a published model with one output may mean a probability: its own fields are kept
        alone = "regression" if task is None and origin is None and head.out == 1 else ""
        kind = PROBLEMS.get(alone if task is None else task.kind)
        said = ({} if kind is None else {"problem_type": kind}) | said
    return said | id2label(task)


def id2label(task: config.Task | None) -> dict[str, Any]:
    """The class names in the form of `transformers`."""
    classes = getattr(task, "classes", ())
    return {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}
            } if classes else {}  # fmt: skip


WORDS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm",
    "target.spm", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
OTHERS = (
    "generation_config.json", "preprocessor_config.json", "processor_config.json", "normalizer.json", "modules.json",
    "config_sentence_transformers.json",
    *(f"sentence_{name}_config.json" for name in BERT_LIKE),
)  # fmt: skip
TERMS = re.compile(r"(?:LICEN[CS]E|NOTICE|COPYING|USE_POLICY)(?:[._-][\w.-]*)?", re.IGNORECASE)
STEPS = (".json", ".safetensors", ".txt")  # suffixes of files of a sentence-transformers module
MOST = 16  # at most so many files with terms of use


def is_unchanged(raw: Mapping[str, Any], c: config.Model, known: FamilyClass | None) -> bool:
    """Whether a config.json describes exactly this model, as a class of a family."""
    if known is None or not raw or raw.get("model_type") == "regard":
        return False
    there = parse_hf_config(dict(raw), "config.json")
    return (there.family, there.architecture) == known and canonicalize(there.config) == canonicalize(c)


def copy_extra_files(origin: Path, folder: Path, words: bool) -> None:
    """Copy the files beside the weights; those of a tokenizer if `words` is True, that is, if it is unchanged."""
    for name in (*(WORDS if words else ()), *OTHERS, *pooling_folders(origin)):
        copy_file(origin, folder, name)


def carry_terms(origin: Path, folder: Path) -> None:
    """Copy the files with the terms of use (LICENSE, NOTICE, ...), which apply to derived models as well."""
    names = sorted(each.name for each in origin.iterdir() if TERMS.fullmatch(each.name)) if origin.is_dir() else []
    for name in names[:MOST]:
        copy_file(origin, folder, name)


def copy_file(origin: Path, folder: Path, name: str) -> None:
    with suppress(DataError):  # missing, or a link that leads out of the folder, which was not read either
        source = own_file(origin, name, MAX_COPIED_BYTES)
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / name)


def pooling_folders(origin: Path) -> list[str]:
    """The files of the sentence-transformers modules, in their own folders: 1_Pooling/config.json, ..."""
    if not (origin / "modules.json").is_file():
        return []
    named = {where for _, where in list_modules(origin / "modules.json") if where}
    found = [each for where in sorted(named) for each in sorted((origin / where).glob("*")) if each.suffix in STEPS]
    return [each.relative_to(origin).as_posix() for each in found]
