"""How does an induction circuit form, and what is it worth? The recipe `induction` is trained with three seeds.

    python bench/induction.py

bench/results/induction.csv has a row for each seed: seconds of training, validation losses, the step of the phase
change (the middle of the 50 steps in which the validation loss falls most) and how far it falls there, the heads, the
K-composition of each pair, and the loss on random letters said twice: whole, without each head, and with paths patched.
induction-steps.csv has the losses and scores of every 25th step up to 600, and docs/induction.svg draws them.
About two minutes on one core.
"""

import json
import time
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory

from common import keep, show

import regard
from regard import lens, studies, zoo

SEEDS, EVERY, LAST = (0, 1, 2), 25, 600
FIGURE = Path(__file__).parents[1] / "docs" / "induction.svg"


def least_loss(least: int = 16, most: int = 32, length: int = 64, letters: int = 64) -> float:
    """The mean loss of a reader that knows how the words of toy:repeat(32) are made: no letter twice, lengths alike."""
    total = 0.0
    for count in range(least, most + 1):
        for said in range(1, count + 1):  # letters of the word that have been said
            begins = 1 / (most + 1 - said) if said >= least else 0.0  # that the word begins again here
            total -= log(begins) if said == count else log(1 - begins) - log(letters - said)
    return total / (length - 1) / (most + 1 - least)


def validation_losses(run: Path) -> dict[int, float]:
    lines = map(json.loads, (run / "log.jsonl").read_text(encoding="utf8").splitlines())
    return {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}


def phase_change(losses: dict[int, float]) -> tuple[int, float, float]:
    """The middle of the 50 steps in which the loss falls most, and the losses before and after them."""
    starts = [step for step in losses if step + 2 * EVERY in losses]
    step = max(starts, key=lambda step: losses[step] - losses[step + 2 * EVERY])
    return step + EVERY, losses[step], losses[step + 2 * EVERY]


def head_pairs(model: regard.Model) -> dict[str, float]:
    scores = lens.composition_scores(model, "trunk.0.attn", "trunk.1.attn", "K").scores
    return {f"K 0.{i} 1.{j}": float(scores[i, j]) for i in range(2) for j in range(2)}


def train_seed(seed: int, run: Path) -> tuple[dict[str, object], list[dict[str, object]]]:
    """The row of a seed, and the rows of its steps."""
    steps = [*range(0, LAST + 1, EVERY), 2000]
    recipe = zoo.read_recipe("induction", [f"train.seed={seed}", f"train.snapshots={steps}", "train.device=cpu"])
    begin = time.perf_counter()
    regard.fit(recipe, run, quiet=True)
    seconds, losses = time.perf_counter() - begin, validation_losses(run)
    sweep = studies.sweep_training(run, lambda model: (lens.find_induction_circuit(model), head_pairs(model)))
    found, pairs = sweep.results[-1]
    step, before, after = phase_change(losses)
    row = {
        "seed": seed, "seconds in all": seconds, "validation loss": losses[2000], "least loss": least_loss(),
        "phase change at step": step, "before": before, "after": after,
        "previous-token head": found.previous.name, "induction head": found.induction.name,
        "previous score": found.previous.previous.value, "induction score": found.induction.induction.value,
        **pairs, "first half": found.first_loss, "second half": found.loss,
        **{f"without {name}": loss for name, loss in found.ablated.items()},
        **{f"path to its {reads}": loss for reads, loss in found.paths.items()},
        **{f"path to all {reads}": loss for reads, loss in found.layer_paths.items()},
    }  # fmt: skip
    first = found.previous.name
    rows = [
        {"seed": seed, "step": step, "validation loss": losses.get(step), "first half": each.first_loss,
         "second half": each.loss, "previous score": max(head.previous.value for head in each.heads if not head.layer),
         "induction score": each.induction.induction.value, "stands out": each.stands_out,
         "without the previous-token head": each.ablated[first],
         "K of it": (pairs[f"K {first} 1.0"] + pairs[f"K {first} 1.1"]) / 2,
         "K of the other": (sum(pairs.values()) - pairs[f"K {first} 1.0"] - pairs[f"K {first} 1.1"]) / 2}
        for step, (each, pairs) in zip(sweep.steps, sweep.results, strict=True)
    ]  # fmt: skip
    return row, rows


def draw_losses(rows: list[dict[str, object]]) -> None:
    """Lines over steps: the loss on the second half of each seed, and on the first half of the first one."""
    steps = list(range(0, LAST + 1, EVERY))
    lines = [
        {
            f"{half} half, seed {row['seed']}": row[f"{half} half"]
            for half in ("first", "second")
            for row in rows
            if row["step"] == step and (half == "second" or row["seed"] == 0)
        }
        for step in steps
    ]
    title = "How large is the loss on random letters said twice, in nats a token?"
    regard.plot(studies.TrainingSweep(tuple(steps), tuple(lines), title), FIGURE)


def main() -> None:
    with TemporaryDirectory() as name:
        found = [train_seed(seed, Path(name) / str(seed)) for seed in SEEDS]
    steps = [row for _, rows in found for row in rows]
    keep("induction", [row for row, _ in found])
    keep("induction-steps", steps)
    draw_losses(steps)
    show([row for row, _ in found])


if __name__ == "__main__":
    main()
