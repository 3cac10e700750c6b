"""A translator that learns to read backwards, in a quarter of a minute, and shows how.

One sentence of config makes an encoder-decoder; a plain PyTorch loop trains it on random digits to say them in
reverse; it is compiled (one graph for every padding), it generates with a cache, and the cross-attention of its one
decoder layer is drawn as it runs on the fused kernel: a line from corner to corner.
"""

import time

import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

import regard
from regard import config as C

START, PAD, LENGTH = 10, 11, 12


def build() -> regard.Model:
    """Two small trunks: one that reads everything, one that writes from left to right and looks across."""
    small = dict(dim=64, depth=1, attention=C.Attention(heads=2), position=C.SinusoidalPosition(), dropout=C.NO_DROPOUT)
    return regard.Model(
        C.Transformer(
            embed=C.TextEmbedding(vocab=12, pad_id=PAD, scale=8.0),
            trunk=C.Trunk(**small, mask="causal", cross="last"),
            encoder=C.Encoder(trunk=C.Trunk(**small)),
        )
    )


def batch(size: int, least: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 4 to 12 digits, padded; and each reversed, after a start token."""
    lengths = torch.randint(least, LENGTH + 1, (size, 1))
    place = torch.arange(LENGTH)[None]
    source = torch.randint(10, (size, LENGTH)).masked_fill(place >= lengths, PAD)
    backwards = source.gather(1, (lengths - 1 - place).clamp(min=0)).masked_fill(place >= lengths, PAD)
    return source, torch.cat([torch.full((size, 1), START), backwards], 1)


def train(model: regard.Model, steps: int = 900) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        source, target = batch(64)
        logits = model(target[:, :-1], source=source)
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 150 == 0 or step == steps - 1:
            print(f"  step {step:4d}   loss {loss.item():.3f}")
    return loss.item()


@torch.no_grad()
def say(model: regard.Model, source: torch.Tensor) -> torch.Tensor:
    """Greedy: the encoder reads once, then one token a step through the cache."""
    cache = model.cache(len(source), LENGTH + 1)
    token = torch.full((len(source), 1), START)
    said = []
    for step in range(LENGTH):
        logits = model(token, source=source if step == 0 else None, cache=cache)
        token = logits[:, -1:].argmax(-1)
        said.append(token)
    return torch.cat(said, 1)


def accuracy(model: regard.Model) -> float:
    source, target = batch(200, least=LENGTH)
    return (say(model, source) == target[:, 1:]).all(-1).float().mean().item()


@torch.no_grad()
def alignment(model: regard.Model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Which digit each step of the writer looked at: (steps, digits), averaged over heads."""
    with regard.looking(model, "trunk.0.cross.pattern") as seen:
        model(target[:, :-1], source=source)
    return seen["trunk.0.cross.pattern"][0].mean(0)


def draw(weights: torch.Tensor, rows: list[str], columns: list[str]) -> str:
    shades = " ░▒▓█"
    lines = ["       " + " ".join(f"{c:>2}" for c in columns)]
    for name, row in zip(rows, weights.tolist(), strict=True):
        lines.append(f"  {name:>4} " + " ".join(2 * shades[min(4, int(5 * weight))] for weight in row))
    return "\n".join(lines)


def graphs(model: regard.Model) -> int:
    """How many graphs ten batches of different padding compile to."""
    counter = CompileCounter()
    fast = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        for _ in range(10):
            source, target = batch(8)
            fast(target[:, :-1], source=source)
    return int(counter.frame_count)


def main() -> None:
    torch.manual_seed(0)
    begun = time.perf_counter()
    model = build()
    print(f"An encoder-decoder of {sum(p.numel() for p in model.parameters()):,} numbers learns to reverse digits.")
    train(model)
    model.eval()
    right = accuracy(model)
    print(f"\nTwelve digits right in {right:.0%} of 200 unseen rows, written token by token through the cache.")
    source, target = batch(1, least=LENGTH)
    digits = [str(d) for d in source[0].tolist()]
    print("\nWhere does the writer look? (cross-attention, mean of two heads; a row is a written digit)\n")
    print(draw(alignment(model, source, target), [str(d) for d in target[0, 1:].tolist()], digits))
    count, took = graphs(model), time.perf_counter() - begun
    print(f"\nTen batches of different padding compile to {count} graph; {took:.0f} s in all.")


if __name__ == "__main__":
    main()
