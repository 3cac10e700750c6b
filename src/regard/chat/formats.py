"""The forms of a conversation: how messages become the ids that a model goes on from.

    Template    <|im_start|>user\\nHi!<|im_end|>\\n<|im_start|>assistant\\n    as a chat model was trained to read them
    Growing     Once upon a time, there was a                               one after the other, and nothing between
"""

import re
from contextlib import suppress
from typing import Any

from regard import config
from regard.generate.model import Transformer
from regard.text.chat import Chat
from regard.text.special_tokens import any_of

MARK = "\ue001"  # an answer that no template knows
Message = dict[str, str]


def asked(text: str) -> Message:
    return {"role": "user", "content": text}


def told(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Template:
    """A chat. Its answers end where the template ends them, and it never outgrows what the model reads at once."""

    slides = False

    def __init__(self, model: Transformer, chat: Chat) -> None:
        if model.tokenizer is None:
            raise config.DataError("this model has no tokenizer, and a chat is text; put its tokenizer.json beside it")
        self.tokenizer, self.chat = model.tokenizer, chat
        self.ends = ends_of(chat, self.tokenizer)

    def ids(self, messages: list[Message]) -> list[int]:
        return self.chat.encode(self.tokenizer, messages)

    def heard(self, messages: list[Message], said: str) -> str:
        """An answer as the content of a message: some templates write the space that the model has said itself."""
        with suppress(config.DataError):
            begun = self.chat.render(messages) + said.rstrip()
            for content in (said, said.strip()):
                if self.chat.render([*messages, told(content)], add_generation_prompt=False).startswith(begun):
                    return content
        return said


class Growing:
    """A text that two write. It slides: beyond what the model reads at once, it goes on from its newest part."""

    slides = True
    ends: frozenset[int] = frozenset()

    def __init__(self, model: Transformer) -> None:
        if model.speaks is None:
            raise config.DataError("this model has no tokenizer, and what you type is text; put its tokenizer.json "
                                   "beside it")  # fmt: skip
        self.model, self.tokenizer = model, model.speaks

    def ids(self, messages: list[Message]) -> list[int]:
        if messages[0]["role"] == "system":
            raise config.ConfigError("system: a growing text has no such message; begin the text with it")
        _, [ids] = self.model.encoded(["".join(each["content"] for each in messages)])
        return ids

    def heard(self, messages: list[Message], said: str) -> str:
        return said


def template_of(model: Transformer) -> Chat | None:
    """The chat template in a model's folder or file, if there is one."""
    path = None if model.origin is None else model.origin.path
    found = Chat.load(path) if path is not None and path.is_dir() else None
    return found or (None if model.tokenizer is None else Chat.of(model.tokenizer.card))


def ends_of(chat: Chat, tokenizer: Any) -> frozenset[int]:
    """The special token that a template puts after an answer: <|im_end|>, where the folder names another end."""
    talk = [asked("a"), told(MARK)]
    _, found, after = chat.render(talk, add_generation_prompt=False).rpartition(MARK)
    tokens, _ = chat.controls(tokenizer)
    end = re.match(any_of(tokens), after.lstrip()) if tokens and found else None
    return frozenset([tokens[end[0]]]) if end else frozenset()
