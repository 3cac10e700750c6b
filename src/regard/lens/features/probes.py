"""Linear probes: can a property of tokens or texts be read off the activations at an address by a linear map?

    x at the address ── standardise ── W x + b ── label        ridge regression, or logistic regression

Cross-validated in seeded folds, with all tokens of a text in one fold; beside it the majority baseline and a control
task (Hewitt and Liang 2019): labels drawn at random for each token type. What the probe scores above that is its
selectivity. A probe shows that a property can be decoded there, not that the model uses it (Belinkov 2022).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.lens.activation_stream import BatchTokens, Text, find_addresses, stream_activations
from regard.lens.attention_maps import unwrap_model
from regard.lens.features.linear_fit import LinearMap, cross_validate, fit_map
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import residual_places
from regard.lens.result import LensResult, Picture, Table

Label = str | int | float | None  # None: this token has none
Labels = Sequence[Label] | Sequence[Sequence[Label]]
Kind = Literal["classes", "numbers"]


@dataclass(frozen=True, eq=False)
class ProbeResult(LensResult):
    """The scores of a probe by fold: accuracy of classes, R2 of numbers. `map` is fitted on everything."""

    address: str
    kind: Kind
    classes: tuple[str, ...]  # none of numbers
    scores: Tensor  # (folds,)
    baseline: Tensor  # (folds,) the majority class, or the mean, of the other folds
    control: Tensor | None  # (folds,) of random classes for each token type
    map: LinearMap
    examples: int

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    @property
    def spread(self) -> float:
        """The standard deviation over folds."""
        return float(self.scores.std())

    @property
    def selectivity(self) -> float | None:
        """What the probe scores above the control task; None where there is none."""
        return None if self.control is None else self.mean - float(self.control.mean())

    @property
    def direction(self) -> Tensor:  # (outputs, D)
        """The weights in the units of the activations: a direction for `find_top_examples` or `SteeringVector`."""
        return self.map.weight

    def predict(self, x: Tensor) -> Tensor:
        """Class numbers, or numbers, of activations (…, D)."""
        return self.map.predict(x)

    def table(self) -> Table:
        control = [None] * len(self.scores) if self.control is None else self.control.tolist()
        rows = zip(range(1, len(self.scores) + 1), self.scores.tolist(), self.baseline.tolist(), control, strict=True)
        unit = "accuracy" if self.kind == "classes" else "R2"
        return Table(f"Can a linear map read the label at {self.address}?", ("fold", unit, "baseline", "control task"),
                     tuple(rows), f"{unit} {self.mean:.3f} ± {self.spread:.3f} of {self.examples:,} examples. That it "
                     "can be read off does not show that the model uses it.")  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProbeSweep(LensResult):
    """One probe for each address, on the same folds."""

    probes: tuple[ProbeResult, ...]

    def table(self) -> Table:
        rows = tuple((each.address, each.mean, each.spread, float(each.baseline.mean()), each.selectivity)
                     for each in self.probes)  # fmt: skip
        unit = "accuracy" if self.probes[0].kind == "classes" else "R2"
        return Table("Where can a linear map read the label?", ("address", unit, "spread", "baseline", "selectivity"),
                     rows, "That it can be read off does not show that the model uses it.")  # fmt: skip

    def picture(self) -> Picture:
        lines = [[each.mean for each in self.probes], [float(each.baseline.mean()) for each in self.probes]]
        names = ["probe", "baseline"]
        if self.probes[0].control is not None:
            lines, names = [*lines, [float(each.control.mean()) for each in self.probes]], [*names, "control task"]  # type: ignore[union-attr]
        return Picture("lines", "Where can a linear map read the label?", torch.tensor(lines), names,
                       [each.address for each in self.probes], self.probes[0].table().columns[1])  # fmt: skip


def fit_probe(
    model: Any, texts: Text | Iterable[Text], labels: Labels, *, address: str, position: int | Literal["mean"] = -1,
    penalty: float = 1.0, folds: int = 5, seed: int = 0,
) -> ProbeResult:  # fmt: skip
    """A linear probe at an address.

    `labels` has for each text one label, which is read at `position` (a token, or "mean" of them all); or a list with a
    label for each token as the model reads it, None for those that have none. Texts and whole numbers are classes, read
    by logistic regression; floats are numbers, read by ridge regression. `penalty` is on the squared weights of the
    standardised features.
    """
    [name] = find_addresses(model, address)[:1]
    settings: dict[str, Any] = {"position": position, "penalty": penalty, "folds": folds, "seed": seed}
    return fit_probes(model, texts, labels, addresses=[name], **settings).probes[0]


def fit_probes(
    model: Any, texts: Text | Iterable[Text], labels: Labels, *, addresses: Sequence[str] | None = None,
    position: int | Literal["mean"] = -1, penalty: float = 1.0, folds: int = 5, seed: int = 0,
) -> ProbeSweep:  # fmt: skip
    """A linear probe at each of several addresses, the residual stream after every layer unless said."""
    model = unwrap_model(model)
    names = find_addresses(model, *(addresses or [place.address for place in residual_places(model, halves=False)]))
    found = collect_examples(model, texts, labels, names, position)
    kind, classes, y = read_labels(found.labels)
    control_y = None if found.types is None or kind == "numbers" else control_labels(y, found.types, seed)
    split = assign_folds(found.texts, folds, seed)
    probes = []
    for name in names:
        x = torch.cat(found.features.pop(name)).double()
        scores, baseline = cross_validate(x, y, split, len(classes), penalty)
        chance = None if control_y is None else cross_validate(x, control_y, split, len(classes), penalty)[0]
        whole = fit_map(x, y, len(classes), penalty)
        probes.append(ProbeResult(name, kind, classes, scores, baseline, chance, whole, len(y)))
    return ProbeSweep(tuple(probes))


# ---------------------------------------------------------------- examples


@dataclass(frozen=True, eq=False)
class ProbeExamples:
    """Features by address, the label of each example, the text that it is from, and its token type if it is a token."""

    features: dict[str, list[Tensor]]
    labels: list[Label]
    texts: list[int]
    types: Tensor | None


def collect_examples(
    model: Any, texts: Any, labels: Labels, names: Sequence[str], position: int | Literal["mean"]
) -> ProbeExamples:
    """The activations at all addresses in one pass over the texts, of the tokens that have a label."""
    listed: list[Any] = [each.tolist() if isinstance(each, Tensor) else each for each in labels]
    by_token = bool(listed) and not isinstance(listed[0], str | int | float | None)
    features: dict[str, list[Tensor]] = {name: [] for name in names}
    kept, owners, types = list[Label](), list[int](), list[Tensor | None]()
    lengths = [0] * len(listed)  # tokens that were seen of each text

    def read(address: str, x: Tensor, tokens: BatchTokens) -> None:
        for row, (text, start) in enumerate(zip(tokens.text.tolist(), tokens.start.tolist(), strict=True)):
            real = tokens.real[row]
            vectors = x[row][real.to(x.device)].float().cpu()
            wanted = labels_of(listed, text, start, len(vectors)) if by_token else [text_label(listed, text)]
            chosen = [i for i, label in enumerate(wanted) if label is not None]
            if not by_token:
                vectors = pool_vectors(vectors, position, text)
            features[address].append(vectors[chosen])
            if address == names[0] and text < len(listed):
                lengths[text] += len(wanted)
                kept.extend(wanted[i] for i in chosen)
                owners.extend([text] * len(chosen))
                types.append(tokens.ids[row][real][chosen] if by_token and tokens.ids is not None else None)

    read_whole = texts if by_token else prompts_of(model, texts)  # a label of a text is no label of each window
    count = stream_activations(model, read_whole, names, read)
    if count != len(listed):
        raise DataError(f"labels: {len(listed)} for {count} texts; give one, or a list of them, for each text")
    for text, length in enumerate(lengths if by_token else ()):
        if length != len(listed[text]):
            raise DataError(f"labels: text {text + 1} has {len(listed[text])} labels and {length} tokens; give one for "
                            "each token as the model reads it, None where there is none")  # fmt: skip
    if any(sum(map(len, each)) != len(kept) for each in features.values()):
        raise ConfigError(f"addresses: {', '.join(names)} are of different tokens; probe them one by one")
    known = [each for each in types if each is not None]
    return ProbeExamples(features, kept, owners, torch.cat(known) if known and len(known) == len(types) else None)


def prompts_of(model: Any, texts: Any) -> Iterable[Prompt]:
    single = isinstance(texts, str | Tensor | Prompt)
    return (read_prompt(model, text) for text in ([texts] if single else texts))


def text_label(labels: Any, text: int) -> Label:
    label: Label = labels[text] if text < len(labels) else None
    return label


def labels_of(labels: Any, text: int, start: int, count: int) -> list[Label]:
    """The labels of a row of tokens; None for those without, which are counted afterwards."""
    found = list(labels[text])[start : start + count] if text < len(labels) else []
    return [*found, *[None] * (count - len(found))]


def pool_vectors(x: Tensor, position: int | Literal["mean"], text: int) -> Tensor:  # (N, D) -> (1, D)
    if position == "mean":
        return x.mean(0, keepdim=True)
    if not -len(x) <= position < len(x):
        raise ConfigError(f"position {position}: text {text + 1} has {len(x)} tokens")
    return x[position][None]


def read_labels(labels: Sequence[Label]) -> tuple[Kind, tuple[str, ...], Tensor]:
    """Classes by number, in the order of their names; or numbers as they are."""
    if labels and all(isinstance(label, float) for label in labels):
        return "numbers", (), torch.tensor(labels, dtype=torch.float64)
    if any(isinstance(label, float) for label in labels):
        raise DataError("labels: some are floats and some are not; give numbers or classes")
    order = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    if len(order) < 2:
        raise DataError(f"labels: {len(order)} classes in {len(labels)} examples; a probe tells at least two apart")
    number = {label: i for i, label in enumerate(order)}
    return "classes", tuple(map(str, order)), torch.tensor([number[label] for label in labels])


def control_labels(y: Tensor, types: Tensor, seed: int) -> Tensor:
    """The control task: each token type has a label of its own, drawn from the labels as often as they occur."""
    dice = torch.Generator().manual_seed(seed)
    _, which = types.unique(return_inverse=True)
    return y[torch.randint(len(y), (int(which.max()) + 1,), generator=dice)][which]


def assign_folds(texts: Sequence[int], folds: int, seed: int) -> Tensor:
    """The fold of each example: whole texts, dealt out in a seeded order; single tokens where texts are too few."""
    owners = torch.tensor(texts)
    groups, which = owners.unique(return_inverse=True)
    if len(groups) < folds:
        groups, which = torch.arange(len(owners)), torch.arange(len(owners))
    if folds < 2 or len(groups) < folds:
        raise ConfigError(f"folds: {folds} of {len(groups)} examples; expected at least two, and no more than examples")
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    dealt = torch.empty(len(groups), dtype=torch.long)
    dealt[order] = torch.arange(len(groups)) % folds
    return dealt[which]
