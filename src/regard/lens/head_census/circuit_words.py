"""Circuits as words: what the OV circuit of each head promotes for frequent tokens, and the ends of leading directions.

A direction has two ends: words at the plus end of what a head reads go with words at the plus end of what it writes,
and minus with minus. For QK the query is written and the key is read. Values are around the mean of all words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.circuits.attention_circuits import HeadPlace, find_attention_head
from regard.lens.circuits.head_circuits import HeadDirections
from regard.lens.circuits.vocabulary_circuits import (
    ROWS,
    multiply_rows,
    read_embedding,
    vocabulary_circuit,
    word_label,
    write_unembedding,
)
from regard.lens.frozen_norm import widen

WORDS = 5  # at each end
Ends = dict[str, list[list[Any]]]  # {"plus": [[word, value], ...], "minus": ...}


def promoted_words(model: Any, where: str, ids: Sequence[int]) -> list[list[Ends]] | None:
    """For each head and each of these tokens, the words that the OV circuit promotes (plus) and suppresses (minus);
    None where there is no linear way from words to words."""
    columns: list[Tensor] = []
    unembed = None
    try:
        for head in range(find_attention_head(model, where).attention.heads):
            circuit, embed, unembed = vocabulary_circuit(model, where, head)
            known = [ident for ident in ids if ident < len(embed)]
            columns.append(circuit.left @ (circuit.right @ widen(embed[known]).mT))  # (D, tokens)
    except ConfigError:
        return None
    if unembed is None or not known:
        return None
    found = word_ends(model, unembed, torch.cat(columns, 1))
    return [found[start : start + len(known)] for start in range(0, len(found), len(known))]


def direction_words(model: Any, where: str, kind: str, found: HeadDirections) -> dict[str, list[list[Ends]]]:
    """For each head and leading direction the words at both ends of what is written (the query) and what is read."""
    place, out = find_attention_head(model, where), {}
    for side, directions in (("written", found.written), ("read", found.read)):
        try:
            columns, table = direction_columns(model, place, kind, side, directions.flatten(0, 1).mT)
        except ConfigError:
            continue
        ends, each = word_ends(model, table, columns), directions.shape[1]
        out[side] = [ends[start : start + each] for start in range(0, len(ends), each)]
    return out


def direction_columns(
    model: Any, place: HeadPlace, kind: str, side: str, columns: Tensor
) -> tuple[Tensor, Tensor]:  # (D, n) -> (d, n), (V, d)
    """Directions of the stream as directions of a table of words."""
    if kind == "OV" and side == "written":
        return write_unembedding(model, place, columns)
    if place.trunk_name != "trunk" and getattr(model, "encoder_embed", None) is not None:
        raise ConfigError(f"{place.where}: what it reads is not made of the words that the model says")
    rows, table = read_embedding(model, place, columns.mT, query=side == "written")
    return rows.mT, table


def word_ends(model: Any, table: Tensor, columns: Tensor) -> list[Ends]:
    """The words with the largest and the smallest values of table @ columns, for each column."""
    values = torch.cat([multiply_rows(part, columns).float() for part in table.split(ROWS)]).mT.contiguous()
    values = values - values.mean(1, keepdim=True)
    count = min(WORDS, values.shape[1])
    found: list[Ends] = [{} for _ in values]
    for name, largest in (("plus", True), ("minus", False)):
        numbers, ids = (each.tolist() for each in values.topk(count, largest=largest))
        for ends, row, words in zip(found, numbers, ids, strict=True):
            ends[name] = [[word_label(model, ident), value] for ident, value in zip(words, row, strict=True)]
    return found
