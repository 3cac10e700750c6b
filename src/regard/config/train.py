"""Config of training: steps, batches, optimizer, schedule, EMA, LoRA, augmentation, evaluation and checkpoints."""

from itertools import pairwise
from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_fraction, check_minimum, config_class


@config_class
class ImageAugment:
    """Image augmentation of training batches, drawn anew each time; evaluation images are unchanged.

    `flip` mirrors every second image. `crop` pads an image with so many black pixels, and crops it to its size.
    `rotate` is the maximum angle in degrees, `zoom` the maximum relative change of size. `rand_augment` is the number
    of random changes from a set of thirteen (RandAugment: Cubuk et al. 2020), of strength `magnitude`. `mixup` blends
    images (Zhang et al. 2018), `cutmix` replaces a rectangle (Yun et al. 2019): both are the parameter of the Beta
    distribution of shares, 0 is never, and with both each batch uses one of them.
    """

    flip: bool = False
    crop: int = 0
    rotate: float = 0.0
    zoom: float = 0.0
    rand_augment: int = 0
    magnitude: float = 0.3
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(
            0, crop=self.crop, rotate=self.rotate, rand_augment=self.rand_augment, mixup=self.mixup, cutmix=self.cutmix
        )
        check_fraction(magnitude=self.magnitude)
        if not 0 <= self.zoom < 1:
            raise ConfigError(f"zoom: {self.zoom} is not from 0 up to 1; 0.1 is up to a tenth larger or smaller")


@config_class
class LoRA:
    """LoRA: W + alpha/rank · B A instead of W, where only A and B, of rank `rank`, are trained (Hu et al. 2021).

    `targets` name the linear layers: q, k, v, out, gate, up and down everywhere, qkv for one A shared by the three, or
    more of a path, such as `trunk.blocks.0.attn.q`; in each component `*` matches as in a shell. `dropout` applies to
    the input of A. `modules_to_save` are trained in full; by default those without pretrained weights: a head for
    another task, an embedding table that has grown.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q", "v")
    dropout: float = 0.0
    modules_to_save: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_minimum(1, rank=self.rank)
        if self.alpha <= 0:
            raise ConfigError(f"alpha: {self.alpha} cancels the adapters; choose a number above 0")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: {self.dropout} is not from 0 up to 1; 0 drops nothing")
        if not self.targets or "" in self.targets:
            raise ConfigError("targets: an empty name; name maps, such as 'q' and 'v'")
        if "" in (self.modules_to_save or ()):
            raise ConfigError("modules_to_save: an empty name; name parts of the model, such as 'head'")


HIGHEST = 1e30  # learning rate
MOST_TOKENS = 1 << 24  # tokens in a micro-batch: sixty times what fits on the largest device


@config_class
class AdamW:
    """AdamW: Adam with decoupled weight decay, on matrices and tables only (Loshchilov and Hutter 2019).

    Without `decoupled`, an L2 penalty of decay/2 times the squared weights is added to the loss (Kingma and Ba 2015): a
    weight without gradient then shrinks at the full learning rate, which helps if most words occur only once.
    """

    kind: Literal["adamw"] = "adamw"
    lr: float = 1e-4
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.1
    decoupled: bool = True

    def __post_init__(self) -> None:
        check_betas(self.betas)
        check_rate(lr=self.lr)
        check_minimum(0, eps=self.eps, weight_decay=self.weight_decay)


@config_class
class Muon:
    """Muon: orthogonalised momentum for matrices in blocks (Jordan 2024), AdamW at `adam_lr` for all other weights."""

    kind: Literal["muon"] = "muon"
    lr: float = 0.02
    momentum: float = 0.95
    newton_schulz_steps: int = 5
    adam_lr: float = 3e-3
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_betas(self.betas)
        check_fraction(momentum=self.momentum)
        check_minimum(1, newton_schulz_steps=self.newton_schulz_steps)
        check_rate(lr=self.lr, adam_lr=self.adam_lr)
        check_minimum(0, eps=self.eps, weight_decay=self.weight_decay)


@config_class
class Adafactor:
    """Adafactor: second moments as one row and one column for each matrix, with little memory (Shazeer and Stern 2018).

    `eps` are the floors of the squared gradient and of the step; `clip_threshold` bounds the update.
    """

    kind: Literal["adafactor"] = "adafactor"
    lr: float = 1e-2
    decay_rate: float = -0.8
    eps: tuple[float, ...] = (1e-30, 1e-3)
    clip_threshold: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(lr=self.lr)
        check_minimum(0, weight_decay=self.weight_decay)
        check_minimum(1, clip_threshold=self.clip_threshold)
        if len(self.eps) != 2 or min(self.eps) < 1e-37:  # smallest number that fp32 represents well
            raise ConfigError(f"eps: {list(self.eps)} is not two numbers above 0, such as [1e-30, 1e-3]")
        if not -1 <= self.decay_rate < 0:
            raise ConfigError(f"decay_rate: {self.decay_rate} is not a power from -1 up to 0, such as -0.8")


def check_rate(**rates: float) -> None:
    """Check that a learning rate, and its products with schedule factors, fit in fp32."""
    check_minimum(0, **rates)
    for name, rate in rates.items():
        if rate > HIGHEST:
            raise ConfigError(f"{name}: {rate} is more than {HIGHEST:g}, beyond which a step is not finite; most runs "
                             "take 0.00001 to 0.1")  # fmt: skip


def check_betas(betas: tuple[float, ...]) -> None:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas: {list(betas)} is not two numbers from 0 up to 1, such as [0.9, 0.95]")


@config_class
class NoamSchedule:
    """Noam's schedule: dim^-0.5 · min(step^-0.5, step · warmup^-1.5), times lr; lr = 1 is the original
    (Vaswani et al. 2017)."""

    kind: Literal["noam"] = "noam"
    warmup: int = 4000

    def __post_init__(self) -> None:
        check_minimum(1, warmup=self.warmup)


@config_class
class WarmupSchedule:
    """Warm-up to lr over `warmup` steps, then decay to `min_lr_ratio` times lr: linear, cosine, or constant."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 4000
    min_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(0, warmup=self.warmup)
        check_fraction(min_lr_ratio=self.min_lr_ratio)
        if self.kind == "constant" and self.min_lr_ratio:
            raise ConfigError("min_lr_ratio: a constant schedule does not end lower; choose linear or cosine")


