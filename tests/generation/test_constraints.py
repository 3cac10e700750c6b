"""Whatever is said under a rule keeps to it: judged by `re` and by `jsonschema`, over random models and schemas."""

import json
import random
import re
import sys

import jsonschema
import pytest
import tokenizers
import torch
from generation.builders import D, H
from tokenizers import decoders, models

from regard import config as C
from regard import text
from regard.generation.structured_output import build_constraint
from regard.inference.model import Model

WORDS = ['{"name": "Ada", "age": [1, 2.5, -3]} true false null the cat said: "no" at 17:05, a-b_c@d.org \\ / \n'] * 3
TOKENIZERS = {
    "byte": C.ByteTokenizer(),
    "char": C.CharTokenizer(),
    "word": C.WordTokenizer(vocab=300),
    "bpe": C.SubwordTokenizer(vocab=300),
    "wordpiece": C.SubwordTokenizer(kind="wordpiece", vocab=600),
    "unigram": C.SubwordTokenizer(kind="unigram", vocab=330),
}


def speaker(kind: str, seed: int = 0, end: bool = True) -> Model:
    """A tiny random model that speaks the tokens of a tokenizer and one that ends a text; its head has some more."""
    torch.manual_seed(seed)
    inner = tokenizers.Tokenizer.from_str(text.train_tokenizer(TOKENIZERS[kind], WORDS).text())
    inner.add_special_tokens(["<end>"] if end else [])
    words = text.Tokenizer(inner, {"eos_token": "<end>"} if end else {})
    trunk = C.Trunk(
        dim=D, depth=1, mask="causal", attention=C.Attention(heads=H, head_dim=4), position=C.RotaryPosition()
    )
    made = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(words) + 3), trunk=trunk)).eval()
    made.tokenizer = words
    return made


@pytest.fixture(params=TOKENIZERS)
def kind(request):
    return request.param


EXPRESSIONS = [
    r"\d{2}:\d{2}", r"(cat|dog)s?", r"[a-z]{1,4}( [a-z]{1,4}){0,3}\.", r"-?(0|[1-9]\d{0,3})(\.\d{1,2})?", r"é{2}|ü",
    r"[^\W\d]{2,5}", r"\S{3}\s?", r"(a|ab)(c|bcd)(d*)", r"x?", r"(?:/[a-z]{1,3}){1,2}", r'"[^"\n]{0,5}"', "日本?",
    r"[\w.+-]{1,6}@[a-z]{1,4}\.(com|org)", r"(?i)yes|no", r"a{3}b{2,3}",
]  # fmt: skip


@pytest.mark.parametrize("regex", EXPRESSIONS)
def test_every_text_that_ends_matches_the_expression(kind, regex):
    made = speaker(kind)
    for temperature in (0, 1.0):
        told = made.complete(["the cat", "a"], regex=regex, max_new_tokens=60, temperature=temperature, seed=3)
        for one in told:
            assert one.reason == "length" or re.fullmatch(regex, one.text, 0 if "(?i)" in regex else re.ASCII), one
    assert any(one.reason == "eos" for one in told) or "*" in regex


def test_greedy_says_the_likeliest_token_that_is_allowed(kind):
    made, c = speaker(kind), C.SamplingParams(regex=r"[a-z ]{9,12}", temperature=0.0, max_new_tokens=15)
    prompt = made.encode_prompts(["the cat"])[1][0]
    rule, plain = made.constraints(c, 1)[0], list(prompt)
    for _ in range(c.max_new_tokens):
        with torch.inference_mode():
            logits = made(torch.tensor([plain]))[0, -1]
        plain.append(int(logits.masked_fill(~rule.allowed_tokens(), -torch.inf).argmax()))
        rule.advance(plain[-1])
        if plain[-1] in made.generation_limits.ends:
            break

    assert made.complete("the cat", regex=c.regex, temperature=0, max_new_tokens=15).ids == tuple(plain[len(prompt) :])


def walked(rule, ends, dice, most=80):
    """Any of the tokens that a rule allows, until it is over."""
    said = []
    for _ in range(most):
        allowed = rule.allowed_tokens().nonzero().flatten().tolist()
        assert allowed, "a mask leaves nothing, and the text is not over"
        said.append(dice.choice(allowed))
        rule.advance(said[-1])
        if said[-1] in ends:
            return said[:-1], True
    return said, False


