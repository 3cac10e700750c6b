"""What a comparison of explanations found: of the methods with each other, and of every head with the methods and with
its own ablation; as tables, a picture, and a sentence made of the numbers.

    .table()  .head_table()  .effect_table()  .picture()  .sentence()
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.lens.attribution.rank_correlation import CORRELATIONS
from regard.lens.result import LensResult, Picture, Table, Value

LEAST = 3  # things to order: fewer have hardly an order
SURE, FEW = 2, 8  # standard errors, and prompts below which they are not known well enough
PRINTED = 10  # heads


@dataclass(frozen=True, eq=False)
class ExplanationAgreement(LensResult):
    """Correlations of every prompt: `pairs` of methods, and each head with each method that is not attention itself.

    `effects` are how much the explained score falls without each head; below zero where it rises.
    """

    methods: tuple[str, ...]
    others: tuple[str, ...]  # the methods that are not made of attention
    heads: tuple[tuple[int, int], ...]  # layer and head
    correlation: str
    pairs: Tensor  # (prompts, methods, methods)
    by_head: Tensor  # (prompts, heads, others)
    effects: Tensor  # (prompts, heads)
    score: str  # logit, probability or log_probability
    ablation: str  # what takes a head's place: zero or mean
    skipped: int = 0  # prompts that are too short

    def table(self) -> Table:
        """Methods x methods: mean, spread (standard deviation over prompts), and how many prompts have a value."""
        found = summarize(self.pairs)
        rows = [
            (method, name, *map(to_value, values[i]))
            for i, method in enumerate(self.methods)
            for name, values in zip(("mean", "spread", "prompts"), found, strict=True)
        ]
        title = f"Do the methods order the inputs alike ({self.correlation}, absolute values)?"
        return Table(title, ("method", "of", *self.methods), tuple(rows), self.sentence())

    def head_table(self, most: int | None = None) -> Table:
        """Every head, or the `most` whose ablation moves the score furthest: its mean correlation with each method over
        the prompts, and how much the score falls without it; each with the spread."""
        mean, spread, _ = summarize(self.by_head)
        effect, deviation, _ = summarize(self.effects)
        shown = list(range(len(self.heads)))
        if most is not None:
            shown = sorted(effect.abs().topk(min(most, len(shown))).indices.tolist())
        rows: list[tuple[Value, ...]] = []
        for place in shown:
            both = [*zip(mean[place], spread[place], strict=True), (effect[place], deviation[place])]
            rows.append((self.head_name(place), *(to_value(value) for pair in both for value in pair)))
        columns = [name for method in (*self.others, "ablation") for name in (method, f"{method} spread")]
        title = f"Which head orders the inputs as the other methods do ({self.correlation}), and what is it worth?"
        instead = "zeros" if self.ablation == "zero" else "its mean over the prompt"
        note = f"ablation: how much the {self.kind} falls with {instead} in the place of the head; ± is the spread."
        if len(shown) < len(self.heads):
            note += f" These are the {len(shown)} of {len(self.heads)} heads that move it most."
        return Table(title, ("head", *columns), tuple(rows), note)

    def effect_table(self) -> Table:
        """For each method: do heads that agree with it matter more? Rank correlation over the heads of a prompt."""
        found = zip(*summarize(self.effect_agreement()), strict=True)
        rows = tuple((name, *map(to_value, values)) for name, values in zip(self.others, found, strict=True))
        title = f"Do heads that order the inputs as a method does matter more ({self.correlation} over heads)?"
        note = f"The correlation of a head's agreement with how far its ablation moves the {self.kind}, up or down."
        return Table(title, ("method", "mean", "spread", "prompts"), rows, note)

    def to_json(self) -> dict[str, Any]:
        tables = {"heads": self.head_table(), "effects": self.effect_table()}
        settings = {"correlation": self.correlation, "score": self.score, "ablation": self.ablation}
        return self.table().to_json() | settings | {name: each.to_json()["rows"] for name, each in tables.items()}

    def __str__(self) -> str:
        return f"{self.table()}\n\n{merge_spreads(self.head_table(PRINTED))}"

    def picture(self, method: str | None = None) -> Picture:
        """Layer x head. Colours: the mean correlation with one method, integrated gradients where they are there;
        numbers: how much the score falls without the head. The method "ablation" colours that instead."""
        method = self.reference if method is None else method
        if method not in (*self.others, "ablation"):
            raise ConfigError(f"method: no {method!r} to compare heads with; there are {', '.join(self.others)} and "
                              "ablation")  # fmt: skip
        effects = self.lay_out_heads(self.effects)
        rows, columns = ([f"{name} {place}" for place in range(size)]
                         for name, size in zip(("layer", "head"), effects.shape, strict=True))  # fmt: skip
        if method == "ablation":
            title = f"How much does the {self.kind} fall without each head?"
            return Picture("grid", title, effects, rows, columns, self.kind, center=0.0)
        values = self.lay_out_heads(self.by_head[:, :, self.others.index(method)])
        title = (f"Which head orders the inputs as {method.replace('_', ' ')} does? "
                 f"The number is how much the {self.kind} falls without it.")  # fmt: skip
        cells = [[f"{value:+.2g}" for value in row] for row in effects.tolist()]
        return Picture("grid", title, values, rows, columns, self.correlation, cells, center=0.0)

    def lay_out_heads(self, values: Tensor) -> Tensor:  # (prompts, heads) -> (layers, heads of a layer)
        """Means over the prompts, each at its layer and head."""
        depth, wide = (1 + max(pair[i] for pair in self.heads) for i in (0, 1))
        out = torch.full((depth, wide), torch.nan, dtype=torch.float64)
        out[tuple(torch.tensor(self.heads).T)] = summarize(values)[0]
        return out

    def head_name(self, place: int) -> str:
        return "{}.{}".format(*self.heads[place])

    @property
    def kind(self) -> str:
        return self.score.replace("_", "-")

    @property
    def reference(self) -> str:
        """The method that heads are held against."""
        return "integrated_gradients" if "integrated_gradients" in self.others else self.others[-1]

    # ---------------------------------------------------------------- in words

    def sentence(self) -> str:
        """What the numbers show here: attention against the others, its best head, and what heads are worth."""
        if "attention" not in self.methods:
            return f"{self.head_sentence()} {self.effect_sentence()}"
        mean, spread, _ = summarize(self.pairs[:, self.methods.index("attention")])
        parts = [f"{name.replace('_', ' ')} at {mean[self.methods.index(name)]:.2f} ± "
                 f"{spread[self.methods.index(name)]:.2f}" for name in self.others]  # fmt: skip
        return (f"Over {len(self.pairs)} prompts attention, averaged over layers and heads, agrees with "
                f"{', '.join(parts)} (mean ± standard deviation). {self.head_sentence()} {self.verdict()} "
                f"{self.effect_sentence()}")  # fmt: skip

    def head_sentence(self) -> str:
        """The best head: chosen on every other prompt and measured on the rest, since the best of many flatters."""
        values = self.by_head[:, :, self.others.index(self.reference)]
        halves = (values[::2], values[1::2]) if len(values) > 3 else (values, values)
        best = int(summarize(halves[0])[0].nan_to_num(-2.0).argmax())
        found = float(summarize(halves[1])[0][best])
        where = "on the other prompts" if len(values) > 3 else "on the prompts that it was chosen on"
        return (f"The best of {len(self.heads)} heads for {self.reference.replace('_', ' ')} is "
                f"{self.head_name(best)}, at {found:.2f} {where}.")  # fmt: skip

    def verdict(self) -> str:
        """Attention with the others, against the others with each other, each in its standard errors over prompts."""
        own, among = self.attention_agreement(), self.other_agreement()
        there = ~(own.isnan() | among.isnan())
        own, among = own[there], among[there]
        if len(own) < FEW:
            return f"A conclusion takes at least {FEW} prompts and two other methods."
        if own.mean() <= SURE * standard_error(own):
            return "Here attention orders the inputs no more like them than chance would."
        apart = own - among
        numbers = f"({own.mean():.2f} against {among.mean():.2f})"
        if apart.mean().abs() <= SURE * standard_error(apart):
            return f"Here attention agrees with them about as they agree with each other {numbers}."
        word = "less" if apart.mean() < 0 else "more"
        return f"Here attention agrees with them {word} than they agree with each other {numbers}."

    def effect_sentence(self) -> str:
        """The head whose ablation moves the score most, and whether heads that agree with the reference matter more."""
        effect = summarize(self.effects)[0]
        most = int(effect.abs().argmax())
        values = self.effect_agreement()[:, self.others.index(self.reference)]
        values = values[~values.isnan()]
        verb = "falls" if effect[most] >= 0 else "rises"
        worth = (f"Without head {self.head_name(most)} the {self.kind} {verb} by {effect[most].abs():.2g} on average, "
                 "the most of any.")  # fmt: skip
        if len(values) < FEW:
            return worth
        found = f"({values.mean():.2f} ± {values.std():.2f} over heads)"
        name = self.reference.replace("_", " ")
        if values.mean().abs() <= SURE * standard_error(values):
            return f"{worth} A head's agreement with {name} does not tell how much it matters {found}."
        word = "more" if values.mean() > 0 else "less"
        return f"{worth} On these prompts heads that agree with {name} matter {word} {found}."

    def effect_agreement(self) -> Tensor:  # (prompts, others)
        """For each prompt, the rank correlation over its heads of their agreement with a method and of how far their
        ablation moves the score; heads without an order are left out."""
        return torch.stack([
            torch.stack([correlate_known(self.correlation, agreement, effect) for agreement in columns.T])
            for columns, effect in zip(self.by_head, self.effects.abs(), strict=True)
        ])  # fmt: skip

    def attention_agreement(self) -> Tensor:  # (prompts,)
        """For each prompt, attention's mean correlation with the other methods."""
        columns = [self.methods.index(name) for name in self.others]
        return self.pairs[:, self.methods.index("attention"), columns].nanmean(1)

    def other_agreement(self) -> Tensor:  # (prompts,)
        """For each prompt, the mean correlation of the other methods with each other."""
        columns = torch.tensor([self.methods.index(name) for name in self.others])
        first, second = torch.triu_indices(len(columns), len(columns), 1)
        return self.pairs[:, columns[first], columns[second]].nanmean(1)


