"""How a recurrent decoder reads its encoder: one vector for a whole source, or an alignment at every step.

    fixed      h_1 h_2 ... h_S ─► h_S = c       s_0 = tanh(W c), and c is told again with every token
               (Cho et al. 2014)
    additive   e_tj = v · tanh(W s_t-1 + U h_j)      a_t = softmax(e_t)      c_t = sum_j a_tj h_j
               s_t = cell(s_t-1, [y_t-1; c_t])       (Bahdanau et al. 2015)

The score is asked by the state *before* the step: s_t does not exist yet. So the steps of an additive decoder cannot be
taken at once, not even in training. T target tokens, S source tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard import config
from regard.core.cache import Across
from regard.core.kernels import pattern
from regard.core.tokens import Tokens
from regard.core.watch import Watch
from regard.recurrent.readers import State

STEPS: dict[str, Any] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def begun(h: Tensor, cell: str) -> State:
    """A state that begins with h; an LSTM's memory begins empty."""
    return [h.float(), torch.zeros_like(h, dtype=torch.float32)] if cell == "lstm" else [h.float()]


class Fixed(nn.Module):
    """The encoder's last vector: all that a decoder gets to know, however long the source. #: S126"""

    def __init__(self, c: config.Recurrent) -> None:
        super().__init__()
        self.cell, self.depth = c.cell, c.depth
        self.begin, self.tell = nn.Linear(c.dim, c.depth * c.dim), nn.Linear(c.dim, c.dim)

    def last(self, memory: Tokens) -> Tensor:  # (B, D)
        at = torch.arange(memory.count, device=memory.x.device).expand(memory.batch, -1)
        at = (at if memory.real is None else at * memory.real).amax(-1)
        return memory.x.take_along_dim(at[:, None, None], 1)[:, 0]

    def states(self, memory: Tokens) -> list[State | None]:
        """Where each layer begins."""
        every = self.begin(self.last(memory)).tanh().chunk(self.depth, -1)
        return [begun(h, self.cell) for h in every]

    def told(self, x: Tensor, memory: Tokens) -> Tensor:
        told: Tensor = self.tell(self.last(memory))
        return x + told[:, None]


class Additive(nn.Module):
    """A recurrent layer that looks at the source before each step. #: S127

    It begins with what the mean of the source makes of itself (as Nematus does), and answers with tanh(W [s; c; y]).
    """

    def __init__(self, c: config.Recurrent) -> None:
        super().__init__()
        self.kind = c.cell
        self.cell = STEPS[c.cell](2 * c.dim, c.dim)
        self.begin, self.ask = nn.Linear(c.dim, c.dim), nn.Linear(c.dim, c.dim)
        self.offer, self.score = nn.Linear(c.dim, c.dim, bias=False), nn.Linear(c.dim, 1, bias=False)
        self.out = nn.Linear(3 * c.dim, c.dim)

    def fresh(self, batch: int, like: Tensor) -> State:
        return begun(torch.zeros(batch, self.cell.hidden_size, device=like.device), self.kind)

    def first(self, memory: Tokens) -> State:
        real = memory.x.new_ones(memory.x.shape[:2]) if memory.real is None else memory.real.to(memory.x.dtype)
        mean = (memory.x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return begun(self.begin(mean).tanh(), self.kind)

    def forward(
        self, x: Tensor, real: Tensor | None, state: State, memory: Tokens, kept: Across | None, watch: Watch | None
    ) -> tuple[Tensor, State]:
        offered = self.offered(memory, kept)
        seen, made, after = self.steps(x, real, state, memory, offered)
        if watch is not None:
            edited = watch.see("cross.pattern", seen)
            if edited is not seen:  # somebody says where to look
                _, made, after = self.steps(x, real, state, memory, offered, edited)
        return self.out(torch.cat([made, x], -1)).tanh(), after

    def offered(self, memory: Tokens, kept: Across | None) -> Tensor:  # (B, S, D)
        """U h_j, the same for all steps; with a cache it is made once for a source."""
        if kept is None:
            return self.offer(memory.x)  # type: ignore[no-any-return]
        if kept.k is None:
            kept.k = kept.v = self.offer(memory.x).detach().clone()
        return kept.k

    def steps(
        self, x: Tensor, real: Tensor | None, state: State, memory: Tokens, offered: Tensor, seen: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """The alignment (B, 1, T, S), states and contexts side by side (B, T, 2D), and the last state."""
        looks, made = list[Tensor](), list[Tensor]()
        for t in range(x.shape[1]):
            look = self.look(state[0], offered, memory.real) if seen is None else seen[:, 0, t]
            context = torch.einsum("bs,bsd->bd", look.to(memory.x.dtype), memory.x)
            new = self.step(torch.cat([x[:, t], context], -1), state)
            if real is not None:
                new = [now.where(real[:, t, None], old) for now, old in zip(new, state, strict=True)]
            state = new
            looks.append(look)
            made.append(torch.cat([state[0].to(x.dtype), context], -1))
        return torch.stack(looks, 1)[:, None], torch.stack(made, 1), state

    def look(self, state: Tensor, offered: Tensor, real: Tensor | None) -> Tensor:  # (B, S)
        """softmax over the source of v · tanh(W s + U h_j)."""
        score = self.score((self.ask(state.to(offered.dtype))[:, None] + offered).tanh())[..., 0]  #: S010
        return pattern(score if real is None else score.masked_fill(~real, float("-inf")), real is None)

    def step(self, x: Tensor, state: State) -> State:
        kind = self.cell.weight_ih.dtype
        given = tuple(part.to(kind) for part in state)
        made = self.cell(x.to(kind), given) if self.kind == "lstm" else (self.cell(x.to(kind), given[0]),)
        return [part.float() for part in made]
