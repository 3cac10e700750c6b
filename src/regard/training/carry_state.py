"""Carried state (truncated BPTT): each step begins with the state at the end of the one before. #: S093

    step 1   s_0 ─ x_1 ─ x_2 ─ x_3 ─► s_3        back-propagation stops at the beginning of a window:
    step 2         s_3 ─ x_4 ─ x_5 ─ x_6 ─► s_6  truncated to `train.context` steps (Williams and Peng 1990)

The state is detached: a recurrent stack carries its hidden states, attention the tokens of the last window
(`regard.models.segment_memory`). Its tensors stay at one address from step to step, as a CUDA graph requires.
It is saved in checkpoints and reset at the end of an epoch, where the text starts again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import config, data
from regard.core.cache import KVCache, LayerKV
from regard.core.model import Transformer
from regard.core.tokens import TokenLayout
from regard.data.token_shards import TokenShards
from regard.models.segment_memory import build_segment_memory
from regard.training.state_dict import load_state_tensors


class StateCache(KVCache):
    """Recurrent states without keys and values: every window starts at position 0, only layer states are carried."""

    def begin_step(self, tokens: TokenLayout) -> Any:
        return None, tokens

    @property
    def fresh(self) -> bool:
        return True

    @fresh.setter
    def fresh(self, value: bool) -> None:
        """Ignored: a compiled step must not treat the first call differently."""


def build_states(model: Transformer, rows: int, context: int) -> KVCache:
    """Empty state of `rows` rows: recurrent states, or for attention a memory of the last `context` tokens."""
    if model.encoder is not None:
        raise config.ConfigError("train.carry_state: an encoder-decoder starts again with every source; leave it out")
    like = next(model.parameters()).new_empty(0)
    try:
        entries = model.trunk.entries(rows, 1, like)
        if any(isinstance(entry, LayerKV) for entry in entries):
            return build_segment_memory(model, rows, context)
    except config.ConfigError as problem:
        raise config.ConfigError(f"train.carry_state: {problem}") from None
    if not any(entry.tables() for entry in entries):
        raise config.ConfigError("train.carry_state: this model has no recurrent state; leave it out")
    return StateCache(entries, rows, 1, False, like)


class StatefulModel(nn.Module):
    """A model that continues from its stored state, with the usual call signature."""

    def __init__(self, model: Transformer, past: KVCache) -> None:
        super().__init__()
        self.model, self.past = model, past

    def forward(self, ids: Tensor, **given: Any) -> Any:
        return self.model(ids, cache=self.past, **given)


class CarriedState:
    """The carried states of a run: one for each micro-batch of a step, whose rows are always the same text stripes."""

    def __init__(self, model: Transformer, c: config.Train) -> None:
        self.models = [
            StatefulModel(model, build_states(model, c.batch_size, c.context)) for _ in range(c.gradient_accumulation)
        ]

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on."""
        return {f"{part}.{place}": table for part, each in enumerate(self.models)
                for place, table in enumerate(each.past.tables())}  # fmt: skip

    def load(self, held: dict[str, Tensor]) -> None:
        load_state_tensors(self.state(), held, "carried state")
        for each in self.models:
            each.past.fresh = not bool(each.past.length.any())

    def clone_tensors(self) -> dict[str, Tensor]:
        return {name: table.clone() for name, table in self.state().items()}

    @torch.no_grad()
    def forget(self) -> None:
        for table in self.state().values():
            table.zero_()
        for each in self.models:
            each.past.fresh = True

    @torch.no_grad()
    def mend(self) -> None:
        """Replace non-finite values by zero: otherwise a single NaN would spoil every later step."""
        for table in self.state().values():
            if table.is_floating_point():
                table.nan_to_num_(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ContinuousText:
    """A validation text that is read from beginning to end with one carried state."""

    shards: TokenShards
    context: int

    @property
    def name(self) -> str:
        return self.shards.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        return data.sequential_windows(self.shards, self.context, 1, tokens)


def with_carried_state(model: Any, validation: object) -> Any:
    """The model for validation: with carried state for a ContinuousText, otherwise unchanged."""
    return (
        StatefulModel(model, build_states(model, 1, validation.context))
        if isinstance(validation, ContinuousText)
        else model
    )
