r"""Conversation formats: how messages become the ids that a model continues.

TemplateFormat       <|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n    the model's own chat template
ContinuationFormat   Once upon a time, there was a                               plain concatenation
"""

import re
from contextlib import suppress
from typing import Any

from regard import config
from regard.inference.model import Model
from regard.text.chat_template import ChatTemplate
from regard.text.special_parsing import any_token_pattern

MARK = "\ue001"  # a private-use character, to find the place of a reply in a template
Message = dict[str, str]


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant_message(text: str) -> Message:
    return {"role": "assistant", "content": text}


class TemplateFormat:
    """The format of a chat template. Replies end with its end token, and a chat never exceeds the context window."""

    slides = False

    def __init__(self, model: Model, chat: ChatTemplate) -> None:
        if model.tokenizer is None:
            raise config.DataError("this model has no tokenizer, and a chat is text; put its tokenizer.json beside it")
        self.tokenizer, self.chat = model.tokenizer, chat
        self.ends = template_end_ids(chat, self.tokenizer)

    def ids(self, messages: list[Message]) -> list[int]:
        return self.chat.encode(self.tokenizer, messages)

    def parse_reply(self, messages: list[Message], text: str) -> str:
        """The reply as the content of a message: some templates write the space that the model has generated itself."""
        with suppress(config.DataError):
            begun = self.chat.render(messages) + text.rstrip()
            for content in (text, text.strip()):
                if self.chat.render([*messages, assistant_message(content)], add_generation_prompt=False).startswith(
                    begun
                ):
                    return content
        return text


class ContinuationFormat:
    """A text continued by user and model in turn. It slides: beyond the context window it continues from its newest
    part."""

    slides = True
    ends: frozenset[int] = frozenset()

    def __init__(self, model: Model) -> None:
        if model.output_tokenizer is None:
            raise config.DataError("this model has no tokenizer, and messages are text; put its tokenizer.json "
                                   "beside it")  # fmt: skip
        self.model, self.tokenizer = model, model.output_tokenizer

    def ids(self, messages: list[Message]) -> list[int]:
        if messages[0]["role"] == "system":
            raise config.ConfigError("system: plain continuation has no system message; begin the text with it")
        _, [ids] = self.model.encode_prompts(["".join(each["content"] for each in messages)])
        return ids

    def parse_reply(self, messages: list[Message], text: str) -> str:
        return text


def find_chat_template(model: Model) -> ChatTemplate | None:
    """The chat template of a model's folder or file, if there is one."""
    path = None if model.source_folder is None else model.source_folder.path
    found = ChatTemplate.load(path) if path is not None and path.is_dir() else None
    return found or (None if model.tokenizer is None else ChatTemplate.of(model.tokenizer.card))


def template_end_ids(chat: ChatTemplate, tokenizer: Any) -> frozenset[int]:
    """The end token that a template puts after a reply, such as <|im_end|>, which may differ from the folder's."""
    talk = [user_message("a"), assistant_message(MARK)]
    _, found, after = chat.render(talk, add_generation_prompt=False).rpartition(MARK)
    tokens, _ = chat.controls(tokenizer)
    end = re.match(any_token_pattern(tokens), after.lstrip()) if tokens and found else None
    return frozenset([tokens[end[0]]]) if end else frozenset()
