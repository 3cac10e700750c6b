"""Carried state (truncated BPTT): each step begins with the state at the end of the one before. #: S093

    step 1   s_0 ─ x_1 ─ x_2 ─ x_3 ─► s_3        back-propagation goes to the beginning of a window, and no further:
    step 2         s_3 ─ x_4 ─ x_5 ─ x_6 ─► s_6  truncated to `train.context` steps (Williams and Peng 1990)

The past comes without its gradient: of a recurrent stack its states, of attention the tokens of the last window
(`regard.models.segment_memory`). It stays in the same memory from step to step, so a captured step finds it there;
it is part of the checkpoint, and is reset at the end of an epoch, where the text begins anew.
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
    """States alone: every window begins at place 0, and what is carried on are the states of the layers."""

    def begin_step(self, tokens: TokenLayout) -> Any:
        return None, tokens

    @property
    def fresh(self) -> bool:
        return True

    @fresh.setter
    def fresh(self, value: bool) -> None:
        """It stays so: a compiled step must not see the first call as another."""


def build_states(model: Transformer, rows: int, context: int) -> KVCache:
    """What so many rows remember, which is nothing yet: states, or of attention the last `context` tokens."""
    if model.encoder is not None:
        raise config.ConfigError("train.carry_state: an encoder-decoder begins anew with every source; leave it out")
    like = next(model.parameters()).new_empty(0)
    try:
        entries = model.trunk.entries(rows, 1, like)
        if any(isinstance(entry, LayerKV) for entry in entries):
            return build_segment_memory(model, rows, context)
    except config.ConfigError as problem:
        raise config.ConfigError(f"train.carry_state: {problem}") from None
    if not any(entry.tables() for entry in entries):
        raise config.ConfigError("train.carry_state: this model remembers nothing that could go on; leave it out")
    return StateCache(entries, rows, 1, False, like)


class StatefulModel(nn.Module):
    """A model that goes on where it stopped, called as any other."""

    def __init__(self, model: Transformer, past: KVCache) -> None:
        super().__init__()
        self.model, self.past = model, past

    def forward(self, ids: Tensor, **given: Any) -> Any:
        return self.model(ids, cache=self.past, **given)


class CarriedState:
    """The states of a run: one for each micro-batch of a step, whose rows are always the same stripes of the text."""

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
        """A state that is no number would spoil every step from here on: it begins anew."""
        for table in self.state().values():
            if table.is_floating_point():
                table.nan_to_num_(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ContinuousText:
    """A text to validate on, from its beginning to its end with one state."""

    shards: TokenShards
    context: int

    @property
    def name(self) -> str:
        return self.shards.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        return data.sequential_windows(self.shards, self.context, 1, tokens)


def with_carried_state(model: Any, validation: object) -> Any:
    """The model as it reads what it is validated on: a stream with a state that goes on, anything else as it is."""
    return (
        StatefulModel(model, build_states(model, 1, validation.context))
        if isinstance(validation, ContinuousText)
        else model
    )
