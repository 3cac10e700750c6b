"""Causal tracing: which activations restore a fact after the embeddings of its subject were noised (Meng et al. 2022).

    trace = causal_trace(model, "The Space Needle is in the city of", subject="The Space Needle",
                         metric=probability(" Seattle"), noise=EmbeddingNoise(samples=10), window=3)
    trace.effect("mlp")        (layers, positions): 0 is the noised run, 1 the run without noise

Three runs: one without noise, one with noise on the embeddings of the subject, and that one with one activation, or
the same sublayer of `window` layers around one, restored at one position. The metric is averaged over samples of the
noise. It says where information about the subject passes; editing the weights there is another question (Hase et al.
2023), and the size of the noise changes the picture (Zhang and Nanda 2024).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.core.hooks import HookEdit, looking
from regard.lens.attention_maps import evaluation_mode, record_trunk_inputs, unwrap_model
from regard.lens.patching.activation_patching import PatchGrid, PatchingResult, stack_grid
from regard.lens.patching.logit_metrics import LogitFunction, LogitMetric, bind_metric, run_metric
from regard.lens.patching.patch_targets import PatchTarget, patch_targets, position_labels
from regard.lens.patching.patched_runs import PatchedRuns, Progress, record_activations, replace_where
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import find_trunk
from regard.lens.result import Table

TRACED = ("residual", "attn", "mlp")


@dataclass(frozen=True)
class EmbeddingNoise:
    """Gaussian noise of `scale` standard deviations of the embeddings; `trunk` is the side whose input is noised."""

    scale: float = 3.0
    samples: int = 10
    seed: int = 0
    trunk: str = "trunk"


@dataclass(frozen=True, eq=False)
class CausalTrace(PatchingResult):
    """The metric with every restored activation, as a mean over samples of the noise; `errors` are standard errors."""

    subject: tuple[int, ...]
    window: int
    errors: Mapping[str, Tensor]  # of each part, (rows, columns)

    title = "Which activations restore what noise on the subject took?"

    def error(self, part: str) -> Tensor:
        """(rows, columns): the standard error of the metric over samples, nan for a single one."""
        return self.errors[self.grid(part).part]

    def table(self, most: int | None = 20) -> Table:
        """The largest changes first, with their standard errors."""
        plain, cells = super().table(most), dict[tuple[str, str, str], float]()
        for grid in self.grids:
            for i, row in enumerate(grid.rows):
                cells |= {(grid.part, row, grid.column(j)): float(self.error(grid.part)[i, j])
                          for j in range(len(grid.columns))}  # fmt: skip
        rows = tuple((*row, cells[str(row[0]), str(row[1]), str(row[2])]) for row in plain.rows)
        return Table(plain.title, (*plain.columns, "error"), rows, plain.note)


def causal_trace(
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt, *, subject: str | Sequence[int],
    metric: LogitMetric | LogitFunction, noise: EmbeddingNoise | float = 3.0, parts: Sequence[str] = TRACED,
    window: int = 1, progress: Progress | None = None,
) -> CausalTrace:  # fmt: skip
    """Causal tracing: noise on the embeddings at `subject`, then one activation after the other restored.

    `subject` is a part of the text, or positions; `noise` a number of standard deviations of the embeddings, or an
    EmbeddingNoise. `window` restores attention and MLP of so many layers around each; the stream is restored singly.
    """
    find_trunk(model)
    model, prompt = unwrap_model(model), read_prompt(model, prompt)
    noise = noise if isinstance(noise, EmbeddingNoise) else EmbeddingNoise(float(noise))
    check_trace(prompt, noise, window)
    places = subject_positions(model, prompt, subject, noise.trunk)
    bound, rows = bind_metric(model, prompt, metric), prompt.repeat(noise.samples)
    added, address = embedding_noise(model, prompt, places, noise), f"{noise.trunk}.embed"
    runs = PatchedRuns(
        model, rows, bound, edits=lambda some: {address: add_noise(added, some.stop - some.start)}, progress=progress
    )
    with evaluation_mode(model):
        clean = float(run_metric(model, prompt, bound).mean())
    grids, errors = restore_places(runs, patch_targets(model, prompt, parts), prompt, window)
    return CausalTrace(bound.name, "denoise", clean, float(runs.value.mean()), grids, tuple(places), window, errors)


def check_trace(prompt: Prompt, noise: EmbeddingNoise, window: int) -> None:
    if len(prompt.first) != 1:
        raise DataError(f"prompt: causal tracing reads one prompt, got a batch of {len(prompt.first)}; give one row")
    if noise.scale < 0 or noise.samples < 1:
        raise ConfigError(f"noise: scale {noise.scale:g} and {noise.samples} samples; give a scale from 0 on, and at "
                          "least one sample")  # fmt: skip
    if window < 1:
        raise ConfigError(f"window: {window} layers; give 1 for single ones, or more")


def restore_places(
    runs: PatchedRuns, targets: dict[str, list[PatchTarget]], prompt: Prompt, window: int
) -> tuple[tuple[PatchGrid, ...], dict[str, Tensor]]:
    """A grid of means for each part, and one of standard errors."""
    runs.total, grids, errors = sum(each.count for some in targets.values() for each in some), [], {}
    for part, places in targets.items():
        clean = record_activations(runs.model, prompt, *(target.address for target in places))
        size = 1 if part.endswith("residual") else window
        values = [restore(runs, places, i, size, clean) for i in range(len(places))]  # (patches, S) each
        grids.append(stack_grid(part, places, [value.mean(1) for value in values]))
        spread = [value.std(1) / math.sqrt(value.shape[1]) if value.shape[1] > 1 else value[:, 0] * math.nan
                  for value in values]  # fmt: skip
        errors[part] = stack_grid(part, places, spread).raw
    return tuple(grids), errors


def restore(runs: PatchedRuns, places: list[PatchTarget], i: int, window: int, clean: dict[str, Tensor]) -> Tensor:
    """The metric (patches, S) with the activations of place i, and of its neighbours in the window, restored."""
    near = places[max(0, i - window // 2) : i - window // 2 + window]
    if len({target.shape for target in near}) > 1:
        raise ConfigError(f"window: {window} layers around {places[i].address} have other numbers of heads; give 1")
    batch = len(runs.prompt.first)
    return runs.measure(
        places[i].count,
        lambda rows: {
            target.address: replace_where(clean[target.address].expand(batch, *clean[target.address].shape[1:]),
                                          target.where(rows)) for target in near
        },
        runs.first_block(*(target.address for target in near)),
    )  # fmt: skip


# ---------------------------------------------------------------- the noise and where it goes


def embedding_noise(model: Any, prompt: Prompt, places: Sequence[int], noise: EmbeddingNoise) -> Tensor:  # (S, N, D)
    """Noise for each sample at the chosen positions, zero elsewhere, from a generator of its own.

    The standard deviation is that of the vectors that the front end makes of this prompt, before positions; in a trunk
    that norms or maps them first, that of the vectors which enter the first block.
    """
    address = f"{noise.trunk}.embed"
    trunk = find_trunk(model, noise.trunk)
    with evaluation_mode(model), record_trunk_inputs(model) as notes, looking(model, address) as seen:
        prompt.run(model)
    x, given = seen[address], notes[noise.trunk].tokens.x
    deviation = (given if trunk.embed_norm is None and trunk.project is None else x).float().std()
    generator = torch.Generator().manual_seed(noise.seed)
    drawn = torch.randn(noise.samples, len(places), x.shape[-1], generator=generator)
    added = x.new_zeros(noise.samples, *x.shape[1:])
    added[:, list(places)] = (noise.scale * deviation * drawn.to(x.device)).to(x.dtype)
    return added


def add_noise(added: Tensor, rows: int) -> HookEdit:
    return lambda address, x: x + added.repeat_interleave(rows, 0)


def subject_positions(model: Any, prompt: Prompt, subject: str | Sequence[int], trunk: str = "trunk") -> list[int]:
    """The positions of a part of the text, or those that are given, checked."""
    labels = position_labels(model, prompt)
    if trunk not in labels:
        raise ConfigError(f"noise.trunk: this model has no {trunk!r}; it has {' and '.join(labels)}")
    count = len(labels[trunk])
    if isinstance(subject, str):
        return text_positions(model, prompt, subject, trunk)
    places = sorted({place % count for place in subject if -count <= place < count})
    if not places or len(places) < len(set(subject)):
        raise ConfigError(f"subject: positions {list(subject)} of {count}; give some of 0 to {count - 1}, each once")
    return places


def text_positions(model: Any, prompt: Prompt, part: str, trunk: str) -> list[int]:
    """The tokens that have a character of this part of the text, by what each beginning of the ids decodes to."""
    own = trunk == "trunk"
    tokenizer = getattr(model, "output_tokenizer" if own else "tokenizer", None)
    if tokenizer is None or not part:
        raise ConfigError(f"subject: {part!r} cannot be found without a tokenizer and a text; give positions")
    ids = (prompt.ids if own else prompt.given["source"])[0].tolist()
    ends = [len(tokenizer.decode(ids[:i])) for i in range(len(ids) + 1)]
    text = tokenizer.decode(ids)
    if (found := text.count(part)) != 1:
        raise DataError(f"subject: {part!r} stands {found} times in {text!r}; name a part that stands there once, or "
                        "positions")  # fmt: skip
    start = text.index(part)
    return [i for i in range(len(ids)) if ends[i + 1] > start and ends[i] < start + len(part) and ends[i + 1] > ends[i]]
