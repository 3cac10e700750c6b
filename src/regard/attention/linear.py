"""Linear attention: the softmax replaced by a product of features, so that the brackets may move.

    weight of key j for query i  ~  phi(q_i)·phi(k_j),   phi(x) = elu(x) + 1 > 0

Time and memory grow with the length, and generation remembers one matrix a head (Katharopoulos et al. 2020). Another
meaning than softmax: a model is trained with it, not converted to it. A scale on the scores would cancel.
"""

import torch.nn.functional as F
from torch import Tensor

from regard.core.kernels import How, Plan, kernel, shared
from regard.core.layers import Attention
from regard.efficient import swift
from regard.efficient.pairs import numbers
from regard.efficient.scan import State, refuses, weighed


def entry(attention: Attention, batch: int, capacity: int, like: Tensor) -> State:
    """The same room for any capacity."""
    return State(batch, attention.groups, attention.width, attention.value_width, like)


@kernel("linear", exact=False, refuses=refuses, entry=entry)
def linear(q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
    numbers("linear", plan.given)
    if how.past is None and swift.fits(q, v, plan.ask):
        return swift.linear(q, shared(k, q), shared(v, q))
    return weighed(positive(q), positive(k), v, plan.ask, how.past)


def positive(x: Tensor) -> Tensor:
    """elu(x) + 1 in other words: the compiler of torch 2.13 mistakes the layout of elu's gradient."""
    return F.relu(x) + x.clamp(max=0).exp()