# ---------------------------------------------------------------- schemas


def schema_of(dice: random.Random, deep: int = 2) -> dict:
    """A random schema, of what can be said in a few tokens."""
    plain, nested = ["string", "integer", "number", "boolean", "null", "enum", "const"], ["object", "array", "any"]
    match kind := dice.choice(plain + nested * (deep > 0)):
        case "string":
            pattern = {"pattern": "^[ab]*$"} if dice.random() < 0.3 else {}
            return {"type": "string", "maxLength": dice.randint(0, 4), **pattern}
        case "integer":
            low = dice.randint(-30, 30)
            return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 50)}
        case "number":
            return {"type": "number", "minimum": -2, "exclusiveMaximum": dice.choice([0, 1.5])}
        case "boolean" | "null":
            return {"type": kind}
        case "enum":
            return {"enum": dice.sample(["a", "é\n", 1, -2.5, True, None, [1, 2], {"x": 0}], 3)}
        case "const":
            return {"const": dice.choice(["yes", 7, [None], {"k": "v"}])}
        case "array":
            low = dice.randint(0, 2)
            return {"type": "array", "items": schema_of(dice, deep - 1), "minItems": low, "maxItems": low + 1}
        case "any":
            return {"anyOf": [schema_of(dice, deep - 1), schema_of(dice, deep - 1)]}
    names = dice.sample(["name", "age", "ü b", "x"], dice.randint(0, 3))
    return {"type": "object", "properties": {name: schema_of(dice, deep - 1) for name in names},
            "required": names[: dice.randint(0, len(names))], "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_every_text_that_ends_is_json_of_the_schema(seed):
    dice = random.Random(seed)
    schema, made = schema_of(dice), speaker([*TOKENIZERS][seed % len(TOKENIZERS)], seed)
    c, ends = C.SamplingParams(json_schema=json.dumps(schema)), made.generation_limits.ends
    first = made.constraints(c, 1)[0]

    done = 0
    for _ in range(6):
        said, ended = walked(first.copy(), ends, dice)
        if ended:
            done += 1
            jsonschema.validate(json.loads(made.tokenizer.decode(said)), schema)
    assert done


def test_a_model_writes_json_that_can_be_read():
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "old": {"type": "boolean"}},
              "required": ["name", "old"], "additionalProperties": False}  # fmt: skip

    told = speaker("bpe").complete(["a", "b"], json_schema=json.dumps(schema), max_new_tokens=90, seed=1)

    for one in told:
        assert one.reason == "eos"
        jsonschema.validate(json.loads(one.text), schema)


# ---------------------------------------------------------------- ends


def test_a_length_that_ends_a_text_sooner_is_told():
    told = speaker("bpe").complete("the", regex="[a-z]{50}[0-9]", max_new_tokens=9)

    assert told.reason == "length" and not re.fullmatch("[a-z]{50}[0-9]", told.text)


def test_without_an_end_token_a_text_is_over_when_nothing_more_fits():
    made = speaker("byte", end=False)
    assert not made.generation_limits.ends

    told = made.complete("a", regex="(cat|dog)s?!", max_new_tokens=40, seed=2)

    assert told.reason == "eos" and re.fullmatch("(cat|dog)s?!", told.text)


def test_a_stop_string_ends_a_text_before_the_rule_does():
    made = speaker("char")
    whole = made.complete("the", regex="[a-z]{9}-[a-z]{9}", max_new_tokens=40, seed=4)
    cut = made.complete("the", regex="[a-z]{9}-[a-z]{9}", max_new_tokens=40, seed=4, stop="-")

    assert (cut.reason, cut.text) == ("stop", whole.text.partition("-")[0])


def test_an_end_may_not_come_before_the_text_may_end():
    made = speaker("bpe")
    [end] = made.generation_limits.ends
    rule = made.constraints(C.SamplingParams(regex="ab?"), 1)[0]

    assert not rule.allowed_tokens()[end]
    rule.advance(made.tokenizer.encode("a")[0])
    assert rule.allowed_tokens()[end]


