"""What can be said about a run: the text, its tokens, the model, how it is trained, and what the report shows.

    [data]   source = "shakespeare"        [model]  preset = "gpt2"  dim = 128  depth = 4  heads = 4
    [text]   kind = "char"                 [train]  steps = 2000  batch = 12  context = 64

Defaults are the lecture's: batches of 32, learning rate 1e-4 after 4,000 steps of warm-up.
"""

from dataclasses import dataclass
from typing import Literal

from regard.config.checks import at_least, fraction
from regard.config.models import Transformer
from regard.config.trunk import Trunk

PACKAGED = ("shakespeare",)  # texts that come with the package
MAY_CHANGE = ("train.steps", "train.minutes")  # what a run that goes on may have otherwise
PRESETS = (  # sentences that a recipe may begin from; `regard.zoo` holds them
    "transformer-base", "transformer-big", "bert-base", "bert-large", "roberta-base", "distilbert", "albert-base",
    "electra-small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-125m", "gpt3-350m", "gpt3-760m",
    "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b", "llama-7b", "llama3-8b", "smollm2-135m",
    "qwen3-0.6b", "t5-small", "t5-v1.1-base", "bart-base", "marian", "vit-b16", "vit-l16", "vit-h14", "swin-tiny",
    "clip-vit-b32", "imagegpt-small", "imagegpt-medium", "imagegpt-large", "lab",
)  # fmt: skip


# ---------------------------------------------------------------- text and its tokens


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where texts and records come from: packaged ones by name, files, folders, patterns, "-" (standard input), or
    "a.en + a.fr" (files whose lines belong together), "toy:sort(20)" (made), "hf:owner/name:split" (fetched).

    `validation` is the part kept back, or sources of their own: of a text its end, of records those that a hash of
    what they ask chooses. A text is looked for in the `column` of records; `columns` names those of files that do not
    name theirs; with `documents`, an empty line ends a document in a text that is read as records. A `bad` record
    stops, or is passed over and counted.
    """

    source: str | tuple[str, ...] = "shakespeare"
    validation: float | str | tuple[str, ...] = 0.1
    column: str = "text"
    columns: tuple[str, ...] = ()
    documents: bool = False
    bad: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        if not self.sources or "" in self.sources:
            raise ValueError("source: empty; name at least one file, folder or packaged text")
        if isinstance(self.validation, float) and not 0 <= self.validation < 1:
            raise ValueError(f"validation: {self.validation} is not a part of the text between 0 and 1")
        if not isinstance(self.validation, float | int) and (not self.validations or "" in self.validations):
            raise ValueError("validation: empty; name a source, or a part between 0 and 1")
        if not self.column or "" in self.columns or len(set(self.columns)) < len(self.columns):
            raise ValueError("columns: every column needs a name of its own; remove what is empty or double")

    @property
    def sources(self) -> tuple[str, ...]:
        return self.source if isinstance(self.source, tuple) else (self.source,)

    @property
    def validations(self) -> tuple[str, ...]:
        """The sources that are only for validation."""
        own = self.validation
        return own if isinstance(own, tuple) else (own,) if isinstance(own, str) else ()


@dataclass(frozen=True, kw_only=True)
class Characters:
    """One token a character of the training text; others become bytes, or are refused without the `fallback`."""

    kind: Literal["char"] = "char"
    fallback: bool = True


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """One token a byte of UTF-8: 256, and no text that cannot be said."""

    kind: Literal["byte"] = "byte"


@dataclass(frozen=True, kw_only=True)
class Words:
    """The most frequent words and marks, spaces apart; others become bytes, or <unk> without the `fallback`."""

    kind: Literal["word"] = "word"
    vocab: int = 8192
    lower: bool = False
    fallback: bool = True

    def __post_init__(self) -> None:
        at_least(1, vocab=self.vocab)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Pieces of words: byte-level BPE (GPT-2), WordPiece (BERT), Unigram (T5); all fall back to bytes."""

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    vocab: int = 8192
    lower: bool = False

    def __post_init__(self) -> None:
        at_least(300, vocab=self.vocab)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A tokenizer.json, or a folder with one."""

    kind: Literal["file"] = "file"
    path: str


Text = Characters | Bytes | Words | Pieces | Saved


# ---------------------------------------------------------------- training


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay, on matrices and tables alone (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    lr: float = 1e-4
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        check_adam(self.betas)
        at_least(0, lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Orthogonalised momentum for the blocks' matrices (Jordan 2024), AdamW at `adam_lr` for all else."""

    kind: Literal["muon"] = "muon"
    lr: float = 0.02
    momentum: float = 0.95
    rounds: int = 5
    adam_lr: float = 3e-3
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_adam(self.betas)
        fraction(momentum=self.momentum)
        at_least(1, rounds=self.rounds)
        at_least(0, lr=self.lr, adam_lr=self.adam_lr, eps=self.eps, weight_decay=self.weight_decay)


