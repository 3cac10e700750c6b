"""regard estimate: what a model costs before it runs, from a preset, a recipe, a checkpoint or a bare count."""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.explain import find_subject
from regard.cli.output import (
    JsonOption,
    OverridesArgument,
    add_config_options,
    config_from_options,
    import_torch,
    print_json,
    print_rows,
)
from regard.config.errors import did_you_mean
from regard.config.fields import COST_LIMITS, check_ranges
from regard.config.overrides import apply_override, parse_value

PRECISIONS = ("fp32", "mixed", "bf16")


ABOUT = {
    "params": "A number of parameters in place of a model, such as 400e9.",
    "batch": "Sequences in a step, on each rank.",
    "context": "Tokens in a sequence; by default the model's maximum.",
    "dtype": "fp32, mixed (fp32 weights, 16-bit products) or bf16 (with fp32 masters).",
    "ranks": "Devices that share weights, gradients and optimizer.",
    "tokens": "Tokens to train on, such as 300e9.",
    "device": "What it runs on: v100, a100-80gb, h100-sxm, ...; here, once calibrated.",
    "utilization": "The share of the device's peak that is reached.",
    "price": "Money for one device for one hour.",
    "tokens_per_parameter": "Tokens wanted for each parameter; fewer are warned of.",
}


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """The options besides the model."""

    params: int | None = None
    batch: int | None = None
    context: int | None = None
    dtype: str | None = None
    ranks: int = 1
    tokens: float | None = None
    device: str | None = None
    utilization: float = 0.4
    price: float | None = None
    tokens_per_parameter: float = 20.0

    def __post_init__(self) -> None:
        for name in ("params", "batch", "context", "ranks"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name}: {number} is less than 1")
        check_ranges({**COST_LIMITS, "ranks": (1, 1e7)}, self)
        check_known("dtype", self.dtype, PRECISIONS)
        check_known("device", self.device, read_devices())
        half = read_devices()[self.device].get("type", "bf16") if self.device else "bf16"
        if self.dtype == "bf16" != half:
            raise ValueError(f"dtype: {self.device} multiplies {half} and no bf16; choose mixed")
        if self.price is not None and self.device is None:
            raise ValueError("price: of which device? name it with --device")


def check_known(what: str, name: str | None, known: Collection[str]) -> None:
    if name is not None and name not in known:
        forms = [repr(each) for each in known if name and each.startswith(name.lower())]
        near = f"; did you mean {' or '.join(forms)}?" if forms else did_you_mean(name, known)
        raise ValueError(f"{what}: no {name!r}{near} there are {', '.join(known)}")


def read_devices() -> dict[str, Any]:
    """The table of devices, read without importing torch, so that typing errors are reported at once."""
    return tomllib.loads(files("regard").joinpath("measure", "devices.toml").read_text(encoding="utf8")) | {"here": {}}


@add_config_options(EstimateOptions, ABOUT)
def estimate(
    thing: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A preset, a recipe, a run or a checkpoint.")
    ] = None,
    overrides: OverridesArgument = None,
    *,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine, and keep the result.")] = False,
    json: JsonOption = False,
    **settings: Any,
) -> None:
    """What a model costs before it runs: parameters, arithmetic, memory, time, money.

    Nothing is made or run. Of a recipe, batch, context, precision, optimizer, recomputing and length are taken.
    """
    if calibrate:
        return show_calibration(json)
    options = config_from_options(
        EstimateOptions, {name: parse_toml_number(word) for name, word in settings.items() if word is not None}
    )
    if thing is None and options.params is None:
        raise config.ConfigError("which model? name a preset or a recipe, or give --params")
    if options.params is not None:
        check_count_options(thing, options)
    subject = None if options.params is not None else resolve_subject(str(thing), overrides or [], options)
    import_torch()
    from regard.measure import format_estimate

    bill = estimate_with_options(subject, options)
    print_json(format_estimate.estimate_table(bill, thing)) if json else print(
        format_estimate.format_estimate(bill, thing or "")
    )


