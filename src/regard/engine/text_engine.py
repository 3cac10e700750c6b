"""TextEngine: the engine with strings in and streamed completion chunks out: stop strings, logprobs and usage.

    prompt ──► ids ──► engine ── a token ──► detokenizer, stop strings ── final text ──► listener

A chunk has the new text and its tokens; part of a character, or of a possible stop string, is held back. The chunks of
a request together are the text that `model.complete` gives for the same prompt.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from regard.config.errors import ConfigError, DataError, RunError
from regard.config.generation import SamplingParams
from regard.engine.engine import Engine
from regard.engine.request_queue import GenerationRequest, QueueFull, RequestTicket, TokenEvent
from regard.generation.limits import check_prompts
from regard.generation.params import canonical_settings, is_beam_search, sampling_params
from regard.generation.sampler import TokenConstraint
from regard.generation.text_stream import Completion, FinishReason, StopStringFilter
from regard.inference.model import Model

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its bytes in the text, its log-probability, and the most probable alternatives."""

    id: int
    text: str
    bytes: bytes
    logprob: float
    others: tuple["TokenLogprob", ...] = ()


@dataclass(frozen=True)
class TokenUsage:
    """Token usage: the prompt, how many of its tokens came from the prefix cache, and the generated tokens."""

    prompt: int
    cached: int
    made: int


@dataclass(frozen=True)
class CompletionChunk:
    """A chunk of completion text. The last one has a reason, `length`, `eos`, `stop`, `cancelled` or `error`, and the
    usage."""

    text: str
    tokens: tuple[TokenLogprob, ...]
    reason: str | None = None
    usage: TokenUsage | None = None
    problem: str | None = None  # the error, in a sentence


class TextEngine:
    """An engine with a tokenizer: texts in, completion chunks out."""

    def __init__(self, engine: Engine, model: Model) -> None:
        self.engine, self.model = engine, model

    def submit(
        self, prompt: str | Sequence[int], hear: Callable[[CompletionChunk], None], *, logprobs: int = 0,
        rule: TokenConstraint | None = None, **settings: Any,
    ) -> RequestTicket:  # fmt: skip
        """Queue a prompt, text or ids, with the settings of `config.SamplingParams`; `hear` gets the chunks in the
        engine's thread.

        A `rule` is the compiled constraint of these settings (`constraint`), shared by several requests.
        """
        settings = canonical_settings(settings)
        self.engine.admit()  # before anything is encoded or compiled
        tokenizer, ids, c = self.resolve_settings(prompt, settings)
        rules = self.model.constraints(c, 1) if rule is None else [rule.copy()]
        asked = GenerationRequest(
            ids=tuple(ids), c=replace(c, stop=()), rule=rules[0] if rules else None, logprobs=logprobs
        )
        return self.engine.submit(asked, ChunkListener(self, StopStringFilter(tokenizer, ids, c.stop), len(ids), hear))

    def constraint(self, settings: dict[str, Any]) -> TokenConstraint | None:
        """The compiled regex or JSON schema of the settings; None without one."""
        settings = canonical_settings(settings)
        forms = {name: settings[name] for name in ("regex", "json_schema") if settings.get(name) is not None}
        found = self.model.constraints(sampling_params(forms), 1) if forms else []
        return found[0] if found else None

    def complete(self, prompts: Sequence[str], **settings: Any) -> list[Completion]:
        """Complete all prompts: in the engine's thread, or by steps in this one if the engine has none."""
        heard = [ChunkCollector(prompt) for prompt in prompts]
        here: deque[RequestTicket] = deque()
        for one in heard:
            while True:
                try:
                    here.append(self.submit(one.prompt, one.hear, **settings))
                    break
                except QueueFull:
                    if not here:
                        raise  # other callers fill the engine
                    # the queue is full of our own requests: finish the oldest and try again
                    self.finish(here.popleft())
            one.seed = here[-1].seed
        for ticket in here:
            self.finish(ticket)
        return [one.completion() for one in heard]

    def finish(self, ticket: RequestTicket) -> None:
        while self.engine.thread is None and not ticket.finished.is_set():
            self.engine.step()
        ticket.wait()

    def resolve_settings(
        self, prompt: str | Sequence[int], settings: dict[str, Any]
    ) -> "tuple[Tokenizer, list[int], SamplingParams]":
        """The output tokenizer, the prompt ids, and the sampling params of a request."""
        model = self.model
        if is_beam_search(settings):
            raise ConfigError("num_beams: an engine has no beam search; use model.complete")
        tokenizer = model.output_tokenizer
        if isinstance(prompt, str):
            tokenizer, (ids,) = model.encode_prompts([prompt])
        else:
            ids = model.with_start_token(list(prompt))
        if tokenizer is None:
            raise DataError("prompt: this model has no tokenizer; set model.tokenizer, or give ids to the engine")
        ids = [id for id in ids if id != model.c.embed.pad_id]
        check_prompts(model, [ids])
        return (
            tokenizer,
            ids,
            sampling_params(model.default_settings([ids], model.generation_defaults.sampling) | settings, tokenizer),
        )

    def token(self, id: int, logprob: float, others: tuple[tuple[int, float], ...] = ()) -> TokenLogprob:
        spelt = self.spelling[id] if id < len(self.spelling) else b""
        text = spelt.decode("utf-8", "replace") or self.tokenizer.token(id)  # a special token adds nothing to a text
        return TokenLogprob(id, text, spelt, logprob, tuple(self.token(*other) for other in others))

    @cached_property
    def spelling(self) -> list[bytes]:
        """The bytes of each token inside a text; where they depend on its neighbours, those of the token alone."""
        from regard.text.token_bytes import token_bytes_in_context

        every = range(len(self.tokenizer))
        return token_bytes_in_context(self.tokenizer) or [self.tokenizer.decode([id]).encode() for id in every]

    @property
    def tokenizer(self) -> "Tokenizer":
        assert self.model.output_tokenizer is not None
        return self.model.output_tokenizer