@config_class
class WSDSchedule:
    """Warm-up, stable, decay (WSD): linear decay to `min_lr_ratio` times lr over the last `decay_fraction` of
    the run."""

    kind: Literal["wsd"] = "wsd"
    warmup: int = 100
    decay_fraction: float = 0.2
    min_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        check_minimum(0, warmup=self.warmup)
        check_fraction(decay_fraction=self.decay_fraction, min_lr_ratio=self.min_lr_ratio)


Optimizer = AdamW | Muon | Adafactor
Schedule = NoamSchedule | WarmupSchedule | WSDSchedule


@config_class
class StepGuard:
    """Step guard: skips steps with non-finite loss or gradients, and spikes.

    A spike is a loss or norm more than so many standard deviations above its running mean, both in logarithms (none: no
    such check). After `max_skipped_steps` consecutive skipped steps the run stops, and lists their rows.
    """

    spike_sigmas: float | None = 8.0
    max_skipped_steps: int = 10

    def __post_init__(self) -> None:
        check_minimum(1, max_skipped_steps=self.max_skipped_steps)
        if self.spike_sigmas is not None and self.spike_sigmas <= 1:
            raise ConfigError(
                f"spike_sigmas: {self.spike_sigmas} standard deviations are no spike; choose 5 or more, or none"
            )


