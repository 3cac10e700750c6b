"""Conversation: the turns of a chat, and the model's next reply.

    system, user, assistant, ..., user ── format ──► ids ── DecodeSession ──► the reply, piece by piece
            └ the oldest exchanges are dropped when they exceed the context window

Each turn prefills only the new tokens (`regard.generation.conversation_cache`), and gives the reply that a full prefill
would give.
"""

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from regard import config
from regard.chat.formats import ContinuationFormat, Message, TemplateFormat, assistant_message, user_message
from regard.generation.conversation_cache import ConversationCache
from regard.generation.limits import context_window
from regard.generation.params import SAMPLING_DEFAULTS, canonical_settings, sampling_params
from regard.generation.session import DecodeSession
from regard.generation.text_stream import TextStream
from regard.inference.model import Model

SHARE = 0.75  # of the window is kept when it is full: with more, every turn from then on would need a full prefill
Exchange = tuple[str, str]  # a user message, and the reply


@dataclass(frozen=True, kw_only=True)
class ChatReply:
    """A reply with its finish reason: length, eos, stop, or stopped by the user.

    Of its prompt tokens `kept` were in the KV cache, and `read` were prefilled.
    """

    text: str
    tokens: int
    reason: str
    seed: int
    seconds: float
    read: int
    kept: int


