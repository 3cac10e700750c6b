"""Activations over a corpus: texts run in batches, and what is at an address is read and let go at once.

    texts ── windows ──► batches ── model ──► read(address, x, tokens) for each address, in the order of the walk

Nothing is kept here: memory is that of one batch at one address. Padding is marked in `tokens.real`, so that it can be
left out of every statistic.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.core.model import Trunk
from regard.lens.attention_maps import TrunkNote, evaluation_mode, record_trunk_inputs, unwrap_model
from regard.lens.prompt import Prompt, read_prompt

WINDOW, BATCH_TOKENS = 256, 2048  # tokens of a decoder's text that are read at once, and of a batch with its padding
TABLES = ("scores", "pattern", "head_out")  # they have no vector for each token
Text = str | Tensor | Sequence[int] | Prompt
Progress = Callable[[int], object]  # is called with how many texts are done


@dataclass(frozen=True, eq=False)
class BatchTokens:
    """The tokens of one batch: which are real, their ids if they have any, and where each row is from."""

    real: Tensor  # (B, N)
    ids: Tensor | None  # (B, N)
    text: Tensor  # (B,) the number of its text
    start: Tensor  # (B,) where in that text the row begins


@dataclass(frozen=True, eq=False)
class TextRow:
    """One forward pass' worth of a text: all of it, or a window."""

    prompt: Prompt
    text: int
    start: int = 0

    @property
    def length(self) -> int:
        return self.prompt.first.shape[-1]

    @property
    def joins(self) -> bool:
        """Whether it may stand beside others in a batch: one row of ids, with nothing that goes along but segments."""
        x, given = self.prompt.first, self.prompt.given
        return not x.is_floating_point() and x.dim() == 2 and len(x) == 1 and given.keys() <= {"segment"}


ReadActivation = Callable[[str, Tensor, BatchTokens], object]  # address, x (B, N, D), and its tokens


def stream_activations(
    model: Any, texts: Text | Iterable[Text], addresses: Sequence[str], read: ReadActivation, *,
    window: int | None = None, batch_tokens: int = BATCH_TOKENS, progress: Progress | None = None,
) -> int:  # fmt: skip
    """Run a corpus and hand on what is at each address; how many texts there were.

    A text is a string or ids; a tensor is one batch as it is, and so is a Prompt. A decoder's long text is read in
    windows of so many tokens, each on its own: a window knows nothing of the one before.
    """
    model, count = unwrap_model(model), 0
    for rows in batch_rows(text_rows(model, texts, window), batch_tokens):
        prompt = rows[0].prompt if len(rows) == 1 else join_prompts(model, [row.prompt for row in rows])
        width = len(prompt.first) if len(rows) == 1 else 1
        numbers = torch.tensor([row.text + i for row in rows for i in range(width)])
        starts = torch.tensor([row.start for row in rows for _ in range(width)])
        read_batch(model, prompt, addresses, read, numbers, starts)
        count = int(numbers.max()) + 1
        if progress is not None:
            progress(count)
    if not count:
        raise DataError("texts: there are none; give at least one")
    return count


def find_addresses(model: Any, *patterns: str) -> list[str]:
    """The addresses that patterns match, or a sentence; tables, which have no vectors of tokens, are refused."""
    with looking(model, *patterns) as seen:
        found = list(seen.last)
    for address in found:
        if address.rpartition(".")[2] in TABLES:
            raise ConfigError(f"{address}: this lens reads a vector for each token; name an address such as "
                              "trunk.0.residual, trunk.0.mlp.hidden or trunk.0.attn.result")  # fmt: skip
    return found


# ---------------------------------------------------------------- from texts to batches


def text_rows(model: Any, texts: Text | Iterable[Text], window: int | None) -> Iterator[TextRow]:
    """Every text as a prompt, a decoder's in windows."""
    single = isinstance(texts, str | Tensor | Prompt)
    most, number = window_length(model, window), 0
    every: Any = [texts] if single else texts
    for text in every:
        prompt = read_prompt(model, text)
        size = prompt.first.shape[-1] if most is None or prompt.given or isinstance(text, Prompt) else most
        cuts = range(0, prompt.first.shape[-1], size) if prompt.first.dim() == 2 else [0]
        for start in cuts:
            part = prompt if len(cuts) == 1 else Prompt(prompt.first[:, start : start + size], ())
            yield TextRow(part, number, start)
        number += len(prompt.first)


