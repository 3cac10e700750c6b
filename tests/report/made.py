"""A run's folder as training leaves it, with a tiny model, made in a moment."""

import json
import math
from pathlib import Path

import torch

import regard
from regard import config as C
from regard import text

SAID = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n" * 3
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> & \"quotes\" \u2028"


SHAPE = {
    "dim": 24, "depth": 3, "mask": "causal", "position": C.Rotary(), "attention": C.Attention(heads=3),
    "dropout": C.NO_DROPOUT,
}  # fmt: skip


def recipe(
    tokenizer: text.Tokenizer, said: C.Text | None = None, sentence: str | None = None, **trunk: object
) -> C.Recipe:
    return C.Recipe(
        text=said or C.Characters(),
        model=C.Transformer(embed=C.Embed(vocab=len(tokenizer)), trunk=C.Trunk(**(SHAPE | trunk))),
        train=C.Train(context=48, batch=5),
        report=C.Report(sentence=sentence),
    )


def write_run(
    folder: Path, said: C.Recipe, steps: int = 120, samples: str | None = SAID, evaluate: bool = True
) -> Path:
    """config.toml, log.jsonl, samples.jsonl and run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(C.text(said), encoding="utf8")
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


def put(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf8")


def whole_run(
    folder: Path, samples: str | None = SAID, **said: object
) -> tuple[Path, regard.Transformer, text.Tokenizer]:
    """A run of a character model, the model and its tokenizer."""
    tokenizer = text.train(C.Characters(), [SAID + (samples or "")])
    made = recipe(tokenizer, **said)
    return write_run(folder, made, samples=samples), regard.Transformer(made.model), tokenizer


def data_in(page: str) -> dict:
    """The numbers that a page carries."""
    start = page.index('id="data">') + len('id="data">')
    return json.loads(page[start : page.index("</script>", start)])
