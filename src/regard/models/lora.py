"""LoRA (Hu et al. 2021): a map stays as it is and learns its change as the product of two thin matrices.

    x ──┬───── W ────── + ──►        W: out x in, A: r x in, B: out x r
        └─ A ──── B ─·s─┘            B begins as zeros, so that no answer changes

A map that wears adapters is the same object, of a class that adds them: its weight keeps its name, and its parts and
everything that is said of it stay. Not an adapter's business: tables of tokens, convolutions, and a head that shares
its weight with the embedding, since its change would be of both.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.names import did_you_mean
from regard.core.layers import Fused
from regard.core.tokens import Tokens
from regard.heads import Hidden, Vocabulary

WHOLE = "map"  # the name of an adapter that is for all parts of a map


class Low(nn.Module):
    """s·B(A x): the change of some parts of a map. `dropout` is on x, while it learns."""

    def __init__(self, weight: Tensor, out: int, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        a = nn.init.kaiming_uniform_(torch.empty(rank, weight.shape[1]), a=math.sqrt(5))
        self.a, self.b = nn.Parameter(a.to(weight)), nn.Parameter(weight.new_zeros(out, rank))
        self.scale, self.dropout = scale, dropout

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(F.dropout(x, self.dropout, self.training), self.a), self.b) * self.scale

    def product(self) -> Tensor:
        """The change itself, as large as the map."""
        return self.scale * (self.b.detach().float() @ self.a.detach().float())


# ---------------------------------------------------------------- maps that wear adapters


class AdaptedLinear(nn.Linear):
    """One map and its change."""

    lora: Any  # a ModuleDict of Lows

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        for low in self.lora.values():
            made = made + low(x)
        return made


class AdaptedFused(Fused):
    """Several maps, some of them with a change of their own, or all with one."""

    lora: Any  # a ModuleDict of Lows

    def forward(self, x: Tensor) -> Tensor:
        made = list(self.split(x).values())
        return made[0] if len(made) == 1 else torch.cat(made, -1)

    def split(self, x: Tensor) -> dict[str, Tensor]:
        made = F.linear(x, self.weight, self.full_bias()).split(list(self.sizes.values()), -1)
        return self.changed(dict(zip(self.sizes, made, strict=True)), x)

    def only(self, x: Tensor, *names: str) -> dict[str, Tensor]:
        return self.changed(super().only(x, *names), x)

    def changed(self, made: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        for name, low in self.lora.items():
            parts = {part: size for part, size in self.sizes.items() if name in (part, WHOLE)}
            if made.keys() & parts:
                changes = zip(parts, low(x).split(list(parts.values()), -1), strict=True)
                made |= {part: made[part] + change for part, change in changes if part in made}
        return made


class AdaptedVocabulary(Vocabulary, AdaptedFused):
    """Logits and their change. Held back, they are one product still: x W' + s·x A' B' = [x, s·x A'] [W, B]'."""

    def forward(self, tokens: Tokens) -> Tensor | Hidden:  # type: ignore[override]
        made = super().forward(tokens)
        if not isinstance(made, Hidden):
            return made
        x, weight = made.x, made.weight
        for low in self.lora.values():
            thin = low.scale * F.linear(F.dropout(made.x, low.dropout, self.training), low.a.to(made.x.dtype))
            x, weight = torch.cat([x, thin], -1), torch.cat([weight, low.b.to(weight.dtype)], -1)
        return Hidden(x, weight, made.bias)


ADAPTED: dict[type, type] = {nn.Linear: AdaptedLinear, Fused: AdaptedFused, Vocabulary: AdaptedVocabulary}
PLAIN = {adapted: plain for plain, adapted in ADAPTED.items()}


def put(module: Any, name: str, low: Low) -> None:
    """Let a map wear one more adapter: for the part of that name, or for all of it."""
    if type(module) not in PLAIN:
        module.__class__, module.lora = ADAPTED[type(module)], nn.ModuleDict()
    module.lora[name] = low.train(module.training)


def worn(model: nn.Module) -> dict[str, Any]:
    """The maps that wear adapters, by their names."""
    return {path: part for path, part in model.named_modules() if type(part) in PLAIN}


def rows(module: nn.Module, name: str) -> slice:
    """The rows of a map's weight that an adapter of this name changes."""
    if name == WHOLE or not isinstance(module, Fused):
        return slice(None)
    before = list(module.sizes).index(name)
    start = sum(list(module.sizes.values())[:before])
    return slice(start, start + module.sizes[name])