# ---------------------------------------------------------------- with guesses, and in copies


@pytest.mark.parametrize("given", ["draft_model", "prompt_lookup"])
def test_guesses_keep_to_the_rule_and_change_nothing(given):
    made = speaker("bpe").double()
    ahead = {"draft_model": speaker("bpe", 5).double()} if given == "draft_model" else {"prompt_lookup": 2}
    settings = dict(regex=r"(the|cat|[a-z]{2}| ){12,30}\.", max_new_tokens=70)

    plain, quick = (made.complete("the cat", temperature=0, **settings, **more) for more in ({}, ahead))
    drawn = made.complete("the cat", seed=1, **settings, **ahead)

    assert plain.ids == quick.ids
    assert drawn.reason == "length" or re.fullmatch(settings["regex"], drawn.text)


def test_a_copy_goes_its_own_way():
    made = speaker("char")
    one = made.constraints(C.SamplingParams(regex="ab|ac"), 1)[0]
    a, b, c = (made.tokenizer.encode(letter)[0] for letter in "abc")
    one.advance(a)
    other = one.copy()
    one.advance(b)

    assert other.allowed_tokens()[[b, c]].all() and not one.allowed_tokens()[[a, b, c]].any()


# ---------------------------------------------------------------- vocabularies


def test_every_token_that_fits_may_be_said_however_texts_are_usually_cut():
    made, whole = speaker("word"), " the cat"
    rule = made.constraints(C.SamplingParams(regex=whole), 1)[0]
    spelt = [made.tokenizer.decode([id]) for id in range(len(made.tokenizer))]

    allowed = {spelt[id] for id in rule.allowed_tokens().nonzero().flatten().tolist()}

    assert allowed == {piece for piece in spelt if piece and whole.startswith(piece)} and len(allowed) > 1


@pytest.mark.parametrize(
    "words", [C.CharTokenizer(byte_fallback=False), C.WordTokenizer(vocab=200, byte_fallback=False)]
)
def test_no_rule_leads_where_a_small_vocabulary_cannot_go_on(words):
    """Python's `re` over all that can be said is the oracle: an x cannot be, so ax and bx are no way to go."""
    tokenizer = text.train_tokenizer(words, ["ab ba / b a . ab"])
    vocab = tokenizer.size

    rule = build_constraint(C.SamplingParams(regex=r"(ax|b[xa]|a/?b\.?) ?"), tokenizer, vocab + 1, frozenset({vocab}))

    for seed in range(20):
        said, ended = walked(rule.copy(), {vocab}, random.Random(seed))
        assert ended and re.fullmatch(r"(b[a]|a/?b\.?) ?", tokenizer.decode(said))


def test_special_tokens_are_never_part_of_a_text():
    tokenizer = text.train_tokenizer(C.SubwordTokenizer(vocab=300), WORDS)
    assert tokenizer.specials

    allowed = build_constraint(
        C.SamplingParams(regex="(?s:.)*"), tokenizer, tokenizer.size, frozenset()
    ).allowed_tokens()

    assert not allowed[list(tokenizer.specials)].any()
    plain = [id for id in range(len(tokenizer)) if tokenizer.decode([id]).isascii() and id not in tokenizer.specials]
    assert allowed[plain].all()


