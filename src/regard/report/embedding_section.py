"""Which tokens a model thinks alike, packed for the page: a plane of tokens, neighbours, the closest pairs."""

import re
import unicodedata
from collections import Counter
from itertools import accumulate
from typing import Any

import torch

from regard import config, lens
from regard.report.run import Run
from regard.tasks import Batch

SHOWN, LETTERS = 96, 240  # tokens on the plane, and letters in all of them: there is so much room


def words(run: Run, model: Any, tokenizer: Any, batch: Batch | None = None) -> dict[str, Any]:
    """The tokens used most, where they stand on a plane, and who is nearest to whom among all of them."""
    if tokenizer is None:
        return {"absent": "No map of tokens: what it reads are no words."}
    names = ordinary(tokenizer)
    shown = frequent(run, tokenizer, names, batch)
    if len(shown) < 3:
        return {"absent": "No map of tokens: there are too few."}
    table = lens.vectors(getattr(model, "towers", [model])[-1])[torch.tensor(names)]  # of towers, the one that reads
    rows = torch.tensor([names.index(i) for i in shown])
    near, cosines = lens.neighbours(table, rows, 5)
    at, share = lens.plane(table[rows])
    pieces = [tokenizer.piece(i) for i in shown]
    return {
        "pieces": pieces,
        "kinds": [kind(tokenizer.decode([i])) for i in shown],
        "at": [[round(float(value), 4) for value in row] for row in at / at.abs().max().clamp(min=1e-9)],
        "near": [[tokenizer.piece(names[j]) for j in row.tolist()] for row in near],
        "cosines": [[round(value, 2) for value in row.tolist()] for row in cosines],
        "pairs": [[pieces[i], pieces[j], round(cosine, 2)] for i, j, cosine in lens.closest(table[rows], 12)],
        "shown": round(share, 3),
        "whole": len(names),
    }


def ordinary(tokenizer: Any) -> list[int]:
    """The ids that stand for text of their own: neither special nor a part of a character, which few texts need."""
    special = set(tokenizer.roles.values())
    every = [i for i in range(len(tokenizer)) if i not in special]
    return [i for i in every if not re.fullmatch("<0x[0-9A-Fa-f]{2}>", tokenizer.piece(i))] or every


def frequent(run: Run, tokenizer: Any, names: list[int], batch: Batch | None) -> list[int]:
    """The tokens that the texts shown here use most, or the first of the vocabulary where there are none."""
    known, used = set(names), Counter[int]()
    for line in (*run.samples, *run.translations):
        used.update(ids_of(tokenizer, line["text"] + line.get("target", "")))
    if batch is not None:
        used.update(batch["ids"].flatten().tolist())
    found = [i for i, _ in used.most_common() if i in known]
    order = (found if len(found) > 2 else names)[:SHOWN]
    letters = accumulate(len(tokenizer.piece(i)) + 1 for i in order)
    return sorted(i for i, so_far in zip(order, letters, strict=True) if so_far <= LETTERS)


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The ids of a sample, or none where another tokenizer wrote it."""
    try:
        return tokenizer.encode(text)  # type: ignore[no-any-return]
    except config.DataError:
        return []


def kind(text: str) -> str:
    """What sort of token it is, for its colour."""
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
