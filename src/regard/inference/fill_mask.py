"""Fill-mask: the predictions of a masked language model for each mask token.

    Paris is the [MASK] of France.  ──►  capital 0.99, heart 0.001, ...

Each mask is predicted on its own, with the others still masked: p(word | the text with all its masks).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.core.masks import mask
from regard.inference.batching import count_inputs
from regard.inference.text_inputs import OnBadInput, TextInputs, check_text, number_texts, try_each
from regard.tasks.losses import model_outputs
from regard.text.special_tokens import EncodedText
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.inference.model import Model

MASK = "[MASK]"  # stands for the mask token of any model


class MaskPrediction(NamedTuple):
    """A predicted word for a mask, with its probability."""

    word: str
    probability: float
    id: int


def fill_masks(
    model: "Model", texts: Sequence[str], best: int = 5, *, names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None, refuse: OnBadInput | None = None,
) -> list[Any]:  # fmt: skip
    """For each text and each mask in it the most probable words, the best first: lists of lists of predictions.

    A text that cannot be encoded raises, or is None where `refuse` handles the error.
    """
    check_masked_lm(model, best)
    reader, names = TextInputs.of(model), names or number_texts(len(texts))
    if (hidden := reader.tokenizer.special_ids.get("mask")) is None:
        raise DataError("the tokenizer has no mask token, so this is no masked language model; name one that "
                        "is")  # fmt: skip
    seeing = reader if reader.trained else reader.with_segments("mask")
    given = ((seeing, text, hidden, name) for text, name in zip(texts, names, strict=True))

    def forward(batch: dict[str, Tensor]) -> Iterator[list[list[MaskPrediction]]]:
        said = model_outputs(model, batch)
        blanks = (batch["ids"] == hidden) & batch["real"]  # (B, N)
        for row, logits in zip(blanks, said[0] if isinstance(said, tuple) else said, strict=True):
            yield [top_words(each, best, reader.tokenizer) for each in logits[row]]

    return reader.run(model, try_each(given, encode_blanks, refuse), forward, count_inputs(progress))


def check_masked_lm(model: "Model", best: int) -> None:
    """Refuse a model that cannot attend to what follows a mask, and one without an LM head."""
    c = model.c
    if best < 1:
        raise ConfigError(f"top_k: {best} returns no word; choose one or more")
    if c.encoder is not None:
        raise ConfigError("this model is an encoder-decoder and fills no masks; use translate")
    words = c.head.lm if isinstance(c.head, config.PretrainingHead) else c.head
    if not isinstance(words, config.LMHead):
        raise ConfigError(f"head.kind: {c.head.kind!r} is no LM head; use a masked language model "
                          "(ForMaskedLM)")  # fmt: skip
    if not any(mask(text).ahead for text in c.trunk.masks):
        raise ConfigError("this model is causal and does not see the text after a mask; use generate")


def encode_blanks(reader: TextInputs, text: str, hidden: int, name: str) -> EncodedText:
    """A text with masks in ids, without truncation, which could cut off a mask."""
    check_text(text, name)
    mark = reader.tokenizer.token(hidden)
    text = text.replace(MASK, mark)
    if text.strip() and mark not in text:
        raise DataError(f"{name}: there is no mask in it; write {MASK} where the word is missing")
    found = encode_parts(reader, text.split(mark), hidden, name) if reader.trained else reader.frame(text, name=name)
    if reader.longest is not None and len(found) > reader.longest:
        raise DataError(f"{name}: {len(found)} tokens are more than the {reader.longest} that this model reads at "
                        "once; give less of the text around the mask")  # fmt: skip
    return found


def encode_parts(reader: TextInputs, parts: Sequence[str], hidden: int, name: str) -> EncodedText:
    """The parts of a text around its masks, tokenized as in training, where a mask replaces a token with its leading
    space."""
    tokenizer, ids = reader.tokenizer, list[int]()
    spaced = any(len(piece) > 1 and piece.startswith(b" ") for piece in tokenizer.spelling or [])
    if len(parts) == 1:
        return reader.frame(parts[0], name=name)
    for part in parts[:-1]:
        ids += [*tokenizer.encode(part.rstrip(" ") if spaced else part), hidden]
    made = reader.specials.single([*ids, *tokenizer.encode(parts[-1])])
    return EncodedText(made, [0] * len(made), [0] * len(made), [(0, 0)] * len(made))


def top_words(logits: Tensor, best: int, tokenizer: Tokenizer) -> list[MaskPrediction]:  # (V,)
    """The most probable words, without rows of the embedding that pad the vocabulary."""
    shares = logits.float().softmax(-1)[: len(tokenizer)]
    found = zip(*(each.tolist() for each in shares.topk(min(best, len(shares)))), strict=True)
    return [MaskPrediction(printable_token(id, tokenizer), share, id) for share, id in found]


def printable_token(id: int, tokenizer: Tokenizer) -> str:
    """A token as text; partial characters, line breaks and special tokens by their names."""
    said = tokenizer.decode([id]).strip()
    return said if said and said.isprintable() and "\ufffd" not in said else tokenizer.token_text(id)
