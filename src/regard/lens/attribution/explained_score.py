"""The score that an attribution explains: a logit, a probability or a log-probability of one target.

A decoder is explained after its last token, a masked language model at its mask, a classifier as a whole. The target
is the likeliest there unless another is named.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, did_you_mean
from regard.lens.attention_maps import unwrap_model
from regard.lens.attribution.explained_inputs import InputVectors, read_inputs
from regard.lens.prompt import Prompt, token_id
from regard.lens.stream.predictions import class_names
from regard.models.heads import DeferredLogits, LMHead, PoolingHead, PretrainingHead, TokenHead

ScoreKind = Literal["logit", "probability", "log_probability"]
SCORES = ("logit", "probability", "log_probability")


class ExplainedScore:
    """One number of what a model makes of a prompt, as a function of its inputs; call it within evaluation mode."""

    def __init__(
        self, model: Any, prompt: Prompt, *, target: str | int | None = None, position: int | None = None,
        score: ScoreKind = "logit", batch_size: int = 16, slopes: bool = False,
    ) -> None:  # fmt: skip
        """With `slopes` the run that finds the target also gives the gradient at the input itself."""
        if score not in SCORES:
            raise ConfigError(f"score: no score {score!r}{did_you_mean(score, SCORES)} there are {', '.join(SCORES)}")
        self.model, self.prompt, self.kind, self.batch_size = unwrap_model(model), prompt, score, batch_size
        self.inputs: list[InputVectors] = read_inputs(self.model, prompt)
        self.head = explained_head(self.model)
        self.position = None if isinstance(self.head, PoolingHead) else self.find_position(position)
        rows = [each.x.clone().requires_grad_(slopes) for each in self.inputs]
        with torch.set_grad_enabled(slopes):
            logits = self.logits(rows)[0]
        if score != "logit" and len(logits) == 1:
            raise ConfigError(f"score: a model with one output has no {score}; explain its logit")
        self.outputs = len(logits)
        self.target = int(logits.argmax()) if target is None else self.find_target(target)
        with torch.set_grad_enabled(slopes):
            value = self.score_of(logits)
        self.value = float(value)
        if slopes:
            self.slopes = input_gradients(value, rows)

    # ---------------------------------------------------------------- what is explained

    def find_position(self, position: int | None) -> int:
        """The place of the mask if there is one, else the last that is real; numbers below zero count from there."""
        tokens = self.inputs[0].tokens
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.is_real is None else tokens.is_real
        places = real[0].nonzero().flatten().tolist()
        if position is None and (masks := self.mask_places()):
            if len(masks) > 1:
                raise ConfigError(f"position: the prompt has masks at {masks}; say which one is explained")
            return masks[0]
        position = -1 if position is None else position
        if not -len(places) <= position < tokens.count or position >= 0 and position not in places:
            raise ConfigError(f"position: {position} is no token of a prompt of {len(places)}")
        return places[position] if position < 0 else position

    def mask_places(self) -> list[int]:
        mask = getattr(self.inputs[0].tokenizer, "special_ids", {}).get("mask")
        ids = self.prompt.first
        if mask is None or ids.is_floating_point() or not isinstance(self.head, LMHead):
            return []
        return [int(place) for place in (ids.flatten() == mask).nonzero()]

    def find_target(self, target: str | int) -> int:
        if isinstance(self.head, LMHead) and isinstance(target, str):
            return token_id(self.model, target)
        if isinstance(target, str):
            names = self.class_names
            if target not in names:
                raise ConfigError(f"target: no class {target!r}{did_you_mean(target, names)} "
                                  f"there are {', '.join(names)}")  # fmt: skip
            return names.index(target)
        if not 0 <= target < self.outputs:
            raise ConfigError(f"target: {target} is outside of the {self.outputs} outputs of this model")
        return target

    @property
    def class_names(self) -> list[str]:
        """By training, by id2label of a published model, else by number."""
        known = class_names(self.model, self.outputs)
        return [known.get(place, str(place)) for place in range(self.outputs)]

    @property
    def target_label(self) -> str:
        if not isinstance(self.head, LMHead):
            return self.class_names[self.target]
        tokenizer = self.inputs[0].tokenizer
        if tokenizer is None or self.target >= len(tokenizer):
            return str(self.target)
        text: str = tokenizer.token_text(self.target)
        return text

    # ---------------------------------------------------------------- as a function of the inputs

    def logits(self, rows: Sequence[Tensor]) -> Tensor:  # (rows, outputs)
        """Every output at the explained place, for rows of each input; logits of other places are never made."""
        first, *source = (each.pack(x) for each, x in zip(self.inputs, rows, strict=True))
        lm = isinstance(self.head, LMHead) and not self.model.hooks
        given = {"source": source[0]} if source else {}
        out = self.model(first, **given, **({"deferred": True} if lm else {}))
        if isinstance(self.model.head, PretrainingHead):
            out = out[0] if isinstance(self.head, LMHead) else out[1]
        if isinstance(out, DeferredLogits):
            return F.linear(out.x[:, self.position], out.weight, out.bias)
        return out if self.position is None else out[:, self.position]  # type: ignore[no-any-return]

    def scores(self, rows: Sequence[Tensor]) -> Tensor:  # (rows,)
        return self.score_of(self.logits(rows))

    def score_of(self, logits: Tensor) -> Tensor:  # (…, outputs) -> (…)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.kind != "logit":
            logits = logits.softmax(-1) if self.kind == "probability" else logits.log_softmax(-1)
        return logits[..., self.target]

    def score_batches(self, rows: Sequence[Tensor]) -> Tensor:  # (rows,)
        """The same without gradients, a batch at a time."""
        parts = zip(*(x.split(self.batch_size) for x in rows), strict=True)
        return torch.cat([self.scores(part).double() for part in parts])

    def gradients(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of each row's score with respect to that row, for each input."""
        with torch.enable_grad():
            leaves = [x.detach().clone().requires_grad_() for x in rows]
            return input_gradients(self.scores(leaves).sum(), leaves)

    @cached_property
    def slopes(self) -> list[Tensor]:
        """The gradient at the input itself."""
        return self.gradients([each.x for each in self.inputs])

    def readout(self) -> Tensor:  # (N,)
        """How much of each token's last vector the head reads: one token, or several where it pools."""
        tokens = self.inputs[0].tokens
        one = torch.eye(tokens.count, device=tokens.x.device)
        if self.position is not None:
            return one[self.position]
        assert isinstance(self.head, PoolingHead)
        after = range(1 + len(self.head.others))
        return torch.stack([self.head.pick(tokens.with_vectors(one[None]), place)[0] for place in after]).mean(0)


def input_gradients(score: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a score for each input; zero where nothing reads it."""
    found = torch.autograd.grad(score, rows, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(rows, found, strict=True)]


def explained_head(model: Any) -> LMHead | TokenHead | PoolingHead:
    """The part of a head that answers with words or classes; of a pair the words, if there are any."""
    head = model.head
    if isinstance(head, PretrainingHead):
        head = head.lm if isinstance(head.lm, LMHead) else head.pooling
    if not isinstance(head, LMHead | TokenHead | PoolingHead) or getattr(head, "out", True) is None:
        raise ConfigError("head: this model answers with vectors, neither with words nor with classes, so it has no "
                          "target to explain")  # fmt: skip
    return head
