"""Chat templates and tokenizer.json files that are valid and make much of little."""

import base64
import json
import random
from pathlib import Path

SIZES = (1, 1, 3, 3, 9, 20, 100, 3000, 100_000, 3_000_000, 30_000_000, 60_000_000)
TURNS = (2, 2, 3, 3, 50, 3000, 100_000, 500_000)
LETTERS = ("a", "a b ", "\\n", "é", "😀", "\U0010ffff", "ΐ", '\\"', "%s", "<", "a,")


def template(chance: random.Random, place: Path) -> str:
    """Large values, then loops, macros and blocks that use them in every way a template may."""
    parts = [f"{{% set {name} = {value} %}}" for name, value in (
        ("s", f"'{chance.choice(LETTERS)}' * {chance.choice(SIZES)}"),
        ("t", f"'{chance.choice(LETTERS)}' * {chance.choice(SIZES[:9])}"),
        ("l", chance.choice((f"[1] * {chance.choice(SIZES[:9])}", f"range({chance.choice(TURNS)})|list", "[s, t, s]",
                             f"[t] * {chance.choice(SIZES[:8])}", "s.split('a')"))),
        ("d", chance.choice(("dict(a=s, b=t)", "{'a': l, 'b': [l, l]}", "dict(a=1, b=2)"))),
        ("n", chance.choice(("2 ** 4000", "10 ** 999", "7", "1.5", "-1"))),
        ("ns", "namespace(x=t, l=[t])"),
    )]  # fmt: skip
    for _ in range(chance.choice((1, 2, 5, 40))):
        parts.append(statement(chance, 0))
    return "".join(parts)


def statement(chance: random.Random, deep: int) -> str:
    value, words, rows = expression(chance, 1), text(chance, 1), sequence(chance, 1)
    inner = statement(chance, deep + 1) if deep < 3 else ""
    data = chance.choice(LETTERS) * chance.choice((0, 1, 300))
    return chance.choice((
        f"{{{{ {value} }}}}",
        f"{{% set v{chance.randrange(9)} = {value} %}}",
        f"{{% set ns.x = {words} %}}",
        f"{{% set ns.l = ns.l + [{value}] %}}",
        f"{{% set ns.x = ns.x ~ {words} %}}",
        f"{{% for i in range({chance.choice(TURNS)}) %}}{data}{inner}{{% endfor %}}",
        f"{{% for i in {rows} %}}{data}{inner}{{% endfor %}}",
        f"{{% for i in [1] recursive %}}{data}{{% if loop.depth < 4 %}}{{{{ loop({rows}) }}}}{{% endif %}}"
        "{% endfor %}",
        f"{{% macro m(x) %}}{data}{inner}{{{{ x }}}}{{% endmacro %}}{{{{ m({value}) }}}}{{{{ m(m({value})) }}}}",
        f"{{% set b %}}{data}{inner}{{% endset %}}{{{{ b ~ b }}}}",
        f"{{% filter {chance.choice(('upper', 'title', 'trim', 'escape'))} %}}{data}{inner}{{% endfilter %}}",
        f"{{% if {value} is {chance.choice(TESTS)} %}}{inner}{{% endif %}}",
        f"{{% if {words} in {rows} %}}{inner}{{% endif %}}",
    ))  # fmt: skip


TESTS = ("lower", "upper", "string", "defined", "in range(500000)", "eq(s)", "sequence", "iterable", "in l", "ge(t)")
# What makes a text of a text, a list of a text, and so on: most of what is written is right, and so is carried out.
TEXT_TEXT = (
    "|upper", "|lower", "|title", "|trim", "|trim(t)", "|replace('a', t)", "|replace('', s)", "|indent", "|indent(99)",
    "|string", "|escape", "|safe", "|tojson", "|tojson(ensure_ascii=true)", "|truncate(9)", "|capitalize", "|reverse",
    "|join(t)", "|join(s)", ".upper()", ".title()", ".swapcase()", ".strip(t)", ".rstrip(s)", ".replace('a', t)",
    ".replace('', s)", ".removeprefix('a')", "[1:]", "[:-1]", "[::-1]", "[::2]", "[5:9]", " * 2", " * 100",
    " ~ s", " + t",
)  # fmt: skip
TEXT_LIST = (".split()", ".split('a')", ".rsplit('ab' ~ t)", ".splitlines()", ".partition('a')", "|list",
             "|batch(2)|list", ".rpartition('aab' ~ t)", "|slice(3)|list", "|map('upper')|list")  # fmt: skip
TEXT_NUMBER = (".isalpha()", ".isspace()", ".count('a')", ".count(t)", ".find(t)", ".rfind('ab' ~ t)", ".startswith(s)",
               "|length", "|wordcount", "|int(0, 16)", "|float", " is lower", " in s", " == t", " < s")  # fmt: skip
