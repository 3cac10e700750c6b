"""Output and input helpers of the verbs: results on stdout as text or JSON, texts from files and stdin, options."""

import codecs
import gc
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from regard import config
from regard.config.terminal_escapes import escape_controls

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A run, a checkpoint or a Hugging Face folder.")
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that differ, such as train.steps=500.")
]
WeightsOption = Annotated[
    str, typer.Option(metavar="KIND", help="How a CPU holds the weights: fp32, bf16, int8; auto: fp32, where it pays.")
]
Dtype = Annotated[
    str, typer.Option(metavar="TYPE", help="What the model computes in: fp32, bf16, fp16, fp64; auto: as it is stored.")
]
Specials = Annotated[
    str, typer.Option(metavar="parse|plain", help="Special tokens in a text: parse them, or spell them as plain text.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for scripts.")]


def import_torch() -> None:
    """Import torch with Ctrl-C deferred: an interrupted import would leave it half-loaded for the rest of the
    process."""
    caught: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number)) if main else None
    gc.disable()  # garbage collection during imports finds nothing and takes a tenth of a second each time
    try:
        import torch  # noqa: F401

        import regard.inference.model  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()
        if main:
            signal.signal(signal.SIGINT, before)
    if caught:
        raise KeyboardInterrupt


def print_json(result: Any) -> None:
    """Print one JSON object on one line; NaN and infinity become null."""
    print(json.dumps(json_safe(result), ensure_ascii=False, allow_nan=False))


def json_safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): json_safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and aligned values."""
    rows = list(rows)
    wide = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{wide}}  {value}".rstrip())


def print_exact(text: str) -> None:
    """Print a text without any extra byte, so that it can be piped; on a terminal a newline follows."""
    sys.stdout.write(escape_control(text))
    if sys.stdout.isatty() and not text.endswith("\n"):
        sys.stdout.write("\n")


def escape_control(text: str) -> str:
    """Escape control characters on a terminal as ^[ and the like: a model may generate any."""
    return escape_controls(text) if sys.stdout.isatty() else text


def dim(text: str) -> str:
    """Grey on a terminal, unless NO_COLOR is set (no-color.org)."""
    text, coloured = escape_controls(text), sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[2m{text}\x1b[0m" if coloured else text


def read_text_argument(place: str) -> str:
    """The exact text of a file, or of standard input ("-"), without a byte order mark."""
    name = "standard input" if place == "-" else place
    try:
        return read_input_bytes(place).decode("utf8")
    except UnicodeDecodeError as problem:
        line = problem.object.count(b"\n", 0, problem.start) + 1
        remedy = "convert it, as with iconv -f latin1 -t utf8"
        raise config.DataError(f"{name}: line {line} is not UTF-8; {remedy}") from None


def read_input_bytes(place: str) -> bytes:
    """The bytes of a file, or of standard input ("-")."""
    if not place:
        raise config.ConfigError("--file: it is empty; name a file, or - for standard input")
    return (stdin_bytes().read() if place == "-" else Path(place).read_bytes()).removeprefix(codecs.BOM_UTF8)


def stdin_bytes() -> Any:
    """Binary stdin, which a shell may have closed."""
    if sys.stdin is None:
        raise config.DataError("standard input: it is closed; pipe something into it, or name a file")
    return sys.stdin.buffer


def check_surrogates(text: str, name: str) -> str:
    """Check a text from the command line: undecodable bytes arrive as surrogates."""
    try:
        text.encode("utf8")
    except UnicodeEncodeError:
        raise config.DataError(f"{name}: {text!r} is not UTF-8; type it again or give it in a file") from None
    return text


def check_specials_option(given: str) -> Any:
    """Check --specials before anything is loaded."""
    if given not in get_args(config.Specials):
        raise config.ConfigError(f"--specials: no {given!r}; there are parse and plain")
    return given


def add_config_options(cls: Any, about: dict[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add each setting of `cls` as an option to a verb: top_k becomes --top-k. `config_from_options` checks them."""

    def add_parameters(verb: Callable[..., Any]) -> Callable[..., Any]:
        plain = signature(verb)
        taken = [known for known in plain.parameters.values() if known.kind is not Parameter.VAR_KEYWORD]
        for each in fields(cls):
            several, words = isinstance(each.default, tuple), "str" in str(each.type)
            usual = f"  [default: {each.default}]" if each.default not in (None, ()) else ""
            metavar = "TEXT" if several else "NAME" if words else "NUMBER"
            kind: Any = list[str] | None if several else str | None
            told = Annotated[kind, typer.Option(help=about[each.name] + usual, metavar=metavar)]
            taken.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=None, annotation=told))
        verb.__signature__ = plain.replace(parameters=taken)  # type: ignore[attr-defined]
        return verb

    return add_parameters


def config_from_options(cls: Any, given: dict[str, Any], words: dict[str, str] = {}) -> Any:  # noqa: B006  read only
    """Build the config from options; an error names an option as it was typed, --top-k and not top_k."""
    try:
        return config.from_dict(cls, given)
    except config.ConfigError as problem:
        name, _, rest = str(problem).partition(":")
        raise config.ConfigError(f"{words.get(name, '--' + name.replace('_', '-'))}:{rest}") from None
