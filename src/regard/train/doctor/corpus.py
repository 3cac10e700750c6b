"""Is the data good enough to learn from, and to be judged by? What is validated on was not trained on; and there is
enough of it for a model of this size.
"""

from typing import Any

from regard.data import Arrays, Examples, Shards, leaks
from regard.measure import Terms
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong

SOME, MANY = 0.02, 0.1  # of what is validated on
TRAINED, VALIDATED = 20_000_000, 1_000_000  # tokens of a text that are compared
FEW = 10_000  # examples: below, other models learn more
LITTLE, LEAST = 0.1, 0.02  # tokens for each parameter


Held = Shards | Examples | Arrays


def held(batches: Any) -> Held | None:
    """The texts or rows that batches are made of."""
    for name in ("shards", "rows"):
        if isinstance(found := getattr(batches, name, None), Held):
            return found
    return held(batches.packed) if hasattr(batches, "packed") else None


def leaking(case: Case) -> Finding:
    train, kept = held(case.data), held(case.run.validation)
    if train is None or kept is None:
        return look("nothing is kept back, so nobody can tell what is learned by heart", "data.validation=0.1")
    if type(train) is not type(kept):
        return fine("training and validation are of different kinds")
    double, all = leaks(beginning(train, TRAINED), beginning(kept, VALIDATED))
    part = double / max(1, all)
    what = "stretches of 32 tokens" if isinstance(train, Shards) else "questions" if case.textual else "examples"
    told = f"{double:,} of {all:,} {what} in {kept.name} stand in the training data too ({part:.1%})"
    if part > MANY:
        own = case.run.recipe is not None and case.run.recipe.data.validations
        remedy = "data.validation=0.1" if own else "remove what is there twice"
        return wrong(f"{told}: validation measures what was learned by heart", remedy)
    return look(told, "remove what is there twice") if part > SOME else fine(told)


def beginning(data: Held, most: int) -> Held:
    """Of a long text the first tokens: all of it would take as long as reading it does."""
    return data.part(0, most, data.name) if isinstance(data, Shards) and len(data) > most else data


def amount(case: Case) -> Finding:
    train = held(case.data)
    if train is None:
        return fine("these data do not say how much they are")
    count = sum(weight.numel() for weight in case.model.parameters() if weight.requires_grad)
    if isinstance(train, Arrays):
        return seen(case, train, count)
    tokens = len(train) if isinstance(train, Shards) else int(train.lengths().sum()) * (2 if case.model.encoder else 1)
    ratio = tokens / max(1, count)
    told = f"{tokens:,} tokens for {count:,} parameters, {ratio:.2g} for each"
    few = isinstance(train, Examples) and len(train) < FEW  #: S132
    told += f", in {len(train):,} examples" * few
    if case.settings.init_from is not None:
        return look(told, "train.freeze=['embed'] train.epochs=3") if few and ratio < LEAST else fine(told)
    best = f"{Terms().ratio:g} would be best for what it costs"
    if ratio < LEAST:
        return wrong(f"{told} ({best}): it will be learned by heart", smaller(case, ratio))
    if ratio < LITTLE:  #: S147
        return look(f"{told} ({best})", smaller(case, ratio))
    if few:
        return look(f"{told}: below {FEW:,} a transformer has few advantages", "train.init_from=a trained model")
    return fine(told)


def seen(case: Case, train: Arrays, count: int) -> Finding:
    """Of what is no text there are examples, and each may be changed a little in many ways."""
    told = f"{len(train):,} examples, {int(train.lengths().sum()):,} tokens in all, for {count:,} parameters"
    if len(train) >= FEW or case.settings.init_from is not None:
        return fine(told)
    other = "train.augment, or " * (getattr(case.settings, "augment", None) is None)
    return look(f"{told}: below {FEW:,} a transformer has few advantages", f"{other}train.init_from=a trained model")


def smaller(case: Case, ratio: float) -> str:
    """A width with which there would be about enough: blocks grow with its square."""
    c = case.model.c.trunk
    heads = max(c.heads, default=2)
    dim = max(heads, int(c.dim * (ratio / LITTLE) ** 0.5) // heads * heads)
    return f"model.dim={dim}, or train.init_from=a trained model"
