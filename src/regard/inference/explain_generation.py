"""Explains generation: at each step the candidates, what each logits processor removed, and the chosen token.

    model.explain_generation("the ", top_k=5)     a SampledExplanation: one SamplingStep for each token
    model.explain_generation("the ", num_beams=4) a BeamExplanation: the tree of all beams, pruned ones included

Both are plain data; `format_explanation` writes a paragraph for each sampled token, or the tree of a beam search.

    1  ·the    ·the 0.41 → 0.62   ·a 0.20 → 0.38   ·an 0.10 → 0        the
       top_k    removes 48 tokens with 0.39: ·an ·his ·my             ├─ nice -0.60
       kept     2 tokens with 0.61                                    │  └─ woman -1.54  ended, score -0.77
                                                                      └─ dog -0.89
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard import config
from regard.generation.beam_search import BeamStep, beam_search
from regard.generation.logits_process import process_logits_steps
from regard.generation.params import beam_search_params, canonical_settings, is_beam_search
from regard.generation.sampler import Sampler
from regard.generation.speculative import SPECULATION_SETTINGS
from regard.generation.text_stream import Completion, TextStream, completion_from_beams

if TYPE_CHECKING:
    from regard.inference.model import Model

SHOWN = 5  # candidates of a step, and named tokens that a processor removed


@dataclass(frozen=True)
class ExplainedToken:
    """A token with its probability `before` the logits processors and `after` all of them."""

    id: int
    token: str
    before: float
    after: float


@dataclass(frozen=True)
class ProcessorEffect:
    """The effect of one logits processor: how many tokens it `removed` with which probability `mass`, the most probable
    of them by name, and how much probability it `moved` between tokens."""

    name: str
    removed: int
    mass: float
    moved: float
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class SamplingStep:
    """One sampling step: the most probable candidates, the effects of the processors, how many tokens were `kept` with
    which `mass` of the model's probability, and the token `chosen`; None if every token was forbidden."""

    candidates: tuple[ExplainedToken, ...]
    cuts: tuple[ProcessorEffect, ...]
    kept: int
    mass: float
    chosen: ExplainedToken | None


@dataclass(frozen=True)
class SampledExplanation:
    """A sampled text with the explanation of each step."""

    made: Completion
    choices: tuple[SamplingStep, ...]


@dataclass(frozen=True)
class BeamNode:
    """A candidate of one step of a beam search: its `parent` among the candidates of the step before (None: the
    prompt), and its fate: it lives on, died, or ended with a score."""

    parent: int | None
    id: int
    token: str
    log_p: float
    fate: Literal["lives", "died", "ended"]
    score: float | None = None


@dataclass(frozen=True)
class BeamExplanation:
    """A text found by beam search, with all candidates of all steps."""

    made: Completion
    steps: tuple[tuple[BeamNode, ...], ...]


def explain_generation(model: "Model", prompt: str, **settings: Any) -> SampledExplanation | BeamExplanation:
    """The text that `generate` gives for these settings, with an explanation of each step."""
    settings = canonical_settings(settings)
    if lonely := next((name for name in SPECULATION_SETTINGS if settings.get(name) is not None), None):
        raise config.ConfigError(f"{lonely}: speculative decoding changes the speed and not the text; leave it out "
                                 "to explain a generation")  # fmt: skip
    return (
        explain_beams(model, prompt, settings)
        if is_beam_search(settings)
        else explain_sampling(model, prompt, settings)
    )


# ---------------------------------------------------------------- sampling


def explain_sampling(model: "Model", prompt: str, settings: dict[str, Any]) -> SampledExplanation:
    tokenizer, texts = model.encode_prompts([prompt])
    session, seen = model.session(texts, **settings), list[tuple[Sampler, Tensor]]()
    session.logits_hook = lambda logits: seen.append((session.sampler.copy(), logits))
    speech = TextStream(session, tokenizer, [prompt])
    for _ in speech:
        pass
    [made] = speech.completions
    rows = zip_longest(seen, made.ids)  # a last step without a token: every token was forbidden
    return SampledExplanation(
        made, tuple(explain_step(chooser, logits, id, tokenizer.token_text) for (chooser, logits), id in rows)
    )


