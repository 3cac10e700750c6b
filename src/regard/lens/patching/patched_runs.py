"""Patched runs: one prompt run with activations replaced, many replacements in one batch, each row its own.

    runs = PatchedRuns(model, prompt, metric)
    runs.value                                       (B,) the metric with nothing replaced
    runs.measure(len(where), lambda rows: {address: replace_where(value, where[rows])}, first=3)     (patches, B)

The prompt is repeated along the batch. Blocks before `first` are not run again: nothing there has changed, so the
stream of the unpatched run enters it; and of a causal model the tokens before `start`, whose keys and values are kept.
Letters: R replacements (rows of a batch for each row of the prompt).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.core.hooks import HookEdit, looking
from regard.core.model import BlockCall, BlockRunner, Trunk
from regard.lens.attention_maps import evaluation_mode, unwrap_model
from regard.lens.patching.later_positions import RecordedKeys, record_keys
from regard.lens.patching.logit_metrics import BoundMetric, answering_head, run_metric
from regard.lens.prompt import Prompt
from regard.models.heads import can_defer_logits

BATCH_TOKENS = 4096  # tokens x rows of one forward pass: on a CPU more is slower, a GPU takes more
MOST_LOGITS = 1 << 26  # numbers: a metric that reads every position makes (rows, N, V)
Edits = Callable[[slice], Mapping[str, HookEdit]]
Progress = Callable[[int, int], object]


class LaterBlocks(BlockRunner):
    """Runs a trunk from block `first` on, with the stream x that entered it in another run."""

    def __init__(self, first: int, x: Tensor) -> None:
        self.first, self.x = first, x

    def run(self, trunk: Trunk, x: Tensor, calls: list[BlockCall], keep: list[Tensor] | None) -> Tensor:
        return super().run(trunk, self.x, calls[self.first :], keep)


class PatchedRuns:
    """The unpatched run of a prompt, and the same run with activations replaced."""

    def __init__(
        self, model: Any, prompt: Prompt, metric: BoundMetric, *, batch_tokens: int = BATCH_TOKENS,
        edits: Edits | None = None, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """`edits` are made in every run, given the slice of rows that it has: the noise of causal tracing."""
        self.model, self.prompt, self.metric = unwrap_model(model), prompt, metric
        self.edits: Edits = edits or (lambda rows: {})
        self.progress, self.done, self.total = progress, 0, 0
        streams = [f"trunk.{i}.residual" for i in range(self.model.c.trunk.depth - 1)] if self.resumes else []
        with evaluation_mode(self.model), edited(self.model, self.edits(slice(0, 1))):
            with looking(self.model, "trunk.embed", *streams) as seen:
                self.value = run_metric(self.model, prompt, metric).double()
            self.streams = [seen[name].detach() for name in ("trunk.embed", *streams)]
        self.most, self.batch_tokens = self.rows_at_once(batch_tokens), batch_tokens
        self.same_edits = edits is None

    @cached_property
    def keys(self) -> RecordedKeys | None:
        """Keys and values of the unpatched run, where runs may begin at a later position."""
        late = self.resumes and self.same_edits and self.metric.at is not None
        return record_keys(self.model, self.prompt) if late else None

    @property
    def resumes(self) -> bool:
        """Whether the trunk runs block after block on one stream, so that it can begin in the middle."""
        return type(self.model.trunk) is Trunk and type(self.model.trunk.runner) is BlockRunner

    def rows_at_once(self, batch_tokens: int) -> int:
        batch, tokens = self.streams[0].shape[:2]
        source = self.prompt.given.get("source")
        longest = max(tokens, 0 if source is None or source.is_floating_point() else source.shape[1])
        most = batch_tokens // (batch * longest)
        if self.metric.at is None:
            wide = getattr(answering_head(self.model), "out_features", 1)
            most = min(most, MOST_LOGITS // (batch * tokens * wide))
        return max(1, most)

    @torch.no_grad()
    def measure(self, count: int, edits: Edits, first: int = 0) -> Tensor:  # (count, B)
        """The metric of `count` runs; `edits(rows)` are those of some of them, in tensors (B·R, …), each row its own.

        `first` is the first block of the trunk that they change; 0 runs all of the model.
        """
        found = []
        for start in range(0, count, self.most):
            rows = slice(start, min(start + self.most, count))
            size = rows.stop - rows.start
            how = {"runner": LaterBlocks(first, self.streams[first].repeat_interleave(size, 0))} if first else {}
            with evaluation_mode(self.model), edited(self.model, self.edits(rows)), edited(self.model, edits(rows)):
                value = run_metric(self.model, self.prompt.repeat(size), self.metric, **how)
            found.append(value.double().unflatten(0, (-1, size)).mT)
            self.count_done(size)
        return torch.cat(found)

    @torch.no_grad()
    def measure_from(self, start: int, size: int, edits: Mapping[str, HookEdit], first: int = 0) -> Tensor:  # (size, B)
        """The metric of `size` runs of the tokens from `start` on, in one batch; `edits` are of these tokens."""
        at = self.metric.at
        assert at is not None and self.keys is not None
        self.count_done(size)
        if at < start:  # no token before a patch sees it
            return self.value.expand(size, -1)
        how: dict[str, Any] = {"cache": self.keys.cache(self.model, size, start)}
        if first:
            how["runner"] = LaterBlocks(first, self.streams[first][:, start:].repeat_interleave(size, 0))
        rest = replace(self.prompt, first=self.prompt.first[:, start:]).repeat(size)
        with evaluation_mode(self.model), edited(self.model, edits):
            value = run_metric(self.model, rest, replace(self.metric, at=at - start), **how)
        found: Tensor = value.double().unflatten(0, (-1, size)).mT
        return found

    def count_done(self, size: int) -> None:
        self.done += size
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done))

    def first_block(self, *addresses: str) -> int:
        """The first block of the trunk that a replacement at these addresses changes; 0 where all must run again."""
        steps = [address.split(".") for address in addresses]
        own = self.resumes and all(step[0] == "trunk" and step[1].isdecimal() for step in steps)
        return min(int(step[1]) for step in steps) if own else 0


@contextmanager
def edited(model: Any, edits: Mapping[str, HookEdit]) -> Iterator[None]:
    """The model with these edits, by address."""
    with ExitStack() as stack:
        for address, edit in edits.items():
            stack.enter_context(looking(model, address, edit=edit))
        yield


def replace_where(value: Tensor, where: Tensor) -> HookEdit:
    """Take `value` (B, …, D) where `where` (R, …) is True: row r of each R replaces what its own row of it says."""

    def edit(address: str, x: Tensor) -> Tensor:  # (B·R, …, D)
        rows = x.unflatten(0, (len(value), -1))
        return torch.where(where[None, ..., None], value[:, None].to(x.dtype), rows).flatten(0, 1)

    return edit


def record_activations(model: Any, prompt: Prompt, *addresses: str) -> dict[str, Tensor]:
    """What is at these addresses while the model reads a prompt."""
    model = unwrap_model(model)
    deferred = can_defer_logits(model) and all(address.startswith(("trunk.", "encoder.")) for address in addresses)
    with evaluation_mode(model), looking(model, *addresses) as seen:
        prompt.run(model, deferred=deferred)
    return {address: seen[address].detach() for address in seen}
