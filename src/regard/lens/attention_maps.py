"""Attention maps of every layer while a model reads an input: attention weights, and what the mask allows.

    for view in attention_views(model, ids):
        view.where                  trunk.3.attn; encoder.0.attn, trunk.2.cross, towers.0.trunk.1.attn, embed.0.1.attn
        view.pattern, view.visible  (B, H, Q, K), (B, Q, K)

`attention_views` passes its arguments to the model: ids, a source, images. Recording changes no bit of its output.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import parse_call
from regard.core.hooks import looking
from regard.core.kernels import KERNELS
from regard.core.layers import Attention
from regard.core.model import Trunk
from regard.core.tokens import Tokens
from regard.inputs.image import PatchEmbedding
from regard.inputs.text import TextEmbedding
from regard.lens.result import LensResult, Picture, Table
from regard.models.heads import can_defer_logits
from regard.models.recurrent import RecurrentStack


@dataclass(frozen=True, eq=False)
class TrunkInput:
    """What a trunk reads: where its tokens stand, which are real, and the ids they were made of, if of any."""

    order: Tensor  # (B, N)
    real: Tensor  # (B, N)
    at: Tensor  # (B, N, axes); nan for a token that stands nowhere, as the learned one before an image
    ids: Tensor | None = None  # (B, N)
    image: bool = False


@dataclass(frozen=True, eq=False)
class AttentionView(LensResult):
    """One attention at work. `marks` (B, K) are delimiters among the keys; `causal`: no query sees later keys.

    `view.plot("map.png")` draws it and `view.to_json()` has every weight, both of the first row; `picture(head)` is one
    head, the mean of all heads unless said.
    """

    where: str
    pattern: Tensor  # (B, H, Q, K), rows sum to one
    visible: Tensor  # (B, Q, K)
    q: TrunkInput
    k: TrunkInput
    causal: bool = False
    marks: Tensor | None = None

    def table(self) -> Table:
        rows = tuple(
            (head, query, key, weight)
            for head, maps in enumerate(self.pattern[0].tolist())
            for query, weights in enumerate(maps)
            for key, weight in enumerate(weights)
            if self.visible[0, query, key]
        )
        return Table(f"Where does {self.where} look?", ("head", "query", "key", "attention"), rows)

    def picture(self, head: int | None = None) -> Picture:
        heads = self.pattern.shape[1]
        if head is not None and not 0 <= head < heads:
            raise config.ConfigError(f"head: {self.where} has {heads} heads, and {head} was asked for")
        values = self.pattern[0].mean(0) if head is None else self.pattern[0, head]
        title = f"Where does {self.where} look ({f'mean of {heads} heads' if head is None else f'head {head}'})?"
        rows, columns = (list(map(str, range(count))) for count in values.shape)
        return Picture("grid", title, values, rows, columns, "attention")

    @property
    def own(self) -> bool:
        """Tokens look at each other; else across, at what an encoder made."""
        return self.q is self.k

    @cached_property
    def rows(self) -> Tensor:  # (B, Q)
        """The queries that count: neither padding, nor queries without a visible key."""
        return self.q.real & self.visible.any(-1)

    @cached_property
    def choice(self) -> Tensor:  # (B, Q)
        """The queries that see more than one token: the others have nothing to decide."""
        return self.q.real & (self.visible.sum(-1) > 1)


def attention_views(model: Any, *inputs: Any, marks: Collection[int] = (), **named: Any) -> list[AttentionView]:
    """An AttentionView for every attention, in the order of the walk; `marks` are the ids of delimiters."""
    if why := why_not_watchable(model):
        raise config.ConfigError(why)
    model = unwrap_model(model)
    for x in inputs:
        if not isinstance(x, Tensor | Tokens):
            raise config.ConfigError(f"inputs: expected tensors as the model takes them, got {type(x).__name__}; of a "
                                     "text prompt = lens.read_prompt(model, text) has them: prompt.first, "
                                     "**prompt.given")  # fmt: skip
    if inputs and isinstance(inputs[0], Tensor) and hasattr(model, "embed"):
        check_ids(model.embed, inputs[0], "inputs")
    device = next(model.parameters()).device
    inputs = tuple(to_model_device(x, device) for x in inputs)
    if can_defer_logits(model):
        named["deferred"] = True  # no logits are asked for
    with evaluation_mode(model), record_trunk_inputs(model) as notes, looking(model, "*.pattern") as seen:
        model(*inputs, **{name: to_model_device(x, device) for name, x in named.items()})
        return [build_view(address.removesuffix(".pattern"), seen[address], notes, marks) for address in seen]


def attention_patterns(model: Any, *inputs: Any, **named: Any) -> list[Tensor]:
    """Where the heads of every attention look: a (B, H, Q, K) for each."""
    return [view.pattern for view in attention_views(model, *inputs, **named)]


def why_not_watchable(model: Any) -> str:
    """Why the heads of a model cannot be watched, in words, or nothing."""
    model = unwrap_model(model)
    if not any(address.endswith(".result") for address in model.addresses()):
        return "this model has no attention, so there are no heads to look at"
    if any(isinstance(part, RecurrentStack) for part in model.modules()):
        return "a recurrent stack has no heads, and those beside it are not looked at alone"
    for where, trunk in find_trunks(model).items():
        kernel = trunk.c.attention.kernel
        name, _ = parse_call(kernel)
        if name != "auto" and not KERNELS[name].exact:
            return f"{where}.attention.kernel: {kernel!r} has no table of attention weights; set it to auto"
    return ""


def to_model_device(x: Any, device: torch.device) -> Any:
    return x.to(device) if isinstance(x, Tensor) else x


def build_view(where: str, pattern: Tensor, notes: "dict[str, TrunkNote]", marks: Collection[int]) -> AttentionView:
    trunk, layer, side = where.rsplit(".", 2)
    note, own = notes[trunk], side == "attn"
    beside = note if own else notes[trunk.removesuffix("trunk") + "encoder"]
    keys = note.tokens if own else note.memory
    assert keys is not None
    masks = note.trunk.masks[int(layer) % len(note.trunk.masks)] if own else note.trunk.cross_masks
    mask = masks[keys.is_real is not None, keys.document is not None]
    table = mask.table(note.tokens, keys).expand(note.tokens.batch, note.tokens.count, keys.count)
    ids, shares = beside.read.ids, pattern.float().cpu()
    return AttentionView(
        where, shares / shares.sum(-1, keepdim=True).clamp(min=1e-9),  # bf16 rows sum to nearly one
        table.cpu(), note.read, beside.read, own and not mask.ahead,
        None if ids is None or not marks else torch.isin(ids, torch.tensor(sorted(marks))),
    )  # fmt: skip


# ---------------------------------------------------------------- the model while it is looked at


def unwrap_model(model: Any) -> Any:
    """The model itself, from within torch.compile and the wrappers of trainers."""
    for wrapper in ("_orig_mod", "module"):
        model = getattr(model, wrapper, model)
    if not isinstance(model, nn.Module):
        raise config.ConfigError(f"model: expected a model, got {type(model).__name__}; regard.load opens one")
    return model


def check_ids(front: Any, x: Tensor, name: str) -> None:
    """Refuse what a table of words cannot look up: numbers that are no ids, and ids beyond it."""
    front = getattr(front, "text", front)  # of chunks, or of a text after an image
    if not isinstance(front, TextEmbedding):
        return
    if x.is_floating_point() or x.dtype == torch.bool:
        raise config.ConfigError(f"{name}: this model reads ids of tokens, and got {x.dtype}; give whole numbers")
    vocab = front.tokens.num_embeddings
    if (strange := x[(x < 0) | (x >= vocab)]).numel():
        raise config.DataError(f"{name}: id {int(strange[0])} is outside the model's vocabulary of {vocab}; use the "
                               "tokenizer of its training")  # fmt: skip


def find_trunks(model: nn.Module) -> dict[str, Trunk]:
    """Every trunk by its address in the walk; a front end's own has its name, and its stages are numbered under it."""
    named = ((name, part) for name, part in model.named_modules() if isinstance(part, Trunk))
    return {name.replace("embed.trunks.", "embed.").replace("embed.trunk", "embed"): part for name, part in named}


