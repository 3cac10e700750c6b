"""The verbs, and the road from the arguments to an exit code."""

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
    ask,
    chat,
    check,
    check_model,
    classify,
    compare,
    convert,
    doctor,
    draw,
    embed,
    estimate,
    fill,
    forecast,
    likelihood,
    look,
    mixtures,
    models,
    runs,
    scale,
    score,
    serve,
    tag,
    translate,
    words,
)
from regard.cli.mistakes import talk, told
from regard.config.names import did_you_mean
from regard.config.terminal import screened


class Carried(Exception):
    """A problem on its way past typer, which would end the process by itself and without a word."""


class Verbs(TyperGroup):
    """A group of verbs that knows which one was meant."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except (KeyboardInterrupt, EOFError, OSError) as problem:
            raise Carried from problem

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        if not arguments and not context.resilient_parsing:  # which it is when a shell asks for completions
            context.fail(f"which verb? there are {', '.join(self.list_commands(context))}")
        return super().parse_args(context, arguments)

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        name, known = arguments[0], self.list_commands(context)
        if name not in known:
            context.fail(f"no verb {name!r}{did_you_mean(name, known)} there are {', '.join(known)}")
        return super().resolve_command(context, arguments)


# Plain help: typer's panels would import rich, which costs as much again as everything before it.
PLAIN: dict[str, Any] = {"cls": Verbs, "rich_markup_mode": None, "pretty_exceptions_enable": False}
app = typer.Typer(**PLAIN)
tokens = typer.Typer(add_completion=False, help="Train a tokenizer, and see what it does.", **PLAIN)

VERBS: dict[typer.Typer, list[Callable[..., Any]]] = {
    app: [runs.train, runs.resume, score.evaluate, ask.generate, chat.chat, translate.translate, classify.classify,
          tag.tag, embed.embed, fill.fill, answer.answer, likelihood.likelihood, mixtures.caption, mixtures.match,
          draw.draw, forecast.forecast, serve.serve, look.explain, doctor.doctor,
          estimate.estimate, compare.compare, scale.scale, check_model.check, convert.convert, check.check_kernel,
          runs.report, models.models, look.schema],
    tokens: [words.train, words.encode, words.decode],
}
for group, verbs in VERBS.items():
    for verb in verbs:
        group.command()(verb)
app.add_typer(tokens, name="tokenize")


def version(asked: bool) -> None:
    if asked:
        print(f"regard {config.VERSION}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One small, readable transformer that takes every shape: train it, ask it, look inside.

    A first run, some minutes on a laptop: regard train shakespeare
    """


def run(arguments: Sequence[str]) -> int:
    """The exit code of one command; every problem has been told on stderr by then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by >&-
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(getattr(sys, name), "reconfigure"):  # a terminal that knows few letters gets the rest spelt out
            getattr(sys, name).reconfigure(errors="backslashreplace")
    with screened(), notes():
        try:
            code = get_command(app).main(list(arguments) or ["--help"], prog_name="regard", standalone_mode=False)
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be told
        except Exception as problem:
            cause = problem.__cause__ if isinstance(problem, Carried) and problem.__cause__ else problem
            return hung_up() if isinstance(cause, BrokenPipeError) else told(cause)
    return code if isinstance(code, int) else 0


def hung_up() -> int:
    """Whoever read our output has had enough, as `head` does: no failure, and nothing more is written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextmanager
def notes() -> Iterator[None]:
    """The library's warnings as calm lines on stderr, without the place in the code."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *where: talk(f"note: {message}")
        yield
