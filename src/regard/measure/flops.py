"""FLOPs of a model, in training and inference: those of its matrix products, which are nearly all.

A product of (m, k) and (k, n) counts 2·m·k·n: a multiplication and an addition each. Attention counts the products of
its kernel (attention/cost.py): dense ones the whole square of queries and keys, although a kernel that skips the causal
half does half of it. Backward counts as twice forward; kernels that recompute their scores do a little more. Norms,
softmax and activation functions are left out: a few percent. Recurrent layers count their matrix products too.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard import config
from regard.attention.cost import AttentionField, GridShape, attention_flops
from regard.core.layers import Attention, Block, CrossAttention
from regard.core.masks import FULL, mask
from regard.core.model import Transformer, Trunk
from regard.inputs.cost import front_end_cost, linear_flops
from regard.measure.fake_model import AnyModel, ModelConfig, count_unit, meta_model
from regard.models.dual_encoder import DualEncoder
from regard.models.heads import head_flops
from regard.models.mixers import reader_flops
from regard.models.recurrent import RecurrentStack
from regard.models.seq2seq import BahdanauAttention

# parts that activation checkpointing recomputes
BLOCKS = ("attention", "looking", "mixing", "cross-attention", "feed-forward", "encoder")
PARTS = ("prepared", "patches", "input", "embedding", "attention", "looking", "mixing", "recurrent", "cross-attention",
         "feed-forward", "encoder", "head")  # fmt: skip
GIVEN = {"prepared": 1, "patches": 2, "input": 2}  # in training, times forward: raw data has no gradients


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of a forward pass by part, for one of the `tokens` units in a sequence.

    An image or a pair is one unit: there tokens is 1. With `recompute`, blocks run once more in training.
    """

    parts: dict[str, float]
    tokens: int = 1
    recompute: bool = False

    @property
    def forward(self) -> float:
        return sum(self.parts.values())

    @property
    def training(self) -> float:
        return sum(training_flops(part, count, self.recompute) for part, count in self.parts.items())

    @property
    def sequence(self) -> float:
        """Forward FLOPs of a whole sequence, image or pair."""
        return self.forward * self.tokens

    @property
    def training_sequence(self) -> float:
        return self.training * self.tokens


def training_flops(part: str, forward: float, recompute: bool = False) -> float:
    """Training FLOPs: forward, and twice that in backward, since each product has two gradients; raw data needs none.

    Recomputed blocks run forward once more, at most: torch skips a last product that no gradient needs.
    """
    return (GIVEN.get(part) or 3 + (recompute and part in BLOCKS)) * forward


def rule_of_thumb(parameters: float, tokens: float, training: bool = True) -> float:  #: S140
    """The rule of thumb: 6·N·D to train N parameters on D tokens, 2·N·D to read them (Kaplan et al. 2020)."""
    return (6 if training else 2) * parameters * tokens


def count_flops(
    model: AnyModel | ModelConfig, context: int, source: int | None = None, recompute: bool = False
) -> FlopCount:
    """Count the FLOPs for sequences of `context` tokens; an encoder reads `source` tokens, by default as many."""
    shape = meta_model(model)
    count = context if count_unit(shape.c) == "token" else 1
    found = (
        dual_encoder_flops(shape, context) if isinstance(shape, DualEncoder) else sequence_flops(shape, context, source)
    )
    return FlopCount({name: found[name] / count for name in PARTS if found[name]}, count, recompute)


def dual_encoder_flops(shape: DualEncoder, context: int) -> Counter[str]:
    """FLOPs of all towers, and of the product of their vectors."""
    found = Counter[str]()
    for tower in shape.towers:
        found.update(sequence_flops(tower, context))
    width = max(getattr(tower.c.head, "out", None) or tower.c.trunk.dim for tower in shape.towers)
    return found + Counter({"head": 2 * width})


def sequence_flops(shape: Transformer, context: int, source: int | None = None) -> Counter[str]:
    """FLOPs of one example, a text or any other input, through a whole model."""
    seen = front_end_cost(shape.embed, context, inner_trunk_flops)
    found, read = seen.parts, 0
    if shape.encoder is not None:
        before = front_end_cost(shape.encoder_embed or shape.embed, source or context, inner_trunk_flops)
        found["patches"] += before.parts.pop("patches", 0)
        inside = before.parts + trunk_flops(shape.encoder, before.tokens, grid=before.grid)
        found["encoder"], read = sum(inside.values()), before.tokens
    rest = trunk_flops(shape.trunk, seen.tokens, read, seen.grid) + Counter(
        {"head": head_flops(shape.head, seen.tokens)}
    )
    return found + Counter({name: seen.rows * count for name, count in rest.items()})


