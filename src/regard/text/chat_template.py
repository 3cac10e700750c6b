"""Chat templates: messages of several roles rendered to the text format of a model's training, and encoded.

    [{"role": "user", "content": "Hi!"}]  ── template ──►  "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"

The template is Jinja, in tokenizer_config.json or chat_template.jinja. It is untrusted, so it is rendered in a sandbox
(`regard.text.template_sandbox`), whose errors are one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.errors import DataError
from regard.files.paths import check_inside
from regard.text import tokenizer_files
from regard.text.special_parsing import any_token_pattern
from regard.text.special_tokens import SPECIAL_TOKEN_ROLES, token_content

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

LONGEST = 1 << 16  # characters of a template; the longest published ones have thirty thousand
DEEPEST = 32  # nesting of objects in a message
NAME = "chat_template.jinja"
Template = str | Mapping[str, str]


class ChatTemplate:
    """Chat template, or several by name, of which "tool_use" is for chats with tools; `specials` are the special tokens
    by the names in templates: bos_token, eos_token, ..."""

    def __init__(self, template: Template, specials: Mapping[str, str] | None = None) -> None:
        from regard.text.template_budget import render_budget
        from regard.text.template_sandbox import TemplateSandbox  # Jinja is needed only for tokenizers with a template

        self.specials = dict(specials or {})
        self.templates = {"default": template} if isinstance(template, str) else dict(template)
        if not self.templates or not all(isinstance(each, str) for each in self.templates.values()):
            raise DataError("chat template: expected a text, or an object of texts by name")
        if max(map(len, self.templates.values())) > LONGEST:
            raise DataError(f"chat template: longer than {LONGEST:,} letters")
        room = TemplateSandbox()
        with template_errors(), render_budget():
            self.made = {name: room.from_string(each) for name, each in self.templates.items()}

    @classmethod
    def load(cls, folder: str | Path) -> ChatTemplate | None:
        """The template of a model's folder, if it has one."""
        folder = Path(folder)
        card = tokenizer_files.read_tokenizer_config(folder)
        if (folder / NAME).is_file():
            check_inside(folder / NAME, folder)
            with tokenizer_files.tokenizer_errors(f"{folder / NAME}: not a text that can be read"):
                card["chat_template"] = tokenizer_files.read_bytes(folder / NAME).decode()
        try:
            return cls.of(card)
        except DataError as problem:
            raise DataError(f"{folder}: {problem}") from None

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> ChatTemplate | None:
        """The template in a tokenizer_config.json: a text, or a list of named ones."""
        specials = {key: token_content(card[key]) for key, _ in SPECIAL_TOKEN_ROLES.values() if card.get(key)}
        match card.get("chat_template"):
            case None:
                return None
            case str(template):
                return cls(template, specials)
            case [*rows] if all(isinstance(row, dict) and {"name", "template"} <= row.keys() for row in rows):
                return cls({str(row["name"]): row["template"] for row in rows}, specials)
        raise DataError("chat_template: expected a text, or a list of tables with a name and a template")

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None, **more: Any,
    ) -> str:  # fmt: skip
        """The text of a chat, up to the start of the assistant's reply. The template may read `more`."""
        from regard.text.template_budget import render_budget

        check_messages(messages)
        known = {
            "messages": to_plain(messages, "messages"),
            "tools": None if tools is None else to_plain(tools, "tools"),
        }
        known |= {name: to_plain(value, name) for name, value in more.items()}
        name = "tool_use" if tools is not None and "tool_use" in self.made else "default"
        if name not in self.made:
            raise DataError(f"chat template: there is none called default; it has {', '.join(self.made)}")
        with template_errors(), render_budget():
            return self.made[name].render(
                **self.specials, **known, documents=None, add_generation_prompt=add_generation_prompt
            )

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **settings: Any) -> list[int]:
        """The ids of a chat, equal to those of `transformers`. Only the template writes special tokens: a user's
        message is plain text, even if it contains "<|im_end|>"."""
        check_messages(messages)
        given = to_plain(messages, "messages")
        more = {name: to_plain(value, name) for name, value in settings.items()}
        specials, written = self.controls(tokenizer)
        mark = unused_character([given, more, self.templates])
        ours, typed = SpecialTokenEscaper(specials, mark), SpecialTokenEscaper(written, mark)
        safe = [(ours if each["role"] == "assistant" else typed)(each) for each in given]
        kept = {name: typed(value) for name, value in more.items()}
        text = self.render(safe, **kept)
        if (safe, kept) == (given, more) and not any(map(tokenizer.has_special, all_strings([given, more]))):
            return tokenizer.encode(text, specials="parse")
        return tokenizer.encode_template(text, written, mark)

    def controls(self, tokenizer: Tokenizer) -> tuple[dict[str, int], dict[str, int]]:
        """The special tokens; and those plus other tokens in angle or square brackets that a template writes.

        Some published models have an <|im_start|> that is not marked special. The same holds for <think>, which the
        assistant may generate.
        """
        added = {token.content: id for id, token in tokenizer.inner.get_added_tokens_decoder().items() if token.content}
        meant = {token for token in added if added[token] in tokenizer.specials or token in self.specials.values()}
        sources = "".join(self.templates.values())
        return {token: added[token] for token in meant}, {
            token: id for token, id in added.items() if token in meant or (token[0] in "<[" and token in sources)
        }


