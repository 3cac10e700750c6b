"""The state of a census: what has been read so far, of which model and text, and the sums of every head."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, RunError
from regard.inputs.text import TextEmbedding
from regard.lens.activation_stream import TextRow, join_prompts
from regard.lens.attention_maps import TrunkNote, unwrap_model
from regard.lens.head_census.corpus_rows import digest_row, row_sequences
from regard.lens.head_census.head_sums import BatchSums, HeadSums, measure_patterns
from regard.lens.head_census.pair_tables import REPEAT_ROLES, TEXT_ROLES, PairTables
from regard.lens.head_census.pattern_stream import run_batch
from regard.lens.head_census.top_sequences import TopSequences, sequence_ids
from regard.lens.prompt import Prompt
from regard.lens.roles import repeated_ids

REPEATS, HALF = 8, 64  # sequences of random ids for prefix matching, and the ids that each has twice


@dataclass(eq=False)
class CensusState:
    """`places` are the attentions with their numbers of heads; `digest` is of the rows that were read."""

    places: dict[str, int]
    top: TopSequences
    sums: dict[str, HeadSums]
    repeats: dict[str, HeadSums]
    counts: Tensor  # (V,) how often each id came
    tokens: int = 0
    rows: int = 0
    sequences: int = 0
    digest: str = ""
    marks: Collection[int] = field(default=(), repr=False)

    @classmethod
    def new(cls, places: dict[str, int], top_k: int, vocab: int) -> "CensusState":
        """Of a census that has read nothing."""
        sums, repeats = ({where: HeadSums(heads) for where, heads in places.items()} for _ in range(2))
        top = TopSequences(sum(places.values()), top_k)
        return cls(places, top, sums, repeats, torch.zeros(vocab, dtype=torch.int64))

    def read(self, model: Any, rows: Sequence[TextRow]) -> None:
        """Run a batch, and add what its heads do."""
        prompt = rows[0].prompt if len(rows) == 1 else join_prompts(model, [row.prompt for row in rows])
        parts: dict[str, list[BatchSums]] = {where: [] for where in self.places}

        def add(where: str, heads: slice, pattern: Tensor, tables: PairTables) -> None:
            if not bool(pattern.isfinite().all()):
                raise RunError(f"{where}: attention weights are not finite; the model's weights are damaged")
            parts[where].append(batch := measure_patterns(pattern, tables))
            self.sums[where].add(batch, heads)
            self.sums[where].add_positions(pattern, tables, heads)

        notes = run_batch(model, prompt, add, TEXT_ROLES, self.marks)
        for where, note in notes.items():
            if note.tokens.batch != len(prompt.first):
                raise ConfigError(f"{where}: this model makes {note.tokens.batch} sequences of {len(prompt.first)} "
                                  "rows, and a census counts one of each; lens.summarize_heads reads them")  # fmt: skip
        whole = BatchSums(*(join_heads(parts, name) for name in ("sums", "weights")))
        self.top.add(whole, row_sequences(rows), sequence_ids(notes, len(prompt.first)), self.sequences)
        self.count_tokens(notes)
        for row in rows:
            self.digest = digest_row(self.digest, row)
        self.rows, self.sequences = self.rows + len(rows), self.sequences + len(prompt.first)

    def count_tokens(self, notes: dict[str, TrunkNote]) -> None:
        """Tokens are those of the trunk; ids are counted wherever there are some."""
        self.tokens += int(notes["trunk" if "trunk" in notes else list(notes)[-1]].read.real.sum())
        for note in notes.values():
            if note.read.ids is not None:
                self.counts += note.read.ids[note.read.real].bincount(minlength=len(self.counts))[: len(self.counts)]

    def read_repeats(self, model: Any, first: Prompt) -> None:
        """Prefix matching (Olsson et al. 2022): random ids that come twice, with the source of the first row if any."""
        model = unwrap_model(model)
        if not isinstance(model.embed, TextEmbedding) or any(masks[False, False].ahead for masks in model.trunk.masks):
            return
        limits = [getattr(model, "context", None), getattr(model.trunk.c.position, "length", None), 2 * HALF]
        half = min(most for most in limits if most is not None) // 2
        silent = {model.embed.c.pad_id, model.embed.c.eos_id}
        words = torch.tensor([ident for ident in range(model.embed.c.vocab) if ident not in silent])
        ids = repeated_ids(words, half, REPEATS).to(first.first.device)
        given = {name: x[:1].expand(REPEATS, *x.shape[1:]) for name, x in first.given.items()
                 if name.startswith("source")}  # fmt: skip

        def add(where: str, heads: slice, pattern: Tensor, tables: PairTables) -> None:
            self.repeats[where].add(measure_patterns(pattern, tables), heads)

        run_batch(model, Prompt(ids, (), given), add, REPEAT_ROLES)


def join_heads(parts: dict[str, list[BatchSums]], name: str) -> Tensor:
    """(B, all heads, M) of what was measured in groups of heads, in the order of the walk."""
    return torch.cat([getattr(part, name) for group in parts.values() for part in group], 1).cpu()
