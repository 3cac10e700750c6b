"""Attention read as an explanation: each head's row at the explained place, and attention rollout.

    rollout = R_L · … · R_2 · R_1,   R = (A + I) / 2         Abnar & Zuidema 2020: A is the mean of a layer's heads,
                                                             I the residual connection

In an encoder-decoder the decoder's shares go to its own tokens and, by cross-attention, to the encoder's rollout: a row
over both sums to one. Neither sees values, MLPs, or what a later layer makes of a token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.lens.attention_maps import evaluation_mode, unwrap_model, why_not_watchable
from regard.lens.prompt import Prompt

TINY = 1e-12


def attention_rollout(patterns: Sequence[Tensor], residual: bool = True) -> Tensor:  # L x (N, N) -> (N, N)
    """Attention rollout: row i is how much token i of the last layer has of each token of the first, if attention and
    residual connections only mix them."""
    if not len(patterns):
        raise ConfigError("patterns: there are none; give one (N, N) for each layer")
    shares = torch.eye(len(patterns[0]), dtype=patterns[0].dtype, device=patterns[0].device)
    for pattern in patterns:
        shares = mix_shares(shares, pattern @ shares, residual)
    return shares


def mix_shares(shares: Tensor, gathered: Tensor, residual: bool) -> Tensor:
    """Half of what a token was and half of what it gathers; each row sums to one, also where a query saw no key."""
    mixed = shares + gathered if residual else gathered
    return mixed / mixed.sum(-1, keepdim=True).clamp(min=TINY)


def roll_out(model: Any, prompt: Prompt) -> Tensor:  # (N, N + S)
    """The rollout of a whole model: shares of the trunk's tokens and after them, if there is one, of the encoder's."""
    model = unwrap_model(model)
    means = reduce_patterns(model, prompt, lambda pattern: pattern.mean(1)[0])
    trunk = model.c.trunk
    own = [means[f"trunk.{layer}.attn"] for layer in range(trunk.depth)]
    shares = torch.eye(len(own[0]), dtype=own[0].dtype, device=own[0].device)
    if model.encoder is None:
        return attention_rollout(own, trunk.residual)
    c = model.c.encoder.trunk
    layers = [means[f"encoder.{layer}.attn"] for layer in range(c.depth)]
    shares = torch.cat([shares, shares.new_zeros(len(shares), len(layers[0]))], 1)
    for layer, pattern in enumerate(own):
        shares = mix_shares(shares, pattern @ shares, trunk.residual)
        known = layers[: layer + 1] if trunk.cross == "layerwise" else layers
        across = means[f"trunk.{layer}.cross"] @ attention_rollout(known, c.residual)
        gathered = torch.cat([across.new_zeros(len(shares), len(shares)), across], 1)
        shares = mix_shares(shares, gathered, trunk.residual)
    return shares


def attention_rows(model: Any, prompt: Prompt, readout: Tensor) -> dict[str, Tensor]:
    """{"trunk.3.attn": (H, keys)}: where each head of the trunk looks from the place that the head of the model reads;
    `readout` (N,) weighs several places."""
    return reduce_patterns(
        model, prompt, lambda pattern: torch.einsum("q,hqk->hk", readout.to(pattern), pattern[0]), ("trunk",)
    )


def reduce_patterns(
    model: Any, prompt: Prompt, reduce: Callable[[Tensor], Tensor], trunks: Sequence[str] = ("trunk", "encoder")
) -> dict[str, Tensor]:
    """What `reduce` makes of the attention weights (1, H, Q, K) of every layer, one layer in memory at a time."""
    model = unwrap_model(model)
    if why := why_not_watchable(model):
        raise ConfigError(why)
    found: dict[str, Tensor] = {}

    def keep(address: str, pattern: Tensor) -> Tensor:
        shares = pattern.float() if pattern.dtype != torch.float64 else pattern
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=TINY)  # bf16 rows sum to nearly one
        found[address.removesuffix(".pattern")] = reduce(shares)
        return pattern

    known = [name for name in model.addresses() if name.endswith(".pattern")]
    names = [name for name in known if name.split(".")[0] in trunks]
    if not names:
        raise ConfigError("attention: the trunk of this model has none, so there is nothing to read as an explanation")
    with evaluation_mode(model), looking(model, *names, edit=keep):
        prompt.run(model)
    return found


def mean_row(rows: Mapping[str, Tensor], part: str, last: bool = False) -> Tensor | None:
    """The mean over heads and layers of one part ("attn" or "cross"), or over the heads of the last layer alone."""
    layers = [each.mean(0) for where, each in rows.items() if where.endswith(f".{part}")]
    if not layers:
        return None
    return layers[-1] if last else torch.stack(layers).mean(0)
