"""Checks of the data: leakage from training into validation, amount, input scale, and the tokenizer against the model.

Checked are: the amount of data for the model's size; mean and spread of inputs besides text; ids within the vocabulary,
and few unknown tokens.
"""

import unicodedata
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from regard import data
from regard.data.example_store import Examples
from regard.data.tensor_store import TensorRows
from regard.data.token_shards import TokenShards
from regard.doctor.case import DoctorCase, DoctorFinding, finding_note, finding_ok, finding_problem
from regard.measure.hardware import CostTerms
from regard.text.tokenizer import Tokenizer

SOME, MANY = 0.02, 0.1  # shares of the validation data
TRAINED, VALIDATED = 20_000_000, 1_000_000  # tokens that are compared
FEW = 10_000  # examples: below, other kinds of models learn better
LITTLE, LEAST = 0.1, 0.02  # thresholds of tokens for each parameter


Held = TokenShards | Examples | TensorRows


def rows_of_batches(batches: Any) -> Held | None:
    """The token shards or rows behind a source of batches."""
    for name in ("shards", "rows"):
        if isinstance(found := getattr(batches, name, None), Held):
            return found
    return rows_of_batches(batches.packed) if hasattr(batches, "packed") else None


def check_leakage(case: DoctorCase) -> DoctorFinding:
    train, kept = rows_of_batches(case.data), rows_of_batches(case.run.validation)
    if train is None or kept is None:
        return finding_note("nothing is held out for validation, so overfitting cannot be seen", "data.validation=0.1")
    if type(train) is not type(kept):
        return finding_ok("training and validation are of different kinds")
    double, all = count_leaks(first_tokens(train, TRAINED), first_tokens(kept, VALIDATED))
    part = double / max(1, all)
    what = "windows of 32 tokens" if isinstance(train, TokenShards) else "inputs" if case.textual else "examples"
    told = f"{double:,} of {all:,} {what} in {kept.name} are also in the training data ({part:.1%})"
    if part > MANY:
        own = case.run.recipe is not None and case.run.recipe.data.validations
        remedy = "data.validation=0.1" if own else "remove the duplicates"
        return finding_problem(f"{told}: validation measures memorisation", remedy)
    return finding_note(told, "remove the duplicates") if part > SOME else finding_ok(told)


def first_tokens(data: Held, most: int) -> Held:
    """The first tokens of a long text, since comparing all of it would take as long as reading it."""
    return data.part(0, most, data.name) if isinstance(data, TokenShards) and len(data) > most else data


def check_data_size(case: DoctorCase) -> DoctorFinding:
    train = rows_of_batches(case.data)
    if train is None:
        return finding_ok("the amount of this data is unknown")
    count = sum(weight.numel() for weight in case.model.parameters() if weight.requires_grad)
    if isinstance(train, TensorRows):
        return check_example_count(case, train, count)
    tokens = (
        len(train) if isinstance(train, TokenShards) else int(train.lengths().sum()) * (2 if case.model.encoder else 1)
    )
    ratio = tokens / max(1, count)
    told = f"{tokens:,} tokens for {count:,} parameters, {ratio:.2g} per parameter"
    few = isinstance(train, Examples) and len(train) < FEW  #: S132
    told += f", in {len(train):,} examples" * few
    if case.settings.init_from is not None:
        return (
            finding_note(told, "train.freeze=['embed'] train.epochs=3") if few and ratio < LEAST else finding_ok(told)
        )
    best = f"{CostTerms().tokens_per_parameter:g} would be compute-optimal"
    if ratio < LEAST:
        return finding_problem(f"{told} ({best}): the model will memorise it", suggest_width(case, ratio))
    if ratio < LITTLE:  #: S147
        return finding_note(f"{told} ({best})", suggest_width(case, ratio))
    if few:
        return finding_note(
            f"{told}: below {FEW:,} a transformer has few advantages", "train.init_from=a trained model"
        )
    return finding_ok(told)


def check_example_count(case: DoctorCase, train: TensorRows, count: int) -> DoctorFinding:
    """Check the number of examples; inputs besides text may also be augmented."""
    told = f"{len(train):,} examples, {int(train.lengths().sum()):,} tokens in all, for {count:,} parameters"
    if len(train) >= FEW or case.settings.init_from is not None:
        return finding_ok(told)
    other = "train.augment, or " * (getattr(case.settings, "augment", None) is None)
    return finding_note(
        f"{told}: below {FEW:,} a transformer has few advantages", f"{other}train.init_from=a trained model"
    )