def learned(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of the adapters, by their names."""
    return {f"{path}.lora.{name}": weight for path, part in worn(model).items()
            for name, weight in part.lora.named_parameters()}  # fmt: skip


# ---------------------------------------------------------------- where they can be


class Spot(NamedTuple):
    """A place for an adapter: a map of the model, and one of its parts, or WHOLE."""

    path: str
    part: str
    out: int


def spots(model: nn.Module) -> dict[str, Spot]:
    """Every place by its address: `trunk.blocks.0.attn.q` and `trunk.blocks.0.attn.qkv`, `trunk.blocks.0.mlp.down`."""
    found: dict[str, Spot] = {}
    for path, part in model.named_modules():
        if (type(part) not in ADAPTED and type(part) not in PLAIN) or ".own." in f"{path}.":  # a kernel's: used as is
            continue
        assert isinstance(part, nn.Linear)
        found.setdefault(path, Spot(path, WHOLE, part.out_features))
        if isinstance(part, Fused) and len(part.sizes) > 1:
            above = path.rpartition(".")[0]
            found |= {f"{above}.{name}": Spot(path, name, size) for name, size in part.sizes.items()}
    return found


def chosen(model: nn.Module, targets: Iterable[str]) -> dict[str, Spot]:
    """The places that targets name, each by the end of its address."""
    every, found = spots(model), dict[str, Spot]()
    for target in targets:
        here = {address: spot for address, spot in every.items() if ends(address.split("."), target.split("."))}
        apart = {spot.path for spot in here.values() if spot.part != WHOLE}
        here = {address: spot for address, spot in here.items() if spot.part != WHOLE or spot.path not in apart}
        if not here:
            words = list(dict.fromkeys(address.rpartition(".")[2] for address in every))
            raise config.ConfigError(f"lora.targets: no map {target!r} in the model{did_you_mean(target, words)} there "
                                     f"are {', '.join(words) or 'none'}")  # fmt: skip
        found |= here
    twice = {spot.path for spot in found.values() if spot.part == WHOLE}
    if both := [address for address, spot in found.items() if spot.part != WHOLE and spot.path in twice]:
        raise config.ConfigError(f"lora.targets: {both[0]} twice, by itself and with all of its map; leave out one")
    return found


def ends(steps: list[str], asked: list[str]) -> bool:
    last = steps[-len(asked) :]
    return len(last) == len(asked) and all(fnmatchcase(*pair) for pair in zip(last, asked, strict=True))


def tied(model: nn.Module, path: str) -> bool:
    """Whether a map's weight is also somebody else's."""
    weight = model.get_parameter(f"{path}.weight")
    return sum(other is weight for _, other in model.named_parameters(remove_duplicate=False)) > 1


def weights(model: nn.Module, parts: Iterable[str]) -> set[str]:
    """The names of the weights that are these parts of a model, or lie inside of them."""
    every, found = [name for name, _ in model.named_parameters(remove_duplicate=False)], set[str]()
    for part in parts:
        steps = part.split(".")
        here = {name for name in every if ends(name.split(".")[: len(steps)], steps)}
        if not here:
            known = [name for name, _ in model.named_children()]
            raise config.ConfigError(f"lora.whole: no part {part!r} in the model{did_you_mean(part, known)} its parts "
                                     f"are {', '.join(known)}, and what is inside of them")  # fmt: skip
        found |= here
    return found


def adapt(model: nn.Module, c: config.LoRA) -> None:
    """Put fresh adapters on, which alone learn from now on, and with them what is to learn whole."""
    alone = weights(model, c.whole or ())
    if worn(model):
        raise config.ConfigError("lora: the model wears adapters already; merge them first")
    places = {address: spot for address, spot in chosen(model, c.targets).items() if f"{spot.path}.weight" not in alone}
    if not places:
        raise config.ConfigError(f"lora.targets: {', '.join(c.targets)} learn whole, and need no adapter; name others")
    if shared := [address for address, spot in places.items() if tied(model, spot.path)]:
        raise config.ConfigError(f"lora.targets: {shared[0]} shares its weight with another part of the model, and a "
                                 "change would be of both; leave it out")  # fmt: skip
    for path, part, out in places.values():
        module: Any = model.get_submodule(path)
        put(module, part, Low(module.weight, out, c.rank, c.alpha / c.rank, c.dropout))
    learn(model, alone)


def learn(model: nn.Module, whole: Iterable[str] = ()) -> None:
    """Let adapters learn, and the weights of these names; all others stay as they are."""
    every = dict(model.named_parameters(remove_duplicate=False))
    some = {id(every[name]) for name in (*whole, *learned(model))}
    for weight in every.values():
        weight.requires_grad_(id(weight) in some)


# ---------------------------------------------------------------- without them


def off(model: nn.Module) -> list[tuple[Any, Any]]:
    """Take all adapters off; the maps that wore them, with what they wore."""
    found = [(part, part.lora) for part in worn(model).values()]
    for part, _ in found:
        del part.lora
        part.__class__ = PLAIN[type(part)]
    return found


def on(taken: Iterable[tuple[Any, Any]]) -> None:
    """Put them on again."""
    for part, lora in taken:
        part.__class__, part.lora = ADAPTED[type(part)], lora


@contextmanager
def aside(model: nn.Module) -> Iterator[None]:
    """Inside, the model is the one that the adapters were put on."""
    taken = off(model)
    try:
        yield
    finally:
        on(taken)


@torch.no_grad()
def fold(taken: Iterable[tuple[Any, Any]]) -> None:
    """Make changes that were taken off part of the weights."""
    for part, lora in taken:
        for name, low in lora.items():
            weight = part.weight[rows(part, name)]
            weight.copy_(weight.float() + low.product())


def merge(model: nn.Module) -> None:
    """The same answers without adapters: their changes become part of the weights, and all of them may learn again."""
    fold(off(model))
    for weight in model.parameters():
        weight.requires_grad_(True)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Inside, the model is an ordinary one with the same answers; afterwards it is as it was, bit for bit."""
    taken = off(model)
    before = [part.weight.detach().clone() for part, _ in taken]
    fold(taken)
    try:
        yield
    finally:
        for (part, _), weight in zip(taken, before, strict=True):
            part.weight.detach().copy_(weight)
        on(taken)
