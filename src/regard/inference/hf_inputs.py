"""Inputs by the names of `transformers`: model(**tokenizer(texts, return_tensors="pt")) gives logits.

    input_ids        ids; of an encoder-decoder source, and decoder_input_ids is ids
    attention_mask   real, as booleans; positions count from the first real token, also after padding on the left
    token_type_ids   segment
    pixel_values     the images

Inputs that change nothing (use_cache=False) are accepted; an unsupported one is refused, and the error names the
alternative. A tokenizer of `transformers` assigned to model.tokenizer is converted to ours.
"""

import tempfile
from collections.abc import Mapping
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.config.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

ONE = {"input_ids": "ids", "attention_mask": "real", "token_type_ids": "segment", "pixel_values": "ids"}
TWO = {"input_ids": "source", "pixel_values": "source", "attention_mask": "source_real", "decoder_input_ids": "ids",
       "decoder_attention_mask": "real"}  # fmt: skip
THEIRS = ONE.keys() | TWO.keys()
OWN = ("ids", "source", "source_real", "cache", "deferred", "runner")  # besides those of the front end
REFUSED = {
    "labels": "a model gives logits and no loss; torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), "
              "labels[:, 1:].flatten()) is the loss of the next token, and regard.training.fit trains",
    "past_key_values": "a cache is made by model.cache(batch, capacity) and given as cache=",
    "use_cache": "a cache is made by model.cache(batch, capacity) and given as cache=",
    "output_attentions": 'regard.looking(model, "*.pattern") sees them',
    "output_hidden_states": 'regard.looking(model, "*.residual") sees them',
    "return_dict": "the answer is the tensor of logits itself",
    "inputs_embeds": "vectors of your own are given as regard.Tokens in place of ids",
    "position_ids": "places are counted from the first real token of attention_mask; leave them out",
    "head_mask": "regard.lens.ablate_all switches heads off",
}  # fmt: skip


class HFInputs(nn.Module):
    """Accepts the inputs and the tokenizers of `transformers`."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[0], Mapping) and "input_ids" in given[0]:
            raise TypeError(f"ids: {type(given[0]).__name__} is a table of inputs; write model(**inputs)")
        if named:
            given, named = self.own_inputs(given, named)
        if torch.compiler.is_compiling():
            return super().__call__(*given, **named)
        try:
            return super().__call__(*given, **named)
        except IndexError:  # checked afterwards: a check before would synchronise with the GPU
            if (strange := first_unknown_id((*given, *named.values()), vocab := self.largest_vocab)) is None:
                raise
        raise DataError(f"ids: {strange} is outside the model's vocabulary of {vocab}, 0 to {vocab - 1}; use the "
                        "tokenizer of its training")  # fmt: skip

    def own_inputs(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments under our names."""
        raise NotImplementedError

    @property
    def largest_vocab(self) -> int:
        raise NotImplementedError

    @property
    def tokenizer(self) -> "Tokenizer | None":
        return self.__dict__.get("_tokenizer")

    @tokenizer.setter
    def tokenizer(self, given: Any) -> None:
        self.__dict__["_tokenizer"] = given if given is None else own_tokenizer(given)