class ChunkListener:
    """Turns the token events of one request into completion chunks."""

    def __init__(
        self, answers: TextEngine, voice: StopStringFilter, prompt: int, hear: Callable[[CompletionChunk], None]
    ) -> None:
        self.answers, self.voice, self.prompt, self.hear = answers, voice, prompt, hear
        self.tokens: list[TokenLogprob] = []
        self.made = 0

    def __call__(self, event: TokenEvent) -> bool:
        """Handle a token event; True when the text has ended."""
        if event.id is not None:
            self.tokens.append(self.answers.token(event.id, event.logprob, event.others))
            self.made += 1
        text = self.text(event)
        reason = "stop" if self.voice.stopped else event.reason
        usage = None if reason is None else TokenUsage(self.prompt, event.cached, self.made)
        if text or reason is not None:
            tokens, self.tokens = tuple(self.tokens), []
            self.hear(CompletionChunk(text, tokens, reason, usage, event.problem))
        return reason is not None

    def text(self, event: TokenEvent) -> str:
        """The text that becomes final by this event. What was held back of an interrupted text is dropped."""
        text = "" if event.id is None or event.reason == "eos" else self.voice.append(self.voice.stream.put(event.id))
        if not self.voice.stopped and event.reason in ("eos", "length"):
            text += self.voice.finish("eos" if event.reason == "eos" else "length", 0.0)
        return text


class ChunkCollector:
    """Collects the chunks of one request into a Completion."""

    def __init__(self, prompt: str) -> None:
        self.prompt, self.seed, self.began, self.ended = prompt, 0, time.perf_counter(), 0.0
        self.pieces: list[CompletionChunk] = []

    def hear(self, piece: CompletionChunk) -> None:
        self.pieces.append(piece)
        self.ended = time.perf_counter()

    def completion(self) -> Completion:
        last = self.pieces[-1]
        if last.reason not in ("length", "eos", "stop"):
            raise RunError(f"generation was interrupted: {last.problem or 'it was cancelled'}")
        return Completion(
            prompt=self.prompt,
            text="".join(piece.text for piece in self.pieces),
            reason=cast("FinishReason", last.reason),
            ids=tuple(token.id for piece in self.pieces for token in piece.tokens),
            seed=self.seed,
            seconds=self.ended - self.began,
        )
