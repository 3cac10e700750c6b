"""Bodies without a pooler: a config.json does not say that a class called Model was stored without one, its weights do.

    ViTModel(config, add_pooling_layer=False).save_pretrained(...)      no pooler.dense.weight in model.safetensors

What is found in the weights is put among the settings for as long as they are read, in the word that `transformers` has
for it. It is not written: a setting of that name would keep `from_pretrained` from being told the same.
"""

from collections.abc import Iterable
from typing import Any

from regard.hub import names
from regard.hub.families import FAMILIES

WORD = "add_pooling_layer"


def completed(said: dict[str, Any], stored: Iterable[str]) -> dict[str, Any]:
    """A config.json with the word for a pooler that is not there, given the names of the tensors that are."""
    family, classes = FAMILIES.get(str(said.get("model_type"))), said.get("architectures")
    if family is None or WORD in said or not isinstance(classes, list) or not classes:
        return said
    if classes[0] not in family.alone or not any(pooler(row.theirs) for row in names.table(family.table, classes[0])):
        return said
    return said if any(map(pooler, stored)) else {**said, WORD: False}


def unsaid(said: dict[str, Any]) -> dict[str, Any]:
    """The same without that word."""
    return {key: value for key, value in said.items() if key != WORD}


def pooler(name: str) -> bool:
    return "pooler." in name
