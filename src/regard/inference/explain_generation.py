"""How a text came about: at each step the candidates, what each filter took away, and which token was chosen.

    model.explain_generation("the ", top_k=5)     a Drawn: one Choice for each token
    model.explain_generation("the ", beams=4)     a Searched: the tree of all beginnings, those that died among them

Both are plain data; `regard.generate.telling` writes them down.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard import config
from regard.generate.asked import is_search, searching
from regard.generate.beam import Grown, search
from regard.generate.choosing import Chooser
from regard.generate.filters import filters
from regard.generate.speculate import AHEAD
from regard.generate.speech import Completion, Speech, ranked

if TYPE_CHECKING:
    from regard.generate.model import Transformer

SHOWN = 5  # candidates of a step, and tokens that a filter removed


@dataclass(frozen=True)
class Candidate:
    """A token with its probability: by the model, and `after` all filters, when it is drawn."""

    id: int
    token: str
    before: float
    after: float


@dataclass(frozen=True)
class Cut:
    """What a filter did: so many tokens `removed`, which had this `mass` of probability, the likeliest of them named;
    and how much of the probability it `moved` from some tokens to others."""

    name: str
    removed: int
    mass: float
    moved: float
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """One step: the likeliest candidates, what the filters did, how many tokens were `kept` with which `mass` of the
    model's probability, and the token `chosen`; None if nothing was left."""

    candidates: tuple[Candidate, ...]
    cuts: tuple[Cut, ...]
    kept: int
    mass: float
    chosen: Candidate | None


@dataclass(frozen=True)
class Drawn:
    """A text that was drawn token by token."""

    made: Completion
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Beginning:
    """A candidate of one step of a search: it grew from the beginning at `parent` in the step before (None: the
    prompt), and lives on, dies, or has ended with a score."""

    parent: int | None
    id: int
    token: str
    log_p: float
    fate: Literal["lives", "died", "ended"]
    score: float | None = None


@dataclass(frozen=True)
class Searched:
    """A text that was searched for, and all beginnings that were tried."""

    made: Completion
    steps: tuple[tuple[Beginning, ...], ...]


def explain(model: "Transformer", prompt: str, **settings: Any) -> Drawn | Searched:
    """The text that `generate` makes of the same settings, with how it came about."""
    if lonely := next((name for name in AHEAD if settings.get(name) is not None), None):
        raise config.ConfigError(f"{lonely}: guesses ahead change how soon a text comes and not the text; leave it out "
                                 "to see how it came about")  # fmt: skip
    return searched(model, prompt, settings) if is_search(settings) else drawn(model, prompt, settings)


# ---------------------------------------------------------------- drawn


def drawn(model: "Transformer", prompt: str, settings: dict[str, Any]) -> Drawn:
    tokenizer, texts = model.encoded([prompt])
    session, seen = model.session(texts, **settings), list[tuple[Chooser, Tensor]]()
    session.look = lambda logits: seen.append((session.chooser.copy(), logits))
    speech = Speech(session, tokenizer, [prompt])
    for _ in speech:
        pass
    [made] = speech.completions
    rows = zip_longest(seen, made.ids)  # where nothing could be said, there is a look and no token
    return Drawn(made, tuple(choice(chooser, logits, id, tokenizer.piece) for (chooser, logits), id in rows))


def choice(chooser: Chooser, logits: Tensor, id: int | None, spell: Callable[[int], str]) -> Choice:  # (1, V)
    """What one step of a chooser's only row did to the logits."""
    barred = logits.masked_fill(chooser.barred, -torch.inf)
    stages = [("never", barred.double()), *filters(barred, chooser.c, chooser.memory())]
    first = logits[0].double().softmax(-1)
    chances, cuts = first, []
    for name, after in stages:
        then = after[0].softmax(-1).nan_to_num(0.0)
        cut = cut_of(name, chances, then, spell)
        cuts += [cut] if name != "never" or cut.removed else []
        chances = then
    if chooser.c.temperature == 0:  # the likeliest is certain
        chances = torch.zeros_like(chances).index_fill(0, chances.argmax(), float(chances.any()))
    kept = stages[-1][1][0] > -torch.inf
    likely = first.topk(min(SHOWN, len(first))).indices.tolist()
    shown = [*likely, *([id] if id is not None and id not in likely else [])]
    candidates = [Candidate(one, spell_or_not(one, spell), float(first[one]), float(chances[one])) for one in shown]
    chosen = next((one for one in candidates if one.id == id), None)
    return Choice(tuple(candidates), tuple(cuts), int(kept.sum()), float(first[kept].sum()), chosen)


def cut_of(name: str, before: Tensor, after: Tensor, spell: Callable[[int], str]) -> Cut:
    gone = (before > 0) & (after == 0)
    likely = before.masked_fill(~gone, -1.0).topk(min(SHOWN, int(gone.sum()))).indices.tolist()
    moved = float((after - before).clamp(min=0).sum())
    tokens = tuple(spell_or_not(id, spell) for id in likely)
    return Cut(name, int(gone.sum()), float(before[gone].sum()), moved, tokens)


def spell_or_not(id: int, spell: Callable[[int], str]) -> str:
    """A token as a person should see it; ids beyond the tokenizer have no name."""
    try:
        return spell(id)
    except config.DataError:
        return f"<{id}>"


# ---------------------------------------------------------------- searched


@dataclass
class Tree:
    """Hears a search of one text, and keeps what it tried."""

    spell: Callable[[int], str]
    penalty: float
    beams: int
    steps: list[tuple[Beginning, ...]] = field(default_factory=list)
    alive: list[int | None] = field(default_factory=lambda: [None])  # where each beam stands among the last beginnings

    def hear(self, grown: Grown) -> None:
        logs, rows, ids, over, chosen = (table[0].tolist() for table in vars(grown).values())
        made, found, places = len(self.steps) + 1, list[Beginning](), dict[int, int]()
        for place, log in enumerate(logs):
            if log == -torch.inf:
                continue
            ends = over[place] and place < self.beams  # an end that is not among the likeliest beams does not count
            lives = place in chosen and not over[place]
            score = log / made**self.penalty if ends else None
            fate: Any = "ended" if ends else "lives" if lives else "died"
            places[place] = len(found)
            word = spell_or_not(ids[place], self.spell)
            found.append(Beginning(self.alive[rows[place]], ids[place], word, log, fate, score))
        self.steps.append(tuple(found))
        self.alive = [places.get(place) for place in chosen]


def searched(model: "Transformer", prompt: str, settings: dict[str, Any]) -> Searched:
    tokenizer, texts = model.encoded([prompt])
    c = searching(model.usual(texts, model.manner.found, settings.get("new")) | settings, tokenizer)
    tree = Tree(tokenizer.piece, c.length_penalty, c.beams)
    [found] = search(model, texts, c, model.limits, look=tree.hear)
    return Searched(ranked(prompt, texts[0], found, tokenizer, model.limits.ends, 0.0), tuple(tree.steps))
