"""Four terms of an attention score: what the tokens are and where they stand, of the one that asks and of the other.

    scale · (W_q (x_i + p_i)) · (W_k (x_j + p_j))  =  xx + xp + px + pp

    xx  content asks for content      xp  content asks for a position
    px  position asks for content     pp  position asks for a position

It takes absolute positions, which are a part of the vectors: of the first layer where they are added or concatenated to
the embedding, of every layer where they go into q and k alone. Norms have the scale that they have in this run, and
biases, which depend on neither, count as content. So the four sum to the score of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.lens.attention_maps import TrunkNote, build_view, evaluation_mode, record_trunk_inputs, unwrap_model
from regard.lens.circuits.attention_circuits import HeadPlace, find_attention_head
from regard.lens.frozen_norm import linear_bias, linear_matrix, push_through_norm, widen
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import find_trunk
from regard.lens.result import LensResult, Picture, Table, Value

TERMS = ("xx", "xp", "px", "pp")
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class ScoreTerms(LensResult):
    """The terms (4, H, Q, K) of every head's scores on one prompt; `error` is how far their sum is from the model's."""

    where: str
    labels: tuple[str, ...]
    terms: Tensor
    pattern: Tensor  # (H, Q, K)
    visible: Tensor  # (Q, K)
    error: float

    @property
    def scores(self) -> Tensor:  # (H, Q, K)
        """The sum of the four, also where the mask hides a key."""
        return self.terms.sum(0)

    def shares(self) -> Tensor:  # (H, 4)
        """How much of what differs between the keys of a query is of each term: covariances with the score over its
        variance, which sum to one. What is the same for all keys of a query changes no attention weight."""
        weight = self.visible.to(self.terms)
        count = weight.sum(-1, keepdim=True).clamp(min=1)
        apart = (self.terms - (self.terms * weight).sum(-1, keepdim=True) / count) * weight
        shared = (apart * apart.sum(0)).sum((-1, -2))  # (4, H)
        total = shared.sum(0)
        return torch.where(total > TINY, shared / total.clamp(min=TINY), torch.nan).mT

    def table(self) -> Table:
        rows: tuple[tuple[Value, ...], ...] = tuple(
            (f"head {head}", *shares) for head, shares in enumerate(self.shares().tolist())
        )
        note = ("Shares of what differs between the keys of a query; below zero works against the rest. The four "
                f"terms sum to the scores of the model within {self.error:.1e}.")  # fmt: skip
        return Table(f"Does {self.where} look at what tokens are (x) or where they stand (p)?", ("head", *TERMS), rows,
                     note)  # fmt: skip

    def query_table(self, head: int = 0, query: int = -1) -> Table:
        """The terms of one head and one query, for every key that it sees, and the attention weight."""
        self.check_head(head)
        count = len(self.visible)
        if not -count <= query < count:
            raise ConfigError(f"query: {query} is no token of a prompt of {count}")
        query %= count
        rows: list[tuple[Value, ...]] = []
        for key in self.visible[query].nonzero().flatten().tolist():
            terms = self.terms[:, head, query, key]
            rows.append((self.labels[key], key, *map(float, terms), float(terms.sum()),
                         float(self.pattern[head, query, key])))  # fmt: skip
        title = f"Why does {self.labels[query]!r} (token {query}) look where it looks ({self.where} head {head})?"
        return Table(title, ("key", "at", *TERMS, "score", "attention"), tuple(rows))

    def picture(self, head: int | None = None, term: str | None = None) -> Picture:
        """The shares of every head; or query x key of one head, the score or one of its terms."""
        if head is None:
            heads = [f"head {each}" for each in range(self.terms.shape[1])]
            return Picture("grid", self.table().title, self.shares(), heads, TERMS, "share", center=0.0)
        self.check_head(head)
        if term is not None and term not in TERMS:
            raise ConfigError(f"term: {term!r} is none of {', '.join(TERMS)}")
        values = self.scores if term is None else self.terms[TERMS.index(term)]
        title = f"{term or 'score'} of {self.where} head {head}"
        return Picture("grid", title, values[head].masked_fill(~self.visible, torch.nan), self.labels, self.labels,
                       "score", center=0.0)  # fmt: skip

    def check_head(self, head: int) -> None:
        if not 0 <= head < self.terms.shape[1]:
            raise ConfigError(f"head: {self.where} has {self.terms.shape[1]} heads, and {head} was asked for")


def decompose_scores(  #: S016
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt, where: str = "trunk.0.attn", *,
    source: str | Tensor | None = None, pair: str | None = None,
) -> ScoreTerms:  # fmt: skip
    """Decompose the attention scores of all heads at `where` into content and position of query and key."""
    model = unwrap_model(model)
    find_trunk(model)
    place = find_attention_head(model, where)
    check_absolute(place)
    read = read_prompt(model, prompt, source=source, pair=pair)
    if len(read.first) != 1:
        raise DataError(f"prompt: {len(read.first)} rows; scores are decomposed of one, so give them one by one")
    names = [f"{where}.{what}" for what in ("input", "scores", "pattern")]
    with evaluation_mode(model), record_trunk_inputs(model) as notes, looking(model, *names) as seen:
        read.run(model)
        view = build_view(where, seen[names[2]], notes, ())
        terms = multiply_parts(place, *attention_parts(place, notes[place.trunk_name], seen[names[0]]))
    visible, scores = view.visible[0], widen(seen[names[1]][0]).cpu()
    labels = read.source_labels if place.trunk_name.startswith("encoder") else read.labels
    labels = labels if len(labels) == len(visible) else tuple(map(str, range(len(visible))))
    error = float((terms.sum(0) - scores)[:, visible].abs().max())
    return ScoreTerms(where, labels, terms, view.pattern[0], visible, error)


def check_absolute(place: HeadPlace) -> None:
    """Positions must be a part of the vectors that this attention reads, and of no later layer's making."""
    position = place.trunk.c.position
    mode = getattr(position, "mode", "")
    if place.side == "cross":
        raise ConfigError(f"{place.where}: cross-attention is given no positions to tell apart from content; name a "
                          "self-attention")  # fmt: skip
    if mode not in ("add", "concat", "qk"):
        raise ConfigError(f"{place.trunk_name}.position {position.kind!r} puts no positions into the vectors, so a "
                          "score has no four terms; sinusoidal and learned positions do")  # fmt: skip
    if mode != "qk" and place.layer:
        raise ConfigError(f"{place.where} reads what earlier layers have made of positions; only the scores of the "
                          f"first layer have four terms: {place.trunk_name}.0.attn")  # fmt: skip


