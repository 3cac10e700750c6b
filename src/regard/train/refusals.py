"""Steps that the guard did not take: their rows are named, the first is told, and too many in a row end the run."""

from pathlib import Path
from typing import Any

from regard.config.errors import RunError
from regard.train.loop import Step
from regard.train.run import Run


class Refusals:
    """Those that follow each other; a step that is taken ends the row."""

    def __init__(self, run: Run, out: Path) -> None:
        count = int(run.guard.row)  # a run that goes on was in the midst of them
        self.run, self.out, self.told = run, out, False
        self.row = list(range(run.step - count + 1, run.step + 1))

    def heed(self, step: Step, line: dict[str, Any]) -> str:
        """Takes note of a line of the log; what to say of it, if anything."""
        if "skipped" not in line:
            self.row = []
            return ""
        self.row.append(step.number)
        self.told, first = True, not self.told
        return (f"step {step.number:>11,}   {line['skipped']}, so nothing was learned from it; log.jsonl names its "
                "rows. If that goes on, lower train.optimizer.lr") if first else ""  # fmt: skip

    def named(self, step: Step) -> dict[str, list[int]]:
        """Which rows were read: of records their numbers, of a text where they begin."""
        names, count = getattr(self.run.data, "names", None), self.run.settings.accumulate
        first = (step.number - 1) * count
        return {str(number): names(number) if names else [] for number in range(first, first + count)}

    @property
    def too_many(self) -> bool:
        return len(self.row) >= self.run.settings.guard.limit

    def problem(self, line: dict[str, Any]) -> RunError:
        return RunError(f"{self.out}: nothing could be learned from steps {self.row[0]:,} to {self.row[-1]:,} "
                        f"({line['skipped']}); what was learned before is kept, `regard doctor {self.out}` looks for "
                        "the reason, and a lower train.optimizer.lr often helps")  # fmt: skip
