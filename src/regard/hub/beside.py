"""What stands in a folder beside the weights: a tokenizer's files, what to say first, how images are seen, a licence.

A model that was read from a folder and is saved as it was takes them along, byte by byte, and config.json word for
word: whoever wrote them may say more than is understood here.
"""

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard import config
from regard.config import DataError
from regard.hub.families import Kin, heard, settled
from regard.hub.places import own
from regard.hub.pooling import LENGTHS, modules

WORDS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm",
    "target.spm", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
OTHERS = (
    "generation_config.json", "preprocessor_config.json", "processor_config.json", "normalizer.json", "modules.json",
    "config_sentence_transformers.json",
    *(f"sentence_{name}_config.json" for name in LENGTHS),
)  # fmt: skip
TERMS = re.compile(r"(?:LICEN[CS]E|NOTICE|COPYING|USE_POLICY)(?:[._-][\w.-]*)?", re.IGNORECASE)
STEPS = (".json", ".safetensors", ".txt")  # what a step of modules.json may consist of
LARGEST = 1 << 28  # bytes: a file that is larger is no such file
MOST = 16  # files with terms of use


def unchanged(said: Mapping[str, Any], c: config.Model, known: Kin | None) -> bool:
    """Whether a config.json says this very model, and says it as a class of a family."""
    if known is None or not said or said.get("model_type") == "regard":
        return False
    there = heard(dict(said), "config.json")
    return (there.family, there.architecture) == known and settled(there.config) == settled(c)


def carry(origin: Path, folder: Path, words: bool) -> None:
    """Copy what stood beside the weights; a tokenizer's files where the `words` are still the same."""
    for name in (*(WORDS if words else ()), *OTHERS, *steps(origin)):
        copy_file(origin, folder, name)


def carry_terms(origin: Path, folder: Path) -> None:
    """Copy the files with the terms of use (LICENSE, NOTICE, ...), which what is made of a model has as well."""
    names = sorted(each.name for each in origin.iterdir() if TERMS.fullmatch(each.name)) if origin.is_dir() else []
    for name in names[:MOST]:
        copy_file(origin, folder, name)


def copy_file(origin: Path, folder: Path, name: str) -> None:
    with suppress(DataError):  # not there, or a link that leads out of the folder: nobody read it either
        source = own(origin, name, LARGEST)
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / name)


def steps(origin: Path) -> list[str]:
    """What makes one vector of a text, in folders of its own beside the model: 1_Pooling/config.json, ..."""
    if not (origin / "modules.json").is_file():
        return []
    named = {where for _, where in modules(origin / "modules.json") if where}
    found = [each for where in sorted(named) for each in sorted((origin / where).glob("*")) if each.suffix in STEPS]
    return [each.relative_to(origin).as_posix() for each in found]