def attention_parts(place: HeadPlace, note: TrunkNote, given: Tensor) -> tuple[Tensor, Tensor]:  # (1, N, D) each
    """What q and k are made from, as content and position."""
    trunk, tokens = place.trunk, note.tokens
    if getattr(trunk.c.position, "mode", "") == "qk":
        x = widen(given)
        return x, widen(trunk.position.table(tokens)).to(x).expand_as(x)
    p = widen(trunk.position.embed(torch.zeros_like(tokens.x), tokens))
    x = widen(trunk.position.embed(tokens.x, tokens)) - p
    if trunk.embed_norm is not None:
        x, p = push_through_norm(trunk.embed_norm, x, p)
    if trunk.project is not None:
        matrix = widen(linear_matrix(trunk.project, p.shape[-1]))
        x, p = x @ matrix + widen(trunk.project.bias.detach()), p @ matrix
    norm = place.read_norm("q")
    return (x, p) if norm is None else push_through_norm(norm, x, p)


def multiply_parts(place: HeadPlace, x: Tensor, p: Tensor) -> Tensor:  # (4, H, N, N)
    """xx, xp, px and pp of every head."""
    attention = place.attention
    q, k = project_parts(place, "q", x, p), project_parts(place, "k", x, p)
    many = attention.heads // attention.kv_heads
    return torch.stack([a @ b.repeat_interleave(many, 0).mT for a in q for b in k]).cpu() * attention.scale


def project_parts(place: HeadPlace, name: str, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:  # (H, N, d) each
    """Both parts as q or k of every head, through its projection and the norm on it, if any."""
    attention = place.attention
    if attention.qkv is not None and name in attention.qkv.sizes:
        sizes, full = list(attention.qkv.sizes.values()), linear_bias(attention.qkv)
        at = list(attention.qkv.sizes).index(name)
        matrix = widen(linear_matrix(attention.qkv, x.shape[-1]).split(sizes, 1)[at])
        x, p = x @ matrix, p @ matrix
        x = x if full is None else x + full.split(sizes)[at]
    heads = attention.heads if name == "q" else attention.kv_heads
    x, p = (attention.split(part, heads)[0] for part in (x, p))
    if (norm := {"q": attention.q_norm, "k": attention.k_norm}[name]) is not None:
        x, p = push_through_norm(norm, x, p)
    if attention.cosine:
        length = (x + p).norm(dim=-1, keepdim=True).clamp(min=TINY)
        x, p = x / length, p / length
    return x, p
