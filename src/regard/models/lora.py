"""LoRA adapters (Hu et al. 2021): a linear layer is frozen and its change is learned as a product of two thin matrices.

    x ──┬───── W ────── + ──►        W: out x in, A: r x in, B: out x r
        └─ A ──── B ─·s─┘            B is initialised to zero: no output changes

A layer with adapters replaces the plain one and shares its parameters: names, ties and optimizers are unaffected.
Saving computes merged weights without changing the model. Not adapted: token embeddings, convolutions, and a head tied
to the embedding, since its change would affect both.
"""

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import ConfigError, did_you_mean
from regard.core.layers import FusedLinear
from regard.core.tokens import Tokens
from regard.models.heads import DeferredLogits, LMHead
from regard.models.shared_module import shared_module

WHOLE_LINEAR = "map"  # the name of an adapter for all parts of a fused linear layer


class LowRankUpdate(nn.Module):
    """Low-rank update s·B(A x) of some parts of a linear layer. In training `dropout` applies to x."""

    def __init__(self, weight: Tensor, out: int, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        a = nn.init.kaiming_uniform_(torch.empty(rank, weight.shape[1]), a=math.sqrt(5))
        self.a, self.b = nn.Parameter(a.to(weight)), nn.Parameter(weight.new_zeros(out, rank))
        self.scale, self.dropout = scale, dropout

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(F.dropout(x, self.dropout, self.training), self.a), self.b) * self.scale

    def product(self) -> Tensor:
        """The update s·B A as a full matrix."""
        return self.scale * (self.b.detach().float() @ self.a.detach().float())


# ---------------------------------------------------------------- layers with adapters


class LoRALinear(nn.Linear):
    """A linear layer with a low-rank update."""

    lora: Any  # a ModuleDict of LowRankUpdate

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        for low in self.lora.values():
            made = made + low(x)
        return made


