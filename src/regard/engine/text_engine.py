"""Many texts at once: the engine in texts, with stop strings, what the tokens spell, and what it cost.

    ask ──► ids ──► engine ── a token ──► voice ── text that has become certain ──► hear

A piece has text and the tokens since the last piece; half a character, or what may become a stop string, waits. All
pieces of a text together are the text that `model.complete` gives for the same prompt.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from regard.config import ConfigError, DataError, RunError, Sampling
from regard.generate.asked import is_search, sampling
from regard.generate.choosing import Rule
from regard.generate.engine import Asked, Busy, Engine, Ticket, Told
from regard.generate.limits import check_texts
from regard.generate.model import Transformer
from regard.generate.speech import Completion, Reason, Voice

if TYPE_CHECKING:
    from regard.text import Tokenizer


@dataclass(frozen=True)
class Token:
    """A token, what it adds to a text, its log-probability, and the likeliest ones in its place."""

    id: int
    text: str
    bytes: bytes
    logprob: float
    others: tuple["Token", ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of the prompt, how many of them had been read before, and those that were made."""

    prompt: int
    cached: int
    made: int


@dataclass(frozen=True)
class Piece:
    """Text as it becomes certain. The last piece has a reason, `length`, `end`, `stop`, `cancelled` or `error`, and the
    usage."""

    text: str
    tokens: tuple[Token, ...]
    reason: str | None = None
    usage: Usage | None = None
    problem: str | None = None  # what went wrong, in a sentence


class Answers:
    """Texts from an engine."""

    def __init__(self, engine: Engine, model: Transformer) -> None:
        self.engine, self.model = engine, model

    def ask(
        self, prompt: str | Sequence[int], hear: Callable[[Piece], None], *, logprobs: int = 0,
        rule: Rule | None = None, **settings: Any,
    ) -> Ticket:  # fmt: skip
        """What comes after a text or ids, by the settings of `config.Sampling`; `hear` is called by the engine.

        A `rule` is that of these settings (`constraint`), compiled once for several texts.
        """
        self.engine.welcome()  # before anything is encoded or compiled
        tokenizer, ids, c = self.settled(prompt, settings)
        rules = self.model.rules(c, 1) if rule is None else [rule.copy()]
        asked = Asked(ids=tuple(ids), c=replace(c, stop=()), rule=rules[0] if rules else None, logprobs=logprobs)
        return self.engine.submit(asked, Listener(self, Voice(tokenizer, ids, c.stop), len(ids), hear))

    def constraint(self, settings: dict[str, Any]) -> Rule | None:
        """The compiled regex or schema of some settings; None where there is none."""
        forms = {name: settings[name] for name in ("regex", "schema") if settings.get(name) is not None}
        found = self.model.rules(sampling(forms), 1) if forms else []
        return found[0] if found else None

    def complete(self, prompts: Sequence[str], **settings: Any) -> list[Completion]:
        """All of these: by the engine's thread, or step by step here if it has none."""
        heard = [Heard(prompt) for prompt in prompts]
        here: deque[Ticket] = deque()
        for one in heard:
            while True:
                try:
                    here.append(self.ask(one.prompt, one.hear, **settings))
                    break
                except Busy:
                    if not here:
                        raise  # others fill the engine
                    self.finish(here.popleft())
            one.seed = here[-1].seed
        for ticket in here:
            self.finish(ticket)
        return [one.completion() for one in heard]

    def finish(self, ticket: Ticket) -> None:
        while self.engine.thread is None and not ticket.over.is_set():
            self.engine.step()
        ticket.wait()

    def settled(self, prompt: str | Sequence[int], settings: dict[str, Any]) -> "tuple[Tokenizer, list[int], Sampling]":
        """The tokenizer of what comes after a prompt, the prompt as it is read, and how to choose."""
        model = self.model
        if is_search(settings):
            raise ConfigError("beams: the texts of an engine are made token by token; use model.complete")
        tokenizer = model.speaks
        if isinstance(prompt, str):
            tokenizer, (ids,) = model.encoded([prompt])
        else:
            ids = model.begun(list(prompt))
        if tokenizer is None:
            raise DataError("prompt: this model has no tokenizer; set model.tokenizer, or ask the engine in ids")
        ids = [id for id in ids if id != model.c.embed.pad]
        check_texts(model, [ids])
        return tokenizer, ids, sampling(model.usual([ids], model.manner.drawn) | settings, tokenizer)

    def token(self, id: int, logprob: float, others: tuple[tuple[int, float], ...] = ()) -> Token:
        spelt = self.spelling[id] if id < len(self.spelling) else b""
        text = spelt.decode("utf-8", "replace") or self.tokenizer.token(id)  # a special token adds nothing to a text
        return Token(id, text, spelt, logprob, tuple(self.token(*other) for other in others))

    @cached_property
    def spelling(self) -> list[bytes]:
        """What each token adds inside a text; where that depends on its neighbours, what it is alone."""
        from regard.text.inside import bytes_inside

        every = range(len(self.tokenizer))
        return bytes_inside(self.tokenizer) or [self.tokenizer.decode([id]).encode() for id in every]

    @property
    def tokenizer(self) -> "Tokenizer":
        assert self.model.speaks is not None
        return self.model.speaks


class Listener:
    """Makes pieces of what an engine tells of one text."""

    def __init__(self, answers: Answers, voice: Voice, prompt: int, hear: Callable[[Piece], None]) -> None:
        self.answers, self.voice, self.prompt, self.hear = answers, voice, prompt, hear
        self.tokens: list[Token] = []
        self.made = 0

    def __call__(self, told: Told) -> bool:
        """True when the text is over."""
        if told.id is not None:
            self.tokens.append(self.answers.token(told.id, told.logprob, told.others))
            self.made += 1
        text = self.text(told)
        reason = "stop" if self.voice.stopped else told.reason
        usage = None if reason is None else Usage(self.prompt, told.cached, self.made)
        if text or reason is not None:
            tokens, self.tokens = tuple(self.tokens), []
            self.hear(Piece(text, tokens, reason, usage, told.problem))
        return reason is not None

    def text(self, told: Told) -> str:
        """What has become certain by this. Of a text that was broken off, what was held back stays so."""
        text = "" if told.id is None or told.reason == "end" else self.voice.say(self.voice.stream.put(told.id))
        if not self.voice.stopped and told.reason in ("end", "length"):
            text += self.voice.close("end" if told.reason == "end" else "length", 0.0)
        return text


class Heard:
    """The pieces of one text, put together."""

    def __init__(self, prompt: str) -> None:
        self.prompt, self.seed, self.began, self.ended = prompt, 0, time.perf_counter(), 0.0
        self.pieces: list[Piece] = []

    def hear(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.ended = time.perf_counter()

    def completion(self) -> Completion:
        last = self.pieces[-1]
        if last.reason not in ("length", "end", "stop"):
            raise RunError(f"a text was broken off: {last.problem or 'it was cancelled'}")
        return Completion(
            prompt=self.prompt, text="".join(piece.text for piece in self.pieces), reason=cast("Reason", last.reason),
            ids=tuple(token.id for piece in self.pieces for token in piece.tokens), seed=self.seed,
            seconds=self.ended - self.began,
        )  # fmt: skip
