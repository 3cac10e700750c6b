"""The folder of a census: what is resumed, and what is read by others, each file whole or not at all.

    census.safetensors   every accumulator, and in its metadata all that a resumed census must agree with
    census.json          model, text, settings, and every metric of every head
    sequences.json       the top sequences by head and metric: ids, place in the corpus, score; what the ids look like
    circuits.safetensors, circuits.json    the circuits of the weights, when all is read (`census_circuits`)

The first is written first and read alone to resume; census.json and sequences.json are made from it.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.config.errors import ConfigError, DataError, unwritable_error
from regard.files.atomic import atomic_path, write_text
from regard.lens.head_census.census_circuits import load_circuits, save_circuits
from regard.lens.head_census.census_result import COLUMNS, Census
from regard.lens.head_census.census_state import CensusState
from regard.lens.head_census.corpus_rows import hash_tensor
from regard.lens.head_census.head_sums import HeadSums
from regard.lens.head_census.pair_tables import METRICS
from regard.lens.result import finite_or_none

FORMAT, HEADER = 1, "census"
STATE_FILE, NUMBERS_FILE, SEQUENCES_FILE = "census.safetensors", "census.json", "sequences.json"


def model_weights_digest(model: Any) -> str:
    """The sha256 of all weights with their names and types."""
    found = hashlib.sha256()
    for name, weight in model.state_dict().items():
        hash_tensor(found, name, weight)
    return found.hexdigest()


# ---------------------------------------------------------------- written


def save_census(folder: Path, census: Census) -> None:
    """Write the files of a census, the one that is resumed from first."""
    from regard.hub.weights import save_tensors

    try:
        with atomic_path(folder / STATE_FILE) as aside:
            save_tensors(aside, state_tensors(census.state), {HEADER: json.dumps(census_header(census))})
        if census.circuits is not None:
            save_circuits(folder, census.circuits)
        write_text(folder / NUMBERS_FILE, json_text(census_numbers(census)))
        write_text(folder / SEQUENCES_FILE, json_text(census_sequences(census), None))
    except OSError as problem:
        raise unwritable_error(folder, problem) from None


def json_text(table: dict[str, Any], indent: int | None = 1) -> str:
    return json.dumps(table, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"


def census_header(census: Census) -> dict[str, Any]:
    """What a census is of, and how far it has read."""
    state = census.state
    return {
        "format": FORMAT, "model": census.model, "text": {**census.text, "digest": state.digest},
        "settings": census.settings, "attentions": state.places, "tokens": state.tokens, "rows": state.rows,
        "sequences": state.sequences,
    }  # fmt: skip


def census_numbers(census: Census) -> dict[str, Any]:
    """The header with every metric of every head; null where it has no meaning."""
    values = {name: census.metric(name).tolist() for name in COLUMNS}
    heads = [
        {"where": where, "head": head, **{name: finite_or_none(column[row]) for name, column in values.items()}}
        for row, (where, head) in enumerate(census.heads)
    ]
    return {**census_header(census), "heads": heads}


def census_sequences(census: Census) -> dict[str, Any]:
    """The sequences by their numbers, and for each head and metric those on top with their scores."""
    top = census.state.top
    places, vocabularies = top.places(), [dict[str, str](), dict[str, str]()]
    sequences = {}
    for number, both in sorted(top.ids.items()):
        for known, tokenizer, ids in zip(vocabularies, census.tokenizers, both, strict=True):
            known |= token_texts(tokenizer, ids.unique().tolist())
        text, start = places[number]
        sequences[str(number)] = {"text": text, "start": start, "ids": both[0].tolist(), "source": both[1].tolist()}
    heads = [
        {"where": where, "head": head, **{name: top.ranking(row, name) for name in METRICS if name in COLUMNS}}
        for row, (where, head) in enumerate(census.heads)
    ]
    words = {"vocabulary": vocabularies[0], "source_vocabulary": vocabularies[1]}
    return {**words, "sequences": sequences, "heads": heads}


def token_texts(tokenizer: Any, ids: list[int]) -> dict[str, str]:
    """What ids look like to people."""
    return {} if tokenizer is None else {str(i): tokenizer.token_text(i) for i in ids if i < len(tokenizer)}


def state_tensors(state: CensusState) -> dict[str, Tensor]:
    """Every accumulator by a name that says where it belongs."""
    found = {f"top/{name}": table for name, table in state.top.tensors().items()} | {"counts": state.counts}
    for kind, sums in (("sums", state.sums), ("repeats", state.repeats)):
        for where, each in sums.items():
            found |= {f"{kind}/{where}/{name}": table for name, table in each.tensors().items()}
    return found


# ---------------------------------------------------------------- read


def load_census(folder: Path) -> Census:
    """The census in a folder, as far as it has come."""
    from regard.hub.weights import load_tensors_lazy

    path = folder / STATE_FILE
    if not path.is_file():
        raise DataError(f"{folder}: no {STATE_FILE} in it; name a folder that `regard lens census` wrote")
    tensors, header = load_tensors_lazy(path), parse_census_header(path)
    try:
        state = restore_state(tensors, header)
    except (KeyError, RuntimeError, ValueError, TypeError):
        raise DataError(f"{path}: not a whole census (its numbers are not those that its header names); make it again "
                        "in another folder") from None  # fmt: skip
    text = {name: value for name, value in header["text"].items() if name != "digest"}
    return Census(state, header["model"], text, header["settings"], circuits=load_circuits(folder))


def parse_census_header(path: Path) -> dict[str, Any]:
    from regard.hub.weight_reader import read_metadata

    try:
        header: dict[str, Any] = json.loads(read_metadata(path).get(HEADER, ""))
        known = header["format"]
        named = [header[name] for name in ("model", "text", "settings", "attentions", "tokens", "rows", "sequences")]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: not a census; expected a file that `regard lens census` wrote") from None
    if known != FORMAT:
        raise DataError(f"{path}: a census of format {known!r:.20}; this version reads {FORMAT}")
    if not all(isinstance(each, dict) for each in named[:4]) or not all(isinstance(each, int) for each in named[4:]):
        raise DataError(f"{path}: not a census; expected a file that `regard lens census` wrote")
    return header


def restore_state(tensors: dict[str, Tensor], header: dict[str, Any]) -> CensusState:
    places = {str(where): int(heads) for where, heads in header["attentions"].items()}
    state = CensusState.new(places, tensors["top/keys"].shape[1], len(tensors["counts"]))
    for kind, sums in (("sums", state.sums), ("repeats", state.repeats)):
        for where in places:
            named = {name: tensors[f"{kind}/{where}/{name}"] for name in sums[where].tensors()}
            if len(named["sums"]) != places[where]:
                raise ValueError(where)
            sums[where] = HeadSums.of(named)
    prefix = "top/"
    state.top.restore({name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)})
    state.counts = tensors["counts"].clone()
    state.tokens, state.rows, state.sequences = (header[name] for name in ("tokens", "rows", "sequences"))
    state.digest = str(header["text"]["digest"])
    return state


def resume_census(folder: Path, fresh: Census) -> Census:
    """The census of a folder, if one has begun there, as long as it is of the same model with the same settings."""
    if not (folder / STATE_FILE).is_file():
        others = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
        if others:
            raise ConfigError(f"{folder}: there are other files in it ({', '.join(others[:3])}); choose a new folder")
        return fresh
    known = load_census(folder)
    if known.model["weights"] != fresh.model["weights"] or known.state.places != fresh.state.places:
        raise ConfigError(f"{folder}: it holds the census of another model ({known.model['name']}, weights "
                          f"{known.model['weights'][:12]}, and here they are {fresh.model['weights'][:12]}); choose "
                          "another folder")  # fmt: skip
    for name, value in fresh.settings.items():
        if name == "batch_tokens" and value is None:  # as many as there
            continue
        if (there := known.settings.get(name)) != value:
            raise ConfigError(f"{name}: the census in {folder} has {there}, and {value} was given; give the same, or "
                              "choose another folder")  # fmt: skip
    known.state.marks = fresh.state.marks
    return replace(known, text=fresh.text, tokenizers=fresh.tokenizers)
