"""Sentence pooling: how a sentence-transformers folder makes one vector of a text from its token vectors.

modules.json              [Transformer, Pooling, Normalize]: the modules, in order
1_Pooling/config.json     the mean of all vectors, the first, the last, or the maximum of each channel
sentence_*_config.json    the maximum number of tokens
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from regard.config.errors import DataError
from regard.files.content_cache import read_json_object
from regard.files.manifest import is_inside
from regard.hub.families.hf_config import HFConfig
from regard.hub.validate import own_file

Place = Literal["mean", "cls", "max", "last"]

# Keys of sentence-transformers and our poolings; the last two are not supported here.
MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
NEWER = {"lasttoken": "last"}  # the single key of later versions
BERT_LIKE = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


@dataclass(frozen=True)
class SentencePooling:
    """The pooling of a sentence embedding: the place, whether it is normalised, and the token limit, beyond which texts
    are truncated.

    `prompt` is prepended to every text by default.
    """

    place: Place
    normal: bool = False
    length: int | None = None
    prompt: str = ""


def read_pooling(folder: Path) -> SentencePooling | None:
    """The sentence pooling of a folder; None if it has none."""
    if not (folder / "modules.json").is_file():
        return None
    steps = list_modules(folder / "modules.json")
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise DataError(f"{folder / 'modules.json'}: {', '.join(kinds) or 'nothing'} is not supported; expected "
                        "Transformer, Pooling, and optionally Normalize")  # fmt: skip
    path = own_file(folder, f"{steps[1][1]}/config.json")
    said = HFConfig(read_json_object(path), str(path))
    prompt = default_prompt(folder)
    if prompt:
        said.require("include_prompt", True)
    return SentencePooling(pooling_mode(said), "Normalize" in kinds, max_sequence_length(folder), prompt)


def list_modules(path: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each module, in order."""
    try:
        listed = json.loads(own_file(path.parent, path.name).read_bytes())
        steps = [(str(step["type"]).rpartition(".")[2], str(step["path"])) for step in listed]
    except DataError:
        raise
    except OSError as problem:
        raise DataError(f"{path}: {(problem.strerror or str(problem)).lower()}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(f"{path}: expected a list of steps, each with a type and a path; fetch it again") from None
    if strange := [where for _, where in steps if not is_inside(where)]:
        raise DataError(f"{path}: {strange[0]!r} is not inside this folder; fetch the folder again")
    return steps


def pooling_mode(hf: HFConfig) -> Place:
    """The one pooling that a config selects."""
    word = hf.get("pooling_mode")
    asked = [mode for key, mode in MODES.items() if hf.get_bool(key, False)]
    if word is not None:
        asked = [NEWER.get(str(each), str(each)) for each in (word if isinstance(word, list) else [word])]
    if len(asked) != 1:
        many = f"{' and '.join(asked)} set side by side" if asked else "no way is named"
        raise DataError(f"{hf.path}: {many}; expected one of {', '.join(get_args(Place))}")
    match asked[0]:
        case "mean" | "cls" | "max" | "last" as known:
            return known
        case other:
            raise DataError(f"{hf.path}: a vector by {other!r}; known are {', '.join(get_args(Place))}")


def max_sequence_length(folder: Path) -> int | None:
    """The token limit of a folder, if it has one."""
    for name in BERT_LIKE:
        path = folder / f"sentence_{name}_config.json"
        if path.is_file():
            said = HFConfig(read_json_object(own_file(folder, path.name)), str(path))
            said.require("do_lower_case", False)
            return None if said.get("max_seq_length") is None else said.get_int("max_seq_length")
    return None


def default_prompt(folder: Path) -> str:
    """The default prompt of a folder."""
    path = folder / "config_sentence_transformers.json"
    said: dict[str, Any] = read_json_object(own_file(folder, path.name)) if path.is_file() else {}
    theirs = HFConfig(said, str(path))
    name, known = theirs.get("default_prompt_name"), theirs.table("prompts")
    if name is None:
        return ""
    if not isinstance(text := known.said.get(str(name)), str):
        raise theirs.error("default_prompt_name", f"there are prompts for {', '.join(known.said) or 'nothing'}")
    return text
