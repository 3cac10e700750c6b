"""Model folder reader: config.json, the tokenizer, and model.safetensors, verified by MANIFEST.json.

A model of a family (GPT-2, Llama) is stored in that family's format, with our config under the key `regard`, so that
`transformers` opens it; others are stored in our own format. A run holds such folders under checkpoints/step-NNNNNN.

A config.json does not tell whether a class called Model was stored without its pooler; the weights do:

    ViTModel(config, add_pooling_layer=False).save_pretrained(...)      no pooler.dense.weight in model.safetensors

The reader adds this setting under the key of `transformers`, and the writer drops it: with it in config.json,
`from_pretrained` would not accept the keyword of the same name.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard import config
from regard.config.errors import DataError
from regard.config.tasks import Task
from regard.core.model import Transformer
from regard.files.content_cache import read_json_object
from regard.files.manifest import MANIFEST_NAME, verify_manifest
from regard.hub import image_preprocessor, name_table
from regard.hub.families.canonical import canonicalize
from regard.hub.families.registry import FAMILIES, FamilyClass, parse_hf_config
from regard.hub.locate import find_folder, locate_model, weight_files
from regard.hub.sentence_pooling import SentencePooling, read_pooling
from regard.hub.validate import check_config_fits_weights, check_layer_counts, own_file, shorten_values
from regard.hub.weights import folder_headers, load_folder_weights
from regard.models.dual_encoder import DualEncoder
from regard.text.convert_slow import slow_files
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import slow_tokenizer_kind

WORD = "add_pooling_layer"


def note_missing_pooler(raw: dict[str, Any], stored: Iterable[str]) -> dict[str, Any]:
    """A config.json with add_pooling_layer false, if the names of the stored tensors include no pooler."""
    family, classes = FAMILIES.get(str(raw.get("model_type"))), raw.get("architectures")
    if family is None or WORD in raw or not isinstance(classes, list) or not classes:
        return raw
    if classes[0] not in family.body_prefix or not any(
        is_pooler_tensor(row.theirs) for row in name_table.load_name_table(family.table, classes[0])
    ):
        return raw
    return raw if any(map(is_pooler_tensor, stored)) else {**raw, WORD: False}


def without_pooler_note(raw: dict[str, Any]) -> dict[str, Any]:
    """A config.json without add_pooling_layer."""
    return {key: value for key, value in raw.items() if key != WORD}


def is_pooler_tensor(name: str) -> bool:
    return "pooler." in name


FOLDER_FORMAT = 2  # format 1 has the settings of regard 0.1.0, which are accepted as aliases
BEGIN = "decoder_start_token_id"
ROLES = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "pad"}
NAMED = ("id2label", "label2id", "problem_type")
ALIKE = ("dtype", *ROLES, BEGIN, *NAMED)  # keys of config.json that are the same for every family
PROBLEMS = {"regression": "regression", "classification": "single_label_classification"}
# two architectures with one kind of head
ANSWERS = {"question_answering": "ForQuestionAnswering", "token_classification": "ForTokenClassification"}


@dataclass(frozen=True)
class ModelFolder:
    """A model folder before any tensor is read; `family` is None where the tensor names are our own.

    `said` is its config.json as it is: saving an unchanged model keeps all of it.
    """

    path: Path
    config: config.Model
    family: str | None = None
    architecture: str | None = None
    context: int | None = None
    tokenizer_path: Path | None = None
    target_path: Path | None = None  # the target's own tokenizer
    begin: int | None = None  # the decoder start token
    task: Task | None = None  # the task of the training
    said: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, torch.dtype] = field(default_factory=dict)  # the stored dtype of each tensor

    @property
    def pooling(self) -> SentencePooling | None:
        """The sentence pooling of a sentence-transformers folder; read on access."""
        return read_pooling(self.path)


# ---------------------------------------------------------------- reading


@shorten_values()
def read_model_folder(path: str | Path) -> ModelFolder:
    """Read the folder of a model: a run (its newest complete checkpoint, or its best one with train.keep_best), a
    checkpoint, a Hugging Face folder or hub id; or a GGUF file."""
    if Path(path).suffix == ".gguf":
        from regard.hub import gguf_model

        return gguf_model.read_gguf(Path(path))
    try:
        path = locate_model(path)
        folder = find_folder(path)
        needed = {*weight_files(folder), "config.json", "tokenizer.json", "target_tokenizer.json"}
        if folder == path and (folder / MANIFEST_NAME).is_file() and (wrong := verify_manifest(folder, needed)):
            raise DataError(f"{wrong}; use another checkpoint, or remove {MANIFEST_NAME} to trust the folder as it is")
        where, stored = str(folder / "config.json"), folder_headers(folder)
        said = note_missing_pooler(read_json_object(own_file(folder, "config.json")), stored)
        check_layer_counts(said, where)
        c, known, context = parse_config(said, where)
        check_config_fits_weights(c, stored, where)
        c = image_preprocessor.read_preprocessor(c, folder, known)
        mine, target = tokenizer_paths(folder)
        begin = said.get(BEGIN) if isinstance(said.get(BEGIN), int) else None
        family, architecture = (known.family.name, known.architecture) if known else (None, None)
        task = trained_task(said, where) or image_preprocessor.classification_task(c, said)
        types = {name: each.dtype for name, each in stored.items() if each.dtype.is_floating_point}
        return ModelFolder(folder, c, family, architecture, context, mine, target, begin, task, said, types)
    except OSError as problem:
        raise DataError(f"{path}: {(problem.strerror or str(problem)).lower()}; name a folder to read") from None


def tokenizer_paths(folder: Path) -> tuple[Path | None, Path | None]:
    """The tokenizer files for the input, and for the target if it has its own."""
    names = [name for name in ("tokenizer.json", "target_tokenizer.json") if (folder / name).is_file()]
    if "tokenizer.json" not in names and (kind := slow_tokenizer_kind(folder)) is not None:  # files of slow tokenizers
        names = list(slow_files(kind))
    paths = {name: own_file(folder, name, MAX_COPIED_BYTES) for name in names}
    first = paths.get("tokenizer.json") or next(iter(paths.values()), None)
    return first, paths.get("target_tokenizer.json") or paths.get("target.spm")


def checkpoint_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint; None for a model without text."""
    return Tokenizer.load(folder) if (folder / "tokenizer.json").is_file() else None


