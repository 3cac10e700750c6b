"""Post-processor of a tokenizer: the special tokens around a text, as stored in tokenizer.json.

single   BEFORE $A AFTER              type ids  0 0 0
pair     BEFORE $A BETWEEN $B AFTER             0 0 0 1 1
"""

import copy
import json
from collections.abc import Sequence

from tokenizers import processors

from regard.text.tokenizer import Tokenizer

PARTS = ("BEFORE", "BETWEEN", "AFTER")


def add_post_processor(
    tokenizer: Tokenizer, before: Sequence[int], between: Sequence[int], after: Sequence[int]
) -> Tokenizer:
    """The tokenizer with these special tokens around texts. The tokens of the text do not change.

    Other libraries read only tokenizer.json: without the template `transformers` would omit these tokens.
    """
    named = [{"id": name, "ids": list(ids), "tokens": [tokenizer.token(id) for id in ids]}
             for name, ids in zip(PARTS, (before, between, after), strict=True) if ids]  # fmt: skip
    there = {each["id"] for each in named} | {"$A", "$B"}
    one, two = (" ".join(part for part in parts if part.split(":")[0] in there) for parts in (
        ("BEFORE:0", "$A:0", "AFTER:0"), ("BEFORE:0", "$A:0", "BETWEEN:0", "$B:1", "AFTER:1")))  # fmt: skip
    inner, template = copy.deepcopy(tokenizer.inner), processors.TemplateProcessing(one, two, named)
    known = inner.post_processor  # keep a byte-level post-processor, which trims the offsets of tokens
    inner.post_processor = template if known is None else processors.Sequence([known, template])
    return Tokenizer(inner, tokenizer.card, "parse" if tokenizer.parses_specials else "plain")


def without_post_processor(tokenizer: Tokenizer) -> str:
    """The tokenizer.json before `add_post_processor`: examples are equal, and so must be their cache key."""
    spec = json.loads(tokenizer.inner.to_str())["post_processor"] or {}
    parts = spec.get("processors", [spec])
    if not parts or not (names := parts[-1].get("special_tokens", {})) or not names.keys() <= {*PARTS}:
        return tokenizer.text()
    inner = copy.deepcopy(tokenizer.inner)
    inner.post_processor = inner.post_processor[0] if len(parts) > 1 else None
    return str(inner.to_str(pretty=True))
