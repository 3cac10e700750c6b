"""Expansion: how much longer a tokenizer.json may make a text, told from the file before anything is built of it.

Ten normalizers that each write ten letters for one make ten thousand million, in four kilobytes of JSON. So what each
step may make of one letter is multiplied, and what is beyond all that people publish is refused. The same for decoders
and for what is put around a text. A regular expression that may try all ways of cutting a text is refused as well.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any

MOST = 1024  # letters of one
MOST_STEPS = 64  # normalizers, decoders, ... one after the other
MOST_AROUND = 1024  # special tokens around a text
LONGEST_WORD = 1000  # letters of a word that pieces are looked for in, which takes the square
LONGEST_PREFIX = 64  # letters before each piece within a word
# What Unicode and GPT-2's letters for bytes make of one letter; applied once it is the text's own doing.
UNICODE = {"NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 36, "ByteLevel": 4, "Nmt": 1,
           "Precompiled": 18}  # fmt: skip
LONGEST_MAPPED = 64  # letters that a compiled table of characters writes for one
INSIDE = ("normalizers", "pretokenizers", "decoders", "processors")


def check_file(source: bytes) -> None:
    """Refuse a tokenizer.json that could make far more of a text than that has letters; ValueError says why."""
    try:
        spec = json.loads(source)
    except (ValueError, RecursionError):
        return  # the library says better what is wrong with it
    if isinstance(spec, dict):
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            check_growth(part, list(steps(spec.get(part))))
        check_around(list(steps(spec.get("post_processor"))))
        check_model(spec.get("model"))


def steps(part: Any, deep: int = 0) -> Iterator[dict[str, Any]]:
    """The steps of a part one after the other, however they are put together."""
    if deep > 8:
        raise ValueError("sequences in each other more than 8 deep")
    if isinstance(part, list):
        for each in part:
            yield from steps(each, deep + 1)
    elif isinstance(part, dict):
        inner = [part[name] for name in INSIDE if isinstance(part.get(name), list)]
        if not inner:
            yield part
        for each in inner:
            yield from steps(each, deep + 1)


def check_growth(part: str, chain: list[dict[str, Any]]) -> None:
    if len(chain) > MOST_STEPS:
        raise ValueError(f"{part}: {len(chain):,} steps, and {MOST_STEPS} are the most")
    growth, seen = 1, set[str]()
    for step in chain:
        kind = str(step.get("type"))
        check_patterns(step)
        if kind in UNICODE:
            growth *= UNICODE[kind] if seen else 1
            seen.add(kind)
            if kind == "Precompiled":
                check_charsmap(step.get("precompiled_charsmap"))
        else:
            growth *= step_growth(step)
        if growth > MOST:
            raise ValueError(f"{part}: its steps may make more than {MOST:,} letters of one")


def step_growth(step: dict[str, Any]) -> int:
    """How many letters a step may make of one."""
    written = [str(step[name]) for name in ("content", "prepend", "replacement", "prefix", "suffix", "pad_token",
                                            "word_delimiter_token") if isinstance(step.get(name), str)]  # fmt: skip
    most, pattern = max(map(len, written), default=1), step.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else None
    if step.get("type") == "Replace" and isinstance(found, str) and found:
        return max(1, -(-most // len(found)))
    return max(1, most + (step.get("type") in ("Replace", "Prepend")))


def check_around(chain: list[dict[str, Any]]) -> None:
    """Refuse what writes a text many times, or puts a book around it."""
    times, around = 1, 0
    if len(chain) > MOST_STEPS:
        raise ValueError(f"post_processor: {len(chain):,} steps, and {MOST_STEPS} are the most")
    for step in chain:
        tokens = step.get("special_tokens")
        sizes = {name: len(each["ids"]) for name, each in tokens.items() if isinstance(each, dict)
                 and isinstance(each.get("ids"), list)} if isinstance(tokens, dict) else {}  # fmt: skip
        most = 1
        for name in ("single", "pair"):
            pieces = step.get(name)
            for piece in pieces if isinstance(pieces, list) else []:
                special = piece.get("SpecialToken") if isinstance(piece, dict) else None
                around += sizes.get(str(special.get("id")), 1) if isinstance(special, dict) else 0
            texts = [json.dumps(piece) for piece in pieces if isinstance(piece, dict) and "Sequence" in piece
                     ] if isinstance(pieces, list) else []  # fmt: skip
            most = max([most, *(sum(side in text for text in texts) for side in ('"A"', '"B"'))])
        times, around = times * most, (around + 4) * most
        if times > 2 or around > MOST_AROUND:
            raise ValueError(f"post_processor: writes a text {times} times with {around:,} special tokens; expected "
                             f"once, with at most {MOST_AROUND:,}")  # fmt: skip


def check_model(model: Any) -> None:
    if not isinstance(model, dict):
        return
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(found := model.get(name), str) and len(found) > LONGEST_PREFIX:
            raise ValueError(f"model.{name}: {len(found):,} letters, and {LONGEST_PREFIX} are the most")
    most = model.get("max_input_chars_per_word")
    if isinstance(most, int) and most > LONGEST_WORD:
        raise ValueError(f"model.max_input_chars_per_word: {most:,} is more than {LONGEST_WORD:,}")


def check_charsmap(found: Any) -> None:
    """A compiled table of characters: the size of a tree, the tree, and texts with a zero after each."""
    try:
        raw = found if isinstance(found, bytes) else base64.b64decode(found) if isinstance(found, str) else b""
    except (ValueError, binascii.Error):
        return
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    if max(map(len, texts.split(b"\0")), default=0) > 4 * LONGEST_MAPPED:
        raise ValueError(f"its table of characters writes more than {LONGEST_MAPPED} letters for one")


# ---------------------------------------------------------------- regular expressions


def check_patterns(step: dict[str, Any]) -> None:
    pattern = step.get("pattern")
    if isinstance(pattern, dict) and isinstance(found := pattern.get("Regex"), str):
        check_regex(found)


SIGN = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?<?[=!]|\(\?[^:()|]*:|\(|\)|\||[*+?][+?]?"
                  r"|\{\d*,?\d*\}[+?]?|.", re.DOTALL)  # fmt: skip
LONGEST_REGEX, MOST_REPEATED, MOST_OPEN, FEW = 20_000, 1000, 4, 16


def check_regex(pattern: str) -> None:
    """Refuse what may take forever: repeats within repeats, many open repeats in a row, what was found before."""
    shown = f"{pattern[:40]!r}{'…' if len(pattern) > 40 else ''}"
    if len(pattern) > LONGEST_REGEX:
        raise ValueError(f"a regular expression of {len(pattern):,} letters")
    groups = [[0, 0]]  # of each group that is open: repeats in this alternative, and in the worst before
    closed: list[int] | None = None  # the group that ended right here
    for sign in SIGN.findall(pattern):
        if sign.startswith("(?") and sign.endswith(("=", "!", ":")) or sign == "(":
            groups.append([0, 0])
        elif sign == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1][0] += max(closed)
            continue
        elif sign == "|":
            groups[-1] = [0, max(groups[-1])]
        elif sign[0] in "*+" or (sign[0] == "{" and len(sign) > 2):
            counts = [int(number) for number in re.findall(r"\d{1,9}", sign)]
            exact = len(counts) == 1 and "," not in sign and counts[0] <= FEW and closed is None  # (\d{3})+
            if closed is not None and max(closed) or max(counts, default=0) > MOST_REPEATED:
                raise ValueError(f"the regular expression {shown} repeats what is repeated, which may take forever")
            groups[-1][0] += not exact
            if groups[-1][0] > MOST_OPEN:
                raise ValueError(f"the regular expression {shown} has more than {MOST_OPEN} repeats in a row")
        elif sign[0] == "\\" and (sign[1].isdigit() or sign[1] in "kg"):
            raise ValueError(f"the regular expression {shown} looks for what was found before")
        closed = None
