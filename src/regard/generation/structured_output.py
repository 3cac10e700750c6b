"""Structured output: constraints on the next token, so that the text matches a regular expression or a JSON schema.

    regex  [0-9]{2}:[0-9]{2}      so far  1 7          allowed next    :  and every token that begins with it
                                          1 7 : 0 5                    the end, and nothing else

`llguidance` (extra `constrain`) walks the expression or the schema byte by byte, together with all tokens of the
vocabulary. Every token whose bytes fit is allowed, also where the tokenizer would split the text differently. An end
token is allowed where the text may end; a model without one ends when no token fits.
"""

import json
import re
import warnings
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError, RunError
from regard.generation.sampler import TokenConstraint
from regard.text.token_bytes import token_bytes_in_context

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

LONGEST, LARGEST = 10_000, 200_000  # characters of a regex, and of a schema
FUEL = 200_000  # limit of the work of compiling, in the library's units: beyond it a single step would take too long
# JSON as json.dumps writes it: with free whitespace a model could write spaces for ever.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
HEADER = '%llguidance {"no_forcing": true}\nstart: '  # every token that fits is allowed, not only the usual split
NO_BYTES = ("this tokenizer joins its tokens by rules of its own, so that none has bytes that a constraint could be "
            "compared with; use a model with byte-level BPE, SentencePiece, characters or bytes")  # fmt: skip


def build_constraint(
    c: config.SamplingParams, tokenizer: "Tokenizer", vocab: int, ends: frozenset[int]
) -> TokenConstraint | None:
    """The constraint of the settings in its start state, for one row (`copy` it for others), or None."""
    if c.regex is None and c.json_schema is None:
        return None
    words = grammar_vocabulary(tokenizer, vocab, ends)
    rule = GrammarConstraint(
        words, *(regex_grammar(c.regex, words) if c.regex is not None else schema_grammar(c.json_schema or "")), ends
    )
    try_first_token(rule)
    return rule


def try_first_token(rule: "GrammarConstraint") -> None:
    """Refuse a constraint that no text can meet, or whose grammar is too large: its first step shows either."""
    first = rule.allowed_tokens().nonzero()
    if len(first) and not rule.over:
        rule.copy().advance(int(first[0, 0]))


class GrammarConstraint:
    """Grammar state of one row. Tokens after an end token are ignored."""

    def __init__(self, words: "GrammarVocabulary", setting: str, grammar: str, ends: frozenset[int]) -> None:
        guide, self.setting, self.words, self.ends, self.over = import_llguidance(), setting, words, ends, False
        limits = guide.LLParserLimits(verbose_errors=False, initial_lexer_fuel=FUEL)
        self.matcher = guide.LLMatcher(
            words.inner, guide.LLMatcher.grammar_from_lark(HEADER + grammar), log_level=0, limits=limits
        )
        if self.matcher.is_error():
            why = short_error(self.matcher.get_error())
            much = re.search("fuel|too big", why) is not None
            raise ConfigError(f"{setting}: {'it is too large to compile; make it simpler' if much else why}")

    def allowed_tokens(self) -> Tensor:
        """Mask (V,) of the ids that may come next; all False when the text is over."""
        none = torch.zeros(self.words.count, dtype=torch.bool)
        if self.over:
            return none
        fits = torch.frombuffer(bytearray(self.matcher.compute_logit_bias()), dtype=torch.uint8) > 0
        if self.matcher.is_error():
            raise self.fault()
        found, whole = fits[: self.words.count], bool(fits[self.words.count])
        found[list(self.ends)] = whole
        self.over = whole and not bool(found.any())
        return found

    def advance(self, id: int) -> None:
        if self.over or id in self.ends:
            self.over = True
        elif not self.matcher.consume_token(id):
            if self.matcher.is_error():
                raise self.fault()
            raise RunError(f"{self.setting}: token {id} does not match the grammar after the tokens before")

    def copy(self) -> "GrammarConstraint":
        # without __init__, which would compile the grammar again
        other = object.__new__(GrammarConstraint)
        other.__dict__ |= self.__dict__ | {"matcher": self.matcher.deep_copy()}
        return other

    def fault(self) -> ConfigError:
        why = short_error(self.matcher.get_error())
        if "NoExtension" in why:
            return ConfigError(f"{self.setting}: no token of this model can continue the text; its vocabulary lacks "
                               "what the grammar needs, or no text matches")  # fmt: skip
        return ConfigError(f"{self.setting}: the grammar is too expensive to match: {why}; make it simpler")


# ---------------------------------------------------------------- from settings to grammars


