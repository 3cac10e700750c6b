"""regard train, resume and report: the verbs of a run."""

import os
import shlex
from json import dumps as quoted
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.errors import print_stderr
from regard.cli.output import JsonOption, OverridesArgument, import_torch, print_json, print_rows
from regard.files.atomic import is_temporary

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
MAY_CHANGE = config.RESUMABLE_SETTINGS


def complete_recipes(incomplete: str) -> list[str]:
    return [name for name in zoo.packaged_recipes() if name.startswith(incomplete)]


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A TOML file, a packaged name, or a run.", autocompletion=complete_recipes
        ),
    ],
    overrides: OverridesArgument = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the run goes: runs/NAME by default.")] = None,
    init_from: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Begin with the weights of another model, as a new run.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be trained, and train nothing.")] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> int:
    """Train a model: checkpoints, log and report.html."""
    changes = list(overrides or [])
    if init_from is not None:
        if twice := [line for line in changes if line.partition("=")[0].strip() == "train.init_from"]:
            raise config.ConfigError(f"--init-from {init_from}: and {twice[0]} is given too; keep one of the two")
        changes.append(f"train.init_from={quoted(init_from)}")
    if "=" in recipe and not os.path.exists(recipe):
        raise config.ConfigError(f"{recipe}: a setting in place of the recipe; name the recipe before it")
    said = zoo.read_recipe(recipe, changes)
    for line in zoo.describe_kind_changes(recipe, changes) if not quiet else ():
        print_stderr(f"note: {line}")
    if dry_run:
        from regard.cli.dry_run import show_dry_run

        return show_dry_run(said, json)
    place = out or Path("runs") / Path(recipe).resolve().name.removesuffix(".toml")
    prepare_folder(place)
    import_torch()
    from regard.training.api import fit

    command = shlex.join(["regard", "train", recipe, *changes, "--out", str(place)])
    return finish_run(fit(said, place, command=command, quiet=quiet), json)


def prepare_folder(out: Path) -> None:
    """Check that a new run may be created here: existing files are never overwritten. The process that locks the folder
    creates it, and checks again (`lock_folder`)."""
    if any((out / "checkpoints").glob("step-*")):
        raise config.ConfigError(f"--out {out}: there is a run; `regard resume {out}` continues it, or choose another")
    if (out / "checkpoints").is_dir():
        raise config.ConfigError(f"--out {out}: a run ended there before it saved; `regard resume {out}` starts it "
                                 "again, or remove the folder or choose another")  # fmt: skip
    if out.is_dir() and not all(map(is_temporary, out.iterdir())):  # an incomplete first write does not count
        raise config.ConfigError(f"--out {out}: the folder is not empty; choose another, or empty it")
    there = next((place for place in (out, *out.absolute().parents) if os.path.lexists(place)), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "permission denied" if there.is_dir() else "not a directory"
        raise config.ConfigError(f"--out {out}: cannot be made ({reason}); choose another folder")


def resume(
    run: Run,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help=f"Only {', '.join(MAY_CHANGE)} may change.")
    ] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> int:
    """Resume a run from its newest checkpoint, bit for bit."""
    for line in overrides or []:
        if (name := line.partition("=")[0].strip()) not in MAY_CHANGE:
            raise config.ConfigError(f"{name}: a run keeps its settings, only {', '.join(MAY_CHANGE)} may change; "
                                     f"`regard train {run} {line} --out DIR` begins a new one")  # fmt: skip
    check_run(run)
    import_torch()
    from regard.training.api import resume_fit as go_on

    return finish_run(go_on(run, overrides or [], quiet=quiet), json)


def check_run(run: Path) -> None:
    if not (run / "config.toml").is_file():
        what = "holds no config.toml, so it is no run" if run.is_dir() else "there is no such run"
        raise config.DataError(f"{run}: {what}; name the folder that `regard train` wrote")


def finish_run(result: Any, json: bool) -> int:
    """Write the report of a finished run, print a summary, and return the exit code."""
    if result.rank:  # rank 0 reports
        return 128 + int(result.interrupted) if result.interrupted else 0
    from regard.hub import locate

    page, kept = None if result.interrupted else write_run_report(result.out), locate.list_snapshots(result.out)
    told = {"out": result.out, "report": page, "steps": result.steps, "loss": result.loss,
            "eval_loss": result.eval_loss, "scores": result.scores, "best": result.best,
            "snapshots": [locate.folder_step(each) for each in kept], "seconds": result.seconds,
            "interrupted": result.interrupted}  # fmt: skip
    if json:
        print_json(told)
    else:
        print_rows([(name, value) for name, value in [
            ("run", str(result.out)),
            ("report", str(page or "")),
            ("steps", f"{result.steps:,}"),
            ("training loss", format_number(result.loss, " in the last step")),
            ("best", "" if result.best is None else f"step {result.best:,}, in {result.out / 'best'}"),
            ("snapshots", f"{len(kept)}, in {result.out / 'snapshots'}" if kept else ""),
            ("validation loss", format_number(result.eval_loss)),
            *((name, format_number(value)) for name, value in (result.scores or {}).items()),
            ("seconds", f"{result.seconds:,.1f}"),
        ] if value])  # fmt: skip
    if result.interrupted:
        print_stderr(f"interrupted at step {result.steps}, which is saved; `regard resume {result.out}` continues it")
        return 128 + int(result.interrupted)  # as shells do: 130 for Ctrl-C, 143 for SIGTERM
    return 0


def format_number(value: float | None, note: str = "") -> str:
    return "" if value is None else f"{value:.4f}{note}"


def write_run_report(run: Path) -> Path:
    import_torch()
    from regard.inference.load import load_model
    from regard.report.page import write_report

    model = load_model(run)
    return write_report(run, model, model.tokenizer)


def report(run: Run) -> None:
    """Write report.html of a run again."""
    check_run(run)
    print(write_run_report(run))
