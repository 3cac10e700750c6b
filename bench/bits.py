"""What fewer bits cost: the perplexity of a text when the weights are held as fp32, bf16 and int8.

    python bench/bits.py SmolLM2-135M-Instruct.Q4_1.gguf wikitext-2-test.txt --name "SmolLM2 135M"

Windows of --window tokens, each read alone; --tokens of the text in all. `plain` is the model as it was loaded. A tenth
of the windows is read token by token too, as a text is written: few rows at a time go another way than many.
"""

import argparse
import math
from pathlib import Path

import torch
from common import keep, show
from torch import Tensor

import regard
from regard.native.quantize import pack_model

KINDS = ("plain", "fp32", "bf16", "int8")


@torch.inference_mode()
def surprise(model, window: Tensor, step: bool) -> float:
    """-log p of all tokens of a window (1, N) but the first, as a sum."""
    if step:
        cache = model.cache(1, window.shape[1])
        logits = torch.cat([model(window[:, at : at + 1], cache=cache) for at in range(window.shape[1] - 1)], 1)
    else:
        logits = model(window[:, :-1])
    return float(torch.nn.functional.cross_entropy(logits[0].double(), window[0, 1:], reduction="sum"))


def perplexity(model, windows: list[Tensor], step: bool) -> float:
    told = sum(len(window[0]) - 1 for window in windows)
    return math.exp(sum(surprise(model, window, step) for window in windows) / told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="whatever regard.load opens")
    parser.add_argument("text", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    asked = parser.parse_args()
    what: dict[str, object] = {"model": asked.name or Path(asked.model).stem, "text": asked.text.stem}
    rows = [what | {"way": way} for way in ("at once", "token by token")]
    for kind in KINDS:
        model = regard.load(asked.model, device="cpu", weights="plain")
        if kind != "plain":
            pack_model(model, kind)
        ids = torch.tensor(model.output_tokenizer.encode(asked.text.read_text(encoding="utf8"))[: asked.tokens])
        windows = [part[None] for part in ids.split(asked.window) if len(part) > 1]
        for row, some in zip(rows, (windows, windows[: -(-len(windows) // 10)]), strict=True):
            row["tokens"] = sum(len(window[0]) for window in some)
            row[kind] = round(perplexity(model, some, row["way"] != "at once"), 4)
            print(row["way"], kind, row[kind], flush=True)
    for row in rows:
        for kind in KINDS[1:]:
            row[f"{kind}_%"] = round(100 * (float(row[kind]) / float(row["plain"]) - 1), 3)  # type: ignore[arg-type]
    show(rows)
    keep("bits-cpu", rows)


if __name__ == "__main__":
    main()
