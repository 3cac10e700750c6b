"""A small run, the trials it is put through in processes of their own, and what it means that nothing was lost."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from training.builders import RECIPE, TEXT, lines

from regard.files import manifest
from regard.hub import locate

FULL = os.environ.get("REGARD_FAULTS") == "full"
HERE = Path(__file__).parent
CHANGES = ["train.steps=12", "train.save_every=3", "train.eval_every=2", "report.max_new_tokens=3"]
TENSORS = ("model.safetensors", "train/optim.safetensors", "train/rng.safetensors")


def count(full: int, brief: int) -> int:
    """How many trials: all of them with REGARD_FAULTS=full, which `make faults` sets."""
    return full if FULL else brief


@dataclass(frozen=True, repr=False)
class End:
    """How a process ended: its exit code or minus its signal, what it said, and the points it came to."""

    code: int
    seconds: float
    said: str
    points: list[str]
    late: float | None  # seconds from the signal that it was sent to its end

    @property
    def killed(self) -> bool:
        return self.code == -9

    @property
    def sentence(self) -> str:
        """What it said was wrong, in one line."""
        aside = ("regard: note: ", "regard: saving after this step")
        found = [line for line in self.said.splitlines() if line.startswith("regard: ") and not line.startswith(aside)]
        assert len(found) == 1 and "Traceback" not in self.said and "bug in regard" not in self.said, self
        return found[0]

    def __repr__(self) -> str:
        return f"code {self.code} after {self.seconds:.2f} s at {self.points[-3:]}; it said\n{self.said}"


class Desk:
    """A folder with a text, a recipe, a run without faults (`straight`), and a warm process that forks trials."""

    def __init__(self, place: Path) -> None:
        self.place, self.used = place, 0
        (place / "text.txt").write_text(TEXT)
        (place / "recipe.toml").write_text(RECIPE)
        paths = os.pathsep.join(str(HERE.parents[1] / name) for name in ("src", "tests"))
        env = {**os.environ, "PYTHONPATH": paths, "REGARD_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1",
               "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
        words = [sys.executable, HERE / "fork_server.py", "recipe.toml", *CHANGES, "--out", "straight"]
        self.process = subprocess.Popen(words, cwd=place, env=env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)  # fmt: skip
        assert self.process.stdout and self.process.stdout.readline() == "warm\n", "the warm process did not begin"
        self.straight = place / "straight"

    def close(self) -> None:
        with self.process:
            self.process.stdin.close()

    def new(self) -> Path:
        """A place for one more run."""
        self.used += 1
        (self.place / str(self.used)).mkdir()
        return self.place / str(self.used) / "run"

    def train(self, run: Path, *changes: str, **befalls) -> End:
        return self.run(run, ["train", "recipe.toml", *CHANGES, *changes, "--out", self.name(run)], **befalls)

    def resume(self, run: Path, *changes: str, **befalls) -> End:
        return self.run(run, ["resume", self.name(run), *changes], **befalls)

    def restart(self, run: Path, **befalls) -> End:
        """What a person does whose process is gone: resume, or train again in an empty folder if it had not begun."""
        if (run / "config.toml").exists():
            return self.resume(run, **befalls)
        shutil.rmtree(run, ignore_errors=True)
        return self.train(run, **befalls)

    def run(self, run: Path, words: list[str], **befalls) -> End:
        trial = {"words": words, "root": os.path.relpath(run.parent, self.place), **befalls}
        self.process.stdin.write(json.dumps(trial) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        said, trace = (run.parent.with_name(f"{run.parent.name}.{name}") for name in ("err", "trace"))
        points = trace.read_text().splitlines() if trace.exists() else []
        sent = [float(line.split()[1]) for line in points if line.startswith("SIG")]
        late = told["ended"] - sent[0] if sent else None
        points = [line for line in points if not line.startswith("SIG")]
        words = said.read_text() if said.exists() else ""
        return End(told["code"], told["ended"] - told["begun"], words, points, late)

    def crowd(self, trials: list[dict]) -> list[tuple[int, int, float]]:
        """Several processes at the same time: of each its id, how it ended, and when it was gone."""
        self.process.stdin.write(json.dumps(trials) + "\n")
        self.process.stdin.flush()
        return [tuple(each) for each in json.loads(self.process.stdout.readline())]

    def name(self, run: Path) -> str:
        return os.path.relpath(run, self.place)

    def assert_nothing_lost(self, run: Path, why: object = "") -> None:
        """The same files as without faults, and in them the same lines but for the times, and the same tensors."""
        assert files(run) == files(self.straight), (run, why)
        for name in ("log.jsonl", "samples.jsonl"):
            assert lines(run / name) == lines(self.straight / name), (run, name, why)
        ours, theirs = locate.list_checkpoints(run)[-1], locate.list_checkpoints(self.straight)[-1]
        assert ours.name == theirs.name, (run, why)
        for name in TENSORS:
            assert (ours / name).read_bytes() == (theirs / name).read_bytes(), (ours / name, why)


def files(run: Path) -> list[str]:
    """All that is in a run's folder; which checkpoints there are depends on when it was stopped, not how many."""
    return sorted(re.sub(r"step-\d+", "step", path.relative_to(run).as_posix()) for path in run.rglob("*"))


def damaged(run: Path) -> list[str]:
    """What is wrong with the checkpoints of a run that stand under their own names."""
    return [wrong for step in locate.list_checkpoints(run) if (wrong := manifest.verify_manifest(step))]
