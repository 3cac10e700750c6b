"""Limits of a tokenizer.json: how much longer it may make a text, computed from the file before anything is built.

Ten normalizers that each write ten letters for one make ten thousand million, in four kilobytes of JSON. So what each
step may make of one letter is multiplied, and what is beyond all published tokenizers is refused. The same for
decoders, for added tokens and for what is put around a text. A regular expression that may try all ways of cutting a
text is refused as well.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

# Letters that are made of one, by normalizers and pre-tokenizers or by decoders. Of all that people publish ALBERT and
# XLNet may make most by this reckoning, 147; and what is made is split, looked up and copied, a microsecond a letter.
MOST = 256
MOST_READ = 1024  # letters that all steps together read for one
MOST_STEPS = 64  # normalizers, decoders, ... one after the other
MOST_AROUND = 1024  # special tokens around a text
# Letters of all added tokens, as they are written and as they are looked for. Models that speak in 65,000 tokens of
# sound add 700,000 letters; each letter takes a place in the tree of the library and in a regular expression.
MOST_ADDED = 1 << 20
# Letters of a token once it is decoded: for each word that is unknown, the unknown token is written. The longest that
# are published are runs of hundreds of spaces; a vocabulary of words has the longest word of its training text.
LONGEST_TOKEN = 1 << 16
LONGEST_WORD = 1000  # letters of a word that pieces are looked for in, which takes the square
LONGEST_PREFIX = 64  # letters before each piece within a word
# What Unicode and GPT-2's letters for bytes make of one letter; applied once it is the text's own doing.
UNICODE = {"NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "BertNormalizer": 36, "ByteLevel": 4, "Nmt": 1}
LONGEST_MAPPED = 64  # letters that a compiled table of characters writes for one
INSIDE = ("normalizers", "pretokenizers", "decoders", "processors")
PARTS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
# All steps that there are. The library also reads a step without a type, and a list of values without names, for
# files that no library writes: what such a step does could not be told from the file.
STEPS = {
    "BertNormalizer", "BertPreTokenizer", "BertProcessing", "BPEDecoder", "ByteFallback", "ByteLevel", "CTC",
    "CharDelimiterSplit", "Delimiter", "Digits", "FixedLength", "Fuse", "Lowercase", "Metaspace", "NFC", "NFD", "NFKC",
    "NFKD", "Nmt", "Precompiled", "Prepend", "Punctuation", "Replace", "RobertaProcessing", "Split", "Strip",
    "StripAccents", "TemplateProcessing", "UnicodeScripts", "Whitespace", "WhitespaceSplit", "WordPiece",
}  # fmt: skip


def check_tokenizer_size(source: bytes) -> None:
    """Refuse a tokenizer.json that could make far more of a text than that has letters; ValueError says why."""
    try:
        spec = json.loads(source)
    except (ValueError, RecursionError):
        return  # the library says better what is wrong with it
    if isinstance(spec, dict):
        check_components({part: spec.get(part) for part in PARTS})
        check_added_tokens(spec.get("added_tokens"), spec.get("normalizer"))
        check_tokenizer_model(spec.get("model"))
        check_token_lengths(spec)


def check_built_tokenizer(inner: Tokenizer) -> None:
    """The same of a tokenizer that was built and not yet used: of a name that stands twice in a file the library may
    have taken the other one."""
    found = {part: getattr(inner, part) for part in PARTS}
    check_components({part: None if each is None else json.loads(each.__getstate__()) for part, each in found.items()})


def check_components(parts: dict[str, Any]) -> None:
    steps = {name: [] if part is None else list(component_steps(name, part)) for name, part in parts.items()}
    for name, found in steps.items():
        if len(found) > MOST_STEPS:
            raise ValueError(f"{name}: {len(found):,} steps, and {MOST_STEPS} are the most")
    check_around(steps.pop("post_processor"))
    for chain in (("normalizer", "pre_tokenizer"), ("decoder",)):  # one after the other, on the same text
        letters_of_one([(name, step) for name in chain for step in steps[name]])


def component_steps(name: str, part: Any, deep: int = 0) -> Iterator[dict[str, Any]]:
    """The steps of a part one after the other, however they are put together."""
    if deep > 4:
        raise ValueError(f"{name}: sequences in each other more than 4 deep")
    kind = part.get("type") if isinstance(part, dict) else None
    inner = [part[name] for name in INSIDE if isinstance(part.get(name), list)] if kind == "Sequence" else []
    if len(inner) == 1:
        for each in inner[0]:
            yield from component_steps(name, each, deep + 1)
    elif isinstance(kind, str) and kind in STEPS:
        yield part
    else:
        raise ValueError(f"{name}: a step is {str(part)[:40]!r}; expected an object whose type is one that there is")


def check_added_tokens(tokens: Any, normalizer: Any) -> None:
    """Refuse a book of added tokens. They are looked for in the normalized text, and so normalized themselves."""
    sizes = [len(token["content"]) for token in tokens if isinstance(token, dict)
             and isinstance(token.get("content"), str)] if isinstance(tokens, list) else []  # fmt: skip
    letters = sum(sizes)
    if normalizer is not None:
        growth, added = letters_of_one([("normalizer", step) for step in component_steps("normalizer", normalizer)])
        letters += growth * letters + added * len(sizes)
    if letters > MOST_ADDED:
        raise ValueError(f"added_tokens: {len(sizes):,} of {sum(sizes):,} letters, which may become {letters:,}; "
                         f"{MOST_ADDED:,} are the most")  # fmt: skip


def check_token_lengths(spec: dict[str, Any]) -> None:
    """Refuse a token that is a book, or that the decoder makes one of."""
    model, added = spec.get("model"), spec.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens = [each[0] if isinstance(each, list) and each else each for each in vocabulary or ()
              ] if isinstance(vocabulary, dict | list) else []  # fmt: skip
    tokens += [each.get("content") for each in added if isinstance(each, dict)] if isinstance(added, list) else []
    longest = max((len(each) for each in tokens if isinstance(each, str)), default=0)
    growth, more = letters_of_one([("decoder", step) for step in component_steps("decoder", spec.get("decoder"))]
                                  if spec.get("decoder") is not None else [])  # fmt: skip
    if growth * longest + more > LONGEST_TOKEN:
        raise ValueError(f"a token has {longest:,} letters, of which the decoder may make {growth * longest + more:,}; "
                         f"{LONGEST_TOKEN:,} are the most")  # fmt: skip


def letters_of_one(chain: list[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    """How many letters the steps of a chain make of each letter of a text at most, and how many they add to that.

    Refuses what is far beyond all that people publish.
    """
    growth, added, read, seen = 1, 0, 0, set[str]()
    for part, step in chain:
        kind = str(step.get("type"))
        check_patterns(step)
        if kind in UNICODE:
            times, more = UNICODE[kind] if seen else 1, 0
            seen.add(kind)
        elif "precompiled_charsmap" in step:
            times, more = check_charsmap(step["precompiled_charsmap"]), 0
            seen.add(kind)
        else:
            times, more = step_growth(step)
        growth, added = growth * times, added * times + more
        read += growth + added
        if growth + added > MOST or read > MOST_READ:
            raise ValueError(f"{part}: the steps up to it may make more than {MOST:,} letters of one, or read one more "
                             f"than {MOST_READ:,} times")  # fmt: skip
    return growth, added


def step_growth(step: dict[str, Any]) -> tuple[int, int]:
    """How many letters a step may make of each letter of a text, and how many it may add to that; told by what it says.

    Where nothing is looked for, it is found before each letter and at the end, and what is written there stays beside
    the letters: forty decoders that each look for nothing and write a space make 2^40 letters of one.
    """
    written = {name: len(found) for name, found in step.items() if isinstance(found, str)}
    pattern = step.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else None
    longest = max([len(found) if isinstance(found, str) else 0, *written.values()])
    if longest > MOST:  # to look for it takes as long, in each token anew
        raise ValueError(f"a step writes or looks for {longest:,} letters; {MOST} are the most")
    if pattern is not None and "content" in written:  # Replace
        if isinstance(found, str) and found:
            return max(1, -(-written["content"] // len(found))), 0
        return written["content"] + 1, written["content"]  # a regular expression may find nothing, before each letter
    if "prepend" in written:
        return 1, written["prepend"]
    if 0 in (written.get("suffix"), written.get("word_delimiter_token")):  # BPEDecoder, CTC
        return 2, 1
    if "replacement" in written and step.get("prepend_scheme") != "never":  # Metaspace
        return 2, 1  # before each part of the text, of which there may be as many as letters
    return 1, int("prefix" in written)  # WordPiece puts a space before a token


def check_around(chain: list[dict[str, Any]]) -> None:
    """Refuse what writes a text many times, or puts a book around it."""
    times, around = 1, 0
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


def check_tokenizer_model(model: Any) -> None:
    if not isinstance(model, dict):
        return
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(found := model.get(name), str) and len(found) > LONGEST_PREFIX:
            raise ValueError(f"model.{name}: {len(found):,} letters, and {LONGEST_PREFIX} are the most")
    most = model.get("max_input_chars_per_word")
    if isinstance(most, int) and most > LONGEST_WORD:
        raise ValueError(f"model.max_input_chars_per_word: {most:,} is more than {LONGEST_WORD:,}")


def check_charsmap(found: Any) -> int:
    """How many letters a compiled table writes for one: the size of a tree, the tree, and texts with a zero after each.

    That of SentencePiece has 18 for one.
    """
    try:
        raw = found if isinstance(found, bytes) else base64.b64decode(found) if isinstance(found, str) else b""
    except (ValueError, binascii.Error):
        return 1
    texts = raw[4 + int.from_bytes(raw[:4], "little") :].decode("utf8", "replace")
    longest = max(map(len, texts.split("\0")))
    if longest > LONGEST_MAPPED:
        raise ValueError(f"its table of characters writes more than {LONGEST_MAPPED} letters for one")
    return max(1, longest)


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
