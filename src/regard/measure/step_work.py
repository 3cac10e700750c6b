"""The traced work of a training step: forward, backward and optimizer, as charges (op_trace.py).

A fake model takes the step under an `OpTrace`. Work adds up over layers, so short models are enough: one more layer
adds the same charges, whatever the depth. Bytes are followed too, as exactly as in the step itself.
The optimizer is not traced: its charges are written down by kind.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.core.layers import FusedLinear
from regard.measure.activations import (
    ConfigPath,
    get_at,
    map_trunks,
    set_at,
    shorten_trunk,
    single_layer_trunk,
    trunk_paths,
)
from regard.measure.fake_model import ModelConfig, build_fake_model, meta_model
from regard.measure.memory import OptimizerConfig
from regard.measure.op_trace import OpCharge, OpTrace
from regard.models.checkpointing import set_checkpointing as forget


@dataclass(frozen=True)
class StepWork:
    """Charges with how often each is made, and the most bytes held at once: early, until half of backward, and late.

    Two maxima and not one, so that work adds up over layers: each of them grows by the same number of bytes with every
    layer, but the larger of the two may be another one in a deeper model.
    """

    charges: Counter[OpCharge] = field(default_factory=Counter)
    early: int = 0
    late: int = 0

    @property
    def peak(self) -> int:
        """Between its ends backward frees and makes as much with each layer, so the peak is at one of them."""
        return max(self.early, self.late)

    def plus(self, other: "StepWork", times: int = 1) -> "StepWork":
        charges = Counter(self.charges)
        for charge, count in other.charges.items():
            charges[charge] += times * count
        return StepWork(charges, self.early + times * other.early, self.late + times * other.late)


def measure_step_work(
    c: ModelConfig, batch: int, context: int, device: str = "cpu", compiled: bool = False, recompute: bool = False
) -> StepWork:
    """Forward and backward of one batch; an encoder reads as many tokens as the decoder."""
    if recompute:  # blocks run again in backward, one by one: the peak is of one block and does not add up over layers
        return trace_step(c, batch, context, device, compiled, True)
    short, rest = map_trunks(c, shorten_trunk), map_trunks(c, lambda trunk: single_layer_trunk(trunk, 0, 1))
    found = trace_step(short, batch, context, device, compiled)
    for path in trunk_paths(c):
        trunk = get_at(c, path)
        for layer in range(get_at(short, path).depth, trunk.depth):
            found = found.plus(
                layer_work(rest, path, single_layer_trunk(trunk, layer, 1), batch, context, device, compiled)
            )
    return found


def layer_work(
    rest: ModelConfig, path: ConfigPath, one: Any, batch: int, context: int, device: str, compiled: bool
) -> StepWork:
    """What a layer like that of `one` adds: two such layers less one, so that all else of the model cancels."""
    first, second = (set_at(rest, path, single_layer_trunk(one, 0, depth)) for depth in (1, 2))
    return trace_step(second, batch, context, device, compiled).plus(
        trace_step(first, batch, context, device, compiled), -1
    )


@lru_cache(64)
def trace_step(
    c: ModelConfig, batch: int, context: int, device: str, compiled: bool, recompute: bool = False
) -> StepWork:
    """The work of one forward and backward on a fake model; remembered, since most layers of a model are alike."""
    made = build_fake_model(c, device)
    forget(made.model.train(), recompute)
    with made.mode, OpTrace(compiled) as record:
        asked = fake_step_loss(made.run(batch, context))
        turn = len(record.curve)
        asked.backward()
    record.close()
    half = (turn + len(record.curve)) // 2  # of backward, so that each of its two ends has a maximum of its own
    return StepWork(record.charges, max(record.curve[:half]), max(record.curve[half:]))


def fake_step_loss(out: Any) -> Tensor:
    """Logits for every token are compared with the right ones, in fp32; of anything else the sum is as good."""
    first, *others = out if isinstance(out, tuple) else (out,)
    if first.dim() == 3:
        right = torch.zeros_like(first[..., 0], dtype=torch.long).flatten()
        found = F.cross_entropy(first.flatten(0, 1).float(), right, reduction="sum")
    else:
        found = first.float().sum()
    return sum((each.float().sum() for each in others), found)


def optimizer_work(c: ModelConfig, optimizer: OptimizerConfig, products: torch.dtype = torch.bfloat16) -> StepWork:
    """What it takes to move the weights, gradients given; and the bytes that are held meanwhile.

    `products` is the type that Muon multiplies in, which a CPU may not have in 16 bits.
    """
    shape = meta_model(c)
    weights = list(shape.parameters())
    masters = 4 * sum(weight.numel() for weight in weights if weight.dtype != torch.float32)  # their gradients, in fp32
    if isinstance(optimizer, config.Adafactor):
        return adafactor_work(weights).plus(StepWork(late=masters))
    stacks = muon_shapes(shape) if isinstance(optimizer, config.Muon) else Counter[tuple[int, int]]()
    count = sum(weight.numel() for weight in weights) - sum(n * a * b for (a, b), n in stacks.items())
    charges: Counter[OpCharge] = Counter({("update", count): 1, ("call", 1): 6 * len(weights)})
    for (a, b), n in stacks.items():
        assert isinstance(optimizer, config.Muon)
        charges += newton_schulz_charges(n, min(a, b), max(a, b), optimizer.newton_schulz_steps, products)
    return StepWork(charges, late=muon_bytes(stacks, products.itemsize) + masters)


def adafactor_work(weights: list[nn.Parameter]) -> StepWork:
    """Adafactor takes one weight after the other: its update is made, measured and applied, a few passes each."""
    charges: Counter[OpCharge] = Counter({("call", 1): 27 * len(weights)})
    for weight in weights:
        charges["plain.float32", 12 * weight.numel()] += 5  # two tensors read and one written, 4 bytes a number
    return StepWork(charges, late=4 * max(weight.numel() for weight in weights))


def muon_shapes(shape: nn.Module) -> Counter[tuple[int, int]]:
    """The matrices in blocks by their rows and columns, as Muon stacks them; a fused map is several."""
    found: Counter[tuple[int, int]] = Counter()
    for name, module in shape.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}":
            for rows in module.sizes.values() if isinstance(module, FusedLinear) else (module.out_features,):
                found[rows, module.in_features] += 1
    return found


def muon_bytes(stacks: Counter[tuple[int, int]], wide: int) -> int:
    """Bytes that Muon holds at most: all directions in fp32, and what one stack after the other needs besides.

    While a stack is turned, in numbers of `wide` bytes, the steps of the one before are still there, in fp32.
    """
    before = most = 0
    for (a, b), n in stacks.items():
        size, square = n * a * b, n * min(a, b) ** 2
        most = max(most, before + (4 + wide) * size, before + 2 * wide * (size + square), 8 * size)
        before = 4 * size
    return most + 4 * sum(n * a * b for (a, b), n in stacks.items())


def newton_schulz_charges(
    n: int, a: int, b: int, rounds: int, products: torch.dtype = torch.bfloat16
) -> Counter[OpCharge]:  # fmt: skip
    """Newton-Schulz on n matrices of a x b: three products a round, and what stands around them."""
    found: Counter[OpCharge] = Counter()
    kind = str(products).removeprefix("torch.")
    for side in (b, a, b):
        found[f"batch.{kind}", 2 * n * a * a * side] += rounds
    found[f"plain.{kind}", 3 * products.itemsize * n * a * b] += 2 * rounds
    found["plain.float32", 12 * n * a * b] += 6
    found["call", 1] += 6 * rounds + 4 * n
    return found
