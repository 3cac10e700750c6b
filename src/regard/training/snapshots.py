"""Snapshots of a run: the weights of chosen steps, kept permanently, to study how they develop.

    train.snapshots = "log"         steps 0, 1, 2, 4, 8, ... and the last one
    train.snapshots = 500           steps 0, 500, 1000, ... and the last one
    train.snapshots = [0, 30, 90]   these

A snapshot equals the model's folder in the checkpoint of that step, byte for byte, without training state: with EMA
weights where there are any, with adapters merged. It is written before a checkpoint of its step, and a run that resumes
from a checkpoint removes later snapshots, as it truncates its log: snapshots and steps always agree.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from regard import config
from regard.files import atomic
from regard.hub import locate
from regard.measure.format_estimate import format_si
from regard.training.checkpoint import gather_run_state, write_model
from regard.training.run import Run

LARGE = 1e9  # total bytes of snapshots from which there is a notice
Schedule = str | int | tuple[int, ...] | None


def is_scheduled(schedule: Schedule, step: int) -> bool:
    """Whether a schedule of train.snapshots names a step; the last step is added elsewhere."""
    if isinstance(schedule, tuple):
        return step in schedule
    if isinstance(schedule, int):
        return step % schedule == 0
    return schedule == "log" and step & (step - 1) == 0


def scheduled_steps(schedule: Schedule, last: int) -> list[int]:
    """The snapshot steps of a run with `last` steps."""
    if schedule is None or isinstance(schedule, tuple):
        return [step for step in schedule or () if step <= last]
    regular = (
        range(0, last, schedule) if isinstance(schedule, int) else (0, *(1 << n for n in range(last.bit_length())))
    )
    return sorted({*(step for step in regular if step <= last), last})


def snapshot_folder(out: Path, step: int) -> Path:
    return out / "snapshots" / f"step-{step:06d}"


def is_due(run: Run, out: Path) -> bool:
    """Whether a snapshot is due and not yet written; rank 0 decides for all."""
    schedule = run.settings.snapshots
    last = run.is_over and schedule is not None and not isinstance(schedule, tuple)
    if not (last or is_scheduled(schedule, run.step)):
        return False
    return bool(run.ranks.max(run.ranks.is_main and not snapshot_folder(out, run.step).is_dir()))


def save_snapshot(run: Run, out: Path) -> Path:
    """Write the snapshot of the current step atomically. All ranks take part, rank 0 writes."""
    path = snapshot_folder(out, run.step)
    with gather_run_state(run, path, weights_only=True) as (gathered, _, _):
        write_model(run, path, gathered)
    run.ranks.barrier()
    return path


def forget_later_snapshots(out: Path, step: int) -> None:
    """Remove the snapshots after a step, which will be repeated, and incomplete ones."""
    atomic.recover_folders(out / "snapshots")
    for folder in locate.list_snapshots(out):
        if locate.folder_step(folder) > step:
            with suppress(FileNotFoundError):
                atomic.remove_folder(folder)


def disk_notes(run: Run, out: Path) -> list[str]:
    """A notice of the disk space of future snapshots, if it is large; raises if the disk has too little."""
    c = run.settings
    if c.snapshots is None:
        return []
    one = sum(weight.numel() * weight.element_size() for weight in run.model.parameters())
    if c.steps is None:  # the number of snapshots depends on the clock or on the data
        each = f"train.snapshots: {format_si(one, 'B')} each"
        return [f"{each}, one for each of its steps"] if one > LARGE / 10 else []
    to_come = (step for step in scheduled_steps(c.snapshots, c.steps) if step >= run.step)
    count = sum(not snapshot_folder(out, step).is_dir() for step in to_come)
    whole, free = count * one, shutil.disk_usage(out).free
    told = f"train.snapshots: {count:,} of {format_si(one, 'B')} are {format_si(whole, 'B')}"
    if whole > free and c.minutes is None and c.epochs is None:
        raise config.ConfigError(f"{told}, and the disk of {out} has {format_si(free, 'B')} left; set fewer, or "
                                 "train on a larger disk")  # fmt: skip
    return [f"{told}; the disk has {format_si(free, 'B')} left"] if whole > LARGE else []
