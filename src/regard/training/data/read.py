"""What a run reads: a text in windows, or records as examples; to train on, and to validate on.

    next token            one long text, windows laid over it                         data.Windows
    the same, packed      documents in rows, kept apart                               data.Packed
    everything else       records: rows shuffled, or rows of about one length         data.Fixed, data.Buckets
    what is no text       the same, read by a sense                                   train/sensing.py

The order is always: the classes that the data name, a tokenizer that knows their words and the task's special tokens,
the task, its examples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from regard import config, data, tasks
from regard.data import Arrays, Examples, Notice, Progress, Shards, store
from regard.data.shards import tokenizer_key
from regard.tasks import Rows, Task
from regard.tasks.records import ids
from regard.text import Tokenizer
from regard.train.carry import Stream
from regard.train.fitted import fitted

AT_ONCE = 8192  # tokens that are evaluated together
ROUND = 8  # lengths of rows are rounded up to this, so that there are few
SHORTEST = 4  # tokens of a row
UNCHUNKED = ("classify", "regress", "tag", "answer")  # tasks without a vocabulary to answer in
FORMAT = 1  # of the examples that are kept


class Batches(Protocol):
    def batch(self, step: int) -> Any:
        """The micro-batch of that number: a pure function of it."""


class Validation(Protocol):
    """What is validated on: always the same batches in the same order."""

    @property
    def name(self) -> str: ...

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        """All of it, or about so many tokens."""


@dataclass(frozen=True)
class Text:
    """The windows of a text, one after the other."""

    shards: Shards
    context: int

    @property
    def name(self) -> str:
        return self.shards.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        return data.blocks(self.shards, self.context, max(1, AT_ONCE // self.context), tokens)


@dataclass(frozen=True)
class Documents:
    """Packed rows."""

    packed: data.Packed

    @property
    def name(self) -> str:
        return self.packed.rows.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        return self.packed.in_order(tokens)


@dataclass(frozen=True)
class Asked:
    """Examples, the longest first."""

    rows: Examples | Arrays
    task: Task

    @property
    def name(self) -> str:
        return self.rows.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        lengths = self.rows.lengths()
        limit = None if tokens is None else max(1, int(tokens * len(lengths) / max(1, int(lengths.sum()))))
        return data.in_order(self.rows, self.task.plain, max(AT_ONCE, int(lengths.max())), limit)


@dataclass(frozen=True)
class Reading:
    """Everything that is read: `recipe` has the vocabulary and the classes filled in; `digest` tells these data from
    any other. What is no text has no tokenizer.
    """

    recipe: config.Recipe
    tokenizer: Tokenizer | None
    task: Task
    train: Batches
    validation: Validation | None
    digest: str


@dataclass(frozen=True)
class Voice:
    """Who is told what: `notice` what is worth a line, `progress` how much is done."""

    notice: Notice
    progress: Progress = data.quiet


# Who reads the data of a recipe that are no text: by the kind of its task, else "senses" for all others.
READERS: dict[str, Callable[[config.Recipe, Voice], Reading]] = {}
# The same for what is seen and a text that goes with it, which has a tokenizer.
MIXTURES: dict[str, Callable[[config.Recipe, Tokenizer | None, Voice], Reading]] = {}


def read(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Voice) -> Reading:
    """The data of a recipe; with this tokenizer, or one learned from them."""
    c = recipe.train
    tokenizer = None if tokenizer is None else tokenizer.with_specials(recipe.text.specials)
    if recipe.task.kind in MIXTURES:
        made = MIXTURES[recipe.task.kind](watched(recipe), tokenizer, voice)
        return replace(made, train=data.Ahead(made.train, c.workers)) if c.workers else made
    if recipe.task.kind in READERS or not isinstance(recipe.model.embed, config.Embed):
        made = READERS.get(recipe.task.kind, READERS["senses"])(watched(recipe), voice)
        return replace(made, train=data.Ahead(made.train, c.workers)) if c.workers else made
    recipe = agreed(recipe)
    windows = isinstance(recipe.task, config.NextToken) and not c.pack and c.tokens is None
    if c.padding == "left" and (windows or c.pack):
        raise config.ConfigError("train.padding: windows of a text and packed rows are full, so there is nothing to "
                                 "pad; leave it out")  # fmt: skip
    if c.carry and not windows:
        raise config.ConfigError(f"train.carry: task {recipe.task.kind!r} asks of each row by itself, so nothing goes "
                                 "on from one to the next; leave it out")  # fmt: skip
    made = in_windows(recipe, tokenizer, voice) if windows else in_rows(recipe, tokenizer, voice)
    return replace(made, train=data.Ahead(made.train, c.workers)) if c.workers else made


def watched(recipe: config.Recipe) -> config.Recipe:
    """The recipe, where it has the evaluations that it asks for."""
    c = recipe.train
    check = {"train.best": c.best, "train.patience": c.patience is not None}
    for name in (name for name, asked in check.items() if asked):
        if not recipe.data.validation or (c.eval_every is None and c.eval_minutes is None):
            raise config.ConfigError(f"{name}: it takes evaluations on the way, and there are none; set "
                                     "data.validation and train.eval_every, or leave it out")  # fmt: skip
    return recipe


def agreed(recipe: config.Recipe) -> config.Recipe:
    """The recipe, where its settings go together."""
    c = watched(recipe).train
    if c.augment is not None:
        raise config.ConfigError("train.augment: it changes images, and model.embed.kind is 'text'; leave it out")
    if c.chunk is not None and recipe.task.kind in UNCHUNKED:
        raise config.ConfigError(f"train.chunk: task {recipe.task.kind!r} answers in no vocabulary; leave it out")
    data, task = one_column(recipe.data, recipe.task)
    return replace(recipe, data=data, task=task)


def one_column(data: config.Data, task: config.Task) -> tuple[config.Data, config.Task]:
    """A text is looked for in one column, whichever of the two settings names it."""
    column, usual = data.column, config.Data().column
    if column == getattr(task, "text", None):
        return data, task
    if not isinstance(task, config.NextToken):
        if column != usual:
            raise config.ConfigError(f"data.column: {column!r} is for the next token; name the columns of task "
                                     f"{task.kind!r} in task")  # fmt: skip
        return data, task
    if usual not in (task.text, column):
        raise config.ConfigError(f"task.text: {task.text!r}, and data.column is {column!r}; name the column once")
    named = column if task.text == usual else task.text
    return replace(data, column=named), replace(task, text=named)


def in_windows(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Voice) -> Reading:
    c = recipe.train
    made = data.prepare(recipe.data, recipe.text, tokenizer=tokenizer, notice=voice.notice, progress=voice.progress)
    recipe = fitted(recipe, made.tokenizer)
    task = tasks.build(recipe.task, made.tokenizer, recipe.model, rows=Rows(max(SHORTEST, c.context)), chunk=c.chunk)
    if c.carry:
        stripes = data.Stripes(made.train, c.context, c.batch, c.seed, c.accumulate)
        stream = None if made.validation is None else Stream(made.validation, c.context)
        return Reading(recipe, made.tokenizer, task, stripes, stream, made.train.digest)
    train = data.Windows(made.train, c.context, c.batch, c.seed)
    validation = None if made.validation is None else Text(made.validation, c.context)
    return Reading(recipe, made.tokenizer, task, train, validation, made.train.digest)


def in_rows(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Voice) -> Reading:
    c = recipe.train
    if c.pack and not isinstance(recipe.task, config.NextToken):
        raise config.ConfigError(f"train.pack: task {recipe.task.kind!r} asks of each row by itself; leave it out, or "
                                 "use train.tokens to have rows of about one length")  # fmt: skip
    if c.context < SHORTEST:
        raise config.ConfigError(f"train.context: {c.context} leaves no room for a text and its special tokens; choose "
                                 f"{SHORTEST} or more")  # fmt: skip
    tally = data.Tally(recipe.data.bad)  # what is bad is told of once, where examples are made
    recipe = replace(recipe, task=tasks.discovered(recipe.task, records(recipe.data, tally), tally.bad))
    tokenizer = tokenizer or data.learned(recipe.data, recipe.text, tasks.spoken(recipe.task))
    tokenizer = tasks.equip(recipe.task, tokenizer)
    recipe = fitted(recipe, tokenizer)
    rows = Rows(c.context, c.padding, 1 if c.tokens is None else ROUND)
    task = tasks.build(recipe.task, tokenizer, recipe.model, rows=rows, chunk=c.chunk)
    make = whole(task, tokenizer) if c.pack else lambda record: task.examples(record, tokenizer)
    train, validation = data.ask(recipe.data, make, about(recipe, task, tokenizer), notice=voice.notice,
                                 progress=voice.progress)  # fmt: skip
    digest = train.digest
    if isinstance(task, tasks.Masked) and task.c.next_sentence:
        train = paired(train, task, c.seed, voice)
        validation = None if validation is None else paired(validation, task, c.seed, voice)
    return Reading(recipe, tokenizer, task, batches(train, task, c), checked(validation, task, c), digest)


def records(c: config.Data, tally: data.Tally) -> Iterator[data.Record]:
    return (record for table in data.tables(c.sources, c) for record in table.records(tally))


def whole(task: Task, tokenizer: Tokenizer) -> Callable[[Any], Any]:
    """Documents as they are: packing lays them in rows."""
    assert isinstance(task, tasks.NextToken)
    return lambda record: task.around(ids(record, task.c.text, tokenizer))


def about(recipe: config.Recipe, task: Task, tokenizer: Tokenizer) -> dict[str, Any]:
    """What examples depend on beside the records."""
    kept = {name: value for name, value in config.tree(recipe.task).items() if name not in ("smoothing", "begin")}
    return {"format": FORMAT, "task": kept, "tokenizer": tokenizer_key(tokenizer), "length": task.rows.length,
            "packed": recipe.train.pack, "segments": task.segments}  # fmt: skip


class Near(Sequence[data.Example]):
    """Rows of examples, those that were asked for last kept at hand: long documents are slow to fetch."""

    def __init__(self, rows: Examples) -> None:
        self.rows, self.row = rows, lru_cache(maxsize=128)(rows.__getitem__)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> Any:
        return self.row(row)


def paired(documents: Examples, task: tasks.Masked, seed: int, voice: Voice) -> Examples:
    """Pairs of parts for next sentence, kept as examples of their own; which tokens are hidden is drawn anew."""

    if len(documents) < 2:
        raise config.DataError(f"{documents.name}: one document, and for task.next_sentence half of the second parts "
                               "come from another; name more text, or keep more of it in data.validation")  # fmt: skip
    near = Near(documents)

    def made(tally: data.Tally) -> Iterator[data.Example]:
        empty = True
        for place in range(len(documents)):
            for pair in task.pairs(near, place, data.chance(seed, "pairs", place)):
                empty = False
                yield pair
        if empty:
            raise config.DataError(f"{documents.name}: no document has two sentences, which are its lines; set "
                                   "data.documents=true to have an empty line end a document")  # fmt: skip

    which = None if documents.which is None else store.key(documents.which.tolist())
    key = {"pairs": FORMAT, "of": documents.digest, "which": which, "seed": seed}
    return data.kept(made, key, store.place(None), documents.name, notice=voice.notice, progress=voice.progress)


def batches(rows: Examples | Arrays, task: Task, c: config.Train) -> Batches:
    if c.pack:
        assert isinstance(rows, Examples)
        return data.Packed(rows, c.context, c.batch, c.seed, task.specials.fill)
    if c.tokens is not None:
        return data.Buckets(rows, task.collate, c.tokens, c.seed, ROUND, task.added)
    return data.Fixed(rows, task.collate, c.batch, c.seed)


def checked(rows: Examples | Arrays | None, task: Task, c: config.Train) -> Validation | None:
    if rows is None:
        return None
    if c.pack:
        assert isinstance(rows, Examples)
        return Documents(data.Packed(rows, c.context, max(1, AT_ONCE // c.context), 0, task.specials.fill))
    return Asked(rows, task)


def sizes(batch: Any) -> int:
    """The tokens of a batch that are read, without padding."""
    if not isinstance(batch, dict):
        return int(batch.numel() - batch.shape[0])
    if "tokens" in batch:  # what is no text says how many it is
        return int(batch["tokens"].sum())
    sides: Sequence[tuple[str, str]] = (("ids", "real"), ("source", "source_real"))
    return sum(int(batch[real].sum()) if real in batch else batch[ids].numel() for ids, real in sides if ids in batch)