def explain_step(
    chooser: Sampler, logits: Tensor, id: int | None, spell: Callable[[int], str]
) -> SamplingStep:  # (1, V)
    """The effect of one sampling step on the logits of a single row."""
    barred = logits.masked_fill(chooser.barred, -torch.inf)
    stages = [("never", barred.double()), *process_logits_steps(barred, chooser.c, chooser.memory())]
    first = logits[0].double().softmax(-1)
    chances, cuts = first, []
    for name, after in stages:
        then = after[0].softmax(-1).nan_to_num(0.0)
        cut = processor_effect(name, chances, then, spell)
        cuts += [cut] if name != "never" or cut.removed else []
        chances = then
    if chooser.c.temperature == 0:  # greedy: the argmax has probability 1
        chances = torch.zeros_like(chances).index_fill(0, chances.argmax(), float(chances.any()))
    kept = stages[-1][1][0] > -torch.inf
    likely = first.topk(min(SHOWN, len(first))).indices.tolist()
    shown = [*likely, *([id] if id is not None and id not in likely else [])]
    candidates = [ExplainedToken(one, token_text(one, spell), float(first[one]), float(chances[one])) for one in shown]
    chosen = next((one for one in candidates if one.id == id), None)
    return SamplingStep(tuple(candidates), tuple(cuts), int(kept.sum()), float(first[kept].sum()), chosen)


def processor_effect(name: str, before: Tensor, after: Tensor, spell: Callable[[int], str]) -> ProcessorEffect:
    gone = (before > 0) & (after == 0)
    likely = before.masked_fill(~gone, -1.0).topk(min(SHOWN, int(gone.sum()))).indices.tolist()
    moved = float((after - before).clamp(min=0).sum())
    tokens = tuple(token_text(id, spell) for id in likely)
    return ProcessorEffect(name, int(gone.sum()), float(before[gone].sum()), moved, tokens)


def token_text(id: int, spell: Callable[[int], str]) -> str:
    """A token in printable form; ids beyond the tokenizer have no name."""
    try:
        return spell(id)
    except config.DataError:
        return f"<{id}>"


# ---------------------------------------------------------------- beam search


@dataclass
class BeamTree:
    """Records the candidates of a beam search of one text."""

    spell: Callable[[int], str]
    penalty: float
    beams: int
    steps: list[tuple[BeamNode, ...]] = field(default_factory=list)
    alive: list[int | None] = field(default_factory=lambda: [None])  # the index of each beam among the last candidates

    def hear(self, grown: BeamStep) -> None:
        logs, rows, ids, over, chosen = (table[0].tolist() for table in vars(grown).values())
        made, found, places = len(self.steps) + 1, list[BeamNode](), dict[int, int]()
        for place, log in enumerate(logs):
            if log == -torch.inf:
                continue
            ends = over[place] and place < self.beams  # an end counts only among the best beams
            lives = place in chosen and not over[place]
            score = log / made**self.penalty if ends else None
            fate: Any = "ended" if ends else "lives" if lives else "died"
            places[place] = len(found)
            word = token_text(ids[place], self.spell)
            found.append(BeamNode(self.alive[rows[place]], ids[place], word, log, fate, score))
        self.steps.append(tuple(found))
        self.alive = [places.get(place) for place in chosen]


def explain_beams(model: "Model", prompt: str, settings: dict[str, Any]) -> BeamExplanation:
    tokenizer, texts = model.encode_prompts([prompt])
    c = beam_search_params(
        model.default_settings(texts, model.generation_defaults.beam_search, settings.get("max_new_tokens")) | settings,
        tokenizer,
    )
    tree = BeamTree(tokenizer.token_text, c.length_penalty, c.num_beams)
    [found] = beam_search(model, texts, c, model.generation_limits, look=tree.hear)
    return BeamExplanation(
        completion_from_beams(prompt, texts[0], found, tokenizer, model.generation_limits.ends, 0.0), tuple(tree.steps)
    )


