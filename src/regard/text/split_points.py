"""Split points: positions where a long text may be cut without changing its tokens.

Files larger than memory are read in parts, and parts can be encoded in parallel. Most cuts preserve tokens only by
chance; those here always do, because the pre-tokenizer ends a word there whatever text follows.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

Borders = Literal["anywhere", "between words", "nowhere"]

# A word: letters, with one space before and one apostrophe inside; else one mark, with its space; else one space or
# line break. No longer than 64 letters twice: WordPiece takes quadratic time within a word.
WORD_PATTERN = r" ?\w{1,64}(?:['’]\w{1,64})?| ?[^\w\s]|\s"

# Pre-tokenizers with words of this kind, as in tokenizer.json: GPT-2's, and those made in `trainers`.
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": WORD_PATTERN}, "behavior": "Isolated", "invert": False}
LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
KNOWN = (GPT2, SPLIT, {"type": "Sequence", "pretokenizers": [SPLIT, LETTERS]})

# Before a single space between letters; after a single newline between characters that are not space.
BORDER = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=\S)")
NEAR = 4096


def split_pattern(spec: dict[str, Any], direct: bool, parse: bool = False) -> Borders:
    """The split points of a tokenizer.json; `parse`: special tokens are parsed."""
    if direct:
        return "anywhere"
    by_itself = spec["normalizer"] in (None, {"type": "Lowercase"})  # character by character
    # an added token may contain a split point; a parsed special token too, if it contains or strips space
    crossing = any(not token["special"] or (parse and touches_spaces(token)) for token in spec["added_tokens"])
    known = without_trim_offsets(spec["pre_tokenizer"]) in KNOWN
    return "between words" if by_itself and known and not crossing else "nowhere"


def touches_spaces(token: dict[str, Any]) -> bool:
    """Whether an added token contains space or strips it from its surroundings."""
    return token["lstrip"] or token["rstrip"] or token["single_word"] or any(map(str.isspace, token["content"]))


def without_trim_offsets(tree: Any) -> Any:
    """The pre-tokenizer without `trim_offsets`, which changes no token."""
    if isinstance(tree, dict):
        return {name: without_trim_offsets(value) for name, value in tree.items() if name != "trim_offsets"}
    return [without_trim_offsets(value) for value in tree] if isinstance(tree, list) else tree


def split_at_borders(parts: Iterable[str], borders: Borders) -> Iterator[str]:
    """The parts with their ends moved back to the last split point; the rest goes to the next part."""
    held: list[str] = []
    for part in parts:
        if at := last_border(part, borders):
            yield "".join([*held, part[:at]])
            held, part = [], part[at:]
        held.append(part)
    if whole := "".join(held):
        yield whole


def last_border(part: str, borders: Borders) -> int:
    """The last split point in a part, 0 if there is none."""
    if borders != "between words":
        return len(part) if borders == "anywhere" else 0
    for start in (max(0, len(part) - NEAR), 0):  # usually there is one near the end
        if places := [found.end() for found in BORDER.finditer(part, start)]:
            return places[-1]
    return 0