def inner_trunk_flops(trunk: Trunk | RecurrentStack, tokens: int, grid: GridShape) -> Counter[str]:
    """FLOPs of one sequence through a trunk inside a front end."""
    return trunk_flops(trunk, tokens, grid=grid)


def trunk_flops(trunk: Trunk | RecurrentStack, queries: int, memory: int = 0, grid: GridShape = None) -> Counter[str]:
    """FLOPs of one sequence through a trunk: projections by their weights, attention by its kernel."""
    if isinstance(trunk, RecurrentStack):
        return trunk.flops(queries, memory)
    found = Counter({"embedding": 0 if trunk.project is None else linear_flops(trunk.project, queries)})
    if prepared := getattr(trunk.position, "prepared_flops", None):
        found["prepared"] += prepared(queries)
    scored = getattr(trunk.position, "score_flops", None)
    for i in range(trunk.c.depth):
        block = trunk.blocks[i % len(trunk.blocks)]
        assert isinstance(block, Block)
        if isinstance(block.attn, Attention):
            found["attention"] += projection_flops(block.attn, queries)
            found["looking"] += attention_flops(
                block.attn, attention_field(trunk.c, i, queries, grid), trunk.c.attention.kernel
            )
            found["looking"] += 0 if scored is None else scored(block.attn.heads, block.attn.head_dim, queries)
        else:
            found["mixing"] += reader_flops(block.attn, queries)
        found["feed-forward"] += 0 if block.mlp is None else linear_flops(block.mlp, queries)
        if block.cross is not None:
            kernel = (trunk.c.cross_attention or trunk.c.attention).kernel
            found["cross-attention"] += cross_attention_flops(block.cross, queries, memory, kernel)
    return found


BIASED_POSITIONS = ("alibi", "t5", "shaw", "relative", "graph_distance", "conv_like")  # these add to attention scores


def attention_field(c: config.Trunk, layer: int, tokens: int, grid: GridShape = None) -> AttentionField:
    """The shape of the attention of one layer, for its cost."""
    return AttentionField(
        tokens, tokens, mask(c.masks[layer % len(c.masks)]), c.position.kind in BIASED_POSITIONS, grid
    )


def projection_flops(attention: Attention, tokens: int) -> int:
    """FLOPs of the projections q, k, v and out; a kernel's own weights count as attention."""
    return linear_flops(attention, tokens) - (0 if attention.own is None else linear_flops(attention.own, tokens))


def cross_attention_flops(cross: CrossAttention, queries: int, memory: int, kernel: str) -> int:
    """FLOPs of cross-attention: keys and values come from the memory, everything else from the queries."""
    given = 0 if cross.kv is None else linear_flops(cross.kv, memory) - linear_flops(cross.kv, queries)
    return (
        projection_flops(cross, queries) + given + attention_flops(cross, AttentionField(queries, memory, FULL), kernel)
    )


def recurrent_rows(name: str, stack: RecurrentStack) -> Iterator[tuple[str, str, int]]:
    """The rows of a recurrent stack in `explain`: part, shape, parameters."""

    def count(part: Any) -> int:
        return sum(weight.numel() for weight in part.parameters())

    c, ways = stack.c, " both ways" if stack.c.mask == "full" else ""
    if stack.project is not None:
        yield f"{name}.project", f"{stack.incoming} -> {c.dim}", count(stack.project)
    if stack.fixed is not None:
        yield f"{name}.fixed", "one vector for a whole source", count(stack.fixed)
    for i, block in enumerate(stack.blocks):
        seen = f", {c.kernel_size} places {c.dilation**i} apart" if c.cell == "cnn" else ""
        looks = ", looking at the source before each step" if isinstance(block, BahdanauAttention) else ""
        yield f"{name}.{i}", f"{c.cell}, {c.dim} wide{ways}{seen}{looks}", count(block)
    if stack.final_norm is not None:
        yield f"{name}.final_norm", c.norm.kind, count(stack.final_norm)