def regex_grammar(regex: str, words: "GrammarVocabulary") -> tuple[str, str]:
    """The grammar of a regular expression that is valid for Python and for the library; \\d, \\w and \\s are ASCII."""
    if len(regex) > LONGEST:
        raise ConfigError(f"regex: {len(regex):,} characters are more than {LONGEST:,}; make it shorter")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "possible nested set": syntax of the library that Python may adopt
            re.compile(regex)
    except (re.error, Warning, RecursionError, OverflowError) as problem:
        raise ConfigError(f"regex: {quote_short(regex)} cannot be read: {problem}") from None
    text = import_llguidance().regex_to_lark(regex, "dws")
    if words.alphabet is None:
        return "regex", f"/{text}/"
    return "regex", f"TEXT\nTEXT: RULE & WORDS\nRULE: /{text}/\nWORDS: /{words.alphabet}/"


def schema_grammar(schema: str) -> tuple[str, str]:
    """The grammar of a JSON schema; keywords that the library does not support are refused, not ignored."""
    if len(schema) > LARGEST:
        raise ConfigError(f"json_schema: {len(schema):,} characters are more than {LARGEST:,}; make it shorter")
    try:
        told = json.loads(schema)
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"json_schema: {quote_short(schema)} is no JSON: {problem}") from None
    if not isinstance(told, dict):
        raise ConfigError(f'json_schema: expected an object such as {{"type": "string"}}, got {quote_short(schema)}')
    return "json_schema", f"%json {json.dumps(told | {'x-guidance': LAYOUT})}"


def quote_short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def short_error(problem: str) -> str:
    """The library's error message in one line, without the grammar that it quotes."""
    told = [line.strip() for line in problem.splitlines() if line.strip() and not re.match(r"\s*(\d+ \||\^)", line)]
    reason = next((line for line in told if line.startswith("error: ")), told[0] if told else "")
    around = r"^error: |^at \d+\(\d+\): (failed to compile JSON schema: )?|\(in \w+\): ?|<non-verbose/>$"
    return re.sub(around, "", reason)


# ---------------------------------------------------------------- vocabularies


class GrammarVocabulary:
    """The vocabulary in the form that the library walks: the bytes of `count` ids, and one more that stands for the
    end.

    `alphabet` is the expression of all texts that the tokens can spell, where they cannot spell every byte.
    """

    def __init__(self, spelt: list[bytes], count: int) -> None:
        self.count, self.tokens = count, [*spelt[:count], *[b""] * (count - len(spelt)), b""]
        self.eos_token_id, self.bos_token_id, self.is_tokenizer_wrapper = count, None, True
        self.special_token_ids = [id for id, spelling in enumerate(self.tokens) if not spelling]
        self.inner = import_llguidance().LLTokenizer(self, n_vocab=count + 1, eos_token=count, slices=[])
        self.alphabet = reachable_grammar(set(self.tokens) - {b""})

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("how a text is usually cut into tokens makes no difference here")


KNOWN: "WeakKeyDictionary[Tokenizer, dict[tuple[int, frozenset[int]], GrammarVocabulary]]" = WeakKeyDictionary()


def grammar_vocabulary(tokenizer: "Tokenizer", vocab: int, ends: frozenset[int]) -> GrammarVocabulary:
    """The grammar vocabulary of a tokenizer, built once and cached. An end token has no bytes, whatever its name is."""
    known = KNOWN.setdefault(tokenizer, {})
    if (vocab, ends) not in known:
        if (spelt := token_bytes_in_context(tokenizer)) is None:
            raise config.DataError(NO_BYTES)
        known[vocab, ends] = GrammarVocabulary([b"" if id in ends else each for id, each in enumerate(spelt)], vocab)
    return known[vocab, ends]


def reachable_grammar(tokens: set[bytes]) -> str | None:
    """The expression of all texts of these tokens, for a vocabulary that cannot spell every byte: no dead ends."""
    if len({token for token in tokens if len(token) == 1}) == 256:
        return None
    try:
        texts = sorted(token.decode() for token in tokens)
    except UnicodeDecodeError:
        return None  # some tokens are partial characters: a dead end is found when it is reached
    said: str = import_llguidance().regex_to_lark(f"({'|'.join(map(re.escape, texts))})*", "")
    return said


@cache
def import_llguidance() -> Any:
    try:
        return import_module("llguidance")
    except ImportError:
        raise ConfigError("regex and json_schema need llguidance, which is not installed; pip "
                          "install 'regard[constrain]'") from None  # fmt: skip
