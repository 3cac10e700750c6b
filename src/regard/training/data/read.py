"""Training and validation batches of a recipe: windows of a text, packed documents, or examples.

    next token            one long text, windows laid over it                     data.WindowBatches
    the same, packed      documents in rows, with a document mask                 data.PackedBatches
    everything else       records: rows shuffled, or rows of about one length     data.FixedSizeBatches, BucketedBatches
    other modalities      the same, through a processor                           training/data/read_inputs.py

The order is always: the classes found in the data, the tokenizer with the task's special tokens, the task, its
examples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from regard import config, data, tasks
from regard.data.example_store import Examples
from regard.data.tensor_store import TensorRows
from regard.data.token_shards import Notice, Progress, TokenShards, tokenizer_key
from regard.files import content_cache
from regard.tasks.collate import RowPadding
from regard.tasks.columns import get_ids
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer
from regard.training.carry_state import ContinuousText
from regard.training.data.resolve_sizes import resolve_sizes

AT_ONCE = 8192  # tokens of a validation batch
LENGTH_MULTIPLE = 8  # row lengths are rounded up to a multiple, so that there are few shapes
SHORTEST = 4  # smallest tokens of a row
UNCHUNKED = (
    "classification",
    "regression",
    "token_classification",
    "question_answering",
)  # tasks without an LM head
FORMAT = 1  # version of stored examples


class BatchSource(Protocol):
    def batch(self, step: int) -> Any:
        """Micro-batch number `step`: a pure function of the number."""


class ValidationSource(Protocol):
    """Validation data: always the same batches in the same order."""

    @property
    def name(self) -> str: ...

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        """All batches, or about `tokens` tokens of them."""


@dataclass(frozen=True)
class TextWindows:
    """Consecutive windows of a text."""

    shards: TokenShards
    context: int

    @property
    def name(self) -> str:
        return self.shards.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        return data.sequential_windows(self.shards, self.context, max(1, AT_ONCE // self.context), tokens)


@dataclass(frozen=True)
class PackedDocuments:
    """Packed rows of documents."""

    packed: data.PackedBatches

    @property
    def name(self) -> str:
        return self.packed.rows.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        return self.packed.in_order(tokens)


@dataclass(frozen=True)
class ValidationExamples:
    """Validation examples, longest first."""

    rows: Examples | TensorRows
    task: Task

    @property
    def name(self) -> str:
        return self.rows.name

    def batches(self, tokens: int | None = None) -> Iterator[Any]:
        lengths = self.rows.lengths()
        limit = None if tokens is None else max(1, int(tokens * len(lengths) / max(1, int(lengths.sum()))))
        return data.ordered_batches(self.rows, self.task.collate_eval, max(AT_ONCE, int(lengths.max())), limit)


@dataclass(frozen=True)
class RunData:
    """The data of a run: `recipe` has vocabulary and classes filled in, `digest` identifies the data. Only text has a
    tokenizer.
    """

    recipe: config.Recipe
    tokenizer: Tokenizer | None
    task: Task
    train: BatchSource
    validation: ValidationSource | None
    digest: str


@dataclass(frozen=True)
class Reporter:
    """Callbacks: `notice` for messages, `progress` for progress."""

    notice: Notice
    progress: Progress = data.no_progress


# Readers for data other than text: by the kind of task, else "senses".
INPUT_READERS: dict[str, Callable[[config.Recipe, Reporter], RunData]] = {}
# The same for image-text pairs, which have a tokenizer.
IMAGE_TEXT_READERS: dict[str, Callable[[config.Recipe, Tokenizer | None, Reporter], RunData]] = {}


def read_run_data(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Reporter) -> RunData:
    """Read the data of a recipe, with the given tokenizer or one trained on the data."""
    c = recipe.train
    tokenizer = None if tokenizer is None else tokenizer.with_specials(recipe.tokenizer.specials)
    if recipe.task.kind in IMAGE_TEXT_READERS:
        made = IMAGE_TEXT_READERS[recipe.task.kind](check_evaluations(recipe), tokenizer, voice)
        return replace(made, train=data.Prefetcher(made.train, c.workers)) if c.workers else made
    if recipe.task.kind in INPUT_READERS or not isinstance(recipe.model.embed, config.TextEmbedding):
        made = INPUT_READERS.get(recipe.task.kind, INPUT_READERS["senses"])(check_evaluations(recipe), voice)
        return replace(made, train=data.Prefetcher(made.train, c.workers)) if c.workers else made
    recipe = check_text_settings(recipe)
    windows = isinstance(recipe.task, config.NextToken) and not c.pack and c.batch_tokens is None
    if c.padding_side == "left" and (windows or c.pack):
        raise config.ConfigError("train.padding_side: windows of a text and packed rows are full, so there is nothing "
                                 "to pad; leave it out")  # fmt: skip
    if c.carry_state and not windows:
        raise config.ConfigError(f"train.carry_state: task {recipe.task.kind!r} treats each row by itself, so no "
                                 "state is carried to the next; leave it out")  # fmt: skip
    made = read_windows(recipe, tokenizer, voice) if windows else read_examples(recipe, tokenizer, voice)
    return replace(made, train=data.Prefetcher(made.train, c.workers)) if c.workers else made


def check_evaluations(recipe: config.Recipe) -> config.Recipe:
    """Check that the recipe has validation data and intervals for what it requests."""
    c = recipe.train
    check = {"train.keep_best": c.keep_best, "train.patience": c.patience is not None}
    for name in (name for name, asked in check.items() if asked):
        if not recipe.data.validation or (c.eval_every is None and c.eval_minutes is None):
            raise config.ConfigError(f"{name}: it needs evaluations during training, and there are none; set "
                                     "data.validation and train.eval_every, or leave it out")  # fmt: skip
    return recipe


def check_text_settings(recipe: config.Recipe) -> config.Recipe:
    """Check that the text settings of the recipe are compatible."""
    c = check_evaluations(recipe).train
    if c.augment is not None:
        raise config.ConfigError("train.augment: it changes images, and model.embed.kind is 'text'; leave it out")
    if c.loss_chunk is not None and recipe.task.kind in UNCHUNKED:
        raise config.ConfigError(f"train.loss_chunk: task {recipe.task.kind!r} has no vocabulary logits; leave it out")
    data, task = resolve_text_column(recipe.data, recipe.task)
    return replace(recipe, data=data, task=task)


def resolve_text_column(data: config.Data, task: config.Task) -> tuple[config.Data, config.Task]:
    """Resolve the text column, which data and task may each name."""
    column, usual = data.text_column, config.Data().text_column
    if column == getattr(task, "input", None):
        return data, task
    if not isinstance(task, config.NextToken):
        if column != usual:
            raise config.ConfigError(f"data.text_column: {column!r} is for task next_token; name the columns of task "
                                     f"{task.kind!r} in task")  # fmt: skip
        return data, task
    if usual not in (task.input, column):
        raise config.ConfigError(
            f"task.input: {task.input!r}, and data.text_column is {column!r}; name the column once"
        )
    named = column if task.input == usual else task.input
    return replace(data, text_column=named), replace(task, input=named)


def read_windows(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Reporter) -> RunData:
    c = recipe.train
    made = data.prepare_text(
        recipe.data, recipe.tokenizer, tokenizer=tokenizer, notice=voice.notice, progress=voice.progress
    )
    recipe = resolve_sizes(recipe, made.tokenizer)
    task = tasks.build_task(
        recipe.task, made.tokenizer, recipe.model, rows=RowPadding(max(SHORTEST, c.context)), chunk=c.loss_chunk
    )
    if c.carry_state:
        stripes = data.StripedBatches(made.train, c.context, c.batch_size, c.seed, c.gradient_accumulation)
        stream = None if made.validation is None else ContinuousText(made.validation, c.context)
        return RunData(recipe, made.tokenizer, task, stripes, stream, made.train.digest)
    train = data.WindowBatches(made.train, c.context, c.batch_size, c.seed)
    validation = None if made.validation is None else TextWindows(made.validation, c.context)
    return RunData(recipe, made.tokenizer, task, train, validation, made.train.digest)


def read_examples(recipe: config.Recipe, tokenizer: Tokenizer | None, voice: Reporter) -> RunData:
    c = recipe.train
    if c.pack and not isinstance(recipe.task, config.NextToken):
        raise config.ConfigError(f"train.pack: task {recipe.task.kind!r} treats each row by itself; leave it out, or "
                                 "use train.batch_tokens to have rows of about one length")  # fmt: skip
    if c.context < SHORTEST:
        raise config.ConfigError(f"train.context: {c.context} leaves no room for a text and its special tokens; choose "
                                 f"{SHORTEST} or more")  # fmt: skip
    tally = data.BadRecordPolicy(recipe.data.on_bad_record)  # bad records are reported once, when examples are made
    recipe = replace(
        recipe, task=tasks.fill_classes(recipe.task, iterate_records(recipe.data, tally), tally.record_bad)
    )
    tokenizer = tokenizer or data.tokenizer_from_records(recipe.data, recipe.tokenizer, tasks.text_columns(recipe.task))
    tokenizer = tasks.add_task_tokens(recipe.task, tokenizer)
    recipe = resolve_sizes(recipe, tokenizer)
    rows = RowPadding(c.context, c.padding_side, 1 if c.batch_tokens is None else LENGTH_MULTIPLE)
    task = tasks.build_task(recipe.task, tokenizer, recipe.model, rows=rows, chunk=c.loss_chunk)
    make = whole_documents(task, tokenizer) if c.pack else lambda record: task.examples(record, tokenizer)
    train, validation = data.prepare_examples(
        recipe.data, make, examples_key(recipe, task, tokenizer), notice=voice.notice, progress=voice.progress
    )
    digest = train.digest
    if isinstance(task, tasks.MaskedLM) and task.c.next_sentence:
        train = next_sentence_examples(train, task, c.seed, voice)
        validation = None if validation is None else next_sentence_examples(validation, task, c.seed, voice)
    return RunData(
        recipe, tokenizer, task, training_batches(train, task, c), validation_source(validation, task, c), digest
    )


def iterate_records(c: config.Data, tally: data.BadRecordPolicy) -> Iterator[data.Record]:
    return (record for table in data.find_records(c.sources, c) for record in table.records(tally))


def whole_documents(task: Task, tokenizer: Tokenizer) -> Callable[[Any], Any]:
    """The token ids of whole documents: packing arranges them in rows."""
    assert isinstance(task, tasks.NextToken)
    return lambda record: task.around(get_ids(record, task.c.input, tokenizer))


def examples_key(recipe: config.Recipe, task: Task, tokenizer: Tokenizer) -> dict[str, Any]:
    """The cache key of examples, apart from the records."""
    kept = {
        name: value
        for name, value in config.to_dict(recipe.task).items()
        if name not in ("label_smoothing", "decoder_start")
    }
    return {"format": FORMAT, "task": kept, "tokenizer": tokenizer_key(tokenizer), "length": task.rows.length,
            "packed": recipe.train.pack, "segments": task.segments}  # fmt: skip


class CachedRows(Sequence[data.Example]):
    """Examples with an LRU cache: long documents are slow to fetch."""

    def __init__(self, rows: Examples) -> None:
        self.rows, self.row = rows, lru_cache(maxsize=128)(rows.__getitem__)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: Any) -> Any:
        return self.row(row)


def next_sentence_examples(documents: Examples, task: tasks.MaskedLM, seed: int, voice: Reporter) -> Examples:
    """Segment pairs for next-sentence prediction, stored as examples; masked tokens are drawn anew in every epoch."""

    if len(documents) < 2:
        raise config.DataError(f"{documents.name}: one document, and for task.next_sentence half of the second parts "
                               "come from another; name more text, or keep more of it in data.validation")  # fmt: skip
    near = CachedRows(documents)

    def make_pairs(tally: data.BadRecordPolicy) -> Iterator[data.Example]:
        empty = True
        for place in range(len(documents)):
            for pair in task.pairs(near, place, data.seeded_generator(seed, "pairs", place)):
                empty = False
                yield pair
        if empty:
            raise config.DataError(f"{documents.name}: no document has two sentences, which are its lines; set "
                                   "data.blank_line_ends_document=true to have an empty line end a "
                                   "document")  # fmt: skip

    which = None if documents.which is None else content_cache.content_key(documents.which.tolist())
    key = {"pairs": FORMAT, "of": documents.digest, "which": which, "seed": seed}
    return data.store_examples(
        make_pairs, key, content_cache.cache_dir(None), documents.name, notice=voice.notice, progress=voice.progress
    )


def training_batches(rows: Examples | TensorRows, task: Task, c: config.Train) -> BatchSource:
    if c.pack:
        assert isinstance(rows, Examples)
        return data.PackedBatches(rows, c.context, c.batch_size, c.seed, task.specials.fill)
    if c.batch_tokens is not None:
        return data.BucketedBatches(rows, task.collate, c.batch_tokens, c.seed, LENGTH_MULTIPLE, task.extra_tokens)
    return data.FixedSizeBatches(rows, task.collate, c.batch_size, c.seed)


def validation_source(rows: Examples | TensorRows | None, task: Task, c: config.Train) -> ValidationSource | None:
    if rows is None:
        return None
    if c.pack:
        assert isinstance(rows, Examples)
        return PackedDocuments(data.PackedBatches(rows, c.context, max(1, AT_ONCE // c.context), 0, task.specials.fill))
    return ValidationExamples(rows, task)


def batch_tokens(batch: Any) -> int:
    """The number of tokens in a batch, without padding."""
    if not isinstance(batch, dict):
        return int(batch.numel() - batch.shape[0])
    if "tokens" in batch:  # data other than text give their count
        return int(batch["tokens"].sum())
    sides: Sequence[tuple[str, str]] = (("ids", "real"), ("source", "source_real"))
    return sum(int(batch[real].sum()) if real in batch else batch[ids].numel() for ids, real in sides if ids in batch)
