"""The command line: its verbs, and the way from the arguments to an exit code."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from regard import config
from regard.cli import (
    answer,
    caption,
    chat,
    check,
    classify,
    compare,
    convert,
    doctor,
    draw,
    embed,
    estimate,
    evaluate,
    explain,
    fill,
    forecast,
    generate,
    lens,
    likelihood,
    models,
    over_training,
    scale,
    serve,
    tag,
    tokenize,
    train,
    translate,
)
from regard.cli.errors import print_stderr, report_error
from regard.cli.verb_command import VerbCommand
from regard.config.errors import did_you_mean
from regard.config.terminal_escapes import filter_terminal


class WrappedProblem(Exception):
    """Carries an exception past typer, which would end the process without a message."""


class VerbGroup(TyperGroup):
    """A command group that lists the verbs if none is given, and suggests the closest for an unknown one."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except (KeyboardInterrupt, EOFError, OSError) as problem:
            raise WrappedProblem from problem

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        if not arguments and not context.resilient_parsing:  # set for shell completion
            context.fail(f"which verb? there are {', '.join(self.list_commands(context))}")
        return super().parse_args(context, arguments)

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        name, known = arguments[0], self.list_commands(context)
        if name not in known:
            context.fail(f"no verb {name!r}{did_you_mean(name, known)} there are {', '.join(known)}")
        return super().resolve_command(context, arguments)


# Plain help: typer's panels would import rich, which costs as much as all imports before it.
PLAIN: dict[str, Any] = {"cls": VerbGroup, "rich_markup_mode": None, "pretty_exceptions_enable": False}
app = typer.Typer(**PLAIN)
look = typer.Typer(add_completion=False, help="Look inside a model: what layers, heads and units do.", **PLAIN)
tokens = typer.Typer(add_completion=False, help="Train a tokenizer, and see what it does.", **PLAIN)

VERBS: dict[typer.Typer, dict[str, Callable[..., Any]]] = {
    app: {
        "train": train.train, "resume": train.resume, "evaluate": evaluate.evaluate, "generate": generate.generate,
        "chat": chat.chat, "translate": translate.translate, "classify": classify.classify, "tag": tag.tag,
        "embed": embed.embed, "fill": fill.fill, "answer": answer.answer, "likelihood": likelihood.likelihood,
        "caption": caption.caption, "match": caption.match, "draw": draw.draw, "forecast": forecast.forecast,
        "serve": serve.serve, "explain": explain.explain, "doctor": doctor.doctor, "estimate": estimate.estimate,
        "compare": compare.compare, "scale": scale.scale, "check": check.check, "convert": convert.convert,
        "check-kernel": check.check_kernel, "report": train.report, "models": models.models, "schema": explain.schema,
    },
    look: {
        "scan": lens.scan, "logit-lens": lens.logit_lens, "tune": lens.tune, "attribute": lens.attribute,
        "inputs": lens.inputs, "agreement": lens.agreement, "patch": lens.patch, "trace": lens.trace,
        "induction": lens.induction, "neurons": lens.neurons, "neuron": lens.neuron, "context": lens.context,
        "steer": lens.steer, "census": lens.census, "over-training": over_training.over_training,
    },
    tokens: {"train": tokenize.train, "encode": tokenize.encode, "decode": tokenize.decode},
}  # fmt: skip
for group, verbs in VERBS.items():
    for name, verb in verbs.items():
        group.command(name, cls=VerbCommand)(verb)
app.add_typer(look, name="lens")
app.add_typer(tokens, name="tokenize")


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"regard {config.VERSION}")
        raise typer.Exit


@app.callback()
def root_command(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One small, readable transformer that takes every shape: train it, ask it, look inside.

    A first run, some minutes on a laptop: regard train shakespeare
    """


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error has been reported on stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by >&-
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(getattr(sys, name), "reconfigure"):  # a terminal with few characters gets escapes for the others
            getattr(sys, name).reconfigure(errors="backslashreplace")
    with filter_terminal(), show_warnings():
        try:
            code = get_command(app).main(list(arguments) or ["--help"], prog_name="regard", standalone_mode=False)
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be reported
        except Exception as problem:
            cause = problem.__cause__ if isinstance(problem, WrappedProblem) and problem.__cause__ else problem
            return handle_broken_pipe() if isinstance(cause, BrokenPipeError) else report_error(cause)
    return code if isinstance(code, int) else 0


def handle_broken_pipe() -> int:
    """Handle a closed pipe, as left by `head`: not an error, and nothing more is written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextmanager
def show_warnings() -> Iterator[None]:
    """Show library warnings as single lines on stderr, without the place in the code."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *where: print_stderr(f"note: {message}")
        yield