class Conversation:
    """A chat with a model: send messages, and iterate over the replies. The settings are those of
    `config.SamplingParams`."""

    def __init__(
        self, model: Model, form: TemplateFormat | ContinuationFormat, *, system: str | None = None, **settings: Any
    ) -> None:
        self.model, self.form, self.memory = model, form, ConversationCache()
        self.exchanges: list[Exchange] = []
        self.first = 0  # exchanges that were dropped from the prompt
        self.system: str | None = None
        self.settings: dict[str, Any] = {}
        self.answer: ChatReply | None = None
        self.speech: TextStream | None = None
        self.tries, self.stopped, self.warned = 0, False, False
        self.set(settings)
        self.set_system(system)

    @property
    def messages(self) -> list[Message]:
        return self.prompt_ids(self.exchanges)

    def prompt_ids(self, exchanges: list[Exchange], *new: Message) -> list[Message]:
        """The exchanges as messages, after the system message."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [
            *first,
            *(each for said in exchanges for each in (user_message(said[0]), assistant_message(said[1]))),
            *new,
        ]

    # ---------------------------------------------------------------- messages and replies

    def send(self, text: str) -> Iterator[str]:
        """The reply to a message, piece by piece. An interrupted reply is kept as far as it came; without any token of
        a reply, the message is dropped as well."""
        self.tries = 0
        return self.finish_reply(text, self.exchanges)

    def regenerate(self) -> Iterator[str]:
        """Another reply to the last message."""
        question, _ = self.last
        self.tries += 1
        return self.finish_reply(question, self.exchanges[:-1])

    def stop(self) -> bool:
        """End the reply after the current token; False if there is none yet, or it is already stopped."""
        if self.speech is None or not self.speech.rows[0].ids or self.stopped:
            return False
        self.stopped = True
        self.speech.session.stop_row(0)
        return True

    def finish_reply(self, text: str, past: list[Exchange]) -> Iterator[str]:
        began, self.speech, self.stopped = time.perf_counter(), None, False
        first, ids = self.fit_window(text, past)
        session, whole = self.session(ids, len(past) + self.tries), False
        before = len(session.texts[0])
        try:
            kept = self.memory.take(session)
            self.speech = TextStream(session, self.form.tokenizer, [text])
            for _, part in self.speech:
                yield part
            whole = True
        except config.RunError:
            self.speech = None  # the output of damaged weights is no reply
            raise
        finally:
            self.memory.store(session) if whole else self.memory.forget()
            if self.speech is not None and self.speech.rows[0].ids:
                self.stopped = self.stopped or not whole
                self.first, self.answer = first, self.stats(self.speech, time.perf_counter() - began, before, kept)
                said = self.form.parse_reply(self.prompt_ids(past[first:], user_message(text)), self.answer.text)
                self.exchanges = [*past, (text, said)]

    def stats(self, speech: TextStream, seconds: float, before: int, kept: int) -> ChatReply:
        [made] = speech.completions
        ended = made.reason == "stop" or made.ids[-1] in speech.session.ends
        reason = "stopped" if self.stopped and not ended else made.reason
        return ChatReply(text=made.text, tokens=len(made.ids), reason=reason, seed=speech.session.seed, seconds=seconds,
                      read=before - kept, kept=kept)  # fmt: skip

    # ---------------------------------------------------------------- prompts

    def session(self, ids: list[int], turn: int) -> DecodeSession:
        """A decode session for one turn. Each turn has its own seed: with the same random numbers, replies would
        resemble each other."""
        c, most = self.sampling(ids), context_window(self.model, self.model.generation_limits)
        seed = {} if c.seed is None else {"seed": c.seed + turn}
        room = (
            {} if most is None or self.form.slides else {"max_new_tokens": min(c.max_new_tokens, most - len(ids) + 1)}
        )
        return self.model.session([ids], end_ids=self.form.ends, **self.settings | seed | room)

    def sampling(self, ids: list[int]) -> config.SamplingParams:
        """The sampling params of a turn: the folder's defaults, then the settings."""
        return sampling_params(
            self.model.default_settings([ids], new=self.settings.get("max_new_tokens")) | self.settings,
            self.form.tokenizer,
        )

    def fit_window(self, text: str, past: list[Exchange]) -> tuple[int, list[int]]:
        """The first exchange to keep and the prompt ids: all exchanges while there is room for a reply, then fewer."""
        first, most = min(self.first, len(past)), context_window(self.model, self.model.generation_limits)
        ids = self.form.ids(self.prompt_ids(past[first:], user_message(text)))
        if most is None or len(ids) <= (room := most - min(self.sampling(ids).max_new_tokens, most // 2)):
            return first, ids
        while first < len(past) and len(ids) > SHARE * room:
            first += 1
            ids = self.form.ids(self.prompt_ids(past[first:], user_message(text)))
        if len(ids) > most and not self.form.slides:
            raise config.DataError(f"message: with its chat template it has {len(ids)} tokens, more than the "
                                   f"{most} that this model reads at once; shorten it")  # fmt: skip
        if first > self.first and not self.warned:
            self.warned = True
            warnings.warn(f"window: the conversation has more tokens than the {most} that this model reads at once; "
                          "from now on its oldest exchanges are left out", stacklevel=3)  # fmt: skip
        return first, ids

    # ---------------------------------------------------------------- changes

    @property
    def last(self) -> Exchange:
        if not self.exchanges:
            raise config.ConfigError("the conversation is empty; send a message first")
        return self.exchanges[-1]

    def undo(self) -> Exchange:
        """Remove the last exchange."""
        gone = self.last
        self.exchanges = self.exchanges[:-1]
        return gone

    def clear(self) -> None:
        """Remove all exchanges; the system message and the settings stay."""
        self.exchanges, self.first, self.warned = [], 0, False

    def set(self, settings: Mapping[str, Any]) -> None:
        """Change settings from the next reply on; None resets one to its default."""
        merged = {**self.settings, **canonical_settings(settings)}
        sampling_params(
            {name: SAMPLING_DEFAULTS.get(name) if value is None else value for name, value in merged.items()},
            self.form.tokenizer,
        )
        self.settings = {name: value for name, value in merged.items() if value is not None}

    def set_system(self, text: str | None) -> None:
        """Set the system message."""
        before, self.system = self.system, text or None
        try:
            if self.system is not None:
                self.form.ids(self.prompt_ids([], user_message("a")))  # raises if the template has no system messages
        except (config.ConfigError, config.DataError):
            self.system = before
            raise

    # ---------------------------------------------------------------- saving

    def table(self) -> dict[str, Any]:
        """The whole conversation as JSON values."""
        settings = {name: value for name, value in self.settings.items() if name != "seed"}
        return {"messages": self.messages, "settings": settings, "seed": self.settings.get("seed")}

    def restore(self, table: Any) -> None:
        """Restore a saved conversation; an invalid one is refused, and changes nothing."""
        if not isinstance(table, dict) or not isinstance(table.get("settings", {}), dict):
            raise config.DataError("expected an object with messages, settings and seed, as a conversation is saved")
        other = Conversation(self.model, self.form)
        system, other.exchanges = split_messages(table.get("messages"))
        other.set_system(system)
        other.set({**table.get("settings", {}), "seed": table.get("seed")})
        if other.exchanges:
            self.form.ids(other.messages)  # raises if the template refuses these turns, or the tokenizer the text
        self.clear()
        self.exchanges, self.system, self.settings = other.exchanges, other.system, other.settings


def split_messages(messages: Any) -> tuple[str | None, list[Exchange]]:
    """A list of messages as the system message and the exchanges."""
    rows: list[Any] = messages if isinstance(messages, list) else [messages]
    if not all(isinstance(row, dict) and isinstance(row.get("role"), str) and isinstance(row.get("content"), str)
               for row in rows):  # fmt: skip
        raise config.DataError("messages: expected a list of objects, each with a role and a content")
    system = rows[0]["content"] if rows and rows[0]["role"] == "system" else None
    turns = rows if system is None else rows[1:]
    if [row["role"] for row in turns] != ["user", "assistant"] * (len(turns) // 2):
        raise config.DataError("messages: expected a user and an assistant in turn, after one system message at most, "
                               "and an answer to the last")  # fmt: skip
    said = [row["content"] for row in turns]
    return system, list(zip(said[::2], said[1::2], strict=True))
