"""What does pruning bring? A GPT-2 of six layers before and after a part of its heads is gone, reading and writing.

    python bench/prune.py

Kept in bench/results/prune.csv: tokens a second (median of turns taken in one run), parameters, bytes of the file.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from common import keep, show, take_turns

import regard
from regard import lens

DEPTH, DIM, HEADS, VOCAB, BATCH, CONTEXT, NEW = 6, 384, 6, 1000, 4, 256, 32


def heads(count: int) -> dict[str, list[int]]:
    """The same number in every layer: speed does not ask which."""
    return {f"trunk.{layer}.attn": list(range(count)) for layer in range(DEPTH)}


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    whole = regard.build(regard.preset("gpt2", dim=DIM, depth=DEPTH, heads=HEADS, vocab=VOCAB)).eval()
    ids = torch.randint(VOCAB, (BATCH, CONTEXT))
    models = {count: whole if count == 0 else lens.prune_heads(whole, heads(count)) for count in (0, 1, 3, 5)}
    for count, model in models.items():
        with lens.ablate(whole, heads(count)):
            assert (model(ids) - whole(ids)).abs().max() < 1e-4, "pruning changed more than it took away"
    read = take_turns({str(count): partial(model, ids) for count, model in models.items()}, rounds=9)
    write = take_turns({str(count): partial(model.generate, ids[:, :16], new=NEW, temperature=0)
                        for count, model in models.items()}, rounds=5)  # fmt: skip
    rows = [
        {"heads_gone": count * DEPTH, "of": HEADS * DEPTH, "parameters": size(model), "bytes": stored(model),
         "read_tokens_s": BATCH * CONTEXT / read[str(count)], "read_speedup": read["0"] / read[str(count)],
         "write_tokens_s": BATCH * NEW / write[str(count)], "write_speedup": write["0"] / write[str(count)]}
        for count, model in models.items()
    ]  # fmt: skip
    show(rows)
    keep("prune", rows)


def size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def stored(model: regard.Model) -> int:
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return (Path(folder) / "model" / "model.safetensors").stat().st_size


if __name__ == "__main__":
    main()
