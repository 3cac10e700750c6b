"""Recurrent encoder-decoder: one fixed vector for a whole source, or Bahdanau attention at every step.

    fixed      h_1 h_2 ... h_S ─► h_S = c       s_0 = tanh(W c), and c is an input at every token
               (Cho et al. 2014)
    additive   e_tj = v · tanh(W s_t-1 + U h_j)      a_t = softmax(e_t)      c_t = sum_j a_tj h_j
               s_t = cell(s_t-1, [y_t-1; c_t])       (Bahdanau et al. 2015)

The query is the state *before* the step: s_t does not exist yet. The steps of an additive decoder are therefore
sequential even in training. T target tokens, S source tokens.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.cache import CrossKV
from regard.core.hooks import HookContext
from regard.core.kernels import attention_weights
from regard.core.tokens import Tokens
from regard.inputs.cost import matrix_flops
from regard.models.rnn import RecurrentState

STEPS: dict[str, Any] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def initial_state(h: Tensor, cell: str) -> RecurrentState:
    """An initial state h; an LSTM's cell state starts at zero."""
    return [h.float(), torch.zeros_like(h, dtype=torch.float32)] if cell == "lstm" else [h.float()]


class FixedContext(nn.Module):
    """Fixed context: the encoder's last vector is all that the decoder sees of a source of any length. #: S126"""

    def __init__(self, c: config.RecurrentStack) -> None:
        super().__init__()
        self.cell, self.depth = c.cell, c.depth
        self.begin, self.tell = nn.Linear(c.dim, c.depth * c.dim), nn.Linear(c.dim, c.dim)

    def last_vector(self, memory: Tokens) -> Tensor:  # (B, D)
        at = torch.arange(memory.count, device=memory.x.device).expand(memory.batch, -1)
        at = (at if memory.is_real is None else at * memory.is_real).amax(-1)
        return memory.x.take_along_dim(at[:, None, None], 1)[:, 0]

    def states(self, memory: Tokens) -> list[RecurrentState | None]:
        """The initial state of each layer."""
        every = self.begin(self.last_vector(memory)).tanh().chunk(self.depth, -1)
        return [initial_state(h, self.cell) for h in every]

    def add_context(self, x: Tensor, memory: Tokens) -> Tensor:
        told: Tensor = self.tell(self.last_vector(memory))
        return x + told[:, None]


class BahdanauAttention(nn.Module):
    """Bahdanau attention: a recurrent layer that attends to the source before each step. #: S127

    Its initial state is computed from the mean of the source (as in Nematus), and its output is tanh(W [s; c; y]).
    """

    def __init__(self, c: config.RecurrentStack) -> None:
        super().__init__()
        self.kind = c.cell
        self.cell = STEPS[c.cell](2 * c.dim, c.dim)
        self.begin, self.ask = nn.Linear(c.dim, c.dim), nn.Linear(c.dim, c.dim)
        self.offer, self.score = nn.Linear(c.dim, c.dim, bias=False), nn.Linear(c.dim, 1, bias=False)
        self.out = nn.Linear(3 * c.dim, c.dim)

    def fresh(self, batch: int, like: Tensor) -> RecurrentState:
        return initial_state(torch.zeros(batch, self.cell.hidden_size, device=like.device), self.kind)

    def flops(self, tokens: int, memory: int) -> Counter[str]:
        dim = self.cell.hidden_size
        aligned = matrix_flops(self.ask) * tokens + matrix_flops(self.offer) * memory
        return Counter({
            "recurrent": (matrix_flops(self.cell) + matrix_flops(self.out)) * tokens,
            "cross-attention": aligned + 4 * dim * tokens * memory + matrix_flops(self.begin),
        })  # fmt: skip

    def begin_state(self, memory: Tokens) -> RecurrentState:
        real = memory.x.new_ones(memory.x.shape[:2]) if memory.is_real is None else memory.is_real.to(memory.x.dtype)
        mean = (memory.x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return initial_state(self.begin(mean).tanh(), self.kind)

    def forward(
        self,
        x: Tensor,
        real: Tensor | None,
        state: RecurrentState,
        memory: Tokens,
        kept: CrossKV | None,
        watch: HookContext | None,
    ) -> tuple[Tensor, RecurrentState]:
        offered = self.project_memory(memory, kept)
        seen, made, after = self.steps(x, real, state, memory, offered)
        if watch is not None:
            edited = watch.apply("cross.pattern", seen)
            if edited is not seen:  # a hook has edited the weights
                _, made, after = self.steps(x, real, state, memory, offered, edited)
        return self.out(torch.cat([made, x], -1)).tanh(), after

    def project_memory(self, memory: Tokens, kept: CrossKV | None) -> Tensor:  # (B, S, D)
        """U h_j, the same for all steps; with a cache it is computed once for a source."""
        if kept is None:
            return self.offer(memory.x)  # type: ignore[no-any-return]
        if kept.k is None:
            kept.k = kept.v = self.offer(memory.x).detach().clone()
        return kept.k

    def steps(
        self,
        x: Tensor,
        real: Tensor | None,
        state: RecurrentState,
        memory: Tokens,
        offered: Tensor,
        seen: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, RecurrentState]:
        """The alignment (B, 1, T, S), states and contexts concatenated (B, T, 2D), and the last state."""
        looks, made = list[Tensor](), list[Tensor]()
        for t in range(x.shape[1]):
            look = self.look(state[0], offered, memory.is_real) if seen is None else seen[:, 0, t]
            context = torch.einsum("bs,bsd->bd", look.to(memory.x.dtype), memory.x)
            new = self.step(torch.cat([x[:, t], context], -1), state)
            if real is not None:
                new = [now.where(real[:, t, None], old) for now, old in zip(new, state, strict=True)]
            state = new
            looks.append(look)
            made.append(torch.cat([state[0].to(x.dtype), context], -1))
        return torch.stack(looks, 1)[:, None], torch.stack(made, 1), state

    def look(self, state: Tensor, offered: Tensor, real: Tensor | None) -> Tensor:  # (B, S)
        """Additive attention weights: softmax over the source of v · tanh(W s + U h_j)."""
        score = self.score((self.ask(state.to(offered.dtype))[:, None] + offered).tanh())[..., 0]  #: S010
        return attention_weights(score if real is None else score.masked_fill(~real, float("-inf")), real is None)

    def step(self, x: Tensor, state: RecurrentState) -> RecurrentState:
        kind = self.cell.weight_ih.dtype
        given = tuple(part.to(kind) for part in state)
        made = self.cell(x.to(kind), given) if self.kind == "lstm" else (self.cell(x.to(kind), given[0]),)
        return [part.float() for part in made]
