"""Transformer and Trunk: a front end, a trunk of blocks, a head; and an encoder for an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError
from regard.core.cache import KVCache
from regard.core.hooks import Hook, HookContext
from regard.core.init import init_weights
from regard.core.kernels import KERNELS, AttentionSpec, Plan, make_plan
from regard.core.layers import Block, Norm, Scope, compute_dtype, product_dtype
from regard.core.masks import DOCUMENTS, FULL, PADDING, Mask, Prefix, mask
from regard.core.positions import PreparedPosition, build_position
from regard.core.tokens import TokenLayout, Tokens


class Transformer(nn.Module):
    """An encoder, a decoder, or both: the masks and the presence of an `encoder` decide which."""

    def __init__(self, c: config.Transformer) -> None:
        super().__init__()
        self.c = c
        self.trunk = TRUNKS[c.trunk.kind](c.trunk, c.init)
        self.embed = FRONT_ENDS[c.embed.kind](c.embed, self.trunk.incoming)
        self.encoder = TRUNKS[c.encoder.trunk.kind](c.encoder.trunk, c.init) if c.encoder else None
        own = c.encoder is not None and c.encoder.embed
        self.encoder_embed = FRONT_ENDS[own.kind](own, self.encoder.incoming) if own and self.encoder else None
        self.head = HEADS[c.head.kind](c.head, c.trunk, self.embed)
        self.hooks: tuple[Hook, ...] = ()
        self.where = ""
        self.products: torch.dtype | None = None  # of precision "mixed": the device's, unless a run sets it
        for part in (self.head, self.embed, self.encoder_embed or self.embed):  # a tied table: initialised as embedding
            init_weights(part, c.init, c.trunk)
        if c.precision == "bf16":
            self.to(torch.bfloat16)

    def forward(
        self, ids: Tensor | Tokens, *, source: Tensor | Tokens | None = None, source_real: Tensor | None = None,
        cache: KVCache | None = None, deferred: bool = False, runner: BlockRunner | None = None, **given: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Logits (B, N, V), or the head's output, for ids, images or other first input of the front end.

        `given` goes to the front end: for text real, document, segment. Tokens skip the front end. `runner` goes to the
        trunk and `deferred` to the head: an LM head then returns the factors of the logits instead of their product.
        """
        device = (ids.x if isinstance(ids, Tokens) else ids).device.type
        with nullcontext() if (kind := self.autocast()) is None else torch.autocast(device, kind):
            watch = HookContext(self.hooks, self.where) if self.hooks else None
            memory, layers = self.encode(source, source_real, cache, watch)
            start = None if cache is None or cache.fresh else cache.next
            ids = self.embed_inputs("embed", ids, watch, start=start, **given)
            own = {} if runner is None else {"runner": runner}  # passed only if set: not all trunks and heads take them
            made = self.trunk(ids, memory=memory, layers=layers, cache=cache, watch=watch and watch.at("trunk"), **own)
            out = self.head(made, **({"deferred": True} if deferred else {}))
            return watch.apply("logits", out) if watch is not None and isinstance(out, Tensor) else out

    def autocast(self) -> torch.dtype | None:
        """The autocast dtype of fp32 weights under precision "mixed"; None without autocast."""
        weight = next(self.parameters())
        kind = self.products or product_dtype(weight.device.type)
        return kind if self.c.precision == "mixed" and weight.dtype == torch.float32 != kind else None

    def embed_inputs(self, front: str, x: Tensor | Tokens, watch: HookContext | None, **given: Any) -> Any:
        """Raw data as Tokens by a front end, whose own trunk, if it has one, may be hooked too."""
        given = {name: table for name, table in given.items() if table is not None}
        if not isinstance(x, Tokens):
            inside = watch is not None and hasattr(getattr(self, front), "addresses")
            return getattr(self, front)(x, **given, **({"watch": watch.at(front)} if watch and inside else {}))
        if given.keys() - {"start"}:
            raise ConfigError(f"{', '.join(given)}: Tokens carry their own; set them there")
        return x

    def encode(
        self, source: Tensor | Tokens | None, real: Tensor | None, cache: KVCache | None, watch: HookContext | None
    ) -> tuple[Tokens | None, list[Tensor] | None]:
        """The encoder's memory, and its layers one by one if the decoder needs them; both are stored in a cache."""
        if self.encoder is None:
            if source is not None:
                raise ConfigError("source: this model has no encoder")
            return None, None
        if source is None:
            if cache is None or cache.memory is None:
                raise ConfigError("source: an encoder-decoder needs it, at least at the first call of a cache")
            return cache.memory, cache.layers
        keep: list[Tensor] | None = [] if self.c.trunk.cross == "layerwise" else None
        front = "embed" if self.encoder_embed is None else "encoder_embed"
        tokens = self.embed_inputs(front, source, watch, real=real)
        memory = self.encoder(tokens, keep=keep, watch=None if watch is None else watch.at("encoder"))
        if cache is not None:
            cache.set_memory(memory, keep)
        return memory, keep  #: S012

    def cache(self, batch: int, capacity: int) -> KVCache:
        """An empty KV cache of `capacity` tokens in each of `batch` rows, to be passed to every forward call."""
        like = next(self.parameters()).new_empty(0, dtype=self.autocast())
        cache = KVCache(self.trunk.entries(batch, capacity, like), batch, capacity, self.encoder is not None, like)
        leaves = [leaf for each in self.trunk.masks for leaf in each[False, False].leaves]
        cache.first = max((leaf.length for leaf in leaves if isinstance(leaf, Prefix)), default=0)
        return cache

    def addresses(self) -> Iterator[str]:
        for name in ("encoder_embed", "encoder", "embed", "trunk"):
            if hasattr(part := getattr(self, name), "addresses"):
                yield from (f"{self.where}.{name}.{step}".lstrip(".") for step in part.addresses())
        yield f"{self.where}.logits".lstrip(".")