@config_class
class Train:
    """Training settings: length, data batches, optimizer, evaluation and checkpoints of a run.

    A run ends after `steps`, `epochs` or `minutes`, whichever comes first; schedules follow the nearest limit.
    `batch_size` sequences of at most `context` tokens make a micro-batch, `gradient_accumulation` of them a step; with
    `batch_tokens` a micro-batch has rows of similar length, up to so many tokens. `pack` fills rows with several
    documents, without attention between them; other rows are padded on one side. `workers` processes prefetch batches.
    With `loss_chunk`, the logits of so many tokens are computed at a time, and never all.

    With `carry_state` a text is read in stripes, and the model's state continues from step to step: recurrent states,
    or for attention the last `context` tokens, which is how far back gradients reach.

    `init_from` starts from the weights of another model; `word_vectors` from a file of word vectors; parameters in
    `freeze` stay fixed, with `lora` all of them except the adapters. `activation_checkpointing` recomputes activations
    inside blocks; `ema_decay` keeps an average of the weights, which is evaluated and saved. `augment` changes training
    images. On a CPU a run is bit-reproducible; on a GPU with `deterministic`, more slowly.

    Evaluations come every `eval_every` steps or `eval_minutes`; during training they use `eval_tokens` of the
    validation data (none: all), the last one all. The `keep_checkpoints` newest checkpoints are kept, with `keep_best`
    also the best; after `patience` evaluations without improvement the run ends. `snapshots` keeps the weights of some
    steps permanently: "log" those of step 0, 1, 2, 4, 8, ... and the last, a number those at every multiple and the
    last, a list those of its steps. `tensorboard` writes TensorBoard logs.
    """

    steps: int | None = 10_000
    epochs: float | None = None
    minutes: float | None = None
    seed: int = 0
    batch_size: int = 32
    context: int = 512
    batch_tokens: int | None = None
    pack: bool = False
    carry_state: bool = False
    padding_side: Literal["right", "left"] = "right"
    workers: int = 0
    loss_chunk: int | None = None
    gradient_accumulation: int = 1
    max_grad_norm: float | None = 1.0
    guard: StepGuard = StepGuard()
    optimizer: Optimizer = AdamW()
    schedule: Schedule = WarmupSchedule()
    ema_decay: float | None = None
    init_from: str | None = None
    word_vectors: str | None = None
    freeze: tuple[str, ...] = ()
    lora: LoRA | None = None
    augment: ImageAugment | None = None
    precision: Literal["fp32", "mixed", "bf16"] = "fp32"
    activation_checkpointing: bool = False
    compile: Literal["auto"] | bool = "auto"
    deterministic: bool = False
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    eval_every: int | None = 500
    eval_minutes: float | None = None
    eval_tokens: int | None = 65_536
    save_every: int | None = 1000
    keep_checkpoints: int = 2
    keep_best: bool = False
    patience: int | None = None
    snapshots: Literal["log"] | int | tuple[int, ...] | None = None
    tensorboard: bool = False

    @property
    def rows(self) -> int:
        """Rows of `context` tokens in a micro-batch."""
        return self.batch_size if self.batch_tokens is None else max(1, self.batch_tokens // self.context)

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None and self.epochs is None:
            raise ConfigError("steps: the run has no length; set steps, epochs or minutes")
        check_minimum(
            0, steps=self.steps, epochs=self.epochs, minutes=self.minutes, seed=self.seed, workers=self.workers
        )
        check_minimum(
            1,
            batch_size=self.batch_size,
            context=self.context,
            gradient_accumulation=self.gradient_accumulation,
            keep_checkpoints=self.keep_checkpoints,
        )
        check_minimum(1, eval_every=self.eval_every, eval_tokens=self.eval_tokens, save_every=self.save_every)
        check_minimum(1, batch_tokens=self.batch_tokens, patience=self.patience, loss_chunk=self.loss_chunk)
        if self.rows * self.context > MOST_TOKENS:  # before a tensor of that size is allocated
            name = "batch_size" if self.batch_tokens is None else "batch_tokens"
            raise ConfigError(f"{name}: {self.rows:,} rows of {self.context:,} tokens are more than {MOST_TOKENS:,} in "
                              f"a micro-batch; set train.{name} or train.context lower, and "
                              "train.gradient_accumulation higher")  # fmt: skip
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise ConfigError(
                f"max_grad_norm: {self.max_grad_norm} would stop all learning; choose a norm above zero, or none"
            )
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(
                f"ema_decay: {self.ema_decay} is not between 0 and 1; 0.999 is about the last thousand steps"
            )
        if self.eval_minutes is not None and self.eval_minutes <= 0:
            raise ConfigError(f"eval_minutes: {self.eval_minutes} is no time; choose more, or none")
        if self.pack and self.batch_tokens is not None:
            raise ConfigError(
                "batch_tokens: packed rows are all of one length, train.context; leave out one of the two"
            )
        if self.carry_state and (self.pack or self.batch_tokens is not None):
            raise ConfigError(
                "carry_state: rows of pack and batch_tokens do not continue from step to step; leave both out"
            )
        if "" in self.freeze:
            raise ConfigError("freeze: an empty name; name parts of the model, such as 'embed' or 'trunk.blocks.0'")
        if self.lora is not None and self.init_from is None:
            raise ConfigError("lora: adapters need a pretrained model; name it with train.init_from")
        if "" in (self.init_from, self.word_vectors):
            raise ConfigError("init_from, word_vectors: an empty name; name a checkpoint or a file, or leave it out")
        check_snapshots(self.snapshots, self.steps)


def check_snapshots(schedule: str | int | tuple[int, ...] | None, steps: int | None) -> None:
    """Check that a list of snapshot steps increases strictly and lies within the run."""
    if isinstance(schedule, int):
        check_minimum(1, snapshots=schedule)
    if not isinstance(schedule, tuple):
        return
    if not schedule or schedule[0] < 0 or any(one >= other for one, other in pairwise(schedule)):
        raise ConfigError(f"snapshots: {list(schedule)} is not a list of steps from 0 on, each after the one before "
                          "it, such as [0, 100, 1000]")  # fmt: skip
    if steps is not None and schedule[-1] > steps:
        raise ConfigError(f"snapshots: step {schedule[-1]:,} is never reached in a run of {steps:,} steps; leave it "
                          "out, or set train.steps higher")  # fmt: skip