LIST_LIST = ("[1:]", "[::-1]", " * 2", " * 100", " + l", "|reverse|list", "|sort|list", "|unique|list",
             "|batch(2)|list", "|batch(99, s)|list", "|slice(3)|list", "|select|list", "|select|select|select|list",
             "|map('string')|list", "|map('upper')|list", "|map('replace', 'a', t)|list", "|reject|list",
             "|map('length')|list", "|list")  # fmt: skip
LIST_TEXT = ("|join", "|join(s)", "|join(t)", "|tojson", "|tojson(indent=9)", "|tojson(separators=(t, s))", "|string",
             "|map('string')|join(',')", "|first|string", "|last|string")  # fmt: skip
LIST_NUMBER = ("|length", ".count(1.5)", ".index(1)", " in l", " == l", "|sum(start=[])|length", "|max", " < l")


def expression(chance: random.Random, deep: int) -> str:
    return chance.choice((text, text, sequence, number))(chance, deep)


def text(chance: random.Random, deep: int) -> str:
    if deep > 3:
        return chance.choice(("s", "t", "'a'", "ns.x", "messages[0].content", "ns.x"))
    one = text(chance, deep + 1)
    return chance.choice((
        f"({one}){chance.choice(TEXT_TEXT)}", f"({one}){chance.choice(TEXT_TEXT)}",
        f"({one} ~ {text(chance, deep + 1)})", f"({sequence(chance, deep + 1)}){chance.choice(LIST_TEXT)}",
        f"({one}).join({sequence(chance, deep + 1)}|map('string'))", f"({one}).join(d.keys())",
        f"(('%(a)s%(b)r' * {chance.choice(SIZES[:9])}) % d)", f"(('%s' * 2) % ({one}, {number(chance, deep + 1)}))",
        f"({one} if {number(chance, deep + 1)} else t)",
    ))  # fmt: skip


def sequence(chance: random.Random, deep: int) -> str:
    if deep > 3:
        return chance.choice(("l", "ns.l", "range(500000)", "range(9)", "messages", "[]", "d.keys()|list", "d.items()"))
    one = sequence(chance, deep + 1)
    return chance.choice((
        f"({one}|list){chance.choice(LIST_LIST)}", f"({one}|list){chance.choice(LIST_LIST)}",
        f"({text(chance, deep + 1)}){chance.choice(TEXT_LIST)}",
        f"([{one}, {text(chance, deep + 1)}] * {chance.choice(SIZES[:9])})",
        f"range({chance.choice(TURNS)})|list", f"dict(a={one}, b={text(chance, deep + 1)}).values()|list",
    ))  # fmt: skip


def number(chance: random.Random, deep: int) -> str:
    if deep > 3:
        return chance.choice(("1", "n", "7", "s|length"))
    return chance.choice((
        f"(({text(chance, deep + 1)}){chance.choice(TEXT_NUMBER)})",
        f"(({sequence(chance, deep + 1)}|list){chance.choice(LIST_NUMBER)})",
        f"({number(chance, deep + 1)} {chance.choice(('+', '-', '*', '//'))} {number(chance, deep + 1)})",
        f"({text(chance, deep + 1)} is {chance.choice(TESTS)})", "(n ** 3)",
    ))  # fmt: skip


# ---------------------------------------------------------------- tokenizers

BASE = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
}  # fmt: skip
VOCABULARY = {letter: id for id, letter in enumerate("abdgehlmnopstuy ,.'12:▁UĠ[]")}
CONTENTS = ("", "a", "▁", "aa", "a b a b", "a" * 30, "a" * 1000, "ﷺ", "ﷺ" * 20, "\0", "a" * 100_000)
REGEXES = ("a", "", ".", "\\s+", "(a+)+$", "(a|a)*b", "(a{999}){999}", "a*a*a*a*a*b", "(?=a)", "\\p{L}+| ?\\p{N}+",
           "[^\\s]", "((((a*)*)*)*)*", "(a?){99}a{99}", "(?i:'s|'t)| ?\\w+", "(\\w+)\\1", "x{0,100000}")  # fmt: skip


def tokenizer(chance: random.Random, place: Path) -> str:
    spec = {**BASE, "model": vocabulary(chance)}
    if chance.random() < 0.7:
        spec["normalizer"] = chain(chance, "normalizers", normal)
    if chance.random() < 0.5:
        spec["pre_tokenizer"] = chain(chance, "pretokenizers", cut)
    if chance.random() < 0.5:
        spec["decoder"] = chain(chance, "decoders", spelled)
    if chance.random() < 0.5:
        spec["post_processor"] = chain(chance, "processors", around, few=(1, 1, 2, 12, 70))
    if chance.random() < 0.2:
        spec["padding"] = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None,
                           "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}  # fmt: skip
    if chance.random() < 0.3:
        spec["added_tokens"] = [
            {"id": len(VOCABULARY) + place, "content": f"<{place}>" + chance.choice(CONTENTS[:7]), "special": True,
             "normalized": chance.random() < 0.5, "lstrip": False, "rstrip": False, "single_word": False}
            for place in range(chance.choice((1, 3, 2000)))]  # fmt: skip
    path = place / "tokenizer.json"
    path.write_text(json.dumps(spec), encoding="utf8")
    return str(path)