WIDE = 11  # columns for the names of processors
DEAD = 6  # at most so many dead candidates are named on their line


def format_explanation(explanation: SampledExplanation | BeamExplanation) -> str:
    """The explanation as plain text."""
    return "\n".join(
        step_paragraphs(explanation) if isinstance(explanation, SampledExplanation) else format_beam_tree(explanation)
    )


def step_paragraphs(explanation: SampledExplanation) -> list[str]:
    wide = len(str(len(explanation.choices)))
    lines: list[str] = []
    for place, choice in enumerate(explanation.choices, 1):
        first, *rest = step_paragraph(choice)
        lines += [f"{place:>{wide}}  {first}", *(f"{'':{wide}}  {line}" for line in rest)]
    return lines


def step_paragraph(choice: SamplingStep) -> list[str]:
    name = "nothing may be said" if choice.chosen is None else choice.chosen.token
    shown = "   ".join(
        f"{one.token} {format_share(one.before)} → {format_share(one.after)}" for one in choice.candidates
    )
    lines = [f"{name:<{WIDE}} {shown}"]
    for cut in (cut for cut in choice.cuts if cut.removed or cut.moved):
        gone = (
            f"removes {format_token_count(cut.removed)} with {format_share(cut.mass)}: {' '.join(cut.tokens)}"
            if cut.removed
            else ""
        )
        lines.append(f"{cut.name:<{WIDE}} {gone or f'moves {format_share(cut.moved)} of the probability'}")
    return [*lines, f"{'kept':<{WIDE}} {format_token_count(choice.kept)} with {format_share(choice.mass)}"]


def format_token_count(number: int) -> str:
    return f"{number:,} token{'' if number == 1 else 's'}"


def format_share(number: float) -> str:
    """A probability, as short as possible."""
    return "0" if number == 0 else f"{number:.3f}" if number >= 0.0005 else f"{number:.0e}"


# ---------------------------------------------------------------- the tree


def format_beam_tree(explanation: BeamExplanation) -> list[str]:
    """The tree of candidates, each under its parent; the best text is marked, dead candidates share a line."""
    best, lines = list(explanation.made.ids), [repr(explanation.made.prompt)]
    stack: list[tuple[int, int | None, str, list[int]]] = [(0, None, "", [])]  # step, parent, margin, ids so far
    while stack:
        step, parent, margin, ids = stack.pop()
        if parent is not None:
            lines.append(beam_line(explanation.steps[step - 1][parent], margin, ids == best))
            margin = margin[:-3] + ("   " if margin.endswith("└─ ") else "│  ")
        there = explanation.steps[step] if step < len(explanation.steps) else ()
        mine = [(place, one) for place, one in enumerate(there) if one.parent == parent]
        grown = [(place, one) for place, one in mine if one.fate != "died"]
        died = [one for _, one in mine if one.fate == "died"]
        if died:
            lines.append(f"{margin}{'├─ ' if grown else '└─ '}† {dead_beams_line(died)}")
        for last, (place, one) in enumerate(reversed(grown)):
            stack.append((step + 1, place, f"{margin}{'├─ ' if last else '└─ '}", [*ids, one.id]))
    return lines


def beam_line(one: BeamNode, margin: str, best: bool) -> str:
    end = "" if one.score is None else f"  ended, score {one.score:.3f}"
    return f"{margin}{one.token} {one.log_p:.2f}{end}{'  ◄ best' if best else ''}"


def dead_beams_line(died: list[BeamNode]) -> str:
    more = f" and {len(died) - DEAD} more" if len(died) > DEAD else ""
    return ", ".join(f"{one.token} {one.log_p:.2f}" for one in died[:DEAD]) + more
