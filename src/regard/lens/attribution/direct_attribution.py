"""Direct logit attribution (Elhage et al. 2021): a logit as the exact sum of what parts add to the residual stream.

    logit = embed + position + heads + MLPs + biases       norms frozen: their scales are those of this run

The walk goes backwards. It begins with the direction of the final vectors in which the logit grows, takes it through
each frozen norm, and multiplies what every sublayer adds by the direction at its place. In a post-norm model the early
parts pass through all later frozen norms. Attention weights are frozen too: a head has the credit for what it brings
from other tokens, and the parts that wrote it there have none. So a part of zero may still matter, through others.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.core.model import Trunk
from regard.inputs.text import TextEmbedding
from regard.lens.attention_maps import unwrap_model
from regard.lens.attribution.logit_parts import LogitAttribution, LogitPart
from regard.lens.frozen_norm import linear_bias, linear_matrix, pull_through_norm, widen
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import (
    Place,
    Recording,
    Unembedding,
    find_trunk,
    recording,
    residual_places,
)
from regard.lens.stream.predictions import prediction_id, prediction_label
from regard.models.heads import LMHead, PoolingHead
from regard.models.reversible import ReversibleTrunk

Parts = list[tuple[LogitPart, Tensor]]


def attribute_logit(
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt, token: str | int | None = None, *,
    against: str | int | None = None, position: int = -1, source: str | Tensor | None = None,
    pair: str | None = None, neurons: int = 0,
) -> LogitAttribution:  # fmt: skip
    """Attribute the logit of a token or class, or its difference to `against`, to the parts of the model.

    `token` is by itself the likeliest one at `position`; a head that pools has one answer and no position. `neurons`
    names so many units of each MLP, those with the largest contributions.
    """
    model = unwrap_model(model)
    trunk = check_stream_is_sum(model)
    if neurons < 0:
        raise ConfigError(f"neurons: {neurons}; give 0 for whole MLPs, or how many units of each to name")
    prompt = read_prompt(model, prompt, source=source, pair=pair)
    if len(prompt.first) != 1:
        raise DataError(f"prompt: {len(prompt.first)} rows; a logit is attributed for one, so give them one by one")
    pools = isinstance(model.head, PoolingHead)
    rows = None if pools else slice(position, position + 1 or None)
    with recording(model, prompt, *recorded_addresses(model, neurons), queries=rows, deferred=True) as run:
        at = 0 if pools else check_position(run, position)
        decode = Unembedding(model, run.tokens)
        walk = BackwardWalk(trunk, run, slice(None) if pools else slice(at, at + 1), neurons)
        logits = run.logits(slice(at, at + 1))[0, 0]
        token = int(logits.argmax()) if token is None else prediction_id(model, token, "token")
        other = None if against is None else prediction_id(model, against, "against")
        parts = [*walk.head(decode, token, other), *walk.blocks(model), *walk.stem(model)][::-1]
    logit = widen(logits)[token] - (0 if other is None else widen(logits)[other])
    place = "" if pools else token_label(prompt, run, at)
    return LogitAttribution(
        tuple(part for part, _ in parts), torch.stack([value.detach().cpu() for _, value in parts]), float(logit),
        prediction_label(model, token), None if other is None else prediction_label(model, other), place,
    )  # fmt: skip


# ---------------------------------------------------------------- what is asked, and what can be answered


def check_stream_is_sum(model: Any) -> Trunk:
    """The trunk, if what its sublayers make is added up."""
    trunk = find_trunk(model)
    if not trunk.c.residual:
        raise ConfigError("trunk.residual is false: each sublayer's output takes the place of its input, so the logit "
                          "is no sum over parts; attribute a model with residual connections")  # fmt: skip
    return trunk


def token_label(prompt: Prompt, run: Recording, at: int) -> str:
    """The text of a token; its number where the tokens of the trunk are not those of the prompt, as of an image."""
    same = prompt.first.dim() == 2 and len(prompt.labels) == run.tokens.count
    return prompt.labels[at] if same else str(at)


def check_position(run: Recording, position: int) -> int:
    """The position counted from the first token."""
    count = run.tokens.count
    if not -count <= position < count:
        raise DataError(f"position: {position} is outside the prompt of {count} tokens")
    if run.tokens.is_real is not None and not bool(run.tokens.is_real[0, position]):
        raise DataError(f"position: token {position} is padding; name one that is there")
    return position % count


def output_bias(head: Any, index: int) -> Any:
    """The bias of one logit, None where there is none; several classifiers are averaged."""
    layers = [head] if isinstance(head, LMHead) else [head.out, *getattr(head, "others", ())]
    found = [bias[index] for bias in map(linear_bias, layers) if bias is not None]
    return torch.stack(found).mean() if found else None


def recorded_addresses(model: Any, neurons: int) -> Iterator[str]:
    """Every place of the stream, what each sublayer adds, and what its heads or its units give to that."""
    yield "trunk.final"
    for place in residual_places(model)[1:]:
        where = f"trunk.{place.name}"
        yield from (place.address, f"{where}.out")
        if place.part == "mlp":
            yield from (f"{where}.hidden",) if neurons else ()
        elif has_heads(find_sublayer(model.trunk, place)):
            yield f"{where}.result"


def find_sublayer(trunk: Trunk, place: Place) -> Any:
    return getattr(trunk.blocks[place.layer % len(trunk.blocks)], place.part)


def has_heads(sublayer: Any) -> bool:
    return "result" in getattr(sublayer, "sees", ())


# ---------------------------------------------------------------- the walk


class BackwardWalk:
    """From the logit back to the embedding. `direction` (N, D) is that of the rows of the stream which count."""

    direction: Tensor

    def __init__(self, trunk: Trunk, run: Recording, rows: slice, neurons: int) -> None:
        self.trunk, self.run, self.rows, self.neurons = trunk, run, rows, neurons
        self.share = 0.5 if isinstance(trunk, ReversibleTrunk) else 1.0  # each half is added to one of two streams

    def seen(self, address: str) -> Tensor:
        """What was recorded, of the rows that count: without the batch."""
        return widen(self.run.seen[address][0])

    def dot(self, x: Tensor) -> Tensor:
        return (self.direction * x).sum()

    def head(self, decode: Unembedding, token: int, against: int | None) -> Parts:
        """The head's bias, what a head that is not linear has beyond its gradient, and the final norm's bias."""
        x = self.run.seen["trunk.final"].detach().requires_grad_()
        with torch.enable_grad():
            logits = decode.outputs(x, [token] if against is None else [token, against])[0, 0]
            logit = logits[0] - (0 if against is None else logits[1])
            self.direction = widen(torch.autograd.grad(logit, x)[0][0])
        bias = output_bias(decode.head, token)
        if bias is not None and against is not None:
            bias = bias - output_bias(decode.head, against)
        parts = Parts() if bias is None else [(LogitPart("head bias", "head", "bias"), bias)]
        if decode.head.dense is not None:
            rest = widen(logit.detach()) - self.dot(widen(x.detach()[0])) - (0 if bias is None else bias)
            parts.append((LogitPart("remainder", "head", "remainder"), rest))
        if self.trunk.final_norm is not None:
            last = f"trunk.{self.trunk.c.depth - 1}.residual"
            parts += self.through_norm(self.trunk.final_norm, self.seen(last), "final norm bias", "head")
        return parts

    def through_norm(self, norm: Any, x: Tensor, name: str, place: str) -> Parts:
        self.direction, bias = pull_through_norm(norm, x, self.direction)
        return [] if norm.bias is None else [(LogitPart(name, place, "bias"), bias)]

    def blocks(self, model: Any) -> Parts:
        places, parts = residual_places(model), Parts()
        for place, before in zip(places[:0:-1], places[-2::-1], strict=True):
            out, block = self.seen(f"trunk.{place.name}.out"), self.trunk.blocks[place.layer % len(self.trunk.blocks)]
            if self.trunk.c.norm_placement == "post":
                norm = getattr(block, f"{place.part}_norm")
                x = self.seen(before.address) + out
                parts += self.through_norm(norm, x, f"{place.name} norm bias", place.name)
            added = self.heads(place) if has_heads(getattr(block, place.part)) else self.units(place, out)
            parts += [(part, value * self.share) for part, value in reversed(added)]
        return parts

    def heads(self, place: Place) -> Parts:
        """Each head through its slice of the output projection, and the projection's bias."""
        result, out = self.seen(f"trunk.{place.name}.result"), find_sublayer(self.trunk, place).out  # (H, N, e)
        maps = linear_matrix(out, result.shape[0] * result.shape[2]).to(result)
        pulled = (self.direction @ maps.mT).unflatten(-1, (result.shape[0], -1)).transpose(0, 1)
        values = (pulled * result).sum((1, 2))
        parts = [(LogitPart(f"{place.name} head {i}", place.name, "head", i), v) for i, v in enumerate(values)]
        if (bias := linear_bias(out)) is not None:
            parts.append((LogitPart(f"{place.name} bias", place.name, "bias"), self.dot(bias)))
        return parts

    def units(self, place: Place, out: Tensor) -> Parts:
        """The whole of a sublayer without heads; or its strongest units, and the rest with the bias."""
        whole = self.dot(out)
        if not self.neurons or place.part != "mlp":
            return [(LogitPart(place.name, place.name, "mlp" if place.part == "mlp" else "mixer"), whole)]
        hidden, down = self.seen(f"trunk.{place.name}.hidden"), find_sublayer(self.trunk, place).down
        values = ((self.direction @ linear_matrix(down, hidden.shape[-1]).to(hidden).mT) * hidden).sum(0)
        top = values.abs().topk(min(self.neurons, len(values))).indices.tolist()
        parts = [(LogitPart(f"{place.name} unit {i}", place.name, "unit", i), values[i]) for i in top]
        return [*parts, (LogitPart(f"{place.name} rest", place.name, "rest"), whole - values[top].sum())]

    def stem(self, model: Any) -> Parts:
        """The map to the trunk's width, the embedding norm, positions, segments and the front end's vectors."""
        trunk, tokens, parts = self.trunk, self.run.tokens, Parts()
        if trunk.project is not None:
            if (bias := linear_bias(trunk.project)) is not None:
                parts.append((LogitPart("project bias", "embed", "bias"), self.dot(bias)))
            maps = linear_matrix(trunk.project, trunk.project.in_features)
            self.direction = self.direction @ maps.to(self.direction).mT
        if trunk.embed_norm is not None:
            x = trunk.position.embed(tokens.x, tokens)[0, self.rows]
            parts += self.through_norm(trunk.embed_norm, x, "embed norm bias", "embed")
        x, mode = widen(tokens.x[0, self.rows]), trunk.position.mode
        if mode in ("add", "concat"):
            table = trunk.position.table(tokens).to(tokens.x.dtype)[0, self.rows]
            along = self.direction if mode == "add" else self.direction[:, x.shape[-1] :]
            parts.append((LogitPart("position", "embed", "position"), (along * widen(table)).sum()))
            self.direction = self.direction[:, : x.shape[-1]]
        if isinstance(model.embed, TextEmbedding) and model.embed.segments is not None:
            ids = torch.zeros_like(tokens.order) if tokens.segment is None else tokens.segment
            segment = widen(model.embed.segments(ids)[0, self.rows])
            parts.append((LogitPart("segment", "embed", "segment"), self.dot(segment)))
            x = x - segment
        return [*parts, (LogitPart("embed", "embed", "embed"), self.dot(x))]