def estimate_with_options(subject: "EstimateSubject | None", options: EstimateOptions) -> Any:
    """Estimate; an error names its option as it was typed, --context and not context."""
    from regard import measure

    try:
        tokens = options.tokens or (None if subject is None else subject.tokens)
        terms = measure.CostTerms(
            tokens=tokens,
            device=options.device,
            utilization=options.utilization,
            price=options.price,
            tokens_per_parameter=options.tokens_per_parameter,
        )
        if subject is None:
            assert options.params is not None
            return measure.estimate_parameters(
                options.params, precision=options.dtype or "fp32", ranks=options.ranks, terms=terms
            )
        return measure.estimate_model(subject.model, batch=subject.batch, context=subject.context,
                                optimizer=subject.optimizer, ranks=options.ranks, terms=terms,
                                recompute=subject.recompute)  # fmt: skip
    except config.ConfigError as problem:
        mine = str(problem).partition(":")[0] in EstimateOptions.__dataclass_fields__
        name, _, rest = str(problem).partition(":")
        raise config.ConfigError(f"--{name.replace('_', '-')}:{rest}" if mine else str(problem)) from None


def parse_toml_number(word: str) -> Any:
    """Parse a number as in TOML, 400e9 or 1_000; integers may have either form."""
    value = parse_value(word)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def check_count_options(thing: str | None, options: EstimateOptions) -> None:
    if thing is not None:
        raise config.ConfigError(f"--params: {thing} has its own number of parameters; keep one of the two")
    for name in ("batch", "context"):
        if getattr(options, name) is not None:
            raise config.ConfigError(f"--{name}: a parameter count has no sequences; name a model instead")


@dataclass(frozen=True)
class EstimateSubject:
    """The model to estimate, and the sizes from its recipe."""

    model: config.Transformer | config.DualEncoder
    batch: int
    context: int | None
    optimizer: config.Optimizer | None = None
    tokens: float | None = None
    recompute: bool = False


def resolve_subject(thing: str, overrides: list[str], options: EstimateOptions) -> EstimateSubject:
    """The model of a name or a path, with the options applied over its recipe."""
    recipes = zoo.packaged_recipes()
    if not Path(thing).exists() and thing not in recipes:
        if thing not in config.PRESETS:
            near = did_you_mean(thing, [*config.PRESETS, *recipes])
            raise config.ConfigError(f"{thing}: no such preset or recipe{near} regard models lists what there is")
        subject = EstimateSubject(preset_subject(thing, overrides), 1, None)
    else:
        subject = recipe_subject(thing, overrides)
    model = subject.model if options.dtype is None else with_model_precision(subject.model, options.dtype)
    return replace(
        subject, model=model, batch=options.batch or subject.batch, context=options.context or subject.context
    )


def preset_subject(name: str, overrides: list[str]) -> config.Transformer | config.DualEncoder:
    changes: dict[str, Any] = {}
    for line in overrides:
        apply_override(changes, line)
    for word in ("name", "preset"):
        if word in changes:
            raise config.ConfigError(f"{word}: the model is {name}; name another in its place")
    return zoo.preset(name, **changes)


def recipe_subject(thing: str, overrides: list[str]) -> EstimateSubject:
    read = find_subject(thing, overrides)
    if not isinstance(read.whole, config.Recipe):
        return EstimateSubject(read.model, read.batch, read.context, read.optimizer)
    train = read.whole.train
    tokens = (
        (train.steps or 0) * train.rows * train.gradient_accumulation * train.context if train.minutes is None else 0
    )
    return EstimateSubject(
        read.model, read.batch, read.context, read.optimizer, tokens or None, train.activation_checkpointing
    )


def with_model_precision(c: Any, precision: str) -> Any:
    if isinstance(c, config.DualEncoder):
        return replace(c, towers=tuple(with_model_precision(tower, precision) for tower in c.towers))
    return replace(c, precision=precision)


def show_calibration(json: bool) -> None:
    """Measure the speed of this machine in a few seconds, and store it for predictions."""
    import_torch()
    from regard.measure.calibration import calibrate
    from regard.measure.hardware import local_chip

    facts = calibrate(device=local_chip()).facts()
    print_json(facts) if json else print_rows((name, str(value)) for name, value in facts.items())
