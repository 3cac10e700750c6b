"""Do tokenizer and model speak the same language? Ids the model knows, words the tokenizer knows, one table of both."""

import unicodedata
from difflib import SequenceMatcher

import torch

from regard import data
from regard.text import Tokenizer
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong

UNKNOWN = 0.05  # of all tokens
LIKE, SHOWN = 0.7, 64  # how much of a text its tokens must say, and how many of them are read
SPARE = 1.25  # times as many tokens as the tokenizer has


def tokenizer(case: Case) -> Finding:
    if not case.textual:
        return fine("does not apply: what is read is no text")
    embed, own = case.model.c.embed, case.tokenizer
    ids = torch.cat([table.flatten() for batch in case.read() for name, table in batch.items() if name == "ids"])
    if int(ids.max()) >= embed.vocab or int(ids.min()) < 0:
        worst = int(ids.min() if int(ids.min()) < 0 else ids.max())
        return wrong(f"the data holds token {worst:,}, and the model knows 0 to {embed.vocab - 1:,}: another "
                     "tokenizer made them", "text: the tokenizer that the model was made for", ends=True)  # fmt: skip
    if own is None:
        return fine(f"{embed.vocab:,} tokens, and no tokenizer to compare them with")
    strange = differs(own, getattr(case.model, "tokenizer", None))
    if strange:
        return wrong(strange, "text.kind=file text.path=CHECKPOINT: the tokenizer that the model was trained with")
    if embed.vocab > SPARE * len(own):
        return look(f"the model has {embed.vocab:,} tokens and the tokenizer {len(own):,}: {embed.vocab - len(own):,} "
                    "vectors are never read", f"model.vocab={len(own)}")  # fmt: skip
    return spoken(case, own, ids)


def differs(mine: Tokenizer, theirs: Tokenizer | None) -> str:
    """The first token that two tokenizers have differently, in words."""
    if theirs is None or theirs is mine:
        return ""
    for id in range(min(len(mine), len(theirs))):
        if mine.token(id) != theirs.token(id):
            return f"token {id} is {theirs.token(id)!r} to the model and {mine.token(id)!r} to the data: two tokenizers"
    if len(mine) > len(theirs):
        return f"the data's tokenizer has {len(mine):,} tokens and the model's {len(theirs):,}"
    return ""


def spoken(case: Case, own: Tokenizer, ids: torch.Tensor) -> Finding:
    """Unknown tokens, and whether the tokens say what the data say."""
    unknown = own.roles.get("unk")
    part = 0.0 if unknown is None else float((ids == unknown).float().mean())
    if part > UNKNOWN:
        kind = None if case.run.recipe is None else case.run.recipe.text.kind
        remedy = "text.fallback=true" if kind in ("char", "word") else "another tokenizer, or a model with another one"
        return wrong(f"{part:.0%} of {len(ids):,} tokens are unknown words", remedy)
    told = f"{len(own):,} tokens, {part:.1%} of {len(ids):,} unknown"
    written, read = beginnings(case, own)
    if not written or not read:
        return fine(told)
    if (like := likeness(written, read)) < LIKE:
        return wrong(f"the text begins {written[:SHOWN]!r}, and its tokens say {read[:SHOWN]!r}: another tokenizer "
                     "made them", "text: the tokenizer that made the data")  # fmt: skip
    return fine(f"{told}; they say what the text says ({like:.0%} of its first {len(read)} characters)")


def beginnings(case: Case, own: Tokenizer) -> tuple[str, str]:
    """How a text begins where it was written, and in its tokens; nothing of records, or what is read only once."""
    recipe, shards = case.run.recipe, getattr(case.data, "shards", None)
    if recipe is None or shards is None or any(name.startswith(("-", "hf:")) for name in recipe.data.sources):
        return "", ""
    source = data.find(recipe.data.sources, recipe.data)[0]
    parts = (part for document in source.documents(data.Tally(recipe.data.bad)) for part in document.parts())
    written = next(parts, "")
    read = own.decode(shards.ids(0, SHOWN).tolist())
    return written[: len(read)], read


def likeness(first: str, second: str) -> float:
    """How much of two texts is the same, but for spaces, case and accents, which tokenizers may leave out."""
    a, b = ("".join(letter for letter in unicodedata.normalize("NFKD", text).casefold() if letter.isalnum())
            for text in (first, second))  # fmt: skip
    return SequenceMatcher(None, a, b, autojunk=False).ratio()
