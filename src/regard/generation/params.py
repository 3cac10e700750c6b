"""How a published model wants to speak: what its folder says of length, beams and chance, as defaults.

    generation_config.json    {"max_new_tokens": 60, "num_beams": 4, "length_penalty": 0.6, "forced_bos_token_id": 7}
                              older folders say the same in config.json

Whoever asks may say otherwise. What is not known here is left aside, and a warning names it.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "generation_config.json"
MOST_BEAMS = 1024
# What of theirs changes a text and is not done here, with the value that changes nothing.
ELSE = {
    "encoder_no_repeat_ngram_size": 0, "num_beam_groups": 1, "diversity_penalty": 0.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "forced_decoder_ids": None, "guidance_scale": None,
    "exponential_decay_length_penalty": None, "penalty_alpha": None, "top_h": None,
}  # fmt: skip


@dataclass(frozen=True)
class Manner:
    """`drawn` and `found` are settings of Sampling and Search. `most` and `least` tokens are made, or `most_whole` and
    `least_whole` with those before them. A text begins with the id `first`; cut short, it ends with `last`; `never` are
    not said, `unfit` not at once, `ends` end it, and `begin` stands before a target."""

    drawn: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    most: int | None = None
    least: int | None = None
    most_whole: int | None = None
    least_whole: int | None = None
    first: int | None = None
    last: int | None = None
    never: frozenset[int] = frozenset()
    unfit: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    begin: int | None = None
    aside: tuple[str, ...] = ()

    def new(self, before: int) -> int | None:
        """How many tokens come at most after so many; None where nothing is said of so long a text."""
        left = (self.most_whole or 0) - before
        return self.most or (left if left > 0 else None)

    def shortest(self, before: int) -> int:
        """How many come before the end token may."""
        return self.least or max(0, (self.least_whole or 0) - before)

    def warn(self) -> None:
        if self.aside:
            warnings.warn(f"{NAME}: {', '.join(self.aside)} is not known here and left aside", stacklevel=4)


PLAIN = Manner()


def read(folder: Path, said: Mapping[str, Any]) -> Manner:
    """What a folder says; `said` is its config.json."""
    from regard.hub.families.theirs import Theirs, table_in
    from regard.hub.places import own

    path = folder / NAME
    told = table_in(own(folder, NAME)) if path.is_file() else None
    theirs = Theirs(said, str(folder / "config.json")) if told is None else Theirs(told, str(path))
    never, several_banned = banned(theirs)
    bias, several_nudged = nudged(theirs)
    unheard = counted(theirs, "num_beams") not in (None, 1) and theirs.get("stop_strings")  # beams are heard at the end
    longer = {"bad_words_ids": several_banned, "sequence_bias": several_nudged, "stop_strings": unheard}
    both = repeating(theirs) | ({"bias": bias} if bias else {})
    other = [key for key, usual in ELSE.items() if theirs.get(key, usual) not in (usual, None, [])]
    return Manner(
        drawn=drawn(theirs) | both,
        found=found(theirs) | both,
        most=counted(theirs, "max_new_tokens"),
        least=counted(theirs, "min_new_tokens"),
        most_whole=counted(theirs, "max_length"),
        least_whole=counted(theirs, "min_length"),
        first=one(theirs, "forced_bos_token_id"),
        last=one(theirs, "forced_eos_token_id"),
        never=never,
        unfit=frozenset(several(theirs, "begin_suppress_tokens")),
        ends=frozenset(several(theirs, "eos_token_id")),
        begin=one(theirs, "decoder_start_token_id"),
        aside=(*other, *(name for name, there in longer.items() if there)),
    )


def drawn(theirs: Any) -> dict[str, Any]:
    """Settings of Sampling. Those of chance count where it is asked for."""
    told: dict[str, Any] = {}
    if theirs.flag("do_sample", False):
        names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
                 "typical_p": "typical"}  # fmt: skip
        told |= {ours: theirs.number(name) for name, ours in names.items() if theirs.get(name) not in (None, 0)}
    if "top_k" in told:
        told["top_k"] = int(told["top_k"])
    stops = theirs.get("stop_strings") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise theirs.wrong("stop_strings", "expected a string, or a list of them")
    return told | ({"stop": tuple(stops)} if stops else {})


def repeating(theirs: Any) -> dict[str, Any]:
    """What Sampling and Search both have."""
    penalty, size = theirs.number("repetition_penalty", 1.0), counted(theirs, "no_repeat_ngram_size")
    return {**({"repetition": penalty} if penalty != 1 else {}), **({"no_repeat": size} if size else {})}


def found(theirs: Any) -> dict[str, Any]:
    """Settings of Search."""
    told: dict[str, Any] = {}
    if theirs.get("num_beams") is not None:
        told["beams"] = theirs.whole("num_beams")
        if told["beams"] > MOST_BEAMS:
            raise theirs.wrong("num_beams", f"expected at most {MOST_BEAMS}, as each takes a cache of its own; mend it")
    if theirs.get("length_penalty") is not None:
        told["length_penalty"] = theirs.number("length_penalty")
    if (early := theirs.get("early_stopping")) in (True, False, "never") and early is not None:
        told["early_stopping"] = early
    return told


def counted(theirs: Any, key: str) -> int | None:
    return None if theirs.get(key) in (None, 0) else theirs.whole(key)


def one(theirs: Any, key: str) -> int | None:
    found = several(theirs, key)
    return found[0] if found else None


def several(theirs: Any, key: str) -> list[int]:
    """An id, or a list of them."""
    value = theirs.get(key, [])
    ids = value if isinstance(value, list) else [value]
    if not all(type(id) is int and id >= 0 for id in ids):
        raise theirs.wrong(key, "expected an id from 0 on, or a list of them")
    return ids


def banned(theirs: Any) -> tuple[frozenset[int], bool]:
    """Ids that are never said, and whether there are rows of them that are not."""
    rows = theirs.get("bad_words_ids", [])
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise theirs.wrong("bad_words_ids", "expected a list of lists of ids")
    alone = [row[0] for row in rows if len(row) == 1 and type(row[0]) is int]
    return frozenset([*alone, *several(theirs, "suppress_tokens")]), any(len(row) > 1 for row in rows)


def nudged(theirs: Any) -> tuple[dict[int, float], bool]:
    """What is added to single tokens, and whether there are rows of them to which something is."""
    rows = theirs.get("sequence_bias", [])
    if not isinstance(rows, list) or not all(is_nudge(pair) for pair in rows):
        raise theirs.wrong("sequence_bias", "expected a list of lists: the ids of some tokens, and a number")
    alone = {ids[0]: float(add) for ids, add in rows if len(ids) == 1}
    return alone, any(len(ids) > 1 for ids, _ in rows)


def is_nudge(pair: Any) -> bool:
    shape = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list) and pair[0]
    return bool(shape) and all(type(id) is int and id >= 0 for id in pair[0]) and type(pair[1]) in (int, float)
