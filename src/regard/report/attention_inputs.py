"""Attention map inputs of the report: one row for the maps, some for head roles, in the model's input format.

next token           the requested sentence, or the model's own text
translate            the same sentence as a source, or one from the samples, and its translation
everything else      the same sentence, or a row of the validation data
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import config
from regard.generation.limits import context_window
from regard.inference.translation import Translator
from regard.report.embedding_section import sample_ids
from regard.report.run_data import LoggedRun
from regard.tasks.collate import TaskBatch, TaskSpecialTokens
from regard.tasks.losses import MODEL_INPUTS

MANY = 12  # rows for head roles
LEAST = 4  # tokens


@dataclass(frozen=True)
class ShownInput:
    """Inputs: `one` row without padding, and `some`; `note` names their source."""

    one: TaskBatch
    some: TaskBatch
    note: str = ""


def attention_input(run: LoggedRun, model: Any, tokenizer: Any, batch: TaskBatch | None, most: int) -> ShownInput:
    """The input of the attention section; DataError if there is none."""
    asked, note = requested_sentence(run, tokenizer)
    if model.encoder is not None:
        return seq2seq_input(run, model, asked, note, batch, most)
    if batch is None:
        return single_text_input(run, tokenizer, asked, note, most)
    own = (
        batch
        if asked is None
        else {"ids": torch.tensor([TaskSpecialTokens.of(tokenizer).single(tokenizer.encode(asked))])}
    )
    return ShownInput(
        first_row(own, most),
        first_rows_of(batch, most),
        "" if asked else join_notes(note, "a text that it never trained on"),
    )


def requested_sentence(run: LoggedRun, tokenizer: Any) -> tuple[str | None, str]:
    """The sentence in the recipe, or the reason why it is not used."""
    asked = None if run.recipe is None else run.recipe.report.sentence
    try:
        tokenizer.encode(asked or "")
    except config.DataError as problem:
        return None, f"report.sentence cannot be read by the tokenizer ({problem})"
    return asked or None, ""


def join_notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


# ---------------------------------------------------------------- generated texts


def single_text_input(run: LoggedRun, tokenizer: Any, text: str | None, note: str, most: int) -> ShownInput:
    """The sentence, or the model's own text; head roles use all of its last samples."""
    samples = run.last_samples if run.samples else []
    if text is None and samples:
        middle = sorted(samples, key=lambda sample: sample["temperature"])[len(samples) // 2]
        said, note = sample_ids(tokenizer, middle["text"].strip())[:most], join_notes(note, "text of the model")
    else:
        said = tokenizer.encode(text)[:most] if text else []
    if len(said) < LEAST:
        raise config.DataError(f"{note or 'there is no sentence to read'}; set report.sentence")
    ids = [id for sample in samples for id in sample_ids(tokenizer, sample["text"])]
    rows = min(len(ids) // most, MANY)
    many = torch.tensor(ids[: rows * most]).view(rows, most) if rows else torch.tensor([said])
    return ShownInput({"ids": torch.tensor([said])}, {"ids": many}, note)


# ---------------------------------------------------------------- translations


class TranslatedPair(NamedTuple):
    """A source text, its translation, and the translation's ids with the end token."""

    source: str
    text: str
    ids: tuple[int, ...]


def seq2seq_input(
    run: LoggedRun, model: Any, text: str | None, note: str, batch: TaskBatch | None, most: int
) -> ShownInput:
    if batch is not None:
        return ShownInput(
            first_row(batch, most), first_rows_of(batch, most), join_notes(note, "a text that it never trained on")
        )
    laid = collate_pairs(model, translated_pairs(run, model, text, note))
    own = "" if text else join_notes(note, "one that it was validated on, and its own translation")
    return ShownInput(first_row(laid, most), first_rows_of(laid, most), own)


def translated_pairs(run: LoggedRun, model: Any, text: str | None, note: str) -> list[TranslatedPair]:
    """The model's translation of the requested sentence, and those in its last samples."""
    translator, most, pairs = Translator(model), context_window(model, model.generation_limits), []
    if text:
        best = translator([text], {})[0]
        pairs.append(TranslatedPair(text, best.text, best.ids))
    for line in run.last_translations if run.translations else []:
        ids = (*translator.speaks.encode(line["text"]), translator.task.target["eos"])
        pairs.append(
            TranslatedPair(line["source"], line["text"], ids[:most])
        )  # invalid bytes become more tokens when encoded again
    if not pairs:
        raise config.DataError(f"{note or 'there is no sentence to translate'}; set report.sentence")
    return pairs


def collate_pairs(model: Any, pairs: list[TranslatedPair]) -> TaskBatch:
    """Texts and translations as a training batch."""
    translator = Translator(model)
    sources = [translator.reads.encode(pair.source) for pair in pairs]
    batch = translator.task.batch(sources, [pair.ids[:-1] for pair in pairs])  # the last token is never an input
    batch["ids"][:, 0] = translator.begin
    return batch


# ---------------------------------------------------------------- rows


def first_row(batch: TaskBatch, most: int) -> TaskBatch:
    """The first row without padding, truncated for display."""
    tables = [name for name in ("ids", "source", "segment") if name in batch]
    kept = {name: batch[name][:1, real_mask(batch, name)][:, :most] for name in tables}
    whole = {"ids": "real", "source": "source_real"}
    return kept | {whole[name]: torch.ones_like(kept[name], dtype=torch.bool) for name in whole if name in kept}


def real_mask(batch: TaskBatch, name: str) -> Tensor:
    beside = "source_real" if name == "source" else "real"
    return batch[beside][0] if beside in batch else torch.ones_like(batch[name][0], dtype=torch.bool)


def first_rows_of(batch: TaskBatch, most: int) -> TaskBatch:
    return {name: batch[name][:MANY, :most] for name in ("ids", *MODEL_INPUTS) if name in batch}