def check_adam(betas: tuple[float, ...]) -> None:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas: {list(betas)} is not two numbers from 0 up to 1, such as [0.9, 0.95]")


@dataclass(frozen=True, kw_only=True)
class Noam:
    """dim^-0.5 · min(step^-0.5, step · warmup^-1.5), times lr: with lr = 1 the original's (Vaswani et al. 2017)."""

    kind: Literal["noam"] = "noam"
    warmup: int = 4000

    def __post_init__(self) -> None:
        at_least(1, warmup=self.warmup)


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Up to lr over `warmup` steps, then down to `final` times lr at the end: along a line, a cosine, or not at all."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 4000
    final: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup)
        fraction(final=self.final)
        if self.kind == "constant" and self.final:
            raise ValueError("final: a constant schedule does not end lower; choose linear or cosine")


@dataclass(frozen=True, kw_only=True)
class Trapezoid:
    """Warm-up, stable, decay (WSD): down to `final` times lr along a line over the last `decay` of the run."""

    kind: Literal["wsd"] = "wsd"
    warmup: int = 100
    decay: float = 0.2
    final: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup)
        fraction(decay=self.decay, final=self.final)


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long, on what, and with which optimizer.

    A run ends after `steps` or after `minutes`, whichever comes first; schedules follow the one that is nearer its
    end. `batch` sequences of `context` tokens make a micro-batch, `accumulate` of them a step. `eval_tokens` is how
    much of the validation text evaluations on the way read (none: all of it); the last one always reads all.
    """

    steps: int | None = 10_000
    minutes: float | None = None
    seed: int = 0
    batch: int = 32
    context: int = 512
    accumulate: int = 1
    clip: float | None = 1.0
    optimizer: AdamW | Muon = AdamW()
    schedule: Noam | Slope | Trapezoid = Slope()
    precision: Literal["fp32", "mixed", "bf16"] = "fp32"
    compile: Literal["auto"] | bool = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    parallel: Literal["none"] = "none"
    eval_every: int | None = 500
    eval_tokens: int | None = 65_536
    save_every: int | None = 1000
    keep: int = 2

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ValueError("steps: say how long the run is, by steps or by minutes")
        at_least(0, steps=self.steps, minutes=self.minutes, seed=self.seed)
        at_least(1, batch=self.batch, context=self.context, accumulate=self.accumulate, keep=self.keep)
        at_least(1, eval_every=self.eval_every, eval_tokens=self.eval_tokens, save_every=self.save_every)
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip: {self.clip} would stop all learning; choose a norm above zero, or none")


# ---------------------------------------------------------------- generation and report


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy; `stop` strings end the text and are not part of it."""

    new: int = 200
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        at_least(0, new=self.new, temperature=self.temperature, seed=self.seed)
        at_least(1, top_k=self.top_k)
        fraction(top_p=self.top_p, min_p=self.min_p)
        if self.repetition <= 0:
            raise ValueError(f"repetition: {self.repetition} must be more than zero; 1 changes nothing")
        if "" in self.stop:
            raise ValueError("stop: an empty string would stop at once; remove it")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What report.html shows: samples after `prompt` at each temperature, and the heads looking at `sentence`.

    Without a prompt samples begin with a line break, or as the text does; without a sentence heads read the samples.
    """

    prompt: str | None = None
    temperatures: tuple[float, ...] = (0.5, 0.8, 1.0)
    new: int = 400
    sentence: str | None = None

    def __post_init__(self) -> None:
        at_least(1, new=self.new)
        for place, temperature in enumerate(self.temperatures):
            at_least(0, **{f"temperatures[{place}]": temperature})
        if self.prompt == "":
            raise ValueError("prompt: a sample needs something to begin with, if only a line break")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One experiment: everything a run needs, in one file."""

    data: Data = Data()
    text: Text = Characters()
    model: Transformer = Transformer(trunk=Trunk(mask="causal"))
    train: Train = Train()
    report: Report = Report()

    def __post_init__(self) -> None:
        if self.model.precision != self.train.precision:
            raise ValueError(f"model.precision: {self.model.precision!r}, and train.precision is "
                             f"{self.train.precision!r}; set train.precision alone")  # fmt: skip