def find_attentions(model: Any) -> dict[str, Attention]:
    """Every attention by its address, in the order of the walk; a shared one has several addresses."""
    known, found = find_trunks(model), {}
    for address in model.addresses():
        if address.endswith(".result"):
            where = address.removesuffix(".result")
            trunk, layer, side = where.rsplit(".", 2)
            blocks = known[trunk].blocks
            found[where] = getattr(blocks[int(layer) % len(blocks)], side)
    return found


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout, no gradients, nothing compiled anew; every part is left in the mode it was in."""
    training = [part for part in model.modules() if part.training]
    try:
        model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for part in training:
            part.training = True


@dataclass(frozen=True, eq=False)
class TrunkNote:
    """What a trunk was given last."""

    trunk: Trunk
    tokens: Tokens
    memory: Tokens | None
    given: Tensor | config.PatchEmbedding | None

    @cached_property
    def read(self) -> TrunkInput:
        tokens, given = self.tokens, self.given
        ids = given.cpu() if isinstance(given, Tensor) and given.shape == tokens.order.shape else None
        real = torch.ones_like(tokens.order, dtype=torch.bool) if tokens.is_real is None else tokens.is_real
        at = tokens.coordinates.expand(*tokens.order.shape, -1).float()
        if isinstance(given, config.PatchEmbedding) and given.cls_tokens:
            at = patch_coordinates(given.side, int(given.cls_tokens)).expand(tokens.batch, -1, -1)
        image = tokens.grid is not None or isinstance(given, config.PatchEmbedding)
        return TrunkInput(tokens.order.cpu(), real.cpu(), at.cpu(), ids, image)


def patch_coordinates(side: int, learned: int = 1) -> Tensor:  # (learned + side·side, 2)
    """Rows and columns of square patches, after learned tokens that have none."""
    grid = torch.cartesian_prod(torch.arange(float(side)), torch.arange(float(side)))
    return torch.cat([torch.full((learned, 2), torch.nan), grid])


@contextmanager
def record_trunk_inputs(model: nn.Module) -> Iterator[dict[str, TrunkNote]]:
    """What each watched trunk is given, by its address, and what its front end made that of: `raw`, the last it saw.

    By hooks, which compiled code would pass over: for use where nothing is compiled.
    """
    notes: dict[str, TrunkNote] = {}
    raw: list[Tensor | config.PatchEmbedding] = []

    def begin(trunk: Any, args: Any, named: Any) -> None:
        given = raw.pop() if raw else None
        if named.get("watch") is not None:
            notes[named["watch"].where] = TrunkNote(trunk, args[0], named.get("memory"), given)

    def look_up(table: Any, args: Any) -> None:
        raw[:] = args

    def cut(front: Any, args: Any) -> None:
        raw[:] = [front.c]

    hooks = []
    for part in model.modules():
        if isinstance(part, Trunk):
            hooks.append(part.register_forward_pre_hook(begin, with_kwargs=True))
        elif isinstance(part, TextEmbedding):
            hooks.append(part.tokens.register_forward_pre_hook(look_up))
        elif isinstance(part, PatchEmbedding):
            hooks.append(part.register_forward_pre_hook(cut))
    try:
        yield notes
    finally:
        for hook in hooks:
            hook.remove()
