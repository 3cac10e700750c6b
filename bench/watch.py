"""What does looking cost? One layer of a model of GPT-2's size watched at 4,096 tokens, beside the same unwatched.

    python bench/watch.py

Kept in bench/results/watch.csv: the time over the unwatched forward's, and the largest tensor made in the pass.
"""

import torch
from common import keep, show, take_turns
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import config as C

N, HEADS, DEPTH = 4096, 12, 12


class Largest(TorchDispatchMode):
    """Counts the tensors of at least so many numbers that operations make."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.count = least, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() >= self.least and out._base is None:
            self.count += 1
        return out


def main() -> None:
    torch.manual_seed(0)
    trunk = C.Trunk(
        dim=768, depth=DEPTH, mask="causal", position=C.LearnedPosition(length=N), attention=C.Attention(heads=HEADS),
        mlp=C.MLP(activation="gelu_tanh"), dropout=C.NO_DROPOUT,
    )  # fmt: skip
    model = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=1000), trunk=trunk, init="gpt2")).eval()
    ids = torch.randint(1000, (1, N))
    ways = {
        "unwatched": None,
        "one layer, all heads, last row": dict(queries=slice(-1, None)),
        "one layer, one head": dict(heads=[4]),
        "one layer, all heads and rows": {},
    }

    @torch.no_grad()
    def run(how):
        if how is None:
            return model(ids)
        with regard.looking(model, "trunk.6.attn.pattern", **how):
            return model(ids)

    outputs = {name: run(how) for name, how in ways.items()}
    assert all(torch.equal(out, outputs["unwatched"]) for out in outputs.values()), "watching changed a bit"
    large = {}
    for name, how in ways.items():
        with Largest(N * N) as seen:
            run(how)
        large[name] = seen.count
    seconds = take_turns({name: (lambda how=how: run(how)) for name, how in ways.items()}, rounds=3, warm=1)
    rows = [
        {"watched": name, "seconds": time, "over_unwatched": time / seconds["unwatched"], "n_x_n_tensors": large[name]}
        for name, time in seconds.items()
    ]
    show(rows)
    keep("watch", rows)


if __name__ == "__main__":
    main()
