"""Pattern stream: the attention patterns of every layer of a batch, handed on one layer at a time and let go.

    run_batch(model, prompt, read, roles)      read(where, heads, pattern, tables), pattern (B, h, Q, K) in float64

Patterns are made again from the kernel's own q and k, in float32 or better, so fused kernels keep running and the
model's output is what it is unwatched. Memory is that of a dozen times PATTERN_BYTES, however many heads there are.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.hooks import attention_table, looking
from regard.core.kernels import AttentionArgs, Plan
from regard.files.size_limits import format_bytes
from regard.lens.attention_maps import (
    AttentionView,
    TrunkInput,
    TrunkNote,
    evaluation_mode,
    find_attentions,
    record_trunk_inputs,
    unwrap_model,
    why_not_watchable,
)
from regard.lens.head_census.pair_tables import PairTables, pair_tables
from regard.lens.prompt import Prompt
from regard.lens.roles import HeadRole

PATTERN_BYTES = {"cpu": 64 << 20, "cuda": 1 << 29}  # of one table of patterns, of which a dozen are held at most
ReadPattern = Callable[[str, slice, Tensor, PairTables], object]


def head_places(model: Any) -> dict[str, int]:
    """How many heads every attention has that can be watched, in the order of the walk; or why none can be."""
    if why := why_not_watchable(model):
        raise ConfigError(why)
    watched = {each.removesuffix(".pattern") for each in unwrap_model(model).addresses() if each.endswith(".pattern")}
    return {where: each.heads for where, each in find_attentions(unwrap_model(model)).items() if where in watched}


def run_batch(
    model: Any, prompt: Prompt, read: ReadPattern, roles: Sequence[HeadRole], marks: Collection[int] = ()
) -> dict[str, TrunkNote]:
    """Run one batch and read every attention pattern on the way; what each trunk was given. `marks`: delimiters."""
    model = unwrap_model(model)
    known: dict[Any, PairTables] = {}
    with evaluation_mode(model), record_trunk_inputs(model) as notes, ExitStack() as stack:

        def attend(where: str, plan: Plan, q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
            key = (plan.spec.q, plan.spec.k, plan.spec.mask, where.rpartition(".")[2])  # held, so that none is another
            with torch.autocast(q.device.type, enabled=False):
                if key not in known:
                    known[key] = pair_tables(view_of(where, plan, notes, marks), roles)
                for heads in head_chunks(q, k):
                    read(where, heads, read_pattern(heads, q, k, plan, args), known[key])
            return plan.run(q, k, v, args)

        for where in head_places(model):
            none = slice(0, 0)  # results are not kept
            stack.enter_context(looking(model, f"{where}.result", queries=none, run_kernel=partial(attend, where)))
        prompt.run(model)
        return notes


def read_pattern(heads: slice, q: Tensor, k: Tensor, plan: Plan, args: AttentionArgs) -> Tensor:
    """The attention weights of some heads, (B, h, Q, K), in float64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    pattern = attention_table("pattern", heads, slice(None), q.to(wide), k.to(wide), plan, args)
    return pattern.to(sum_device(pattern.device)).double()


def sum_device(device: torch.device) -> torch.device:
    """Where patterns are summed: Apple's GPU has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def head_chunks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Heads in groups whose patterns fit into the budget, in their order."""
    each = pattern_bytes(len(q), q.shape[2], k.shape[2])
    size = max(1, PATTERN_BYTES.get(q.device.type, PATTERN_BYTES["cpu"]) // each)
    return (slice(start, min(start + size, q.shape[1])) for start in range(0, q.shape[1], size))


def pattern_bytes(rows: int, queries: int, keys: int) -> int:
    """Of one head."""
    return rows * queries * keys * torch.float64.itemsize


def batch_tokens_for(window: int, device: torch.device) -> int:
    """Tokens of a batch, so that the pattern of one head fits into the budget; a window that is too long is refused."""
    most = PATTERN_BYTES.get(device.type, PATTERN_BYTES["cpu"])
    if pattern_bytes(1, window, window) > most:
        raise ConfigError(f"context: the pattern of one head over {window:,} tokens is "
                          f"{format_bytes(pattern_bytes(1, window, window))}, and at most {format_bytes(most)} are "
                          f"held; give {int((most // 8) ** 0.5):,} tokens or fewer")  # fmt: skip
    return max(window, min(2048 if device.type == "cpu" else 8192, most // (8 * window)))


def view_of(where: str, plan: Plan, notes: dict[str, TrunkNote], marks: Collection[int]) -> AttentionView:
    """What an attention reads, on its device, without a pattern."""
    trunk, _, side = where.rsplit(".", 2)
    own, device = side == "attn", sum_device(plan.spec.q.order.device)
    read = input_on(notes[trunk].read, device)
    beside = read if own else input_on(notes[trunk.removesuffix("trunk") + "encoder"].read, device)
    shape = len(read.order), read.order.shape[1], beside.order.shape[1]
    visible = plan.spec.mask.table(plan.spec.q, plan.spec.k).to(device).expand(shape)
    ids = beside.ids
    found = torch.isin(ids, torch.tensor(sorted(marks), device=device)) if marks and ids is not None else None
    return AttentionView(where, torch.empty(0), visible, read, beside, own and not plan.spec.mask.ahead, found)


def input_on(read: TrunkInput, device: torch.device) -> TrunkInput:
    ids = None if read.ids is None else read.ids.to(device)
    return replace(read, order=read.order.to(device), real=read.real.to(device), at=read.at.to(device), ids=ids)
