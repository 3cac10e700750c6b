"""Limits of a tokenizer.json: how much longer it may make a text, computed from the file before anything is built.

Ten normalizers that each write ten characters for one make ten thousand million, in four kilobytes of JSON. The growth
factors of all steps are therefore multiplied, and values beyond all published tokenizers are refused. The same holds
for decoders, added tokens and special tokens around a text. Regular expressions with catastrophic backtracking are
refused as well.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

# Most characters made of one, by normalizers and pre-tokenizers or by decoders. Of published tokenizers ALBERT and
# XLNet have the highest bound, 147; the result is split, looked up and copied, at a microsecond per character.
MOST = 256
MOST_READ = 1024  # characters that all steps together read for one
MOST_STEPS = 64  # normalizers, decoders, ... in a sequence
MOST_AROUND = 1024  # special tokens around a text
# Characters of all added tokens, as written and as normalised. Models with 65,000 audio tokens add 700,000
# characters; each takes a place in the library's tree and in a regular expression.
MOST_ADDED = 1 << 20
# Characters of a decoded token: the unknown token is written for each unknown word. The longest published ones are
# runs of hundreds of spaces; a word vocabulary has the longest word of its training text.
LONGEST_TOKEN = 1 << 16
LONGEST_WORD = 1000  # characters of a word to be split into subwords, which takes quadratic time
LONGEST_PREFIX = 64  # characters of the prefix within a word
# Growth by Unicode normalisation and byte-level letters; a single application depends only on the text.
UNICODE = {"NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "BertNormalizer": 36, "ByteLevel": 4, "Nmt": 1}
LONGEST_MAPPED = 64  # characters that a compiled character map writes for one
INSIDE = ("normalizers", "pretokenizers", "decoders", "processors")
PARTS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
# All known steps. The library also reads steps without a type, and lists of values without names, for files that no
# library writes: the effect of such a step cannot be determined from the file.
STEPS = {
    "BertNormalizer", "BertPreTokenizer", "BertProcessing", "BPEDecoder", "ByteFallback", "ByteLevel", "CTC",
    "CharDelimiterSplit", "Delimiter", "Digits", "FixedLength", "Fuse", "Lowercase", "Metaspace", "NFC", "NFD", "NFKC",
    "NFKD", "Nmt", "Precompiled", "Prepend", "Punctuation", "Replace", "RobertaProcessing", "Split", "Strip",
    "StripAccents", "TemplateProcessing", "UnicodeScripts", "Whitespace", "WhitespaceSplit", "WordPiece",
}  # fmt: skip


def check_tokenizer_size(source: bytes) -> None:
    """Raise ValueError for a tokenizer.json that could make a text far longer."""
    try:
        spec = json.loads(source)
    except (ValueError, RecursionError):
        return  # the library's own error is better
    if isinstance(spec, dict):
        check_components({part: spec.get(part) for part in PARTS})
        check_added_tokens(spec.get("added_tokens"), spec.get("normalizer"))
        check_tokenizer_model(spec.get("model"))
        check_token_lengths(spec)


def check_built_tokenizer(inner: Tokenizer) -> None:
    """The same check of a tokenizer that was built and not yet used: for a duplicate key in a file, the library may
    have used the other value."""
    found = {part: getattr(inner, part) for part in PARTS}
    check_components({part: None if each is None else json.loads(each.__getstate__()) for part, each in found.items()})


def check_components(parts: dict[str, Any]) -> None:
    steps = {name: [] if part is None else list(component_steps(name, part)) for name, part in parts.items()}
    for name, found in steps.items():
        if len(found) > MOST_STEPS:
            raise ValueError(f"{name}: {len(found):,} steps, and {MOST_STEPS} are the most")
    check_around(steps.pop("post_processor"))
    for chain in (("normalizer", "pre_tokenizer"), ("decoder",)):  # applied in sequence to the same text
        letters_of_one([(name, step) for name in chain for step in steps[name]])


def component_steps(name: str, part: Any, deep: int = 0) -> Iterator[dict[str, Any]]:
    """The steps of a part in sequence, however they are nested."""
    if deep > 4:
        raise ValueError(f"{name}: sequences nested more than 4 deep")
    kind = part.get("type") if isinstance(part, dict) else None
    inner = [part[name] for name in INSIDE if isinstance(part.get(name), list)] if kind == "Sequence" else []
    if len(inner) == 1:
        for each in inner[0]:
            yield from component_steps(name, each, deep + 1)
    elif isinstance(kind, str) and kind in STEPS:
        yield part
    else:
        raise ValueError(f"{name}: a step is {str(part)[:40]!r}; expected an object of a known type")


def check_added_tokens(tokens: Any, normalizer: Any) -> None:
    """Refuse very long added tokens. They are matched in the normalised text, and so normalised themselves."""
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
    """Refuse very long tokens, and those that the decoder lengthens too much."""
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
    """Upper bounds for a chain of steps: characters made of each character, and characters added.

    Raises if they are far beyond published tokenizers.
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
    """Growth of one step: characters made of each character, and characters added, from its settings.

    An empty pattern matches before each character and at the end, and the replacement is added to the text: forty
    decoders that each replace the empty pattern by a space make 2^40 characters of one.
    """
    written = {name: len(found) for name, found in step.items() if isinstance(found, str)}
    pattern = step.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else None
    longest = max([len(found) if isinstance(found, str) else 0, *written.values()])
    if longest > MOST:  # searching takes proportional time, for each token
        raise ValueError(f"a step writes or looks for {longest:,} letters; {MOST} are the most")
    if pattern is not None and "content" in written:  # Replace
        if isinstance(found, str) and found:
            return max(1, -(-written["content"] // len(found))), 0
        return written["content"] + 1, written["content"]  # a regex may match the empty string
    if "prepend" in written:
        return 1, written["prepend"]
    if 0 in (written.get("suffix"), written.get("word_delimiter_token")):  # BPEDecoder, CTC
        return 2, 1
    if "replacement" in written and step.get("prepend_scheme") != "never":  # Metaspace
        return 2, 1  # before each part of the text, of which there may be as many as characters
    return 1, int("prefix" in written)  # WordPiece writes a space before a token


def check_around(chain: list[dict[str, Any]]) -> None:
    """Refuse a post-processor that repeats a text many times, or adds very many tokens."""
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
    """The longest replacement in a compiled character map: size of a trie, the trie, and zero-terminated texts.

    SentencePiece's own has 18.
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
    """Refuse regular expressions that may take exponential time: nested or consecutive unbounded repeats,
    backreferences."""
    shown = f"{pattern[:40]!r}{'…' if len(pattern) > 40 else ''}"
    if len(pattern) > LONGEST_REGEX:
        raise ValueError(f"a regular expression of {len(pattern):,} letters")
    groups = [[0, 0]]  # for each open group: repeats in this alternative, and the maximum of previous ones
    closed: list[int] | None = None  # the group that has just ended
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
                raise ValueError(f"the regular expression {shown} has nested repeats, which may take forever")
            groups[-1][0] += not exact
            if groups[-1][0] > MOST_OPEN:
                raise ValueError(f"the regular expression {shown} has more than {MOST_OPEN} repeats in a row")
        elif sign[0] == "\\" and (sign[1].isdigit() or sign[1] in "kg"):
            raise ValueError(f"the regular expression {shown} has a backreference")
        closed = None