def window_length(model: Any, window: int | None) -> int | None:
    """The tokens of a window: no more than a decoder reads at once; None for models that must read a text whole."""
    trunk = getattr(model, "trunk", None)
    if window is not None and window < 1:
        raise ConfigError(f"window: {window} tokens are too few; give at least one")
    if not isinstance(trunk, Trunk) or model.encoder is not None or any(m[False, False].ahead for m in trunk.masks):
        return None
    known = [window or WINDOW, getattr(model, "context", None), getattr(trunk.c.position, "length", None)]
    return min(each for each in known if each is not None)


def batch_rows(rows: Iterable[TextRow], budget: int) -> Iterator[list[TextRow]]:
    """Rows in their order, as many together as fit into so many tokens with their padding."""
    group: list[TextRow] = []
    for row in rows:
        longest = max(each.length for each in [*group, row])
        if group and ((len(group) + 1) * longest > budget or not fits(group[0], row)):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def fits(one: TextRow, other: TextRow) -> bool:
    return one.joins and other.joins and one.prompt.given.keys() == other.prompt.given.keys()


def join_prompts(model: Any, prompts: Sequence[Prompt]) -> Prompt:
    """Several rows of ids in one batch, padded at their ends."""
    longest = max(prompt.first.shape[1] for prompt in prompts)
    pad = model.c.embed.pad_id
    ids = torch.cat([F.pad(each.first, (0, longest - each.first.shape[1]), value=pad or 0) for each in prompts])
    given = {
        name: torch.cat([F.pad(each.given[name], (0, longest - each.first.shape[1])) for each in prompts])
        for name in prompts[0].given
    }
    lengths = torch.tensor([each.first.shape[1] for each in prompts], device=ids.device)
    if int(lengths.min()) < longest:
        given["real"] = torch.arange(longest, device=ids.device) < lengths[:, None]
    return Prompt(ids, (), given)


# ---------------------------------------------------------------- one batch


def read_batch(
    model: Any, prompt: Prompt, addresses: Sequence[str], read: ReadActivation, text: Tensor, start: Tensor
) -> None:
    """One forward pass; each address is read when it is reached, by an edit that changes nothing, and not recorded."""
    known: dict[str, BatchTokens] = {}

    def hand_on(address: str, x: Tensor) -> Tensor:
        trunk = trunk_of(address, notes)
        if trunk not in known:
            known[trunk] = BatchTokens(*token_tables(prompt, notes.get(trunk)), text, start)
        vectors = x.transpose(1, 2).flatten(-2) if x.dim() == 4 else x  # (B, H, N, e) -> (B, N, H·e)
        if vectors.dim() != 3 or vectors.shape[:2] != known[trunk].real.shape:
            raise ConfigError(f"{address}: {tuple(x.shape)} has no vector for each of {known[trunk].real.shape[1]} "
                              "tokens; name an address such as trunk.0.residual")  # fmt: skip
        read(address, vectors, known[trunk])
        return x

    with evaluation_mode(model), record_trunk_inputs(model) as notes, looking(model, *addresses, edit=hand_on):
        prompt.run(model)


def trunk_of(address: str, notes: dict[str, TrunkNote]) -> str:
    """The trunk that an address belongs to; logits are the decoder's."""
    return max((name for name in notes if address.startswith(f"{name}.")), key=len, default="trunk")


def token_tables(prompt: Prompt, note: TrunkNote | None) -> tuple[Tensor, Tensor | None]:
    """Which tokens of a trunk are real, and their ids where it was ids that it read."""
    if note is not None:
        return note.read.real, note.read.ids
    ids = prompt.ids.cpu()
    real = prompt.given.get("real")
    return torch.ones_like(ids, dtype=torch.bool) if real is None else real.cpu(), ids
