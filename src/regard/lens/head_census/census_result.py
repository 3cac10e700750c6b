"""The result of a census: every metric of every head, and the sequences on which a metric is largest."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError, did_you_mean
from regard.lens.head_census.census_circuits import HeadCircuits
from regard.lens.head_census.census_state import CensusState
from regard.lens.head_census.pair_tables import METRICS
from regard.lens.head_census.top_sequences import CensusSequence
from regard.lens.result import LensResult, Picture, Table, Value

SHARES = ("relative", "sink", "previous", "itself", "same", "first", "delimiter", "positional", "prefix_matching",
          "copying")  # fmt: skip
COLUMNS = ("entropy", "distance", *SHARES)
ABOUT = ("Shares are of a head's attention, from 0 to 1; entropy is in bits, distance in tokens, copying from -1 to 1. "
         "What a head looks at is not what it does for the prediction: lens.ablate_all measures that.")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Census(LensResult):
    """A row of metrics for each head; nan where a metric has no meaning. `model` and `text` say of what."""

    state: CensusState
    model: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    tokenizers: tuple[Any, Any] = (None, None)  # of the ids of a sequence, and of those of its source
    circuits: HeadCircuits | None = None  # once all is read

    @property
    def heads(self) -> list[tuple[str, int]]:
        """Every head by its attention's address and its number there."""
        return [(where, head) for where, count in self.state.places.items() for head in range(count)]

    def metric(self, name: str) -> Tensor:  # (heads,)
        """One metric of all heads."""
        if name not in COLUMNS:
            raise ConfigError(f"metric: no {name!r}{did_you_mean(name, COLUMNS)} there are {', '.join(COLUMNS)}")
        if name == "positional":
            return torch.cat([sums.positional() for sums in self.state.sums.values()])
        if name == "copying":
            none = torch.full((len(self.heads),), torch.nan, dtype=torch.float64)
            return none if self.circuits is None else self.circuits.copying_of(self.state.places)
        sums = self.state.repeats if name == "prefix_matching" else self.state.sums
        place = METRICS.index("induction" if name == "prefix_matching" else name)
        return torch.cat([each.means()[:, place] for each in sums.values()])

    def top(self, where: str, head: int, metric: str) -> list[CensusSequence]:
        """The sequences on which a metric of one head is largest; positional and prefix matching have none, since they
        are not of one sequence."""
        row, ranked = self.row(where, head), [name for name in COLUMNS if name in METRICS]
        if metric not in ranked:
            raise ConfigError(f"metric: {metric!r} ranks no sequences{did_you_mean(metric, ranked)} there are "
                              f"{', '.join(ranked)}")  # fmt: skip
        return self.state.top.of(row, metric)

    def row(self, where: str, head: int) -> int:
        """The row of a head."""
        if (where, head) not in self.heads:
            known = ", ".join(f"{place} 0 to {count - 1}" for place, count in self.state.places.items())
            raise ConfigError(f"no head {head} of {where!r}; there are {known}")
        return self.heads.index((where, head))

    def table(self) -> Table:
        columns = [name for name in COLUMNS if not bool(self.metric(name).isnan().all())]
        values = torch.stack([self.metric(name) for name in columns], 1).tolist()
        rows: list[tuple[Value, ...]] = [(f"{where} {head}", *row)
                                         for (where, head), row in zip(self.heads, values, strict=True)]  # fmt: skip
        title = f"What does each head do over {self.state.tokens:,} tokens?"
        return Table(title, ("head", *(name.replace("_", " ") for name in columns)), tuple(rows), ABOUT)

    def picture(self) -> Picture | None:
        names = [name for name in SHARES if not bool(self.metric(name).isnan().all())]
        if not names:  # a graph has no order, and its nodes no roles
            return None
        values = torch.stack([self.metric(name).nan_to_num() for name in names], 1)
        return Picture("grid", "What does each head do?", values, [f"{where} {head}" for where, head in self.heads],
                       [name.replace("_", " ") for name in names], "share")  # fmt: skip

    @staticmethod
    def load(folder: str | Path) -> "Census":
        """The census that was written into a folder, as far as it has come."""
        from regard.lens.head_census.census_folder import load_census

        return load_census(Path(folder))