class Trunk(nn.Module):
    """The trunk, a stack of blocks: positions and norm before it, the loop, a final norm after it."""

    runner: BlockRunner  # other kinds of trunk may have their own

    def __init__(self, c: config.Trunk, init: str = "xavier") -> None:
        super().__init__()
        self.c = c
        tables = c.depth if getattr(c.position, "tables", "shared") == "layer" else 1
        wide = c.dim if getattr(c.position, "mode", "") == "qk" else c.embed_dim or c.dim
        positions = (build_position(c.position, wide, c.heads[i], c.head_width) for i in range(tables))
        self.positions = nn.ModuleList(positions)
        extra = self.position.extra
        self.incoming = c.embed_dim or c.dim - extra  # the width of the front end's output
        wide = self.incoming + extra
        self.embed_norm = Norm(c.norm, wide) if c.embed_norm else None
        self.project = nn.Linear(wide, c.dim) if wide != c.dim else None
        self.blocks = nn.ModuleList(Block(c, layer) for layer in range(1 if c.share_layers else c.depth))
        final = c.final_norm if c.final_norm is not None else c.norm_placement == "pre"
        self.final_norm = Norm(c.norm, c.dim) if final else None
        self.masks = [mask_variants(mask(text)) for text in c.masks]
        self.cross_masks = mask_variants(FULL)
        init_weights(self, init, c)

    @property
    def position(self) -> Any:
        return self.positions[0]

    def forward(
        self, tokens: Tokens, *, memory: Tokens | None = None, layers: list[Tensor] | None = None,
        cache: KVCache | None = None, watch: HookContext | None = None, keep: list[Tensor] | None = None,
        runner: BlockRunner | None = None,
    ) -> Tokens:  # fmt: skip
        """Run all blocks. `layers` is the memory layer by layer; `keep` collects each block's output for a decoder."""
        runner = self.runner if runner is None else runner
        slots, keys = (None, tokens) if cache is None else runner.begin(cache, tokens)
        x = self.stem(tokens)
        places: list[PreparedPosition] = [each.prepare(tokens, keys) for each in self.positions]  # type: ignore[operator]
        plans = [runner.plan(self, x, masks, tokens, keys, places[0]) for masks in self.masks]
        across = None if memory is None else runner.plan(self, x, self.cross_masks, tokens, memory, None)
        x, calls = x if watch is None else watch.apply("embed", x), []
        for i in range(self.c.depth):
            scope = Scope(
                plan=plans[i % len(plans)], position=places[i % len(places)], cross_plan=across, cache_slots=slots,
                memory=layers[i] if layers is not None else None if memory is None else memory.x,
                is_first=cache is None or cache.fresh, watch=None if watch is None else watch.at(str(i)),
            )  # fmt: skip
            past = (None, None) if cache is None else (cache.entries[i], cache.across[i] if cache.across else None)
            calls.append((self.blocks[i % len(self.blocks)], scope, past))
        x = runner.run(self, x, calls, keep)
        if cache is not None:
            cache.fresh = False
        x = x if self.final_norm is None else self.final_norm(x)
        return tokens.with_vectors(x if watch is None else watch.apply("final", x))

    def stem(self, tokens: Tokens) -> Tensor:
        """Input stage: positions, norm, dropout, and the projection to dim if the vectors have another width."""
        if tokens.x.shape[-1] != self.incoming:
            raise ConfigError(f"the trunk takes vectors of width {self.incoming}, got {tokens.x.shape[-1]}")
        self.position.check(tokens.longest, tokens.grid)
        x = self.position.embed(tokens.x, tokens)
        x = x if self.embed_norm is None else self.embed_norm(x)
        x = F.dropout(x, self.c.dropout.embed, self.training)
        return x if self.project is None else self.project(x)

    def entries(self, batch: int, capacity: int, like: Tensor) -> list[Any]:
        """An empty cache entry for each layer."""
        for each in (each[False, False] for each in self.masks):
            if each.ahead or not each.tables <= {"order", "is_real"}:
                raise ConfigError(f"trunk.mask {each}: a KV cache needs a causal mask; write causal & ...")
        c = self.c.position
        if getattr(c, "scaling", "") == "dynamic" or getattr(c, "axes", 1) > 1:
            raise ConfigError(f"trunk.position {c.kind!r} on several axes or with dynamic scaling has no cache")
        self.position.check(capacity, None)
        blocks: list[Any] = [self.blocks[i % len(self.blocks)] for i in range(self.c.depth)]
        return [block.attn.entry(batch, capacity, like) for block in blocks]

    def addresses(self) -> Iterator[str]:
        """Every address that `looking` accepts."""
        blocks: list[Any] = [self.blocks[i % len(self.blocks)] for i in range(self.c.depth)]
        yield "embed"
        for i, block in enumerate(blocks):
            yield from (f"{i}.attn.{what}" for what in ("input", *block.attn.sees))
            yield f"{i}.residual_attn"
            yield from (f"{i}.cross.{what}" for what in (("input", *block.cross.sees) if block.cross else ()))
            yield from (f"{i}.residual_cross",) if block.cross else ()
            yield from (f"{i}.mlp.{what}" for what in (("input", "hidden", "out") if block.mlp else ()))
            yield f"{i}.residual"
        yield "final"