class LoRAFusedLinear(FusedLinear):
    """A fused linear layer with an update for some of its parts, or for all together."""

    lora: Any  # a ModuleDict of LowRankUpdate

    def forward(self, x: Tensor) -> Tensor:
        made = list(self.split(x).values())
        return made[0] if len(made) == 1 else torch.cat(made, -1)

    def split(self, x: Tensor) -> dict[str, Tensor]:
        made = F.linear(x, self.weight, self.full_bias()).split(list(self.sizes.values()), -1)
        return self.add_updates(dict(zip(self.sizes, made, strict=True)), x)

    def project_only(self, x: Tensor, *names: str) -> dict[str, Tensor]:
        return self.add_updates(super().project_only(x, *names), x)

    def add_updates(self, parts_out: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        for name, low in self.lora.items():
            parts = {part: size for part, size in self.sizes.items() if name in (part, WHOLE_LINEAR)}
            if parts_out.keys() & parts:
                changes = zip(parts, low(x).split(list(parts.values()), -1), strict=True)
                parts_out |= {part: parts_out[part] + change for part, change in changes if part in parts_out}
        return parts_out


class LoRALMHead(LMHead, LoRAFusedLinear):
    """An LM head with an update. Deferred logits stay a single product: x W' + s·x A' B' = [x, s·x A'] [W, B]'."""

    def forward(self, tokens: Tokens, deferred: bool = False) -> Tensor | DeferredLogits:  # type: ignore[override]
        made = super().forward(tokens, deferred)
        if not isinstance(made, DeferredLogits):
            return made
        x, weight = made.x, made.weight
        for low in self.lora.values():
            thin = low.scale * F.linear(F.dropout(made.x, low.dropout, self.training), low.a.to(made.x.dtype))
            x, weight = torch.cat([x, thin], -1), torch.cat([weight, low.b.to(weight.dtype)], -1)
        return DeferredLogits(x, weight, made.bias)


ADAPTED_TYPES: dict[type, type] = {nn.Linear: LoRALinear, FusedLinear: LoRAFusedLinear, LMHead: LoRALMHead}
PLAIN_TYPES = {adapted: plain for plain, adapted in ADAPTED_TYPES.items()}


def wrap_layer(layer: nn.Module) -> Any:
    """A layer that can hold adapters and shares the parameters of a plain one."""
    new = shared_module(ADAPTED_TYPES[type(layer)], layer)
    new.lora = nn.ModuleDict()
    return new


def unwrap_layer(layer: nn.Module) -> Any:
    """The plain layer of one with adapters, with the same parameters."""
    new = shared_module(PLAIN_TYPES[type(layer)], layer)
    del new.lora
    return new


def replace_module(model: nn.Module, path: str, new: nn.Module) -> None:
    """Replace a module; raises if it has torch forward hooks, which would be lost."""
    check_no_hooks(model, [path])
    model.set_submodule(path, new)


def check_no_hooks(model: nn.Module, paths: Iterable[str]) -> None:
    for path in paths:
        part = model.get_submodule(path)
        if part._forward_hooks or part._forward_pre_hooks:
            raise ConfigError(f"{path}: a forward hook is on this layer, and would be lost when it is replaced by "
                              "one with adapters or without; remove the hook first")  # fmt: skip


def attach_adapter(model: nn.Module, path: str, part: str, low: LowRankUpdate) -> None:
    """Attach an adapter to a linear layer: for the part of that name, or for all of it."""
    layer: Any = model.get_submodule(path)
    if type(layer) not in PLAIN_TYPES:
        layer = wrap_layer(layer)
        replace_module(model, path, layer)
    layer.lora[part] = low.train(layer.training)


def adapted_modules(model: nn.Module) -> dict[str, Any]:
    """The layers with adapters, by name."""
    return {path: part for path, part in model.named_modules() if type(part) in PLAIN_TYPES}


def adapter_rows(module: nn.Module, name: str) -> slice:
    """The rows of a layer's weight that an adapter of this name changes."""
    if name == WHOLE_LINEAR or not isinstance(module, FusedLinear):
        return slice(None)
    before = list(module.sizes).index(name)
    start = sum(list(module.sizes.values())[:before])
    return slice(start, start + module.sizes[name])


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapter weights, by name."""
    return {f"{path}.lora.{name}": weight for path, part in adapted_modules(model).items()
            for name, weight in part.lora.named_parameters()}  # fmt: skip


# ---------------------------------------------------------------- adapter targets


class AdapterTarget(NamedTuple):
    """A place for an adapter: a linear layer, and one of its parts or WHOLE_LINEAR."""

    path: str
    part: str
    out: int


def adapter_targets(model: nn.Module) -> dict[str, AdapterTarget]:
    """Every adapter target by address: `trunk.blocks.0.attn.q` and `trunk.blocks.0.attn.qkv`,
    `trunk.blocks.0.mlp.down`."""
    found: dict[str, AdapterTarget] = {}
    for path, part in model.named_modules():
        if (
            type(part) not in ADAPTED_TYPES and type(part) not in PLAIN_TYPES
        ) or ".own." in f"{path}.":  # weights of an attention kernel, used directly
            continue
        assert isinstance(part, nn.Linear)
        found.setdefault(path, AdapterTarget(path, WHOLE_LINEAR, part.out_features))
        if isinstance(part, FusedLinear) and len(part.sizes) > 1:
            above = path.rpartition(".")[0]
            found |= {f"{above}.{name}": AdapterTarget(path, name, size) for name, size in part.sizes.items()}
    return found


def match_targets(model: nn.Module, targets: Iterable[str]) -> dict[str, AdapterTarget]:
    """The targets that names match, each by the end of its address."""
    every, found = adapter_targets(model), dict[str, AdapterTarget]()
    for target in targets:
        here = {address: spot for address, spot in every.items() if path_matches(address.split("."), target.split("."))}
        apart = {spot.path for spot in here.values() if spot.part != WHOLE_LINEAR}
        here = {address: spot for address, spot in here.items() if spot.part != WHOLE_LINEAR or spot.path not in apart}
        if not here:
            words = list(dict.fromkeys(address.rpartition(".")[2] for address in every))
            raise ConfigError(f"lora.targets: no layer {target!r} in the model{did_you_mean(target, words)} there "
                                     f"are {', '.join(words) or 'none'}")  # fmt: skip
        found |= here
    twice = {spot.path for spot in found.values() if spot.part == WHOLE_LINEAR}
    if both := [address for address, spot in found.items() if spot.part != WHOLE_LINEAR and spot.path in twice]:
        raise ConfigError(f"lora.targets: {both[0]} twice, alone and in its fused linear layer; leave out one")
    return found


def path_matches(steps: list[str], pattern: list[str]) -> bool:
    last = steps[-len(pattern) :]
    return len(last) == len(pattern) and all(fnmatchcase(*pair) for pair in zip(last, pattern, strict=True))


def is_tied(model: nn.Module, path: str) -> bool:
    """Whether a linear layer's weight is tied to another module's."""
    weight = model.get_parameter(f"{path}.weight")
    return sum(other is weight for _, other in model.named_parameters(remove_duplicate=False)) > 1


def parameter_names(model: nn.Module, parts: Iterable[str]) -> set[str]:
    """The names of the weights in these parts of a model."""
    every, found = [name for name, _ in model.named_parameters(remove_duplicate=False)], set[str]()
    for part in parts:
        steps = part.split(".")
        here = {name for name in every if path_matches(name.split(".")[: len(steps)], steps)}
        if not here:
            known = [name for name, _ in model.named_children()]
            raise ConfigError(f"lora.modules_to_save: no part {part!r} in the model{did_you_mean(part, known)} its "
                              f"parts are {', '.join(known)}, and what is inside of them")  # fmt: skip
        found |= here
    return found


def add_adapters(model: nn.Module, c: config.LoRA) -> None:
    """Attach new adapters; only these and `modules_to_save` are trained from now on."""
    alone = parameter_names(model, c.modules_to_save or ())
    if adapted_modules(model):
        raise ConfigError("lora: the model has adapters already; merge them first")
    places = {
        address: spot for address, spot in match_targets(model, c.targets).items() if f"{spot.path}.weight" not in alone
    }
    if not places:
        raise ConfigError(f"lora.targets: {', '.join(c.targets)} are trained in full, and need no adapter; name others")
    if shared := [address for address, spot in places.items() if is_tied(model, spot.path)]:
        raise ConfigError(f"lora.targets: {shared[0]} shares its weight with another part of the model, and an "
                                 "adapter would change both; leave it out")  # fmt: skip
    check_no_hooks(model, (spot.path for spot in places.values()))
    for path, part, out in places.values():
        weight = model.get_parameter(f"{path}.weight")
        attach_adapter(model, path, part, LowRankUpdate(weight, out, c.rank, c.alpha / c.rank, c.dropout))
    train_only_adapters(model, alone)


def train_only_adapters(model: nn.Module, whole: Iterable[str] = ()) -> None:
    """Make adapters and the named weights trainable, and freeze all others."""
    every = dict(model.named_parameters(remove_duplicate=False))
    some = {id(every[name]) for name in (*whole, *adapter_parameters(model))}
    for weight in every.values():
        weight.requires_grad_(id(weight) in some)


# ---------------------------------------------------------------- merging


def base_state_dict(model: nn.Module) -> dict[str, Any]:
    """The weights without adapters by name, not copied; a tied weight appears under each name."""
    adapters = tuple(f"{path}.lora." for path in adapted_modules(model))
    return {name: x for name, x in model.state_dict(keep_vars=True).items() if not name.startswith(adapters)}


def merged_state_dict(model: nn.Module) -> dict[str, Any]:
    """Weights of an equivalent model without adapters; this one is not changed."""
    merged = {f"{path}.weight": merged_weight(part) for path, part in adapted_modules(model).items()}
    return base_state_dict(model) | merged


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """W + s·B A."""
    weight: Tensor = layer.weight.clone()
    for name, low in layer.lora.items():
        rows = weight[adapter_rows(layer, name)]
        rows.copy_(rows.float() + low.product())
    return weight


@torch.no_grad()
def merge_adapters(model: nn.Module) -> None:
    """Merge the adapters into the weights, and make all weights trainable again."""
    adapted = adapted_modules(model)
    check_no_hooks(model, adapted)
    for path, part in adapted.items():
        part.weight.copy_(merged_weight(part))
        replace_module(model, path, unwrap_layer(part))
    for weight in model.parameters():
        weight.requires_grad_(True)