def test_tokens_of_sentencepiece_have_their_space_and_bytes_their_byte():
    """Their bytes are what `tokenizers` makes of them inside a text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "▁", "▁a", "b▁", "é", "▁▁"]
    inner = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])  # fmt: skip
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer = text.Tokenizer(inner)
    rule = build_constraint(C.SamplingParams(regex="a b( a)?é|日"), tokenizer, len(pieces), frozenset({2}))

    for seed in range(20):
        said, ended = walked(rule.copy(), {2}, random.Random(seed))
        assert ended and re.fullmatch("a b( a)?é|日", inner.decode(said))
    assert {pieces[id] for id in rule.allowed_tokens().nonzero().flatten().tolist()} == {"a", "<0x61>", "<0xE6>"}


def test_a_vocabulary_whose_tokens_have_no_bytes_is_refused():
    inner = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "##s": 2}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()

    with pytest.raises(C.DataError, match="joins its tokens by rules of its own"):
        build_constraint(C.SamplingParams(regex="a"), text.Tokenizer(inner), 3, frozenset())


# ---------------------------------------------------------------- mistakes


BOMBS = [r"(a?){5000}a{5000}", "(" * 2000 + ")" * 2000, "a" * 20_000, r"((a{1,99}){1,99}){1,99}x{1000000000}",
         r"(\w{1,500}\s){1,500}(.*a.{20000})"]  # fmt: skip


@pytest.mark.parametrize("regex", BOMBS, ids=lambda regex: regex[:20])
def test_a_bomb_goes_off_in_one_sentence_or_not_at_all(regex):
    try:
        told = speaker("byte").complete("a", regex=regex, max_new_tokens=12)
    except C.ConfigError as problem:
        assert "\n" not in str(problem) and str(problem).startswith("regex: ")
    else:
        assert told.reason == "length"


@pytest.mark.parametrize("given, said", [
    ({"regex": "["}, "regex: '\\[' cannot be read: unterminated character set"),
    ({"regex": "a(?=b)"}, "regex: look-around"),
    ({"regex": r"(a)\1"}, "regex: backreferences are not supported"),
    ({"regex": "[[a]b]"}, "regex: .* cannot be read: Possible nested set"),
    ({"regex": r"[^\s\S]"}, "regex: no token of this model can continue the text"),
    ({"json_schema": "{"}, "json_schema: '{' is no JSON"),
    ({"json_schema": "[1]"}, "json_schema: expected an object"),
    ({"json_schema": '{"type": "strin"}'}, "json_schema: Invalid type: strin"),
    ({"json_schema": '{"type": "array", "uniqueItems": true}'}, "json_schema: Unimplemented keys: .*uniqueItems"),
    ({"json_schema": '{"type": "integer", "minimum": 3, "maximum": 2}'}, "json_schema: Unsatisfiable schema"),
    ({"json_schema": '{"$ref": "#"}'}, "json_schema: no token of this model can continue the text"),
    ({"json_schema": '{"$ref": "https://example.org/x"}'},
     "json_schema: Resource 'https://example.org/x' is not present"),
    ({"json_schema": '{"a":' * 5000}, "json_schema: .* is no JSON"),
    ({"json_schema": '{"type": "string", "pattern": "["}'}, "json_schema: "),
    ({"json_schema": " " * 300_000}, "json_schema: 300,000 characters are more"),
    ({"json_schema": json.dumps({"allOf": [{"anyOf": [{"required": [f"{side}{i}"]} for side in "ab"]}
                                           for i in range(24)]})}, "json_schema: schema too large"),
    ({"regex": "a", "json_schema": "{}"}, "there is a regex as well"),
], ids=lambda given: str(given)[:40])  # fmt: skip
def test_what_cannot_be_kept_to_is_one_sentence(given, said):
    with pytest.raises(C.ConfigError, match=said) as problem:
        speaker("byte").generate("a", max_new_tokens=5, **given)

    assert "\n" not in str(problem.value)


def test_what_the_vocabulary_cannot_say_is_one_sentence():
    tokenizer = text.train_tokenizer(C.CharTokenizer(byte_fallback=False), ["abc"])

    with pytest.raises(C.ConfigError, match="no token of this model can continue the text"):
        build_constraint(C.SamplingParams(regex="[x-z]+"), tokenizer, 3, frozenset())
    with pytest.raises(C.ConfigError, match="no token of this model can continue the text"):
        build_constraint(C.SamplingParams(json_schema="{}"), tokenizer, 3, frozenset())


def test_a_model_without_a_tokenizer_is_told_so():
    made = speaker("byte")
    made.tokenizer = None

    with pytest.raises((C.ConfigError, C.DataError), match="no tokenizer"):
        made.generate(torch.tensor([1]), regex="a")


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    from regard.generation import structured_output

    monkeypatch.setitem(sys.modules, "llguidance", None)
    structured_output.import_llguidance.cache_clear()
    with pytest.raises(C.ConfigError, match=r"pip install 'regard\[constrain\]'"):
        build_constraint(C.SamplingParams(regex="a"), text.train_tokenizer(C.ByteTokenizer(), ["a"]), 256, frozenset())
    structured_output.import_llguidance.cache_clear()
