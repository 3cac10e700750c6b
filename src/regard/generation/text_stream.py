"""Text stream: detokenized text of a session, row by row, as soon as it is final, with stop strings; and Completion.

Text is held back for two reasons. A token may be part of a character, which the detokenizer completes first. And the
newest text may be the beginning of a stop string; it is emitted when it turns out not to be one.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from regard.generation.session import DecodeSession
from regard.generation.speculative import SpeculativeSession

if TYPE_CHECKING:
    from regard.generation.beam_search import BeamHypothesis
    from regard.text.tokenizer import Tokenizer

BEFORE = 16  # prompt tokens for the detokenizer: the first word of a text is spelt without the space of others
FinishReason = Literal["length", "eos", "stop"]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A completion: the generated text of a prompt and its finish reason: token limit (`length`), end token (`eos`), or
    `stop` string.

    `ids` are all generated tokens, the end token included; `text` excludes the end token and the stop string. `seconds`
    run from the start of the prefill to the last token; `seed` reproduces the texts of the same prompts. Beam search
    has no seed but a `score`, and the `others` that it found, the best first. Speculative decoding counts the
    candidates: `guessed`, and `kept` of them.
    """

    prompt: str
    text: str
    ids: tuple[int, ...]
    reason: FinishReason
    seed: int | None
    seconds: float
    score: float | None = None
    others: tuple["Completion", ...] = ()
    guessed: int = 0
    kept: int = 0

    @property
    def acceptance(self) -> float | None:
        """The acceptance rate of speculative candidates; None where there were none."""
        return self.kept / self.guessed if self.guessed else None

    @property
    def speed(self) -> float:
        """Tokens a second, prefill included."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


def completion_from_beams(
    prompt: str,
    text: list[int],
    found: "list[BeamHypothesis]",
    tokenizer: "Tokenizer",
    ends: frozenset[int],
    seconds: float,
) -> Completion:
    """The completion of a prompt (`text`, in ids) from beam search: the best hypothesis, with the others in it."""
    told = []
    for one in found:
        voice, ended = StopStringFilter(tokenizer, text, ()), one.ids[-1] in ends
        for id in one.ids[: len(one.ids) - ended]:
            voice.append(voice.stream.put(id))
        voice.finish("eos" if ended else "length", seconds)
        told.append(Completion(prompt=prompt, text=voice.text, ids=one.ids, reason=voice.reason or "length", seed=None,
                               seconds=seconds, score=one.score))  # fmt: skip
    return replace(told[0], others=tuple(told[1:]))


class TextStream:
    """Streamed text of a session. Iterate it for (row, text) as text becomes final; then read `completions`."""

    def __init__(self, session: DecodeSession, tokenizer: "Tokenizer", prompts: list[str]) -> None:
        self.session, self.prompts, self.began = session, prompts, time.perf_counter()
        self.rows = [StopStringFilter(tokenizer, text, session.c.stop) for text in session.texts]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        self.began = time.perf_counter()
        for ids in self.session:
            for row, id in enumerate(ids):
                if id is not None and (text := self.append_token(row, id)):
                    yield row, text
        for row, voice in enumerate(self.rows):
            why: FinishReason = "length" if self.session.active[row] else "eos"  # eos: every token was forbidden
            if voice.reason is None and (text := voice.finish(why, self.elapsed)):
                yield row, text

    def append_token(self, row: int, id: int) -> str:
        """The text that becomes final by one more token of a row."""
        voice = self.rows[row]
        voice.ids.append(id)
        if not self.session.active[row]:
            return voice.finish("eos", self.elapsed)
        text = voice.append(voice.stream.put(id))
        if voice.stopped:
            self.session.stop_row(row)
            voice.finish("stop", self.elapsed)
        return text

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    @property
    def speculation_counts(self) -> tuple[list[int], list[int]]:
        """The proposed and the accepted candidates of each row."""
        none = [0] * len(self.prompts)
        return (
            (self.session.guessed, self.session.kept) if isinstance(self.session, SpeculativeSession) else (none, none)
        )

    @property
    def completions(self) -> list[Completion]:
        return [
            Completion(
                prompt=prompt, text=voice.text, ids=tuple(voice.ids), reason=voice.reason or "length",
                seed=self.session.seed, seconds=voice.seconds, guessed=guessed, kept=kept,
            )
            for prompt, voice, guessed, kept in zip(self.prompts, self.rows, *self.speculation_counts, strict=True)
        ]  # fmt: skip


class StopStringFilter:
    """Detokenizer of one row that holds back possible stop strings."""

    def __init__(self, tokenizer: "Tokenizer", prompt: list[int], stops: tuple[str, ...]) -> None:
        self.stream, self.stops = tokenizer.stream(), stops
        for id in prompt[-BEFORE:]:
            self.stream.put(id)
        self.stream.flush()  # the prompt is complete: nothing of it is emitted
        self.ids: list[int] = []
        self.text, self.held, self.stopped = "", "", False
        self.reason: FinishReason | None = None
        self.seconds = 0.0

    def finish(self, reason: FinishReason, seconds: float) -> str:
        """The rest of the text, when no token follows."""
        rest = "" if self.stopped else self.append(self.stream.flush())
        self.reason, self.seconds = "stop" if self.stopped else reason, seconds
        self.text, rest, self.held = self.text + self.held, rest + self.held, ""
        return rest

    def append(self, new: str) -> str:
        """The text that is final: without a stop string and all after it, and without what may become one."""
        self.held += new
        place = find_stop(self.held, self.stops)
        self.stopped = place is not None
        sure = len(self.held) - partial_stop_length(self.held, self.stops) if place is None else place
        shown, self.held = self.held[:sure], "" if self.stopped else self.held[sure:]
        self.text += shown
        return shown


def find_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the first completed stop string begins, however the text was split into tokens."""
    found = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def partial_stop_length(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    ends = (size for size in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-size:]) for s in stops))
    return next(ends, 0)