class HFCallMixin(HFInputs):
    """Input names of `transformers` for a Transformer with one front end, or an encoder-decoder."""

    def own_inputs(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        c: Any = self.c
        table = ONE if c.encoder is None else TWO
        found: dict[str, Any] = {}  # this form is for torch.compile, which does not support dict[...]()
        for name, value in named.items():
            ours = table.get(name, name)
            if name in REFUSED:
                check_unused_inputs(name, value)
            elif value is not None or name not in THEIRS:
                if ours in found or given and ours == "ids":
                    raise TypeError(f"{name}: it is given as {ours} as well; keep one of the two")
                found[ours] = to_our_tensor(name, value, ours) if name in THEIRS else value
        if not torch.compiler.is_compiling():
            self.check_names(found, table)
        if not given and "ids" not in found:
            needed = "decoder_input_ids" if c.encoder is not None and "source" in found else "ids"
            raise TypeError(f"{needed}: there are none; give them first, or by name")
        spare = "segment" in found and "token_type_ids" in named and getattr(c.embed, "segments", 1) == 0
        if spare and bool(found.pop("segment").any()):
            raise TypeError("token_type_ids: this model knows no segments, and they are not all 0; leave them out")
        first = () if given else (found.pop("ids"),)
        return (*given, *first), found

    def check_names(self, found: dict[str, Any], table: dict[str, str]) -> None:
        """Refuse names that the front end does not take."""
        front: Any = type(self.embed)
        if (taken := front_end_keywords(front)) is None:
            return
        known = [*OWN, *taken]
        if (strange := next((name for name in found if name not in known), None)) is not None:
            near = did_you_mean(strange, [*known, *table])
            raise TypeError(f"no input {strange!r} for this model{near} there are {', '.join(known)}, and of "
                            f"transformers {', '.join(table)}")  # fmt: skip

    @property
    def largest_vocab(self) -> int:
        c: Any = self.c
        return max(each.vocab or 0 for each in (c.embed, getattr(c.encoder, "embed", None) or c.embed))


class DualEncoderHFCallMixin(HFInputs):
    """Input names of `transformers` for a dual encoder: images first, then text."""

    def own_inputs(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pixels, ids, mask = (named.pop(name, None) for name in ("pixel_values", "input_ids", "attention_mask"))
        for name in [name for name in named if name in REFUSED]:
            check_unused_inputs(name, named.pop(name))
        if strange := next((name for name in named if name != "compare"), None):
            near = did_you_mean(strange, ("pixel_values", "input_ids", "attention_mask", "compare"))
            raise TypeError(f"no input {strange!r} for this model{near} there are pixel_values, input_ids, "
                            "attention_mask, compare")  # fmt: skip
        if pixels is None and ids is None and mask is None:
            return given, named
        if given or pixels is None or ids is None:
            raise TypeError("pixel_values and input_ids: give both by name, or both in this order without names")
        words = {"ids": to_our_tensor("input_ids", ids, "ids")}
        words |= {} if mask is None else {"real": to_our_tensor("attention_mask", mask, "real")}
        return (to_our_tensor("pixel_values", pixels, "ids"), words), named

    @property
    def largest_vocab(self) -> int:
        c: Any = self.c
        return int(c.text.embed.vocab)


@cache
def front_end_keywords(kind: Any) -> tuple[str, ...] | None:
    """The keywords of a front end; None if it takes any, and refuses by itself."""
    _, _, *found = signature(kind.forward).parameters.values()  # after self and the input
    if any(each.kind is Parameter.VAR_KEYWORD for each in found):
        return None
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(sorted({each.name for each in found if each.kind in named} - {"watch", "start"}))


def check_unused_inputs(name: str, value: Any) -> None:
    if value is not None and value is not False and not (name == "return_dict" and value is True):
        raise TypeError(f"{name}: {REFUSED[name]}")


def to_our_tensor(name: str, value: Any, ours: str) -> Tensor:
    """Convert an input tensor of `transformers`: a numeric mask becomes boolean."""
    if not isinstance(value, Tensor):
        raise TypeError(f'{name}: {type(value).__name__}, expected a tensor; ask the tokenizer for return_tensors="pt"')
    if not ours.endswith("real"):
        return value
    if value.dim() != 2:
        raise TypeError(f"{name}: expected (batch, tokens), got {tuple(value.shape)}; masks of another shape are "
                        "said by trunk.mask")  # fmt: skip
    return value.bool()


def first_unknown_id(given: tuple[Any, ...], vocab: int) -> int | None:
    """The first id in tensors on the CPU that is outside the vocabulary."""
    for table in given:
        if isinstance(table, dict):
            found = first_unknown_id(tuple(table.values()), vocab)
        elif isinstance(table, Tensor) and table.device.type == "cpu" and table.dtype in (torch.long, torch.int):
            strange = table[(table < 0) | (table >= vocab)]
            found = int(strange[0]) if len(strange) else None
        else:
            continue
        if found is not None:
            return found
    return None


def own_tokenizer(given: Any) -> Any:
    """Convert a tokenizer: one of `transformers` through its saved files, one of `tokenizers` directly."""
    from regard.text.tokenizer import Tokenizer

    if callable(getattr(given, "save_pretrained", None)):
        with tempfile.TemporaryDirectory() as folder:
            given.save_pretrained(folder)
            if not (Path(folder) / "tokenizer.json").is_file():
                raise TypeError(f"tokenizer: {type(given).__name__} has no tokenizer.json; use a fast tokenizer, or "
                                "regard.load a folder that has one")  # fmt: skip
            return Tokenizer.load(folder)
    if type(given).__module__.startswith("tokenizers"):
        return Tokenizer(given)
    if not hasattr(given, "encode") or isinstance(given, str):
        raise TypeError(f"tokenizer: {given!r:.60} is none; give a regard.text.Tokenizer, or one of transformers")
    return given
