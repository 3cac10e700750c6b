"""When do induction heads appear? Two layers learn strings that stand there twice, and every fiftieth step is kept.

    python bench/over_training.py

A string is of 6 to 26 letters, no letter twice, then the same again: a head that looks back at what followed the letter
the last time knows the second half. In a second run all strings are of 20 letters. Kept in
bench/results/over-training.csv, for each kept step: the loss of a batch, the strongest induction score and its head,
roles; and on other strings the loss in the second half, and how much higher it is without the head whose induction
score is the highest in the end. About 70 seconds on one core.
"""

import random
import string
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from common import keep, show

import regard
from regard import lens, studies, zoo

LINES, PROBE, SHORT, HALF = 20_000, "bdaXcpolMkmnhgfeijbdaXcpolMkmnhgfeij", 24, 20
SETTINGS = [
    "data.validation=0.01",
    "model.depth=2",
    "model.dim=64",
    "model.position.kind=rotary",
    "train.optimizer.kind=muon",
    "train.optimizer.lr=0.01",
    "train.optimizer.adam_lr=2e-3",
    'train.schedule={kind="wsd", warmup=50}',
    "train.batch_size=32",
    "train.context=82",
    "train.steps=800",
    "train.precision=fp32",
    "train.compile=false",
    "train.device=cpu",
    "train.eval_every=none",
    "train.snapshots=50",
]


def write_strings(path: Path, least: int, most: int) -> None:
    chance = random.Random(0)
    words = ("".join(chance.sample(string.ascii_letters, chance.randint(least, most))) for _ in range(LINES))
    path.write_text("".join(f"{word}{word}\n" for word in words))


@torch.no_grad()
def second_half_loss(model: regard.Model) -> float:
    """Of 200 strings of 20 letters and the same again, each after the end of a line: nats for a letter."""
    chance = random.Random(1)
    words = ["".join(chance.sample(string.ascii_letters, HALF)) for _ in range(200)]
    ids = torch.tensor([model.tokenizer.encode(f"\n{word}{word}") for word in words])
    logits = model(ids)[:, HALF + 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, HALF + 2 :].flatten()))


def train_and_track(least: int, most: int) -> list[dict[str, object]]:
    with TemporaryDirectory() as name:
        run = Path(name) / "run"
        write_strings(Path(name) / "twice.txt", least, most)
        source = f'data.source="{name}/twice.txt"'
        regard.fit(zoo.read_recipe("shakespeare-nano", [source, *SETTINGS]), run)
        history = studies.track_head_roles(run, PROBE)
        head = max(history.heads, key=lambda head: head.summaries[-1].scores["induction"].value)
        shorter = studies.track_head_roles(run, PROBE[:SHORT]).heads[history.heads.index(head)]

        def without(model: regard.Model) -> float:
            with lens.ablate(model, {head.where: [head.head]}):
                return second_half_loss(model)

        whole, ablated = (studies.sweep_training(run, loss).results for loss in (second_half_loss, without))
    print(history)
    table = history.table().to_json()["rows"]
    return [
        {"letters": f"{least} to {most}", **row, "ablated": f"{head.where} {head.head}",
         "its score": found.scores["induction"].value, f"its score on {SHORT}": less.scores["induction"].value,
         "second half": loss, "more without it": other - loss}
        for row, found, less, loss, other in zip(table, head.summaries, shorter.summaries, whole, ablated, strict=True)
    ]  # fmt: skip


def main() -> None:
    rows = [row for lengths in ((6, 26), (20, 20)) for row in train_and_track(*lengths)]
    show(rows)
    keep("over-training", rows)


if __name__ == "__main__":
    main()
