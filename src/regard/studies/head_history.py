"""Head history: when each head took its role, and when induction appeared (Olsson et al. 2022).

    step     0  1  2  4  8  16  32
    1.2      ·  ·  ·  ·  i  i   i      induction from step 8 on

A head took its role at the first step after which it always has its final role. Roles are those of
`lens.summarize_heads`: on a text, and induction on repeated random tokens, where the score is the attention to the
token after the previous occurrence of the same token (prefix matching).
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.heads import NAMED, HeadSummary, summarize_heads
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.result import LensResult, Picture, Table
from regard.lens.roles import ROLES, delimiter_ids
from regard.studies.training_sweep import Source, TrainingSweep, sweep_training

ROWS = 4  # repeated random sequences for the induction score
LOSS_NOTE = "loss: of the batch that the run read next, of the last step of the one before. "
NOTE = ("A role is a pattern of attention, not the effect of a head: ablate the head to measure that "
        "(lens.ablate_all). Between two kept steps nothing is known.")  # fmt: skip


@dataclass(frozen=True, eq=False)
class HeadHistory:
    """Role scores of one head at each snapshot."""

    where: str
    head: int
    steps: tuple[int, ...]
    summaries: tuple[HeadSummary, ...]

    @property
    def role(self) -> str | None:
        """The final role."""
        return self.summaries[-1].role

    @property
    def since(self) -> int | None:
        """The first step after which it always has its final role."""
        role = self.role
        return None if role is None else first_lasting(self.steps, [each.role == role for each in self.summaries])

    def lifts(self) -> list[float]:
        """Lift at each step, 0 at chance and 1 at the maximum: of its role; for a head without one, of the strongest
        role."""
        best = [max((score.lift for score in each.scores.values()), default=0.0) for each in self.summaries]
        role = self.role
        return best if role is None else [each.scores[role].lift for each in self.summaries]


@dataclass(frozen=True, eq=False)
class RoleHistory(LensResult):
    """All heads over training. `losses` are those of the run's log, if there is one."""

    steps: tuple[int, ...]
    losses: tuple[float | None, ...]
    heads: tuple[HeadHistory, ...]

    @cached_property
    def induction(self) -> list[tuple[float, float, str] | None]:
        """The strongest induction head at each step: its score, its lift, and its name; None where it was not
        measured."""
        found: list[tuple[float, float, str] | None] = []
        for place in range(len(self.steps)):
            scores = [(score.value, score.lift, head_name(head)) for head in self.heads
                      if (score := head.summaries[place].scores.get("induction")) is not None]  # fmt: skip
            found.append(max(scores, default=None))
        return found

    @property
    def induction_since(self) -> int | None:
        """The first step after which some head always is an induction head, even if another role is stronger."""
        return first_lasting(self.steps, [best is not None and best[1] >= NAMED for best in self.induction])

    def table(self) -> Table:
        roles = [role.name for role in ROLES if any(each.role == role.name for head in self.heads
                                                    for each in head.summaries)]  # fmt: skip
        rows = []
        for place, step in enumerate(self.steps):
            counts, best = Counter(head.summaries[place].role for head in self.heads), self.induction[place]
            strongest = (None, None) if best is None else (best[0], best[2])
            rows.append((step, self.losses[place], *strongest, *(counts[role] for role in roles)))
        known = any(loss is not None for loss in self.losses)
        return Table("How many heads have which role at each step?",
                     ("step", "loss", "induction score", "of head", *roles), tuple(rows),
                     (LOSS_NOTE if known else "") + f"{len(self.heads)} heads. {self.sentence()}")  # fmt: skip

    def head_table(self) -> Table:
        """The step at which each head took its final role."""
        rows = tuple((head_name(head), head.role, head.since, head.lifts()[-1]) for head in self.heads)
        return Table("When did each head take its role?", ("head", "role", "since step", "lift"), rows, NOTE)

    def sentence(self) -> str:
        if all(best is None for best in self.induction):
            return "Induction is not measured for a bidirectional model."
        since = self.induction_since
        return "No induction head in the end." if since is None else f"Induction heads from step {since:,} on."

    def picture(self) -> Picture:
        """Heads by steps: the strength of each head's final role, and the initials of its role at each step."""
        shown = [head for head in self.heads if any(each.role for each in head.summaries)] or list(self.heads)
        values = torch.tensor([head.lifts() for head in shown]).clamp(min=0)
        cells = [[(each.role or "·")[:3] for each in head.summaries] for head in shown]
        names = [f"{head_name(head)} {head.role or ''}".strip() for head in shown]
        return Picture("grid", "When did each head take its role?", values, names, [f"{step:,}" for step in self.steps],
                       "from chance (0) to always (1)", cells)  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {**self.table().to_json(), "heads": self.head_table().to_json()["rows"],
                "induction_since": self.induction_since}  # fmt: skip

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.head_table()}"

    def _repr_html_(self) -> str:
        return self.table().to_html() + self.head_table().to_html()


def track_head_roles(
    run: Source, text: str | Tensor | Sequence[int] | Prompt, *, source: str | Tensor | None = None,
    steps: Sequence[int] | None = None, device: str = "auto", dtype: str = "fp32",
    progress: Callable[[int, int], object] | None = None,
) -> RoleHistory:  # fmt: skip
    """The roles of all heads at every snapshot of a run (or of a list, see `sweep_training`), measured on a text."""

    def summarize(model: Any) -> list[HeadSummary]:
        if hasattr(model, "towers"):
            raise ConfigError("text: this model reads two inputs, and a text is one of them; sweep "
                              "lens.summarize_heads with both, and give the sweep to role_history")  # fmt: skip
        prompt = read_prompt(model, text, source=source).repeat(ROWS)
        return summarize_heads(model, prompt.first, marks=delimiter_marks(model), **prompt.given)

    sweep = sweep_training(run, summarize, steps=steps, device=device, dtype=dtype, progress=progress)
    return role_history(sweep, read_losses(Path(run)) if isinstance(run, str | Path) else {})


def role_history(sweep: TrainingSweep, losses: Mapping[int, float] | None = None) -> RoleHistory:
    """The history from a sweep of `lens.summarize_heads`; `losses` are training losses by step."""
    losses, by_head = losses or {}, zip(*sweep.results, strict=True)
    heads = tuple(HeadHistory(each[0].where, each[0].head, sweep.steps, each) for each in by_head)
    return RoleHistory(sweep.steps, tuple(losses.get(step + 1, losses.get(step)) for step in sweep.steps), heads)


def delimiter_marks(model: Any) -> frozenset[int]:
    """The ids of delimiters, if the model has one tokenizer."""
    known = [getattr(model, name, None) for name in ("tokenizer", "target_tokenizer")]
    return delimiter_ids(known[0]) if known[0] is not None and known[1] is None else frozenset()


def head_name(head: HeadHistory) -> str:
    return f"{head.where} {head.head}"


def first_lasting(steps: Sequence[int], holds: Sequence[bool]) -> int | None:
    """The first step after which a condition always holds."""
    since = None
    for step, true in zip(steps, holds, strict=True):
        since = (step if since is None else since) if true else None
    return since


def read_losses(run: Path) -> dict[int, float]:
    """The training loss of each step in a run's log; {} without a log, incomplete lines are skipped."""
    found = {}
    try:
        lines = (run / "log.jsonl").read_text(encoding="utf8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("loss"), float) and isinstance(entry.get("step"), int):
            found[entry["step"]] = entry["loss"]
    return found