def all_strings(value: Any) -> Iterator[str]:
    """All strings in nested dicts and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from all_strings([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from all_strings(each)


def unused_character(value: Any) -> str:
    """A private use character that no string in a value contains."""
    used = set().union(*map(set, all_strings(value)))
    unused = next((code for code in (*range(0xE000, 0xF8FF), *range(0xF0000, 0xFFFFE)) if chr(code) not in used), None)
    if unused is None:
        raise DataError("messages: they use every character of the private use areas; leave some out")
    return chr(unused)


class SpecialTokenEscaper:
    """Inserts a mark into every special token in user text, and into text that could become one with what follows."""

    def __init__(self, tokens: Iterable[str], mark: str) -> None:
        tokens = list(tokens)
        self.mark, self.whole = mark, re.compile(any_token_pattern(tokens)) if tokens else None
        self.beginnings = {token[:size] for token in tokens for size in range(1, len(token))}
        self.longest = max(map(len, tokens), default=0)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mark_tokens(value)
        if isinstance(value, Mapping):
            return {name: self(each) for name, each in value.items()}
        return [self(each) for each in value] if isinstance(value, list) else value

    def mark_tokens(self, text: str) -> str:
        """The text with a mark after the first character of each token, complete or only started."""
        begun = {len(text) - size for size in range(1, min(self.longest, len(text) + 1))
                 if text[len(text) - size :] in self.beginnings}  # fmt: skip
        found = {each.start() for each in self.whole.finditer(text)} if self.whole else set()
        places = sorted(begun | found)
        ends = [0, *(place + 1 for place in places), len(text)]
        return self.mark.join(text[start:stop] for start, stop in pairwise(ends))


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not isinstance(messages, list | tuple):
        raise DataError(f"messages: expected a list of them, got {type(messages).__name__}")
    for place, each in enumerate(messages):
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str):
            raise DataError(f"messages: number {place} is {str(each)[:40]!r}; expected an object with role and content")


def to_plain(value: Any, path: str, deep: int = 0) -> Any:
    """Dicts, lists, strings and numbers pass; any other object has methods that a template could call."""
    if deep > DEEPEST:
        raise DataError(f"{path}: objects and lists are nested more than {DEEPEST} deep")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_plain(each, f"{path}.{name}", deep + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each, f"{path}[{place}]", deep + 1) for place, each in enumerate(value)]
    raise DataError(f"{path}: a {type(value).__name__}; expected a text, a number, a list or an object")


@contextmanager
def template_errors() -> Iterator[None]:
    """Turn any error of a template into one sentence."""
    try:
        yield
    except (Exception, RecursionError) as problem:
        if isinstance(problem, DataError):
            raise
        told = "it recurses too deeply" if isinstance(problem, RecursionError) else str(problem) or repr(problem)
        raise DataError(f"chat template: {' '.join(told.split())[:400]}") from None
