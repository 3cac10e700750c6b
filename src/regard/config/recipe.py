"""Config of a recipe, the whole experiment file: data, tokenizer, task, model, training and report.

    [data]   source = "shakespeare"        [model]  preset = "gpt2"  dim = 128  depth = 4  heads = 4
    [tokenizer]   kind = "char"                 [train]  steps = 2000  batch = 12  context = 64

Defaults: batches of 32, learning rate 1e-4 after 4,000 steps of warm-up, as in the lecture that the package follows.
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_minimum, config_class
from regard.config.model import DualEncoder, Model, Transformer
from regard.config.tasks import NextToken, Task
from regard.config.train import Train
from regard.config.trunk import Trunk

PACKAGED_TEXTS = ("shakespeare",)  # packaged texts
# Settings that may change when a run resumes.
RESUMABLE_SETTINGS = ("train.steps", "train.epochs", "train.minutes", "train.parallel", "train.snapshots")
PRESETS = (  # presets that a recipe may start from; their files are in `regard.zoo`
    "transformer-base", "transformer-big", "bert-base", "bert-large", "roberta-base", "distilbert", "albert-base",
    "electra-small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-125m", "gpt3-350m", "gpt3-760m",
    "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b", "llama-7b", "llama3-8b", "smollm2-135m",
    "qwen3-0.6b", "t5-small", "t5-v1.1-base", "bart-base", "marian", "vit-b16", "vit-l16", "vit-h14", "swin-tiny",
    "clip-vit-b32", "imagegpt-small", "imagegpt-medium", "imagegpt-large", "lab",
)  # fmt: skip


# ---------------------------------------------------------------- data and tokenizers


@config_class
class Data:
    """The data of a recipe: packaged sets by name, files, folders, patterns, "-" (standard input), "a.en + a.fr"
    (parallel files), "toy:sort(20)" (generated), "hf:owner/name:split" (downloaded).

    `validation` is the held-out share, or separate sources: of a text its end, of records those selected by a hash of
    their input. Text is read from the `text_column` of records; `column_names` names the columns of files without a
    header; with `blank_line_ends_document`, an empty line ends a document in a text that is read as records.
    `on_bad_record` raises an error, or skips and counts bad records.
    """

    source: str | tuple[str, ...] = "shakespeare"
    validation: float | str | tuple[str, ...] = 0.1
    text_column: str = "text"
    column_names: tuple[str, ...] = ()
    blank_line_ends_document: bool = False
    on_bad_record: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        if not self.sources or "" in self.sources:
            raise ConfigError("source: empty; name at least one file, folder or packaged text")
        if isinstance(self.validation, float) and not 0 <= self.validation < 1:
            raise ConfigError(f"validation: {self.validation} is not a part of the text between 0 and 1")
        if not isinstance(self.validation, float | int) and (not self.validations or "" in self.validations):
            raise ConfigError("validation: empty; name a source, or a part between 0 and 1")
        if not self.text_column or "" in self.column_names or len(set(self.column_names)) < len(self.column_names):
            raise ConfigError("column_names: every column needs a name of its own; remove what is empty or double")

    @property
    def sources(self) -> tuple[str, ...]:
        return self.source if isinstance(self.source, tuple) else (self.source,)

    @property
    def validations(self) -> tuple[str, ...]:
        """The sources used only for validation."""
        own = self.validation
        return own if isinstance(own, tuple) else (own,) if isinstance(own, str) else ()


# Special tokens written in a text: "parse" makes them special tokens, for rendered chats and the like; "plain" treats
# them as ordinary text.
Specials = Literal["plain", "parse"]


@config_class
class CharTokenizer:
    """Character tokenizer: one token per character of the training text; others become bytes, or are refused without
    `byte_fallback`."""

    kind: Literal["char"] = "char"
    byte_fallback: bool = True
    specials: Specials = "plain"


@config_class
class ByteTokenizer:
    """Byte tokenizer: one token per byte of UTF-8, 256 in all, for any text."""

    kind: Literal["byte"] = "byte"
    specials: Specials = "plain"


@config_class
class WordTokenizer:
    """Word tokenizer: the most frequent words and marks, spaces separate; others become bytes, or <unk> without
    `byte_fallback`."""

    kind: Literal["word"] = "word"
    vocab: int = 8192
    lowercase: bool = False
    byte_fallback: bool = True
    specials: Specials = "plain"

    def __post_init__(self) -> None:
        check_minimum(1, vocab=self.vocab)


@config_class
class SubwordTokenizer:
    """Subword tokenizer: byte-level BPE (GPT-2), WordPiece (BERT), Unigram (T5); all fall back to bytes."""

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    vocab: int = 8192
    lowercase: bool = False
    specials: Specials = "plain"

    def __post_init__(self) -> None:
        check_minimum(300, vocab=self.vocab)


@config_class
class TokenizerFile:
    """A tokenizer.json, or a folder with one."""

    kind: Literal["file"] = "file"
    path: str
    specials: Specials = "plain"


Tokenizer = CharTokenizer | ByteTokenizer | WordTokenizer | SubwordTokenizer | TokenizerFile


# ---------------------------------------------------------------- report


@config_class
class Report:
    """Contents of report.html: samples after `prompt` at each temperature, and attention maps of `sentence`.

    Without a prompt samples start with a line break, or as the text does; without a sentence the maps use the samples.
    """

    prompt: str | None = None
    temperatures: tuple[float, ...] = (0.5, 0.8, 1.0)
    max_new_tokens: int = 400
    sentence: str | None = None

    def __post_init__(self) -> None:
        check_minimum(1, max_new_tokens=self.max_new_tokens)
        for place, temperature in enumerate(self.temperatures):
            check_minimum(0, **{f"temperatures[{place}]": temperature})
        if self.prompt == "":
            raise ConfigError("prompt: a sample needs something to begin with, if only a line break")


@config_class
class Recipe:
    """A recipe: everything that a run needs, in one file."""

    data: Data = Data()
    tokenizer: Tokenizer = CharTokenizer()
    task: Task = NextToken()
    model: Model = Transformer(trunk=Trunk(mask="causal"))
    train: Train = Train()
    report: Report = Report()

    def __post_init__(self) -> None:
        if isinstance(self.model, DualEncoder) and self.task.kind != "contrastive":
            raise ConfigError(f"model.kind: a dual_encoder is trained by task.kind contrastive, and task.kind is "
                              f"{self.task.kind!r}; set it to contrastive, or describe one model")  # fmt: skip
        if self.model.precision != self.train.precision:
            raise ConfigError(f"model.precision: {self.model.precision!r}, and train.precision is "
                             f"{self.train.precision!r}; set train.precision alone")  # fmt: skip
