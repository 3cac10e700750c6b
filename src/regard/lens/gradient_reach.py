"""Jacobian norms by distance, and the receptive field: how far gradients reach back. #: S128

    jacobian_norms(model, ids)[t] = |d y_T / d x_t|     x_t is token t before the stack, y_T the last one after it

A recurrent stack multiplies as many Jacobians as there are steps between (the product of d h_i / d h_i-1), so the norm
falls, or grows, exponentially with the distance. A convolution reaches as far as its windows and no further; in a
transformer every token is one step away.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import config
from regard.core.model import Transformer
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, read_prompt

PROBES = 8  # random directions of y_T; the norm over all of them is estimated, to some percent
TINY = 1e-36
Ids = Tensor | Sequence[int] | str | Prompt


def jacobian_norms(model: Transformer, ids: Ids, probes: int = PROBES) -> Tensor:  # (B, N) -> (N,)
    """The Frobenius norm of the Jacobian for every place, as the root mean square over the rows of a batch."""
    model = unwrap_model(model)
    if getattr(model, "encoder", True) is not None or not isinstance(model.c.embed, config.TextEmbedding):
        raise config.ConfigError("model: distances between tokens are of a model that reads one text, and this one "
                                 "reads two inputs or no text; give a decoder or an encoder")  # fmt: skip
    ids = read_prompt(model, ids).ids
    training = model.trunk.training
    with torch.enable_grad():
        model.trunk.eval()
        tokens = model.embed(ids)
        x = tokens.x.detach().requires_grad_()
        last = model.trunk(tokens.with_vectors(x)).x[:, -1]
        asked = ((last * probe_direction(last, probe)).sum() for probe in range(probes))
        slopes = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in asked]
    model.trunk.train(training)
    return torch.stack(slopes).double().square().sum(-1).mean((0, 1)).sqrt()  # squares of the faintest are no floats


def probe_direction(y: Tensor, probe: int) -> Tensor:
    """Numbers of variance one: the mean over many squared products with them is the squared norm."""
    chance = torch.Generator().manual_seed(probe)
    return torch.randn(y.shape, generator=chance).to(y)


def receptive_field(model: Transformer, ids: Ids) -> int:
    """How many tokens, from the last one back, the last one hears of at all."""
    norms = jacobian_norms(model, ids)
    heard = (norms > 0).nonzero()
    return 0 if not len(heard) else len(norms) - int(heard[0])


def gradient_decay(pull: Tensor) -> float:
    """By what factor the pull changes with each token of distance: the slope of its logarithm, by least squares.

    Left out are the last token, which is no distance away, and those whose pull is too small for a number.
    """
    distance = torch.arange(len(pull) - 1, -1, -1, dtype=torch.float64)
    there = (pull > TINY) & (distance > 0)
    logs, away = pull[there].double().log(), distance[there] - distance[there].mean()
    return float(((away * logs).sum() / away.square().sum()).exp())
