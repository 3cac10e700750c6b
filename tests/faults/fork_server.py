"""The warm parent: torch is imported, a run has been trained, one thread; from here a trial is a fork away.

It reads trials from stdin, a line of JSON each, and answers each with a line that says how the process ended. A list of
trials runs at the same time, each from its own moment.
"""

import functools
import gc
import io
import json
import os
import select
import signal
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from faults.failing_disk import Disk, Strike
from faults.small_disk import Room

from regard import measure
from regard.cli import main


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A command, and what befalls it: `after` so many seconds it is killed, or its disk strikes, or is small.

    `calls` sends a signal at the n-th call of a function, as in
    {"regard.training.loop:StepRunner.step": [1, "SIGTERM"]}.
    `room` is a disk with so many bytes, at the folder `root`; once there is enough, the command is tried again.
    `later` so many seconds it begins, and `journal` is a file in which it says when it begins and ends to write a run.
    """

    words: list[str]
    root: str
    after: float | None = None
    strike: dict[str, Any] | None = None
    calls: dict[str, tuple[int, str]] | None = None
    room: int | None = None
    later: float = 0.0
    journal: str | None = None


def serve() -> None:
    for line in sys.stdin:
        asked, begun = json.loads(line), time.monotonic()
        if isinstance(asked, list):
            print(json.dumps(crowd([Trial(**each) for each in asked])), flush=True)
            continue
        trial = Trial(**asked)
        if not (child := os.fork()):
            os._exit(guarded(trial))
        code = ended(child, trial.after)
        print(json.dumps({"code": code, "begun": begun, "ended": time.monotonic()}), flush=True)


def crowd(trials: list[Trial]) -> list[tuple[int, int, float]]:
    """Of each process that ran beside the others: its id, how it ended, and when it was gone."""
    alive, done = dict[int, Trial](), dict[int, tuple[int, int, float]]()
    begun = time.monotonic()
    for trial in trials:
        if not (child := os.fork()):
            time.sleep(trial.later)
            os._exit(guarded(trial))
        alive[child] = trial
    order = list(alive)
    while alive:
        for child, trial in list(alive.items()):
            if trial.after is not None and time.monotonic() > begun + trial.later + trial.after:
                os.kill(child, signal.SIGKILL)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                del alive[child]
                done[child] = (child, os.waitstatus_to_exitcode(status), time.monotonic())
        time.sleep(0.002)
    return [done[child] for child in order]


def ended(child: int, after: float | None) -> int:
    """The exit code, or minus the signal that ended the process."""
    handle = os.pidfd_open(child)
    if not select.select([handle], [], [], after)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def guarded(trial: Trial) -> int:
    """A child must never come back into the loop of its parent."""
    try:
        return attempt(trial)
    except BaseException as problem:
        os.write(2, f"the trial itself failed: {problem!r}\n".encode())
        return 99


def attempt(trial: Trial) -> int:
    root = Path(trial.root).absolute()
    beside = {name: root.with_name(f"{root.name}.{name}") for name in ("out", "err", "trace", "kept")}
    for number, place in ((0, Path(os.devnull)), (1, beside["out"]), (2, beside["err"])):
        os.dup2(os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, (at, kind) in (trial.calls or {}).items():
        send(name, at, kind, beside["trace"])
    if trial.room is not None:
        return confined(trial, root, beside["kept"])
    if trial.journal is not None:
        note_writing(Path(trial.journal).absolute())
    elif trial.calls is None:
        Disk(root, beside["trace"], Strike(**trial.strike) if trial.strike else None)
    return finished(main(trial.words))


def note_writing(journal: Path) -> None:
    """Write down when this process begins to write a run, and when it ends: by the calls, not by the lock."""
    fitting = import_module("regard.training.trainer").Trainer
    begin, go = fitting.__init__, fitting.train
    handle = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str) -> None:
        os.write(handle, f"{os.getpid()} {what} {time.monotonic()}\n".encode())

    def noted(self, *args, **how):
        note("begins")
        begin(self, *args, **how)

    def gone(self):
        try:
            return go(self)
        finally:
            note("ends")

    fitting.__init__, fitting.train = noted, gone


def confined(trial: Trial, root: Path, kept: Path) -> int:
    """A new run on a small disk, and what becomes of it once there is room."""
    assert trial.room is not None
    room, run = Room(root, trial.room), trial.words[-1]
    code = finished(main(trial.words))
    room.grow()
    if code:
        begun = Path(run, "config.toml").exists()
        again = finished(main(["resume", run] if begun else trial.words))
        code = 100 + again if again else code
    room.keep(kept)
    return code


def finished(code: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def send(name: str, at: int, kind: str, trace: Path) -> None:
    """Send this process a signal when a function is called for the n-th time."""
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner = functools.reduce(getattr, owners, import_module(module))
    call, count = getattr(owner, last), 0

    def counted(*args, **how):
        nonlocal count
        count += 1
        if count == at:
            trace.write_text(f"{kind} {time.monotonic()}\n")
            os.kill(os.getpid(), getattr(signal, kind))
        return call(*args, **how)

    setattr(owner, last, counted)


def warm(words: list[str]) -> None:
    """All that a process does once is done: modules, caches, the text tokenized, the speed of the machine measured."""
    torch.set_num_threads(1)  # one thread: it can fork, and gives the same bits each time
    measure.predict_step = functools.cache(measure.predict_step)
    import_module("regard.training.validation").SHORT = 5  # the samples on the way
    for command in (["train", *words], ["resume", words[-1]]):
        with redirect_stdout(io.StringIO()) as out:
            code = main([*command, "--quiet"])
        assert code == 0, f"the run without faults failed: {out.getvalue()}"
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot fork"


if __name__ == "__main__":
    warm(sys.argv[1:])
    gc.freeze()  # what is here stays here: children need not look at it, nor copy it
    print("warm", flush=True)
    serve()
