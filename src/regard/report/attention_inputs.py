"""What the heads are shown reading: one row for their maps, some for their roles, each as the model takes it.

    next token           the sentence asked for, or the model's own words
    translate            the same sentence as a source, or one from the samples, and its translation
    everything else      the same sentence, or a row of what was kept back
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import config
from regard.generate.limits import window
from regard.generate.translate import Translator
from regard.report.run import Run
from regard.report.words import ids_of
from regard.tasks import Batch
from regard.tasks.losses import INPUTS
from regard.tasks.specials import Specials

MANY = 12  # rows for roles
LEAST = 4  # tokens


@dataclass(frozen=True)
class Shown:
    """`one` row without padding, and `some`; `note` says where it comes from."""

    one: Batch
    some: Batch
    note: str = ""


def shown(run: Run, model: Any, tokenizer: Any, batch: Batch | None, most: int) -> Shown:
    """DataError where there is nothing to read."""
    asked, note = wanted(run, tokenizer)
    if model.encoder is not None:
        return across(run, model, asked, note, batch, most)
    if batch is None:
        return alone(run, tokenizer, asked, note, most)
    own = batch if asked is None else {"ids": torch.tensor([Specials.of(tokenizer).single(tokenizer.encode(asked))])}
    return Shown(first(own, most), some(batch, most), "" if asked else joined(note, "a text that it never trained on"))


def wanted(run: Run, tokenizer: Any) -> tuple[str | None, str]:
    """The sentence that the recipe asks for, or why it is not read."""
    asked = None if run.recipe is None else run.recipe.report.sentence
    try:
        tokenizer.encode(asked or "")
    except config.DataError as problem:
        return None, f"report.sentence cannot be read by the tokenizer ({problem})"
    return asked or None, ""


def joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


# ---------------------------------------------------------------- texts that go on


def alone(run: Run, tokenizer: Any, asked: str | None, note: str, most: int) -> Shown:
    """The sentence, or the model's own words; the roles are read on all of its last samples."""
    samples = run.last_samples if run.samples else []
    if asked is None and samples:
        middle = sorted(samples, key=lambda sample: sample["temperature"])[len(samples) // 2]
        said, note = ids_of(tokenizer, middle["text"].strip())[:most], joined(note, "the model's own words")
    else:
        said = tokenizer.encode(asked)[:most] if asked else []
    if len(said) < LEAST:
        raise config.DataError(f"{note or 'there is no sentence to read'}; set report.sentence")
    ids = [id for sample in samples for id in ids_of(tokenizer, sample["text"])]
    rows = min(len(ids) // most, MANY)
    many = torch.tensor(ids[: rows * most]).view(rows, most) if rows else torch.tensor([said])
    return Shown({"ids": torch.tensor([said])}, {"ids": many}, note)


# ---------------------------------------------------------------- a text for a text


class Pair(NamedTuple):
    """A text, what the model makes of it, and that in ids with the token that ends it."""

    source: str
    text: str
    ids: tuple[int, ...]


def across(run: Run, model: Any, asked: str | None, note: str, batch: Batch | None, most: int) -> Shown:
    if batch is not None:
        return Shown(first(batch, most), some(batch, most), joined(note, "a text that it never trained on"))
    laid = laid_out(model, translations(run, model, asked, note))
    own = "" if asked else joined(note, "one that it was validated on, and its own translation")
    return Shown(first(laid, most), some(laid, most), own)


def translations(run: Run, model: Any, asked: str | None, note: str) -> list[Pair]:
    """What the model makes of the sentence that is asked for, and what it made of others in its last samples."""
    translator, most, pairs = Translator(model), window(model, model.limits), []
    if asked:
        best = translator([asked], {})[0]
        pairs.append(Pair(asked, best.text, best.ids))
    for line in run.last_translations if run.translations else []:
        ids = (*translator.speaks.encode(line["text"]), translator.task.target["end"])
        pairs.append(Pair(line["source"], line["text"], ids[:most]))  # bytes that were no text are more when read back
    if not pairs:
        raise config.DataError(f"{note or 'there is no sentence to translate'}; set report.sentence")
    return pairs


def laid_out(model: Any, pairs: list[Pair]) -> Batch:
    """Texts and their translations as training lays them out."""
    translator = Translator(model)
    sources = [translator.reads.encode(pair.source) for pair in pairs]
    batch = translator.task.batch(sources, [pair.ids[:-1] for pair in pairs])  # after the last token nobody looks
    batch["ids"][:, 0] = translator.begin
    return batch


# ---------------------------------------------------------------- rows


def first(batch: Batch, most: int) -> Batch:
    """The first row as far as it is shown, without its padding; all that is left is real, whatever its id."""
    tables = [name for name in ("ids", "source", "segment") if name in batch]
    kept = {name: batch[name][:1, real(batch, name)][:, :most] for name in tables}
    whole = {"ids": "real", "source": "source_real"}
    return kept | {whole[name]: torch.ones_like(kept[name], dtype=torch.bool) for name in whole if name in kept}


def real(batch: Batch, name: str) -> Tensor:
    beside = "source_real" if name == "source" else "real"
    return batch[beside][0] if beside in batch else torch.ones_like(batch[name][0], dtype=torch.bool)


def some(batch: Batch, most: int) -> Batch:
    return {name: batch[name][:MANY, :most] for name in ("ids", *INPUTS) if name in batch}
