"""A run's folder as training leaves it, with a tiny model, made in a moment."""

import json
import math
from pathlib import Path

import torch

import regard
from regard import config as C
from regard import text
from regard.training.run import Run

SAID = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n" * 3
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> & \"quotes\" \u2028"


SHAPE = {
    "dim": 24, "depth": 3, "mask": "causal", "position": C.RotaryPosition(), "attention": C.Attention(heads=3),
    "dropout": C.NO_DROPOUT,
}  # fmt: skip


def recipe(
    tokenizer: text.Tokenizer, said: C.Tokenizer | None = None, sentence: str | None = None, **trunk: object
) -> C.Recipe:
    return C.Recipe(
        tokenizer=said or C.CharTokenizer(),
        model=C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=C.Trunk(**(SHAPE | trunk))),
        train=C.Train(context=48, batch_size=5),
        report=C.Report(sentence=sentence),
    )


def write_run(
    folder: Path, said: C.Recipe, steps: int = 120, samples: str | None = SAID, evaluate: bool = True
) -> Path:
    """config.toml, log.jsonl, samples.jsonl and run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(C.to_toml(said), encoding="utf8")
    lines, written = [], []
    for step in range(1, steps + 1):
        norm = 3 / step + 0.3 + 0.1 * math.sin(step)
        lines.append({"step": step, "loss": 4 / step**0.2 + 0.1 * math.sin(7 * step), "lr": 1e-3 * (1 - step / steps),
                      "norm": norm, "clipped": norm > 1, "tokens": 240, "seconds": 0.05 * step})  # fmt: skip
        if step % 30 == 0 and evaluate:
            lines.append({"step": step, "eval_loss": 4 / step**0.2, "eval_tokens": 999, "seconds": 0.05 * step})
        if step % 30 == 0 and samples is not None:
            said_now = {"step": step, "prompt": "\n", "text": samples}
            written += [said_now | {"temperature": heat} for heat in (0.5, 0.8, 1.0)]
    if evaluate:
        lines.append({"step": steps, "eval_loss": 1.5, "eval_tokens": 9999, "seconds": 0.05 * steps, "whole": True})
    put(folder / "log.jsonl", lines)
    if samples is not None:
        put(folder / "samples.jsonl", written)
    facts = {"format": 1, "regard": "0.1.0", "torch": torch.__version__, "device": "cpu", "threads": 1,
             "compiled": True, "command": "regard train shakespeare --out runs/lab", "seconds": 6.5,
             "parameters": 12345, "predicted": {"step_seconds": 0.02},
             "measured": {"seconds": 6.5, "peak_memory": 3 * 2**28}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf8")
    return folder


SCORES = {"accuracy": 0.75, "f1": 0.5, "matthews": 0.25}
LEAPT, NONE = "loss or gradient norm spiked", "loss or gradients are not finite"


def look(step: int, trunks: dict[str, int], heads: int = 3) -> dict:
    """A line about the health of a run, by the depth of each trunk."""
    places = [f"{name}.{layer}" for name, depth in trunks.items() for layer in range(depth)]
    sizes = {"gradient": 1 / step, "weight": 3.0, "update": 1e-3}
    return {"step": step, "seconds": 0.05 * step, "health": {
        "loss": 2.0, "layers": {name: sizes for name in ("embed", *places, "head")},
        "heads": {f"{place}.attn": [0.2 * (head + 1) for head in range(heads)] for place in places}}}  # fmt: skip


def eventful(run: Path, trunks: dict[str, int], scores: dict[str, float] = SCORES) -> None:
    """A log as runs write it today: scores on the way, looks at the run's health, two steps that were not taken."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for line in lines:
        if "eval_loss" in line:
            line |= {name: value * line["step"] / 120 for name, value in scores.items()}
        elif line["step"] in (40, 41):
            line |= {"skipped": LEAPT, "batches": {"39": [7, 3]}, "loss": 9.0}
        elif line["step"] == 77:
            line |= {"skipped": NONE, "batches": {"76": [2]}, "loss": "nan", "norm": "inf"}
    put(run / "log.jsonl", [*lines, *(look(step, trunks) for step in (30, 60, 90))])


def put(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf8")


def asked_run(
    folder: Path,
    task: C.Task,
    records: list[dict],
    said: C.Tokenizer | None = None,
    head: C.Head | None = None,
    **train: object,
) -> tuple[Path, regard.Model, text.Tokenizer]:
    """A run that asked something of records: the model fresh, the log made up, the data there to be read again."""
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / "rows.jsonl", records)
    both = task.kind in ("translation", "span_corruption", "text_infilling", "prefix_lm")
    trunk = C.Trunk(**SHAPE | {"mask": "causal" if both else "full", "cross": "last" if both else "none"})
    encoder = C.Encoder(trunk=C.Trunk(**SHAPE | {"mask": "full"})) if both else None
    made = C.Recipe(
        data=C.Data(source=str(folder / "rows.jsonl"), validation=0.5), tokenizer=said or C.CharTokenizer(), task=task,
        model=C.Transformer(embed=C.TextEmbedding(vocab=1), trunk=trunk, encoder=encoder, head=head or C.LMHead()),
        train=C.Train(**{"context": 48, "batch_size": 5} | train),
    )  # fmt: skip
    run = Run.from_recipe(made, notice=lambda line: None)
    write_run(folder / "lab", run.recipe, samples=None)
    return folder / "lab", run.model, run.tokenizer


def whole_run(folder: Path, samples: str | None = SAID, **said: object) -> tuple[Path, regard.Model, text.Tokenizer]:
    """A run of a character model, the model and its tokenizer."""
    tokenizer = text.train_tokenizer(C.CharTokenizer(), [SAID + (samples or "")])
    made = recipe(tokenizer, **said)
    return write_run(folder, made, samples=samples), regard.Model(made.model), tokenizer


def data_in(page: str) -> dict:
    """The numbers that a page carries."""
    start = page.index('id="data">') + len('id="data">')
    return json.loads(page[start : page.index("</script>", start)])
