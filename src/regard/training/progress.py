"""Training progress on stderr: a bar in a terminal, or a line every few seconds in a log file.

Programs should read log.jsonl instead.
"""

import math
import sys
import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from regard.config.terminal_escapes import escape_controls, unfiltered_stream
from regard.training.run import Run

REPORT_SECONDS = 10.0  # between lines where there is no terminal
MANY = 100  # steps in the running mean of the loss


class DataProgress:
    """Progress of reading and tokenizing data: a transient line, shown if it takes a while."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=unfiltered_stream(sys.stderr), highlight=False, soft_wrap=True, emoji=False)
        self.quiet, self.last, self.shown = quiet, time.monotonic(), False

    def __call__(self, done: int) -> None:
        now, live = time.monotonic(), self.console.is_terminal
        if self.quiet or now - self.last < (0.25 if live else REPORT_SECONDS):
            return
        self.last, self.shown = now, live
        self.console.print(f"reading: {done:,} so far", end="\r" if live else "\n")

    def __enter__(self) -> "DataProgress":
        return self

    def __exit__(self, *raised: object) -> None:
        if self.shown:
            self.console.print(" " * 40, end="\r")


class ProgressDisplay:
    """Progress of training: loss, tokens per second and remaining time."""

    def __init__(self, run: Run, quiet: bool = False) -> None:
        self.run, self.quiet = run, quiet
        self.console = Console(file=unfiltered_stream(sys.stderr), highlight=False, soft_wrap=True, emoji=False)
        self.bar: Progress | None = None
        self.last, self.seconds, self.tokens, self.number = time.monotonic(), run.seconds, 0, run.step
        self.losses: deque[float] = deque(maxlen=MANY)
        self.progress, self.speed, self.pace = run.progress, 0.0, 0.0  # pace: fraction of the run done per second
        self.measured = 0
        self.compiling: float | None = None  # start time
        if self.console.is_terminal and not quiet:
            self.bar = Progress(TextColumn("{task.description}"), BarColumn(24), console=self.console, transient=True)
            self.task = self.bar.add_task("", total=1.0)

    def step(self, loss: float, tokens: int, number: int | None = None) -> None:
        """Called after every step; updates the bar a few times a second, or prints a line every ten seconds."""
        if self.compiling is not None:
            self.say(f"compiled in {format_time_left(time.monotonic() - self.compiling)}")
            self.compiling, self.last = None, time.monotonic()
        self.tokens += tokens
        self.losses.append(loss)
        self.number = self.run.step if number is None else number  # on a GPU losses arrive a few steps late
        now = time.monotonic()
        if self.quiet or now - self.last < (0.25 if self.bar else REPORT_SECONDS):
            return
        self.measure()
        self.last = now
        if self.bar is None:
            self.say(self.text())
        else:
            self.bar.update(self.task, completed=self.run.progress, description=self.text())

    def compile(self) -> None:
        """Announce that the next step is compiled, which may take minutes, and report afterwards how long it took."""
        self.compiling = time.monotonic()
        self.say("compiling ... (a minute or two the first time, seconds later on; train.minutes does not count it)")
        if self.bar is not None:
            self.bar.update(self.task, description="compiling ...")

    def measure(self) -> None:
        """Update the speed."""
        took = self.run.seconds - self.seconds
        if took <= 0:
            return
        self.measured += 1
        weight = 1.0 if self.measured <= 2 else 0.5  # discard the first measurement, which may include compiling
        self.speed += weight * (self.tokens / took - self.speed)
        self.pace += weight * ((self.run.progress - self.progress) / took - self.pace)
        self.seconds, self.tokens, self.progress = self.run.seconds, 0, self.run.progress

    def text(self) -> str:
        run, steps = self.run, self.run.settings.steps
        number = f"{self.number:,}" + (f"/{steps:,}" if steps and run.settings.minutes is None else "")
        rest = f"   {format_time_left(self.remaining())} left" if self.measured > 1 else ""
        return f"step {number:>11}   loss {self.loss()}   {self.speed:,.0f} tokens/s{rest}"

    def loss(self) -> str:
        """The loss of the step, as logged, and the mean of recent steps: single batches vary."""
        known = [loss for loss in self.losses if math.isfinite(loss)]
        mean = f", mean {sum(known) / len(known):.4f}" if len(known) > 1 else ""
        return f"{self.losses[-1]:.4f}{mean}" if self.losses else "unknown"

    def remaining(self) -> float:
        """Estimated seconds to the end at the current pace."""
        return (1 - self.run.progress) / self.pace if self.pace else 0.0

    def say(self, line: str) -> None:
        """Print a permanent line."""
        if not self.quiet:
            self.console.print(escape_controls(line), markup=False)

    def __enter__(self) -> "ProgressDisplay":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        sys.stderr.flush()


def format_time_left(seconds: float) -> str:
    """Format a duration: 8 s, 2:05, 1:07:30."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