def suggest_width(case: DoctorCase, ratio: float) -> str:
    """A width for which the data would be about enough: the parameters of blocks grow with its square."""
    c = case.model.c.trunk
    heads = max(c.heads, default=2)
    dim = max(heads, int(c.dim * (ratio / LITTLE) ** 0.5) // heads * heads)
    return f"model.dim={dim}, or train.init_from=a trained model"


FLAT, LOUD, ASIDE = 0.05, 20.0, 3.0  # limits of the spread, and of the mean in spreads


def check_input_scale(case: DoctorCase) -> DoctorFinding | None:
    if case.textual:
        return None
    ids = torch.cat([batch["ids"].flatten() for batch in case.read(2)])
    if not ids.is_floating_point():
        return finding_ok(f"whole numbers from {int(ids.min())} to {int(ids.max())}")
    if not bool(ids.isfinite().all()):
        part = float((~ids.isfinite()).float().mean())
        return finding_problem(f"{part:.1%} of the input values are not finite (nan or infinite)",
                     "correct the data, or data.on_bad_record=skip", ends=True)  # fmt: skip
    middle, spread = float(ids.mean()), float(ids.std())
    told = f"inputs with mean {middle:.2g} and standard deviation {spread:.2g}"
    if not spread:
        return finding_problem(f"all input values are {middle:g}: they carry no information",
                     f"task.{input_column(case)}: the column that holds the data")  # fmt: skip
    if FLAT <= spread <= LOUD and abs(middle) <= ASIDE * spread:
        return finding_ok(told)
    return finding_note(f"{told}: mean 0 and standard deviation 1 train best", suggest_normalization(case))


def input_column(case: DoctorCase) -> str:
    return "input" if hasattr(case.run.task.c, "input") else "kind"


def suggest_normalization(case: DoctorCase) -> str:
    """The settings of this front end's mean and standard deviation, if it has them."""
    front = case.model.c.embed
    named = [name for name in ("mean", "std", "max_value", "normalize") if hasattr(front, name)]
    return ", ".join(f"model.embed.{name}" for name in named) or "scale the data"


BLOCK = 1 << 16  # windows hashed at a time
FACTOR = 0x9E3779B97F4A7C15  # odd, and its powers modulo 2⁶⁴ look random


def count_leaks(
    train: Examples | TensorRows | TokenShards, validation: Examples | TensorRows | TokenShards, size: int = 32
) -> tuple[int, int]:
    """The number of validation examples that are also in the training data, and the number of all.

    For texts: the windows of `size` tokens, side by side, that occur anywhere in the training text.
    """
    if isinstance(train, Examples | TensorRows) and isinstance(validation, type(train)):
        return int(torch.isin(validation.marks(), train.marks()).sum()), len(validation)
    if not isinstance(train, TokenShards) or not isinstance(validation, TokenShards):
        raise TypeError("leaks: two texts or two sets of examples can be compared, not one of each")
    asked = torch.cat([*window_hashes(validation, size, size), torch.empty(0, dtype=torch.long)])
    seen = torch.zeros(len(asked), dtype=torch.bool)
    for some in window_hashes(train, size, 1):
        seen |= torch.isin(asked, some)
    return int(seen.sum()), len(asked)


def window_hashes(shards: TokenShards, size: int, step: int) -> Iterator[Tensor]:
    """The hashes of token windows that begin `step` apart, a block at a time: Σ token · FACTOR^place mod 2⁶⁴."""
    powers = torch.tensor([to_signed(pow(FACTOR, place, 1 << 64)) for place in range(size)])
    for start in range(0, len(shards) - size + 1, BLOCK * step):
        ids = shards.ids(start, start + (BLOCK - 1) * step + size)
        yield ((ids.unfold(0, size, step) + 1) * powers).sum(-1)


def to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


UNKNOWN = 0.05  # of all tokens
LIKE, SHOWN = 0.7, 64  # least similarity of a text and its decoded tokens, and how many tokens are decoded
SPARE = 1.25  # allowed ratio of the model's vocabulary to the tokenizer's


def check_tokenizer(case: DoctorCase) -> DoctorFinding:
    if not case.textual:
        return finding_ok("does not apply: the input is not text")
    embed, own = case.model.c.embed, case.tokenizer
    ids = torch.cat([table.flatten() for batch in case.read() for name, table in batch.items() if name == "ids"])
    if int(ids.max()) >= embed.vocab or int(ids.min()) < 0:
        worst = int(ids.min() if int(ids.min()) < 0 else ids.max())
        return finding_problem(f"the data has token {worst:,}, and the model has 0 to {embed.vocab - 1:,}: another "
                     "tokenizer made them", "tokenizer: the one the model was trained with", ends=True)  # fmt: skip
    if own is None:
        return finding_ok(f"{embed.vocab:,} tokens, and no tokenizer to compare them with")
    strange = tokenizer_difference(own, getattr(case.model, "tokenizer", None))
    if strange:
        return finding_problem(
            strange, "tokenizer.kind=file tokenizer.path=CHECKPOINT: the tokenizer that the model was trained with"
        )
    if embed.vocab > SPARE * len(own):
        return finding_note(f"the model has {embed.vocab:,} tokens and the tokenizer {len(own):,}: "
                            f"{embed.vocab - len(own):,} "
                    "vectors are never used", f"model.vocab={len(own)}")  # fmt: skip
    return check_unknown_tokens(case, own, ids)


def tokenizer_difference(mine: Tokenizer, other: Tokenizer | None) -> str:
    """The first difference of two tokenizers, in a sentence."""
    if other is None or other is mine:
        return ""
    for id in range(min(len(mine), len(other))):
        if mine.token(id) != other.token(id):
            return f"token {id} is {other.token(id)!r} in the model's tokenizer and {mine.token(id)!r} in the data's"
    if len(mine) > len(other):
        return f"the data's tokenizer has {len(mine):,} tokens and the model's {len(other):,}"
    return ""


def check_unknown_tokens(case: DoctorCase, own: Tokenizer, ids: torch.Tensor) -> DoctorFinding:
    """Check the share of unknown tokens, and whether the tokens decode to the text of the data."""
    unknown = own.special_ids.get("unk")
    part = 0.0 if unknown is None else float((ids == unknown).float().mean())
    if part > UNKNOWN:
        kind = None if case.run.recipe is None else case.run.recipe.tokenizer.kind
        remedy = (
            "tokenizer.byte_fallback=true"
            if kind in ("char", "word")
            else "another tokenizer, or a model with another one"
        )
        return finding_problem(f"{part:.0%} of {len(ids):,} tokens are unknown", remedy)
    told = f"{len(own):,} tokens, {part:.1%} of {len(ids):,} unknown"
    written, read = text_and_tokens(case, own)
    if not written or not read:
        return finding_ok(told)
    if (like := text_similarity(written, read)) < LIKE:
        return finding_problem(f"the text begins {written[:SHOWN]!r}, and its tokens decode to {read[:SHOWN]!r}: the "
                     "tokenizers differ", "tokenizer: the one that made the data")  # fmt: skip
    return finding_ok(f"{told}; they decode to the text ({like:.0%} alike in its first {len(read)} characters)")


def text_and_tokens(case: DoctorCase, own: Tokenizer) -> tuple[str, str]:
    """The beginning of a text in its file, and as decoded tokens; empty for records and for streams."""
    recipe, shards = case.run.recipe, getattr(case.data, "shards", None)
    if recipe is None or shards is None or any(name.startswith(("-", "hf:")) for name in recipe.data.sources):
        return "", ""
    source = data.find_texts(recipe.data.sources, recipe.data)[0]
    parts = (
        part
        for document in source.documents(data.BadRecordPolicy(recipe.data.on_bad_record))
        for part in document.parts()
    )
    written = next(parts, "")
    read = own.decode(shards.ids(0, SHOWN).tolist())
    return written[: len(read)], read


def text_similarity(first: str, second: str) -> float:
    """The similarity of two texts without spaces, case and accents, which tokenizers may drop."""
    a, b = ("".join(letter for letter in unicodedata.normalize("NFKD", text).casefold() if letter.isalnum())
            for text in (first, second))  # fmt: skip
    return SequenceMatcher(None, a, b, autojunk=False).ratio()
