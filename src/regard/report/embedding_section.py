"""The report's embedding section: a plane of tokens, their neighbours, the closest pairs."""

import re
import unicodedata
from collections import Counter
from itertools import accumulate
from typing import Any

import torch

from regard import config, lens
from regard.report.run_data import LoggedRun
from regard.tasks.collate import TaskBatch

SHOWN, LETTERS = 96, 240  # tokens in the plane, and characters of all their names together


def embedding_section(run: LoggedRun, model: Any, tokenizer: Any, batch: TaskBatch | None = None) -> dict[str, Any]:
    """The most frequent tokens in a plane, and the nearest neighbours of each among them."""
    if tokenizer is None:
        return {"absent": "No map of tokens: the model has no tokenizer."}
    names = plain_tokens(tokenizer)
    shown = frequent_tokens(run, tokenizer, names, batch)
    if len(shown) < 3:
        return {"absent": "No map of tokens: there are too few."}
    table = lens.token_vectors(getattr(model, "towers", [model])[-1])[
        torch.tensor(names)
    ]  # of a dual encoder, the text tower
    rows = torch.tensor([names.index(i) for i in shown])
    near, cosines = lens.nearest_tokens(table, rows, 5)
    at, share = lens.project_pca(table[rows])
    pieces = [tokenizer.token_text(i) for i in shown]
    return {
        "pieces": pieces,
        "kinds": [token_kind(tokenizer.decode([i])) for i in shown],
        "at": [[round(float(value), 4) for value in row] for row in at / at.abs().max().clamp(min=1e-9)],
        "near": [[tokenizer.token_text(names[j]) for j in row.tolist()] for row in near],
        "cosines": [[round(value, 2) for value in row.tolist()] for row in cosines],
        "pairs": [[pieces[i], pieces[j], round(cosine, 2)] for i, j, cosine in lens.closest_pairs(table[rows], 12)],
        "shown": round(share, 3),
        "whole": len(names),
    }


def plain_tokens(tokenizer: Any) -> list[int]:
    """The ids of ordinary text: neither special tokens nor partial characters."""
    special = set(tokenizer.special_ids.values())
    every = [i for i in range(len(tokenizer)) if i not in special]
    return [i for i in every if not re.fullmatch("<0x[0-9A-Fa-f]{2}>", tokenizer.token_text(i))] or every


def frequent_tokens(run: LoggedRun, tokenizer: Any, names: list[int], batch: TaskBatch | None) -> list[int]:
    """The most frequent tokens in the texts of the report, or the first of the vocabulary if there are none."""
    known, used = set(names), Counter[int]()
    for line in (*run.samples, *run.translations):
        used.update(sample_ids(tokenizer, line["text"] + line.get("target", "")))
    if batch is not None:
        used.update(batch["ids"].flatten().tolist())
    found = [i for i, _ in used.most_common() if i in known]
    order = (found if len(found) > 2 else names)[:SHOWN]
    letters = accumulate(len(tokenizer.token_text(i)) + 1 for i in order)
    return sorted(i for i, so_far in zip(order, letters, strict=True) if so_far <= LETTERS)


def sample_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of a sample; none if another tokenizer wrote it."""
    try:
        return tokenizer.encode(text)  # type: ignore[no-any-return]
    except config.DataError:
        return []


def token_kind(text: str) -> str:
    """The kind of a token, which selects its colour."""
    bare = text.strip()
    if not bare:
        return "space"
    if all(unicodedata.category(char)[0] in "PSN" for char in bare):
        return "mark or digit"
    if len(bare) == 1 and unicodedata.normalize("NFD", bare)[0].lower() in "aeiou":
        return "capital vowel" if bare.isupper() else "vowel"
    if bare[0].isupper():
        return "upper case"
    return "lower case"
