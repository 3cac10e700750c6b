"""Special tokens in a text: finding them, and encoding a text in which only some of them are meant.

    rendered template    <|im_start|> user\n │ what is <|im_end|> ? │ <|im_end|> \n ...
                         control token         content: spelt out     control token

A published tokenizer either parses all special tokens in a text or none. A rendered chat has both kinds: those that the
template wrote are meant, those that a user typed in a message are text.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import models

from regard.config.errors import DataError

LONGEST_KEPT = 1 << 15  # letters of a pattern: Llama 3's 256 special tokens have 8,000


def any_token_pattern(tokens: Iterable[str]) -> str:
    """A pattern that finds each of these tokens, the longest first."""
    return f"({'|'.join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))})"


def compile_tokens(tokens: Iterable[str]) -> re.Pattern[str]:
    """The compiled pattern of these tokens. Python keeps the last 512 that it compiled: with a megabyte each of those
    of many tokens, they would stay long after their tokenizers are gone."""
    found = re.compile(any_token_pattern(tokens))
    if len(found.pattern) > LONGEST_KEPT:
        re.purge()
    return found


def special_pattern(spec: Mapping[str, Any], inner: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Finds special tokens in a text, as it is written or normalized; None where a tokenizer.json has none."""
    tokens = {token["content"] for token in spec["added_tokens"] if token["special"]}
    if inner.normalizer is not None:  # some are looked for in the normalized text: [sep] for [SEP]
        tokens |= {inner.normalizer.normalize_str(token) for token in tokens}
    return compile_tokens(tokens - {""}) if tokens - {""} else None


def can_spell_specials(inner: tokenizers.Tokenizer, tokens: Mapping[str, int], unknown: int | None) -> bool:
    """Whether the model itself makes a special token of its letters, though none is parsed.

    Unigram takes the likeliest pieces, and in T5's list </s> is a piece like others; of BPE a merge may end in one.
    """
    if isinstance(inner.model, models.Unigram | models.WordLevel):
        return bool(tokens)
    forms = [form for token in tokens for form in (token, f" {token} ", f"a{token}a")]
    found = inner.encode_batch(forms, add_special_tokens=False)
    return any(not (set(tokens.values()) - {unknown}).isdisjoint(each.ids) for each in found)


class TemplateEncoder:
    """Encodes texts in which only the control tokens that a template wrote are parsed, and nothing typed is one.

    Inside is a copy of the tokenizer with a random name for every control token instead of its own: no user can type
    it, and no model makes it of letters. A control of one character is always text, since no mark fits into it.
    """

    def __init__(self, inner: tokenizers.Tokenizer, controls: Mapping[str, int]) -> None:
        self.secret = f"\uf8ff{secrets.token_hex(16)}"
        self.names = {token: f"{self.secret}:{id}\uf8ff" for token, id in controls.items()}
        self.inner = tokenizers.Tokenizer.from_str(
            json.dumps(with_renamed_tokens(json.loads(inner.to_str()), self.names))
        )
        if any(self.inner.token_to_id(self.names[token]) != id for token, id in controls.items()):
            raise DataError("its special tokens cannot be told from text")
        longer = [token for token in controls if len(token) > 1]
        self.pattern = compile_tokens(longer) if longer else None

    def encode(self, text: str, mark: str) -> list[int]:
        """The ids of a rendered text: a control token that stands there whole is meant, one with a mark is not."""
        if self.secret in text:
            raise DataError("messages: they hold the name of a control token; send them again")  # one in 2^128
        meant = self.pattern.sub(lambda found: self.names[found[0]], text) if self.pattern else text
        return self.inner.encode(meant.replace(mark, ""), add_special_tokens=False).ids

    def strip_marks(self, text: str, mark: str) -> str:
        """What is left of a rendered text without its control tokens and marks."""
        return (self.pattern.sub("", text) if self.pattern else text).replace(mark, "")


def with_renamed_tokens(spec: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer.json with other names for some tokens, which keep their ids and are parsed by these names."""
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
