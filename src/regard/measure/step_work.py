"""The traced work of a training step: forward, backward and optimizer, as charges (op_trace.py).

A fake model takes the step under an `OpTrace`. Work adds up over layers, so a short model is enough: each further layer
adds the same charges, whatever the depth. Bytes are tracked as exactly as in the step itself. The optimizer is not
traced: its charges are declared by kind.
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
    """Charges with their counts, and the peak of bytes in two parts: early, until the middle of backward, and late.

    There are two maxima so that work adds up over layers: each grows by the same number of bytes with every layer,
    while the larger of the two may change with the depth.
    """

    charges: Counter[OpCharge] = field(default_factory=Counter)
    early: int = 0
    late: int = 0

    @property
    def peak(self) -> int:
        """The peak of bytes: between its ends backward frees and allocates equally with each layer, so it is at one of
        them."""
        return max(self.early, self.late)

    def plus(self, other: "StepWork", times: int = 1) -> "StepWork":
        charges = Counter(self.charges)
        for charge, count in other.charges.items():
            charges[charge] += times * count
        return StepWork(charges, self.early + times * other.early, self.late + times * other.late)


def measure_step_work(
    c: ModelConfig, batch: int, context: int, device: str = "cpu", compiled: bool = False, recompute: bool = False
) -> StepWork:
    """The work of forward and backward for one batch; an encoder reads as many tokens as the decoder."""
    if recompute:  # blocks run again in backward, one by one: the peak is that of one block and does not add up
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
    """The work that one layer adds: that of two such layers less that of one, so that the rest of the model cancels."""
    first, second = (set_at(rest, path, single_layer_trunk(one, 0, depth)) for depth in (1, 2))
    return trace_step(second, batch, context, device, compiled).plus(
        trace_step(first, batch, context, device, compiled), -1
    )


@lru_cache(64)
def trace_step(
    c: ModelConfig, batch: int, context: int, device: str, compiled: bool, recompute: bool = False
) -> StepWork:
    """The work of one forward and backward on a fake model; cached, since most layers of a model are equal."""
    made = build_fake_model(c, device)
    forget(made.model.train(), recompute)
    with made.mode, OpTrace(compiled) as record:
        asked = fake_step_loss(made.run(batch, context))
        turn = len(record.curve)
        asked.backward()
    record.close()
    half = (turn + len(record.curve)) // 2  # the middle of backward: each of its two ends has a maximum of its own
    return StepWork(record.charges, max(record.curve[:half]), max(record.curve[half:]))


def fake_step_loss(out: Any) -> Tensor:
    """A cross-entropy in fp32 for logits of every token; the sum for any other output."""
    first, *others = out if isinstance(out, tuple) else (out,)
    if first.dim() == 3:
        right = torch.zeros_like(first[..., 0], dtype=torch.long).flatten()
        found = F.cross_entropy(first.flatten(0, 1).float(), right, reduction="sum")
    else:
        found = first.float().sum()
    return sum((each.float().sum() for each in others), found)


def optimizer_work(c: ModelConfig, optimizer: OptimizerConfig, products: torch.dtype = torch.bfloat16) -> StepWork:
    """The work of the optimizer step, gradients given, and the bytes it holds meanwhile.

    `products` is the dtype that Muon multiplies in, which is fp32 on a CPU without 16-bit products.
    """
    shape = meta_model(c)
    weights = list(shape.parameters())
    masters = 4 * sum(weight.numel() for weight in weights if weight.dtype != torch.float32)  # their fp32 gradients
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
    """Adafactor updates one weight after the other: each update is computed, measured and applied in a few passes."""
    charges: Counter[OpCharge] = Counter({("call", 1): 27 * len(weights)})
    for weight in weights:
        charges["plain.float32", 12 * weight.numel()] += 5  # two tensors read and one written, 4 bytes a number
    return StepWork(charges, late=4 * max(weight.numel() for weight in weights))


def muon_shapes(shape: nn.Module) -> Counter[tuple[int, int]]:
    """The matrices in blocks by rows and columns, as Muon stacks them; a fused linear counts as several."""
    found: Counter[tuple[int, int]] = Counter()
    for name, module in shape.named_modules():
        if isinstance(module, nn.Linear) and ".blocks." in f".{name}":
            for rows in module.sizes.values() if isinstance(module, FusedLinear) else (module.out_features,):
                found[rows, module.in_features] += 1
    return found


def muon_bytes(stacks: Counter[tuple[int, int]], wide: int) -> int:
    """The peak of bytes in Muon: all directions in fp32, and the needs of one stack after the other.

    While a stack is orthogonalised, in numbers of `wide` bytes, the updates of the previous one still exist, in fp32.
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
    """Newton-Schulz on n matrices of a x b: three products a round, and the operations around them."""
    found: Counter[OpCharge] = Counter()
    kind = str(products).removeprefix("torch.")
    for side in (b, a, b):
        found[f"batch.{kind}", 2 * n * a * a * side] += rounds
    found[f"plain.{kind}", 3 * products.itemsize * n * a * b] += 2 * rounds
    found["plain.float32", 12 * n * a * b] += 6
    found["call", 1] += 6 * rounds + 4 * n
    return found
