"""Generation parameters: keywords to SamplingParams or BeamSearchParams, with defaults from generation_config.json.

    generation_config.json    {"max_new_tokens": 60, "num_beams": 4, "length_penalty": 0.6, "forced_bos_token_id": 7}
                              older folders have the same in config.json

A keyword of the caller wins over the folder. An unknown setting in the file is ignored, and a warning names it.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import config
from regard.config.aliases import generation_aliases
from regard.config.generation import BeamSearchParams

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

SAMPLING_DEFAULTS, BEAM_DEFAULTS = (
    {field.name: field.default for field in fields(c)} for c in (config.SamplingParams, BeamSearchParams)
)


WHOLE_TEXT_SETTINGS = ("max_new_tokens", "stop", "no_repeat_ngram_size", "regex", "json_schema")


def canonical_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under our names, where they have those of `transformers`, vLLM or OpenAI (`regard.config.aliases`)."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        ours = generation_aliases().get(name, name)
        if ours != name and ours in settings or ours in found:
            raise config.ConfigError(f"{name}: it is another name of {ours}, and both are given; keep one")
        found[ours] = value
    return found


def is_beam_search(settings: dict[str, Any]) -> bool:
    """Whether the settings ask for beam search, also with one beam; other settings of beams need num_beams."""
    if "num_beams" in settings:
        return True
    if lonely := next((name for name in settings if name in BEAM_DEFAULTS.keys() - SAMPLING_DEFAULTS.keys()), None):
        raise config.ConfigError(f"{lonely}: a setting of beam search; set num_beams as well, as in num_beams=4")
    return False


def check_single_text(settings: dict[str, Any], verb: str, other: str) -> None:
    """Refuse num_return_sequences where one text is shown."""
    if settings.get("num_return_sequences", 1) != 1:
        raise config.ConfigError(f"num_return_sequences: {verb} returns the best text only; model.{other} returns the "
                                 "others with their scores, and model.beam_search returns their ids")  # fmt: skip


def check_whole_image(settings: dict[str, Any]) -> None:
    """Refuse settings that could end an image before its last pixel."""
    if ends := next((name for name in settings if name in WHOLE_TEXT_SETTINGS), None):
        raise config.ConfigError(f"{ends}: an image ends with its last pixel; leave it out")


def start_once(before: list[int], ids: list[int]) -> list[int]:
    """Ids with the start tokens of every text in front, unless a rendered chat template has written them already."""
    return ids if before and ids[: len(before)] == before else [*before, *ids]


def sampling_params(settings: dict[str, Any], tokenizer: "Tokenizer | None" = None) -> config.SamplingParams:
    """SamplingParams from settings by name; a single stop string is accepted for a list."""
    stop = settings.get("stop", ())
    stops = {"stop": (stop,) if isinstance(stop, str) else stop}
    return config.from_dict(config.SamplingParams, settings | stops | logit_bias_entries(settings, tokenizer))


def logit_bias_entries(settings: dict[str, Any], tokenizer: "Tokenizer | None") -> dict[str, Any]:
    """Logit bias by ids, from {id or text: number} or from strings as typed, ["17=2.5", " the=-5"]."""
    bias = settings.get("logit_bias", ())
    if isinstance(bias, Mapping):
        pairs = list(bias.items())
    elif all(isinstance(each, str) for each in bias):
        pairs = [parse_logit_bias(each) for each in bias]
    else:
        return {"logit_bias": bias}
    return {"logit_bias": [{"token_id": token_id(token, tokenizer), "bias": add} for token, add in pairs]}


def parse_logit_bias(line: str) -> tuple[int | str, float]:
    """Parse one logit bias: 17=-100 names a token by its id, ' the'=-100 by its text."""
    token, _, number = line.rpartition("=")
    try:
        if not token:
            raise ValueError
        return (int(token) if token.isdecimal() else token), float(number)
    except ValueError:
        raise config.ConfigError(
            f"logit_bias: {line!r} is not a token and a number, as in 17=-100 or ' the'=-5"
        ) from None


def token_id(token: Any, tokenizer: "Tokenizer | None") -> Any:
    """The id of a token that is given by its text or its id."""
    if not isinstance(token, str):
        return token
    if tokenizer is None:
        raise config.ConfigError(
            f"logit_bias: {token!r} is a text, and this model has no tokenizer; give the token's id"
        )
    ids = tokenizer.encode(token)
    if len(ids) != 1:
        texts = " ".join(map(tokenizer.token_text, ids))
        raise config.ConfigError(f"logit_bias: {token!r} is {len(ids)} tokens, {texts}; give one token, by text or id")
    return ids[0]


def beam_search_params(settings: dict[str, Any], tokenizer: "Tokenizer | None" = None) -> BeamSearchParams:
    """BeamSearchParams from settings by name; settings of sampling are refused, unless they have their default."""
    drawn = {name: value for name, value in settings.items() if name in SAMPLING_DEFAULTS.keys() - BEAM_DEFAULTS.keys()}
    if meant := next((name for name, value in drawn.items() if value not in (SAMPLING_DEFAULTS[name], [])), None):
        why = "beam search has no stop strings" if meant == "stop" else "beam search does not sample"
        raise config.ConfigError(f"{meant}: {why}; leave out {meant}, or num_beams")
    found = {name: value for name, value in settings.items() if name not in drawn}
    return config.from_dict(BeamSearchParams, found | logit_bias_entries(found, tokenizer))


NAME = "generation_config.json"
MOST_BEAMS = 1024
# Settings of `transformers` that change a text and are not supported here, with the value that changes nothing.
ELSE = {
    "encoder_no_repeat_ngram_size": 0, "num_beam_groups": 1, "diversity_penalty": 0.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "forced_decoder_ids": None, "guidance_scale": None,
    "exponential_decay_length_penalty": None, "penalty_alpha": None, "top_h": None,
}  # fmt: skip


@dataclass(frozen=True)
class GenerationDefaults:
    """Generation defaults of a model, from generation_config.json.

    `sampling` and `beam_search` are settings of SamplingParams and BeamSearchParams. `most` and `least` bound the new
    tokens, `most_whole` and `least_whole` prompt and new tokens together. `forced_bos` is the first token of a text and
    `forced_eos` the last one at the token limit; `begin_suppress_ids` are barred as the first token; `ends` are end
    tokens, and `begin` is the decoder start token.
    """

    sampling: dict[str, Any] = field(default_factory=dict)
    beam_search: dict[str, Any] = field(default_factory=dict)
    most: int | None = None
    least: int | None = None
    most_whole: int | None = None
    least_whole: int | None = None
    forced_bos: int | None = None
    forced_eos: int | None = None
    suppress_ids: frozenset[int] = frozenset()
    begin_suppress_ids: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    begin: int | None = None
    ignored_keys: tuple[str, ...] = ()

    def max_new_tokens(self, before: int) -> int | None:
        """The default limit of new tokens after a prompt of `before` tokens; None where there is no default."""
        left = (self.most_whole or 0) - before
        return self.most or (left if left > 0 else None)

    def min_new_tokens(self, before: int) -> int:
        """The default number of new tokens before an end token is allowed."""
        return self.least or max(0, (self.least_whole or 0) - before)

    def warn(self) -> None:
        if self.ignored_keys:
            warnings.warn(f"{NAME}: {', '.join(self.ignored_keys)} is not supported and is ignored", stacklevel=4)


NO_DEFAULTS = GenerationDefaults()


def read_generation_config(folder: Path, model_config: Mapping[str, Any]) -> GenerationDefaults:
    """Read the generation defaults of a folder; `model_config` is its config.json, used where the file is missing."""
    from regard.files.content_cache import read_json_object
    from regard.hub.families.hf_config import HFConfig
    from regard.hub.validate import own_file

    path = folder / NAME
    told = read_json_object(own_file(folder, NAME)) if path.is_file() else None
    theirs = HFConfig(model_config, str(folder / "config.json")) if told is None else HFConfig(told, str(path))
    never, several_banned = banned_ids(theirs)
    bias, several_nudged = sequence_bias(theirs)
    unheard = optional_count(theirs, "num_beams") not in (None, 1) and theirs.get(
        "stop_strings"
    )  # beam search has no stop strings
    longer = {"bad_words_ids": several_banned, "sequence_bias": several_nudged, "stop_strings": unheard}
    both = repetition_defaults(theirs) | ({"logit_bias": bias} if bias else {})
    other = [key for key, usual in ELSE.items() if theirs.get(key, usual) not in (usual, None, [])]
    return GenerationDefaults(
        sampling=sampling_defaults(theirs) | both,
        beam_search=beam_defaults(theirs) | both,
        most=optional_count(theirs, "max_new_tokens"),
        least=optional_count(theirs, "min_new_tokens"),
        most_whole=optional_count(theirs, "max_length"),
        least_whole=optional_count(theirs, "min_length"),
        forced_bos=optional_id(theirs, "forced_bos_token_id"),
        forced_eos=optional_id(theirs, "forced_eos_token_id"),
        suppress_ids=never,
        begin_suppress_ids=frozenset(id_list(theirs, "begin_suppress_tokens")),
        ends=frozenset(id_list(theirs, "eos_token_id")),
        begin=optional_id(theirs, "decoder_start_token_id"),
        ignored_keys=(*other, *(name for name, there in longer.items() if there)),
    )


def sampling_defaults(hf: Any) -> dict[str, Any]:
    """Defaults for SamplingParams; temperature and truncation only with do_sample."""
    told: dict[str, Any] = {}
    if hf.get_bool("do_sample", False):
        names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
                 "typical_p": "typical_p"}  # fmt: skip
        told |= {ours: hf.get_float(name) for name, ours in names.items() if hf.get(name) not in (None, 0)}
    if "top_k" in told:
        told["top_k"] = int(told["top_k"])
    stops = hf.get("stop_strings") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise hf.error("stop_strings", "expected a string, or a list of them")
    return told | ({"stop": tuple(stops)} if stops else {})


def repetition_defaults(hf: Any) -> dict[str, Any]:
    """Defaults for settings that SamplingParams and BeamSearchParams share."""
    penalty, size = hf.get_float("repetition_penalty", 1.0), optional_count(hf, "no_repeat_ngram_size")
    return {
        **({"repetition_penalty": penalty} if penalty != 1 else {}),
        **({"no_repeat_ngram_size": size} if size else {}),
    }


def beam_defaults(hf: Any) -> dict[str, Any]:
    """Defaults for BeamSearchParams."""
    told: dict[str, Any] = {}
    if hf.get("num_beams") is not None:
        told["num_beams"] = hf.get_int("num_beams")
        if told["num_beams"] > MOST_BEAMS:
            raise hf.error("num_beams", f"expected at most {MOST_BEAMS}, as each takes a cache of its own; mend it")
    if hf.get("length_penalty") is not None:
        told["length_penalty"] = hf.get_float("length_penalty")
    if (early := hf.get("early_stopping")) in (True, False, "never") and early is not None:
        told["early_stopping"] = early
    return told


def optional_count(hf: Any, key: str) -> int | None:
    return None if hf.get(key) in (None, 0) else hf.get_int(key)


def optional_id(hf: Any, key: str) -> int | None:
    found = id_list(hf, key)
    return found[0] if found else None


def id_list(hf: Any, key: str) -> list[int]:
    """The ids under a key, which may hold one id or a list."""
    value = hf.get(key, [])
    ids = value if isinstance(value, list) else [value]
    if not all(type(id) is int and id >= 0 for id in ids):
        raise hf.error(key, "expected an id from 0 on, or a list of them")
    return ids


def banned_ids(hf: Any) -> tuple[frozenset[int], bool]:
    """Banned single tokens, and whether the file also bans sequences, which are not supported."""
    rows = hf.get("bad_words_ids", [])
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise hf.error("bad_words_ids", "expected a list of lists of ids")
    alone = [row[0] for row in rows if len(row) == 1 and type(row[0]) is int]
    return frozenset([*alone, *id_list(hf, "suppress_tokens")]), any(len(row) > 1 for row in rows)


def sequence_bias(hf: Any) -> tuple[dict[int, float], bool]:
    """The bias of single tokens, and whether the file also biases sequences, which are not supported."""
    rows = hf.get("sequence_bias", [])
    if not isinstance(rows, list) or not all(is_single_token_bias(pair) for pair in rows):
        raise hf.error("sequence_bias", "expected a list of lists: the ids of some tokens, and a number")
    alone = {ids[0]: float(add) for ids, add in rows if len(ids) == 1}
    return alone, any(len(ids) > 1 for ids, _ in rows)


def is_single_token_bias(pair: Any) -> bool:
    shape = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list) and pair[0]
    return bool(shape) and all(type(id) is int and id >= 0 for id in pair[0]) and type(pair[1]) in (int, float)
