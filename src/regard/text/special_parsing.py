"""Special tokens in a text: finding them, and encoding a text in which only some of them count.

    rendered template    <|im_start|> user\n │ what is <|im_end|> ? │ <|im_end|> \n ...
                         control token         content: plain text   control token

A published tokenizer parses either all special tokens in a text or none. A rendered chat has both kinds: those written
by the template count, those typed by a user are text.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import models

from regard.config.errors import DataError

LONGEST_KEPT = 1 << 15  # characters of a pattern: Llama 3's 256 special tokens have 8,000


def any_token_pattern(tokens: Iterable[str]) -> str:
    """A pattern that matches any of these tokens, the longest first."""
    return f"({'|'.join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))})"


def compile_tokens(tokens: Iterable[str]) -> re.Pattern[str]:
    """The compiled pattern of these tokens, without Python's cache: it keeps the last 512 patterns, which for many
    tokens take a megabyte each and would outlive their tokenizers."""
    found = re.compile(any_token_pattern(tokens))
    if len(found.pattern) > LONGEST_KEPT:
        re.purge()
    return found


def special_pattern(spec: Mapping[str, Any], inner: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """The pattern of special tokens in a text, as written or normalised; None if the tokenizer has none."""
    tokens = {token["content"] for token in spec["added_tokens"] if token["special"]}
    if inner.normalizer is not None:  # some are matched in the normalised text: [sep] for [SEP]
        tokens |= {inner.normalizer.normalize_str(token) for token in tokens}
    return compile_tokens(tokens - {""}) if tokens - {""} else None


def can_spell_specials(inner: tokenizers.Tokenizer, tokens: Mapping[str, int], unknown: int | None) -> bool:
    """Whether the model can produce a special token from ordinary text, even if none is parsed.

    Unigram takes the most likely pieces, and T5 has </s> as a piece; BPE merges may result in one.
    """
    if isinstance(inner.model, models.Unigram | models.WordLevel):
        return bool(tokens)
    forms = [form for token in tokens for form in (token, f" {token} ", f"a{token}a")]
    found = inner.encode_batch(forms, add_special_tokens=False)
    return any(not (set(tokens.values()) - {unknown}).isdisjoint(each.ids) for each in found)


class TemplateEncoder:
    """Encodes rendered templates: only control tokens written by the template are parsed, none typed by a user.

    It is a copy of the tokenizer with random names for all control tokens: no user can type them, and the model cannot
    produce them from text. A control token of one character is always text, since no mark fits into it.
    """

    def __init__(self, inner: tokenizers.Tokenizer, controls: Mapping[str, int]) -> None:
        self.secret = f"\uf8ff{secrets.token_hex(16)}"
        self.names = {token: f"{self.secret}:{id}\uf8ff" for token, id in controls.items()}
        self.inner = tokenizers.Tokenizer.from_str(
            json.dumps(with_renamed_tokens(json.loads(inner.to_str()), self.names))
        )
        if any(self.inner.token_to_id(self.names[token]) != id for token, id in controls.items()):
            raise DataError("its special tokens cannot be distinguished from text")
        longer = [token for token in controls if len(token) > 1]
        self.pattern = compile_tokens(longer) if longer else None

    def encode(self, text: str, mark: str) -> list[int]:
        """The ids of a rendered text: an unmarked control token counts, a marked one is text."""
        if self.secret in text:
            raise DataError("messages: they hold the name of a control token; send them again")  # probability 2^-128
        meant = self.pattern.sub(lambda found: self.names[found[0]], text) if self.pattern else text
        return self.inner.encode(meant.replace(mark, ""), add_special_tokens=False).ids

    def strip_marks(self, text: str, mark: str) -> str:
        """A rendered text without its control tokens and marks."""
        return (self.pattern.sub("", text) if self.pattern else text).replace(mark, "")


def with_renamed_tokens(spec: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer.json with new names for some tokens; ids stay, and these names are parsed."""
    model = spec["model"]
    for token in spec["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "special": True, "normalized": False}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): id for token, id in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint([*pair, "".join(pair)])]
    return spec
