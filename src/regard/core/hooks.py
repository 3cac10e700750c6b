"""Looking inside while a model runs: recording and editing what stands between its parts.

An ordinary branch, not a hook: nobody looking means not a single extra operation, and a compiled model that has
already run notices when somebody starts. The fused kernels keep running; the weights of a watched head are computed
again from that kernel's own q, k, scale, bias and mask, for the asked heads and rows alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.names import did_you_mean
from regard.core.kernels import How, Plan, pattern, scores, shared, table_of

HEADED = ("q", "k", "v", "scores", "pattern", "result")  # (B, H, N, …); everything else is (B, N, …)
Edit = Callable[[str, Tensor], Tensor]
ROWS = 128


class Link:
    """One record and those before it: a chain, since a list that grows would be another graph at every call."""

    def __init__(self, before: "Link | None" = None, x: Tensor | None = None) -> None:
        self.before, self.x = before, x


class Seen:
    """What was recorded: `seen[address]` is the last tensor, `seen.every(address)` one for each call."""

    def __init__(self, names: Sequence[str]) -> None:
        self.last = {name: Link() for name in names}

    def add(self, name: str, x: Tensor) -> None:
        self.last[name] = Link(self.last[name], x)

    def __getitem__(self, name: str) -> Tensor:
        return self.every(name)[-1]

    def every(self, name: str) -> list[Tensor]:
        link, found = self.last.get(name), list[Tensor]()
        while link is not None and link.x is not None:
            found.insert(0, link.x)
            link = link.before
        if not found:
            raise KeyError(f"nothing was seen at {name!r}; watched were {', '.join(self.last)}")
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name, link in self.last.items() if link.x is not None)


class Looker:
    """One `looking`: which addresses, which heads and rows, and what to do with them."""

    def __init__(self, names: Sequence[str], heads: Sequence[int] | None, queries: slice | None, edit: Edit | None):
        self.names, self.edit = frozenset(names), edit
        self.heads = slice(None) if heads is None else list(heads)
        self.queries = queries or slice(None)
        self.seen = Seen(names)

    def take(self, address: str, x: Tensor, heads: int) -> Tensor:
        """Record the chosen part of x; or replace it by the edited one."""
        where = self.where(address, x.shape[1], heads or x.shape[1])
        part = x[where]
        if self.edit is None:
            self.seen.add(address, part)
            return x
        new = self.edit(address, part)
        if not isinstance(new, Tensor) or new.shape != part.shape:
            raise ValueError(f"edit at {address} must return a tensor of the shape it was given, {tuple(part.shape)}")
        out = x.clone()
        out[where] = new.to(x.dtype)
        return out

    def where(self, address: str, count: int, heads: int) -> tuple[Any, ...]:
        """The index of the chosen part; `count` keys and values may serve more `heads`."""
        name, chosen = address.rsplit(".", 1)[-1], self.heads
        if name not in HEADED:
            return (slice(None), self.queries)
        if isinstance(chosen, list):
            if not all(-heads <= head < heads for head in chosen):
                raise ValueError(f"{address} has {heads} heads, and {chosen} were asked for")
            chosen = [head % heads * count // heads for head in chosen]
        return (slice(None), chosen) if name in "kv" else (slice(None), chosen, self.queries)


class Watch:
    """Everybody who looks at one forward pass, standing at one address of the walk."""

    def __init__(self, lookers: tuple[Looker, ...], where: str = "") -> None:
        self.lookers, self.where = lookers, where

    def at(self, step: str) -> "Watch | None":
        """The same one step down the walk, or nobody where nobody looks: such blocks run as if unwatched."""
        where = f"{self.where}.{step}" if self.where else step
        beneath = any(name.startswith(f"{where}.") for looker in self.lookers for name in looker.names)
        return Watch(self.lookers, where) if beneath else None

    def see(self, name: str, x: Tensor, heads: int = 0) -> Tensor:
        address = f"{self.where}.{name}" if self.where else name
        for looker in self.lookers:
            if address in looker.names:
                x = looker.take(address, x, heads)
        return x

    def attend(self, name: str, q: Tensor, k: Tensor, v: Tensor, plan: Plan, how: How) -> Tensor:
        """Attention while somebody may be looking at its scores or its pattern."""
        names = [f"{self.where}.{name}.{what}" for what in ("scores", "pattern")]
        asked = [looker for looker in self.lookers if any(address in looker.names for address in names)]
        if asked and not plan.kernel.exact:
            raise ValueError(f"kernel {plan.kernel.name!r} has no table of who looks at whom; watch q, k, v or result")
        if any(looker.edit is not None for looker in asked):
            table = plan.table(q, how.bias)
            weights = pattern(self.see(f"{name}.scores", scores(q, k, how.scale, table)))
            return F.dropout(self.see(f"{name}.pattern", weights), how.dropout) @ shared(v, q)
        for looker in asked:
            for address in [name for name in names if name in looker.names]:
                heads, rows = looker.where(address, q.shape[1], q.shape[1])[1:]
                looker.seen.add(address, table_for(address, heads, rows, q, k, plan, how))
        return plan.run(q, k, v, how)


def table_for(address: str, heads: Any, rows: slice, q: Tensor, k: Tensor, plan: Plan, how: How) -> Tensor:
    """The scores or the pattern of the chosen heads and query rows, and of no others, a cacheful of rows at a time."""
    every, sure = range(q.shape[2])[rows], plan.ask.causal and how.bias is None
    heads = torch.arange(q.shape[1], device=q.device)[heads]
    q, k = q[:, heads].contiguous(), k[:, heads // (q.shape[1] // k.shape[1])].contiguous()
    wanted = address.endswith("pattern")
    out = q.new_empty(*q.shape[:2], len(every), k.shape[2])
    for start in range(0, len(every), ROWS):
        some = every[start : start + ROWS]
        last = max(some) + 1 if sure else k.shape[2]  # a causal row is empty from there on
        index = torch.arange(q.shape[2], device=q.device)[rows][start : start + ROWS]
        table = table_of(plan.ask, heads, index, how.bias, q.dtype)
        s = scores(q[:, :, index], k[:, :, :last], how.scale, None if table is None else table[..., :last])
        out[:, :, start : start + ROWS, :last] = pattern(s, sure) if wanted else s
        out[:, :, start : start + ROWS, last:] = 0.0 if wanted else float("-inf")
    return out


@contextmanager
def looking(
    model: Any, *names: str, heads: Sequence[int] | None = None, queries: slice | None = None, edit: Edit | None = None
) -> Iterator[Seen]:
    """Watch a model at addresses such as "trunk.3.attn.pattern" or "trunk.*.mlp.out".

    Without `edit` it records and changes no bit; with it, `edit(address, tensor)` returns what takes the tensor's
    place. `heads` and `queries` choose heads and token rows. Works on compiled models that have already run.
    """
    for wrapper in ("_orig_mod", "module"):
        model = getattr(model, wrapper, model)
    known = list(model.addresses())
    chosen: dict[str, None] = {}
    for name in names:
        found = [address for address in known if fnmatchcase(address, name)]
        if not found:
            raise ValueError(f"no address {name!r}{did_you_mean(name, known)} model.addresses() lists {len(known)}")
        chosen.update(dict.fromkeys(found))
    looker = Looker(list(chosen), heads, queries, edit)
    model.lookers = (*model.lookers, looker)
    try:
        yield looker.seen
    finally:
        model.lookers = tuple(each for each in model.lookers if each is not looker)
