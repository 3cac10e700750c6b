"""What a text is, or a pair of texts: the probability of every class, or a number.

    one of several classes    softmax, and all probabilities together are 1
    several at a time         a sigmoid for each: problem_type "multi_label_classification" in config.json
    a number                  as it is: problem_type "regression", or one answer alone
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard import config
from regard.config import ConfigError
from regard.generate.frames import Reader, Refuse, called
from regard.generate.session import still
from regard.tasks.losses import asked

if TYPE_CHECKING:
    from regard.generate.model import Transformer

SEVERAL = "multi_label_classification"


def said(model: Any) -> Mapping[str, Any]:
    """The config.json that a model was read with; nothing of one that was made here."""
    return {} if model.origin is None else model.origin.said


def labels(model: Any, count: int) -> tuple[str, ...]:
    """What the answers are called: by training, by id2label, or else by number; none twice."""
    known = getattr(model.task, "classes", ())
    if len(known) == count:
        return tuple(known)
    table = said(model).get("id2label")
    table = table if isinstance(table, dict) else {}
    told = [str(table.get(str(place), f"LABEL_{place}")) for place in range(count)]
    times = Counter(told)
    return tuple(f"{name} ({place})" if times[name] > 1 else name for place, name in enumerate(told))


def several(model: Any) -> bool:
    """Whether more than one class may be right."""
    return said(model).get("problem_type") == SEVERAL and model.task is None


def numbered(model: Any) -> bool:
    """Whether the answer is a number and no class."""
    if model.task is not None:
        return isinstance(model.task, config.Regress)
    return model.c.head.out == 1 and said(model).get("problem_type") != SEVERAL


def check(model: Any) -> None:
    """Refuses who has no answer for the whole text."""
    head, task = model.c.head, model.task
    trained = task is None or isinstance(task, config.Classify | config.Regress)
    vectors = called(model, "WithProjection") or isinstance(model.c, config.Towers)  # which are compared
    if not trained or vectors or not isinstance(head, config.Pooled) or head.out is None:
        kind = head.kind if task is None else task.kind
        raise ConfigError(f"was trained for {kind!r} and tells no classes; name a model that was trained for classify "
                          "or regress (ForSequenceClassification)")  # fmt: skip


def judgements(
    model: "Transformer", texts: Sequence[str], others: Sequence[str] | None = None, *,
    names: Sequence[str] | None = None, progress: Callable[[int], object] | None = None, refuse: Refuse | None = None,
) -> list[Any]:  # fmt: skip
    """For each text, or pair, the probability of every class by name, the likeliest first; or the number.

    A text that cannot be read raises, or is None where `refuse` is told of it.
    """
    check(model)
    reader, told = Reader.of(model), dict[int, Any]()
    for places, given in reader.batches(reader.frames(texts, others, names, refuse)):
        with still(list(model.modules())):
            answers = asked(model, given).float().cpu()
        told |= zip(places, (answer(model, row) for row in answers), strict=True)
        if progress is not None:
            progress(len(told))
    return [told.get(place) for place in range(len(texts))]


def answer(model: Any, row: Tensor) -> dict[str, float] | float:  # (out,)
    if numbered(model):
        return float(row[0])
    shares = row.sigmoid() if several(model) else row.softmax(-1)
    names = labels(model, len(row))
    return {names[place]: float(shares[place]) for place in shares.argsort(descending=True, stable=True).tolist()}