def vocabulary(chance: random.Random) -> dict:
    kind = chance.choice(("BPE", "BPE", "WordPiece", "WordLevel", "Unigram"))
    long = chance.choice((None, None, None, "##", "a" * 100, "a" * 1_000_000))
    if kind == "Unigram":
        return {"type": kind, "unk_id": 0, "byte_fallback": chance.random() < 0.3,
                "vocab": [[token, -1.0] for token in (*VOCABULARY, *("a" * n for n in range(2, 40)))]}  # fmt: skip
    if kind == "BPE":
        return {"type": kind, "dropout": None, "unk_token": chance.choice((None, "a")), "fuse_unk": False,
                "continuing_subword_prefix": long, "end_of_word_suffix": chance.choice((None, long)),
                "byte_fallback": False, "vocab": VOCABULARY, "merges": []}  # fmt: skip
    more = {"continuing_subword_prefix": long or "##", "max_input_chars_per_word": chance.choice((100, 10**9))}
    return {"type": kind, "vocab": VOCABULARY, "unk_token": "a", **(more if kind == "WordPiece" else {})}


def chain(chance: random.Random, inside: str, make, few=(1, 1, 2, 5, 12, 40, 200)) -> dict:
    """Steps one after the other, at times in sequences of sequences."""
    steps = [make(chance) for _ in range(chance.choice(few))]
    if chance.random() < 0.3:  # the same again and again
        steps = steps[:1] * len(steps)
    for _ in range(chance.choice((1, 1, 2, 30))):
        steps = [{"type": "Sequence", inside: steps}]
    return steps[0]


def pattern(chance: random.Random) -> dict:
    if chance.random() < 0.6:
        return {"String": chance.choice(("a", " ", "", "▁", "aa", "ﷺ"))}
    return {"Regex": chance.choice(REGEXES)}


def replace(chance: random.Random) -> dict:
    return {"type": "Replace", "pattern": pattern(chance), "content": chance.choice(CONTENTS)}


def normal(chance: random.Random) -> dict:
    table = base64.b64encode(b"\x08\0\0\0" + b"\xff" * 8 + chance.choice((b"a", b"a" * 9999)) + b"\0").decode()
    kinds = [{"type": name} for name in ("NFKD", "NFKC", "NFD", "NFC", "Lowercase", "ByteLevel", "StripAccents", "Nmt")]
    return chance.choice([replace(chance), replace(chance), replace(chance), *kinds,
                          {"type": "Prepend", "prepend": chance.choice(CONTENTS)},
                          {"type": "Precompiled", "precompiled_charsmap": table},
                          {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": None, "lowercase": True}])  # fmt: skip


def cut(chance: random.Random) -> dict:
    level = {"type": "ByteLevel", "add_prefix_space": chance.random() < 0.5, "trim_offsets": True, "use_regex": True}
    return chance.choice([level, level, {"type": "Whitespace"}, {"type": "Digits", "individual_digits": True},
                          {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                          {"type": "Split", "pattern": pattern(chance), "behavior": "Isolated", "invert": False},
                          {"type": "FixedLength", "length": chance.choice((1, 5, 10**9))}])  # fmt: skip


def spelled(chance: random.Random) -> dict:
    return chance.choice([replace(chance), replace(chance), replace(chance), {"type": "Fuse"}, {"type": "ByteFallback"},
                          {"type": "WordPiece", "prefix": chance.choice(CONTENTS), "cleanup": True},
                          {"type": "BPEDecoder", "suffix": chance.choice(CONTENTS)},
                          {"type": "Strip", "content": "a", "start": 10**9, "stop": 3}])  # fmt: skip


def around(chance: random.Random) -> dict:
    """What is put around a text: thousands of special tokens, and the text itself many times."""
    ids = [0] * chance.choice((1, 1, 3, 1000))
    special = {"SpecialToken": {"id": "a", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 1}}
    single = [special] * chance.choice((0, 1, 1, 900)) + [text] * chance.choice((1, 1, 1, 2, 50))
    tokens = {"a": {"id": "a", "ids": ids, "tokens": ["a"] * len(ids)}}
    return chance.choice([
        {"type": "TemplateProcessing", "single": single, "pair": [*single, other], "special_tokens": tokens},
        {"type": "RobertaProcessing", "sep": ["a", 0], "cls": ["a", 0], "trim_offsets": True,
         "add_prefix_space": False}])  # fmt: skip
