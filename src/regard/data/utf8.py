"""What is wrong with bytes that should be text, and what to do about it."""

import codecs


def binary(block: bytes, place: int) -> str:
    """What is wrong with a text that has a zero byte."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"UTF-16, expected UTF-8; {convert('UTF-16')}"
    return f"not a text: byte {place:,} is zero; name a text file in UTF-8"


def foreign(problem: UnicodeDecodeError, start: int, lines: int) -> str:
    """What is wrong with bytes that are no UTF-8: `start` is the place of the first, `lines` their line."""
    sample = problem.object[problem.start : problem.start + 4096].decode("utf-8", "replace")
    if sample.count("\ufffd") > 0.3 * len(sample) and len(sample) > 64:
        return f"not a text: bytes from {start + problem.start:,} on are no characters; name a text file in UTF-8"
    line = lines + problem.object.count(b"\n", 0, problem.start)
    wrong = f"byte 0x{problem.object[problem.start]:02X} at {start + problem.start:,}"
    return f"not UTF-8: {wrong} (line {line:,}); if it is Latin-1, {convert('LATIN1')}"


def convert(encoding: str) -> str:
    return f"convert it with: iconv -f {encoding} -t UTF-8 OLD > NEW"
