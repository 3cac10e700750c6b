"""Circuits of a census: copying and composition scores, singular values, and circuits as words, of every head.

They are of the weights alone; only which tokens are frequent comes from the corpus.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import DataError
from regard.files.atomic import atomic_path, write_text
from regard.files.content_cache import read_json_object
from regard.lens.circuits.head_circuits import (
    KINDS,
    HeadDirections,
    circuit_heads,
    composition_table,
    copying_scores,
    head_directions,
)
from regard.lens.circuits.vocabulary_circuits import word_label
from regard.lens.head_census.circuit_words import direction_words, promoted_words

FREQUENT, DIRECTIONS = 8, 2  # tokens whose words are named, and leading directions of each circuit
TENSORS_FILE, WORDS_FILE = "circuits.safetensors", "circuits.json"


@dataclass(frozen=True, eq=False)
class HeadCircuits:
    """`copying` by attention; `composition` by kind over all heads of `attentions`; `words` as in the folder."""

    attentions: dict[str, int]
    copying: dict[str, Tensor]  # (H,)
    composition: dict[str, Tensor]  # (heads, heads), nan where a head does not read what the other writes
    directions: dict[str, HeadDirections]  # by "OV/trunk.0.attn"
    words: dict[str, Any]

    def copying_of(self, places: dict[str, int]) -> Tensor:  # (heads,)
        """The copying scores in the order of a census."""
        return torch.cat([self.copying.get(where, torch.full((heads,), torch.nan, dtype=torch.float64))
                          for where, heads in places.items()])  # fmt: skip


def measure_circuits(model: Any, counts: Tensor) -> HeadCircuits:
    """The circuits of every head; words are those of the tokens that came most often."""
    places = circuit_heads(model)
    frequent = counts.sort(descending=True, stable=True).indices[:FREQUENT]
    ids = [ident for ident in frequent.tolist() if counts[ident]]
    directions, words = dict[str, HeadDirections](), dict[str, Any]()
    for where in places:
        words[where] = {"promoted": promoted_words(model, where, ids)}
        for kind in ("OV", "QK"):
            found = head_directions(model, where, kind, DIRECTIONS)
            directions[f"{kind}/{where}"] = found
            words[where][kind] = direction_words(model, where, kind, found)
    named = {"tokens": [[ident, word_label(model, ident)] for ident in ids], "attentions": words}
    composition = {str(kind): table for kind, table in composition_table(model).items()}
    return HeadCircuits(places, copying_scores(model), composition, directions, named)


def save_circuits(folder: Path, circuits: HeadCircuits) -> None:
    """Tensors in one file, words in another."""
    from regard.hub.weights import save_tensors

    found = {f"copying/{where}": scores for where, scores in circuits.copying.items()}
    found |= {f"composition/{kind}": table for kind, table in circuits.composition.items()}
    for name, each in circuits.directions.items():
        parts = {"values": each.values, "written": each.written, "read": each.read}
        found |= {f"{name}/{part}": table.float().cpu() for part, table in parts.items()}
    with atomic_path(folder / TENSORS_FILE) as aside:
        save_tensors(aside, found, {"attentions": json.dumps(circuits.attentions)})
    write_text(folder / WORDS_FILE, json.dumps(circuits.words, ensure_ascii=False, indent=1) + "\n")


def load_circuits(folder: Path) -> HeadCircuits | None:
    """What `save_circuits` wrote; None where a census has not come so far."""
    from regard.hub.weight_reader import read_metadata
    from regard.hub.weights import load_tensors_lazy

    path = folder / TENSORS_FILE
    if not path.is_file() or not (folder / WORDS_FILE).is_file():
        return None
    tensors = load_tensors_lazy(path)
    try:
        places = {str(where): int(heads) for where, heads in json.loads(read_metadata(path)["attentions"]).items()}
        copying = {where: tensors[name] for where in places if (name := f"copying/{where}") in tensors}
        composition = {str(kind): tensors[f"composition/{kind}"] for kind in KINDS}
        names = [f"{kind}/{where}" for where in places for kind in ("OV", "QK")]
        directions = {name: HeadDirections(*(tensors[f"{name}/{part}"] for part in ("values", "written", "read")))
                      for name in names}  # fmt: skip
    except (KeyError, ValueError, TypeError, AttributeError):
        raise DataError(f"{path}: not the circuits of a census; remove it, and take the census again") from None
    return HeadCircuits(places, copying, composition, directions, read_json_object(folder / WORDS_FILE))