def merge_spreads(table: Table) -> Table:
    """Each mean and its spread in one column, for a line that fits a terminal."""
    rows = tuple(
        (name, *(f"{mean:.2f} ± {spread:.2f}" for mean, spread in zip(values[::2], values[1::2], strict=True)))
        for name, *values in table.rows
    )
    return Table(table.title, (table.columns[0], *table.columns[1::2]), rows, table.note)


def correlate_known(correlation: str, x: Tensor, y: Tensor) -> Tensor:  # (N,) and (N,) -> ()
    """Rank correlation where x has a value; nan where too few have one."""
    known = ~x.isnan()
    return CORRELATIONS[correlation](x[known], y[known]) if known.sum() >= LEAST else x.new_tensor(torch.nan)


def summarize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (prompts, …) -> three of (…)
    """Mean, standard deviation and count over the prompts that have a value."""
    count = (~x.isnan()).sum(0)
    mean = x.nanmean(0)
    spread = ((x - mean).square().nansum(0) / (count - 1).clamp(min=1)).sqrt().masked_fill(count < 2, torch.nan)
    return mean, spread, count


def standard_error(x: Tensor) -> float:
    return float(x.std() / len(x) ** 0.5)


def to_value(x: Tensor) -> Value:
    return int(x) if not x.is_floating_point() else float(x)
