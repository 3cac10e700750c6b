"""Tokenizer: text to token ids and back, decode(encode(text)) == text.

    "First Citizen"  ── encode ──►  [18, 47, 56, ...]  ── decode ──►  "First Citizen"

It wraps a `tokenizers.Tokenizer`, so every tokenizer is a tokenizer.json that other libraries open. `specials` decides
about "<|im_end|>" in a text: with "parse" it is the special token, as in `transformers.AutoTokenizer`; with "plain" it
is encoded like any other text (`split_special_tokens` there), which is for untrusted texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, get_args

import tokenizers

from regard.config.errors import ConfigError, DataError
from regard.config.recipe import Specials
from regard.text import tokenizer_files
from regard.text.detokenizer import ByteDetokenizer, Detokenizer, RollingDetokenizer
from regard.text.special_parsing import TemplateEncoder, can_spell_specials, special_pattern
from regard.text.special_tokens import EncodedText, encode_with_specials, find_special_tokens, tokenizer_config_of
from regard.text.split_points import Borders, split_at_borders, split_pattern
from regard.text.token_bytes import bytes_of_vocabulary, lookup_encoder, printable, sayable_characters

CHUNK = 1 << 14  # characters: longer texts are split, and their parts encoded in parallel
UNKNOWN = "is not in the vocabulary; train the tokenizer on text that has it, or with tokenizer.byte_fallback=true"
HALF = "is half of a surrogate pair and no character; decode the text as UTF-16 first"


class UnknownCharacter(DataError):
    """Raised for a character without a token; names its position."""

    def __init__(self, text: str, place: int, why: str) -> None:
        super().__init__(f"character {place:,} of the text, {text[place]!r} (U+{ord(text[place]):04X}), {why}")
        self.text, self.place, self.why = text, place, why


class Tokenizer:
    """Tokenizer; `special_ids` are the ids of "pad", "bos", "eos", "mask", "cls", "sep", "unk", where present.

    `card` is the tokenizer_config.json: the special tokens by their role names in `transformers`. `specials`: whether
    special tokens in texts are parsed; by default they are, unless the config forbids it.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, card: dict[str, Any] | None = None, specials: Specials | None = None
    ) -> None:
        self.inner, self.card = tokenizer_files.strip_side_effects(inner), dict(card or {})
        spec, vocabulary = json.loads(inner.to_str()), inner.get_vocab()
        self.size = tokenizer_files.embedding_rows(vocabulary)
        self.specials = {token["id"] for token in spec["added_tokens"] if token["special"]}
        self.special_ids = find_special_tokens(spec, vocabulary, self.card)
        self.spelling = bytes_of_vocabulary(spec, vocabulary, self.specials)
        self.direct = lookup_encoder(spec, vocabulary)
        self.alphabet = sayable_characters(spec, vocabulary)
        self.cuts = {parse: split_pattern(spec, self.direct is not None, parse) for parse in (False, True)}
        self.special_pattern = special_pattern(spec, self.inner)
        # copies of `inner`, made when first needed: a large one takes half a second
        self.parsers: list[tokenizers.Tokenizer] = []
        self.template_encoders: dict[frozenset[str], TemplateEncoder] = {}
        self.parses_specials = not self.card.get("split_special_tokens")
        if specials is not None:
            self.parses_specials = check_specials(specials) == "parse"
        self.views = {self.parses_specials: self}  # the same tokenizer, with and without parsing of special tokens

    @classmethod
    def load(cls, path: str | Path, specials: Specials | None = None) -> Tokenizer:
        """Load a tokenizer.json, or a folder with one; tokenizer_config.json beside it gives the roles."""
        inner, card = tokenizer_files.read_tokenizer(Path(path))
        with tokenizer_files.tokenizer_errors(path):
            return cls(inner, card, specials)

    def save(self, folder: str | Path, side: str = "") -> None:
        """Write tokenizer.json, and the tokenizer_config.json with the roles for `transformers`."""
        tokens = {role: self.token(id) for role, id in self.special_ids.items() if id in self.specials}
        tokenizer_files.write_tokenizer(Path(folder), self.text(), tokenizer_config_of(tokens) | self.card, side)

    def text(self) -> str:
        """The tokenizer.json, which is equal for equal training."""
        return self.inner.to_str(pretty=True)

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str, specials: Specials | None = None) -> list[int]:
        """The ids of a text, without added special tokens; DataError for a character that cannot be encoded.

        `specials` overrides for this text whether special tokens are parsed.
        """
        if specials is not None:
            return self.with_specials(specials).encode(text)
        if self.direct is not None:
            try:
                return self.direct(text)
            except (KeyError, UnicodeEncodeError):
                pass  # encoded as bytes, or not at all
        with self.with_special_tokens(text):
            inner = self.encoder(text)
            if len(text) <= CHUNK:
                return inner.encode(text, add_special_tokens=False).ids
            parts = list(self.cut(text[start : start + CHUNK] for start in range(0, len(text), CHUNK)))
            found = inner.encode_batch_fast(parts, add_special_tokens=False)
            return list(chain.from_iterable(part.ids for part in found))

    def with_specials(self, specials: Specials) -> Tokenizer:
        """A view of the tokenizer that parses special tokens in texts ("parse") or treats them as text ("plain")."""
        parses = check_specials(specials) == "parse"
        if parses not in self.views:
            made = object.__new__(type(self))
            made.__dict__ |= self.__dict__ | {"parses_specials": parses}  # the rest is shared
            self.views[parses] = made
        return self.views[parses]

    def encoder(self, *texts: str) -> tokenizers.Tokenizer:
        """The inner tokenizer for these texts: `inner`, which parses no special tokens, or a copy that does.

        A copy, since the library's switch affects all threads. A text without special tokens needs none. If the model
        can produce a special token from ordinary text, plain text uses a copy that cannot.
        """
        if not self.parses_specials:
            return self.template_encoder(self.special_tokens).inner if self.spells_specials else self.inner
        if not any(map(self.has_special, texts)):
            return self.inner
        if not self.parsers:
            made = tokenizer_files.strip_side_effects(tokenizers.Tokenizer.from_str(self.inner.to_str()))
            made.encode_special_tokens = False
            self.parsers.append(made)
        return self.parsers[0]

    def has_special(self, text: str) -> bool:
        """Whether a text contains a special token, as written or after normalisation."""
        if self.special_pattern is None or self.special_pattern.search(text):
            return self.special_pattern is not None
        normalizer = self.inner.normalizer
        try:
            return normalizer is not None and bool(self.special_pattern.search(normalizer.normalize_str(text)))
        except UnicodeEncodeError:
            return False  # a lone surrogate, which `encode` refuses with its position

    @cached_property
    def spells_specials(self) -> bool:
        return can_spell_specials(self.inner, self.special_tokens, self.special_ids.get("unk"))

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens by name."""
        return {token: id for id in self.specials if (token := self.token(id))}

    def template_encoder(self, controls: Mapping[str, int]) -> TemplateEncoder:
        """The encoder of rendered chats, in which a template may write these tokens."""
        key = frozenset(controls)
        if key not in self.template_encoders:
            with tokenizer_files.tokenizer_errors("the tokenizer cannot be used"):
                self.template_encoders[key] = TemplateEncoder(self.inner, controls)
        return self.template_encoders[key]

    def encode_template(self, text: str, controls: Mapping[str, int], mark: str) -> list[int]:
        """The ids of a rendered template in which `controls` count, unless they are marked."""
        made = self.template_encoder(controls)
        with self.with_specials("plain").with_special_tokens(made.strip_marks(text, mark)):
            return made.encode(text, mark)

    def encode_with_specials(self, text: str, other: str | None = None, longest: int | None = None) -> EncodedText:
        """A text, or two, with the special tokens of the tokenizer's post-processor, and the origin of each id.

        [CLS] text [SEP] other [SEP] in at most `longest` tokens: the longer text is truncated first.
        """
        with self.with_special_tokens(text, other or ""):
            return self.check_ids(encode_with_specials(self.encoder(text, other or ""), text, other, longest))

    @property
    def leading_ids(self) -> list[int]:
        """The special tokens at the start of every text: <s> of Llama, [CLS] of BERT, none of GPT-2."""
        with tokenizer_files.tokenizer_errors("the tokenizer cannot be used"):
            found = self.check_ids(encode_with_specials(self.inner, tokenizer_files.PROBE_TEXT))
        first = list(takewhile(lambda place: found.owners[place] is None, range(len(found))))
        return [] if len(first) == len(found) else [found.ids[place] for place in first]

    def without_special(self, role: str) -> Tokenizer:
        """A copy of the tokenizer that parses one special token in texts: the [MASK] of a text to be filled."""
        if role not in self.special_ids:
            raise DataError(f"the tokenizer has no {role} token; it has {', '.join(self.special_ids) or 'none'}")
        if self.parses_specials:
            return self
        spec = json.loads(self.inner.to_str())
        for token in spec["added_tokens"]:
            token["special"] = token["special"] and token["id"] != self.special_ids[role]
        with tokenizer_files.tokenizer_errors("the tokenizer cannot be used"):
            return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(spec)), self.card, "plain")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are skipped, and invalid UTF-8 becomes U+FFFD."""
        ids = self.valid_ids(ids)
        if self.spelling is not None:
            return b"".join(map(self.spelling.__getitem__, ids)).decode("utf-8", "replace")
        if self.specials.issuperset(ids):
            return ""  # some decoders of the library panic for an empty list
        with tokenizer_files.tokenizer_errors("the ids cannot be decoded"):
            return self.inner.decode(ids, skip_special_tokens=True)

    def stream(self) -> Detokenizer:
        """An incremental detokenizer: `put` an id for the text that is certain, `flush` for the rest."""
        return RollingDetokenizer(self.decode) if self.spelling is None else ByteDetokenizer(self.decode_bytes)

    def token_text(self, id: int) -> str:
        """One token for display: a space as ·, a newline as ⏎, a part of a character as <0xE2>."""
        [id] = self.valid_ids([id])
        if self.spelling is None or id in self.specials:
            return self.token(id)
        return printable(self.spelling[id])

    def token(self, id: int) -> str:
        """A token as in the vocabulary; unused ids have none."""
        return self.inner.id_to_token(id) or ""

    @property
    def borders(self) -> Borders:
        """The positions where a text may be split for `encode`."""
        return self.cuts[self.parses_specials]

    def cut(self, parts: Iterable[str]) -> Iterator[str]:
        """A long text in parts, split where it does not change tokens: encoded separately they equal the whole."""
        return split_at_borders(parts, self.borders)

    def decode_bytes(self, id: int) -> bytes:
        """The bytes of one id, for byte-level tokenizers; special tokens have none."""
        assert self.spelling is not None
        return self.spelling[self.valid_ids([id])[0]]

    def check_ids(self, found: EncodedText) -> EncodedText:
        """Check that the ids around a text, which come from a file, are in the vocabulary."""
        self.valid_ids(found.ids)
        return found

    def valid_ids(self, ids: Iterable[int]) -> list[int]:
        ids = list(map(int, ids))
        if ids and not 0 <= (wrong := min(ids)) <= (wrong := max(ids)) < self.size:
            raise DataError(f"token {wrong} is outside this vocabulary of {self.size:,}; was it made with another one?")
        return ids

    @contextmanager
    def with_special_tokens(self, *texts: str) -> Iterator[None]:
        """Errors of encoding, reported with the character that caused them."""
        for text in texts:
            if self.alphabet is not None and not self.alphabet.issuperset(text):
                self.check(text)
        try:
            yield
        except BaseException as problem:
            fault = tokenizer_files.as_data_error("the text cannot be encoded", problem)
            for text in texts if isinstance(fault, DataError) else ():
                self.check(text)  # a character may be the cause
            raise fault from None

    def check(self, text: str) -> None:
        """Raise for the first character that cannot be encoded; parsed special tokens are exempt."""
        parsed = self.special_pattern.finditer(text) if self.special_pattern and self.parses_specials else ()
        whole = {place for found in parsed for place in range(*found.span())}
        for place, character in enumerate(text):
            if place in whole:
                continue
            if "\ud800" <= character <= "\udfff":
                raise UnknownCharacter(text, place, HALF)
            if self.alphabet is not None and character not in self.alphabet:
                raise UnknownCharacter(text, place, UNKNOWN)

    def __getstate__(self) -> dict[str, Any]:
        made = ("views", "parsers", "template_encoders")  # made again when needed
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, also in another process: the library's pickled tokenizers lose the "plain" switch."""
        self.__dict__ |= state
        tokenizer_files.strip_side_effects(self.inner)
        self.parsers, self.template_encoders, self.views = [], {}, {self.parses_specials: self}


def check_specials(specials: str) -> str:
    if specials not in get_args(Specials):
        raise ConfigError(f"specials: no {specials!r}; there are {' and '.join(get_args(Specials))}")
    return specials
