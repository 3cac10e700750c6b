"""Prompts of a lens: a text, ids or an image as the model takes it, with a label for every token of its trunk.

    read_prompt(model, "ROMEO: I")                          a decoder: what it would go on from
    read_prompt(model, "A [MASK] day.")                     an encoder: between the special tokens of its training
    read_prompt(model, "le chat", source="the cat")         an encoder-decoder: the target so far, and its source
    read_prompt(model, torch.tensor([[3, 1, 4]]))           ids (N,) or (B, N), images (B, C, H, W), as they are
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.lens.attention_maps import check_ids, unwrap_model


@dataclass(frozen=True, eq=False)
class Prompt:
    """`first` is what forward takes first, `given` the rest by name; labels are those of the first row."""

    first: Tensor
    labels: tuple[str, ...]
    given: dict[str, Tensor] = field(default_factory=dict)
    source_labels: tuple[str, ...] = ()

    @property
    def ids(self) -> Tensor:  # (B, N)
        """The ids of the trunk's own tokens."""
        if self.first.is_floating_point():
            raise ConfigError("this lens reads ids of tokens, and this model was given an image or a sound")
        return self.first.flatten(1)

    def run(self, model: Any, *, deferred: bool = False) -> Any:
        """What the model makes of it; `deferred` leaves logits over words as factors."""
        return model(self.first, **self.given, **({"deferred": True} if deferred else {}))

    def repeat(self, rows: int) -> "Prompt":
        """The same, so many times in one batch."""
        first, given = (self.first.repeat_interleave(rows, 0), {})
        for name, table in self.given.items():
            given[name] = table.repeat_interleave(rows, 0)
        return replace(self, first=first, given=given)


def read_prompt(
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt | None, *, source: str | Tensor | None = None,
    pair: str | None = None, **given: Tensor,
) -> Prompt:  # fmt: skip
    """A Prompt of whatever the model reads; `pair` is the second text of an encoder, what else is given goes along."""
    if isinstance(prompt, Prompt):
        return prompt
    model = unwrap_model(model)
    device = next(model.parameters()).device
    if isinstance(prompt, str) or isinstance(source, str):
        if not hasattr(model, "encode_inputs"):
            raise ConfigError("this model has no tokenizer for text; give ids, or a model of regard.load")
        read = model.encode_inputs(prompt, source=source, pair=pair) | given
        first = read.pop("ids")
    else:
        if prompt is None:
            raise ConfigError("prompt: give a text, ids or an image; only a source in words can be translated")
        first = prompt if isinstance(prompt, Tensor) else ids_tensor(prompt)
        first = first[None] if first.dim() == 1 else first
        read = {**given, **({} if source is None else {"source": source})}
    first = first.to(device)
    read = {name: table.to(device) for name, table in read.items()}
    if not first.numel():
        raise DataError("prompt: it is empty; give it at least one token")
    check_ids(getattr(model, "embed", None), first, "prompt")
    if "source" in read:
        check_ids(getattr(model, "encoder_embed", None) or model.embed, read["source"], "source")
    target, origin = getattr(model, "output_tokenizer", None), getattr(model, "tokenizer", None)
    sources = token_labels(origin, read["source"]) if "source" in read else ()
    return Prompt(first, token_labels(target, first), read, sources)


def ids_tensor(prompt: Any) -> Tensor:  # (1, N)
    """A sequence of ids as a row."""
    if not isinstance(prompt, Sequence) or not all(isinstance(ident, int) for ident in prompt):
        raise ConfigError(f"prompt: expected a text, a list of ids, or a tensor, got {prompt!r:.60}")
    return torch.tensor([list(prompt)], dtype=torch.long)


def token_labels(tokenizer: Any, x: Tensor) -> tuple[str, ...]:
    """A label for every token of the first row: as people read it; ids where there is no tokenizer; none of an image
    that is not made of ids."""
    if x.is_floating_point():
        return ()
    ids = x[0].flatten().tolist()
    known = len(tokenizer) if tokenizer is not None else 0
    return tuple(tokenizer.token_text(ident) if ident < known else str(ident) for ident in ids)


def token_id(model: Any, token: str | int, tokenizer: Any = None) -> int:
    """The id of one token, given as a text or an id. A text that is several tokens is refused with its pieces.

    A word that stands alone in the vocabulary only after a space, as in GPT-2, is found in that form. The `tokenizer`
    is that of what the model says, unless another is given.
    """
    model = unwrap_model(model)
    tokenizer = getattr(model, "output_tokenizer", None) if tokenizer is None else tokenizer
    if isinstance(token, int):
        vocab = int(getattr(model.head, "out_features", 0) or model.c.embed.vocab)
        if not 0 <= token < vocab:
            raise ConfigError(f"token: id {token} is outside the vocabulary of {vocab}")
        return token
    if tokenizer is None:
        raise ConfigError(f"token {token!r}: this model has no tokenizer; give an id")
    if not token:
        raise ConfigError("token '': it is empty; name one token, or an id")
    tries = [tokenizer.encode(each) for each in dict.fromkeys((token, f" {token}", token.strip()))]
    for ids in tries:
        if len(ids) == 1:
            return int(ids[0])
    pieces = " ".join(map(tokenizer.token_text, tries[0])) or "nothing"
    raise ConfigError(f"token {token!r} is {len(tries[0])} tokens ({pieces}); name one token, or an id")