class BlockRunner:
    """Runs a trunk's blocks: one after another here; `gpu.decode_step` has a runner with fused kernels."""

    def begin(self, cache: KVCache, tokens: TokenLayout) -> tuple[Tensor, TokenLayout]:
        return cache.begin_step(tokens)

    def plan(
        self, trunk: Trunk, x: Tensor, masks: Masks, q: TokenLayout, k: TokenLayout, place: PreparedPosition | None
    ) -> Plan:
        """The attention plan; padding and document masks are added where tokens have them. `place`: None if cross."""
        if (q.document is None) != (k.document is None):
            raise ConfigError("document: a packed target reads a packed source; give both their documents (Tokens)")
        c = trunk.c
        spec = AttentionSpec(
            mask=masks[k.is_real is not None, k.document is not None], q=q, k=k,
            bias=place is not None and place.biased, dropout=trunk.training and c.dropout.attention > 0,
            grad=torch.is_grad_enabled(), cached=k is not q and not isinstance(k, Tokens), dtype=compute_dtype(x),
            device=x.device.type,
        )  # fmt: skip
        if place is None:
            return make_plan((c.cross_attention or c.attention).kernel, spec)
        if c.mixer.kind != "attention":
            return Plan(KERNELS["reference"], "there is no attention", spec)
        return make_plan(c.attention.kernel, spec, place.bias if len(trunk.positions) == 1 else None, c.heads[0])

    def run(self, trunk: Trunk, x: Tensor, calls: list[BlockCall], keep: list[Tensor] | None) -> Tensor:
        for block, scope, past in calls:
            # hooked blocks run eagerly: each compiled block would be a graph of its own
            x = (block if scope.watch is None else block._call_impl)(x, scope, *past)  # type: ignore[no-untyped-call]
            if keep is not None:
                keep.append(x if trunk.final_norm is None else trunk.final_norm(x))
        return x


Trunk.runner = BlockRunner()
BlockCall = tuple[nn.Module, Scope, tuple[Any, Any]]  # block, its scope, its cache entries
Masks = dict[tuple[bool, bool], Mask]  # (padding, documents) -> mask


def mask_variants(base: Mask) -> Masks:
    """The mask with and without padding and documents, built in advance: forward only picks one."""
    padded, packed = base & PADDING, base & DOCUMENTS
    return {(False, False): base, (True, False): padded, (False, True): packed, (True, True): padded & packed}


# Trunks, front ends and heads by the kind of their config; packages outside core register theirs here.
TRUNKS: dict[str, Callable[[Any, str], Any]] = {"blocks": Trunk}  # (config, name of an initialisation) -> trunk
FRONT_ENDS: dict[str, Callable[[Any, int], Any]] = {}  # (config, output width) -> a module that returns Tokens
HEADS: dict[str, Callable[[Any, Any, Any], nn.Module]] = {}  # (config, trunk config, front end) -> head