def load_tokenizer(found: ModelFolder) -> Tokenizer | None:
    """The tokenizer of a model folder, if it has one."""
    if found.path.suffix == ".gguf":
        from regard.hub import gguf_model

        return gguf_model.gguf_tokenizer(found.path)
    return None if found.tokenizer_path is None else Tokenizer.load(found.tokenizer_path)


def trained_task(raw: dict[str, Any], where: str) -> config.Task | None:
    """The task of a model that was trained here."""
    ours = raw.get("regard")
    task = ours.get("task") if isinstance(ours, dict) else None
    if not isinstance(task, dict):
        return None
    try:
        return config.from_dict(config.Recipe, {"task": task}).task
    except config.ConfigError as problem:
        raise DataError(f"{where}: regard.{problem}") from None


@shorten_values()
def load_weights(model: Transformer | DualEncoder, folder: ModelFolder, device: torch.device | None = None) -> None:
    """Load a folder's weights into a model of its config, in the model's dtypes.

    A model on torch's meta device is allocated on the device first.
    """
    if folder.path.suffix == ".gguf":
        from regard.hub import gguf_model

        return gguf_model.load_gguf_weights(model, folder, device)
    if folder.family is None or folder.architecture is None:
        return load_folder_weights(model, folder.path, None, device=device)
    family = FAMILIES[folder.family]
    return load_folder_weights(model, folder.path, family.rows(folder.architecture, folder.config), family, device)


def parse_config(raw: dict[str, Any], path: str) -> tuple[config.Model, FamilyClass | None, int | None]:
    """The config, the family and architecture of the tensor names, and the maximum length."""
    if raw.get("model_type") == "regard":
        c, context = parse_own_config(raw, path)
        return c, None, context
    try:
        c, family, architecture, longest = parse_hf_config(raw, path)
    except ArithmeticError as problem:  # overflow or division by zero
        raise DataError(f"{path}: a number in it is out of range ({problem}); fetch it again") from None
    if "regard" in raw:
        mine, context = parse_own_config(raw, path)
        if type(mine) is type(c) and canonicalize(mine) == canonicalize(c):
            return mine, FamilyClass(family, architecture), context or longest
        warnings.warn(f"{path}: was changed after it was saved; its 'regard' entry is ignored", stacklevel=4)
    return c, FamilyClass(family, architecture), longest


def parse_own_config(raw: dict[str, Any], path: str) -> tuple[config.Model, int | None]:
    match raw.get("regard"):
        case {"format": 1 | 2, "config": tree, "context": int() | None as context}:
            try:
                if isinstance(tree, dict) and tree.get("kind") in ("dual_encoder", "towers"):
                    return config.from_dict(config.DualEncoder, tree), context
                return config.from_dict(config.Transformer, tree), context
            except config.ConfigError as problem:
                raise DataError(f"{path}: regard.config: {problem}") from None
        case {"format": int(number)} if number > FOLDER_FORMAT:
            raise DataError(f"{path}: format {number}; this version reads up to {FOLDER_FORMAT}; install a newer one")
        case _:
            raise DataError(f"{path}: expected 'regard' with a format, a config and a context; write the folder again")


MAX_COPIED_BYTES = 1 << 28  # bytes: a larger file is none of these
