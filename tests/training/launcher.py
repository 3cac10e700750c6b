"""A launcher: processes that train one run together, forked from a warm one as torchrun would start them.

Run as a script it is the warm process: it reads a line of JSON for each launch, and answers with how the ranks ended.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
HEAVY = ("regard.cli.app", "regard.training", "regard.report", "regard.inference.model", "torch.distributed.fsdp",
         "torch.distributed.checkpoint.hf_storage", "torch.distributed.tensor", "torch._dynamo")  # fmt: skip
LONGEST = 60.0  # seconds: who takes longer hangs


@dataclass(frozen=True)
class End:
    """How a launch ended: the exit code of each rank, or minus its signal, and what each said."""

    codes: list[int]
    seconds: float
    said: list[str]
    out: list[str]

    @property
    def sentences(self) -> list[str]:
        """What was said to be wrong, by all of them."""
        lines = [line for said in self.said for line in said.splitlines()]
        assert not any("Traceback" in line or "bug in regard" in line for line in lines), self
        return [line for line in lines if line.startswith("regard: ") and not line.startswith("regard: note")]


class Launcher:
    """`place` is where they work, with a text and a recipe in it."""

    def __init__(self, place: Path) -> None:
        self.place, self.used = place, 0
        paths = os.pathsep.join(str(HERE.parents[1] / name) for name in ("src", "tests"))
        self.env = {**os.environ, "PYTHONPATH": paths, "REGARD_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1",
                    "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
        self.process = subprocess.Popen([sys.executable, __file__], cwd=place, env=self.env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert self.process.stdout and self.process.stdout.readline() == "warm\n", "the warm process did not begin"

    def close(self) -> None:
        with self.process:
            self.process.stdin.close()

    def run(self, *words: str, size: int = 2, **befalls) -> End:
        """One command on some ranks; `befalls` names functions of this file that change what they do."""
        self.used += 1
        self.process.stdin.write(json.dumps({"words": words, "size": size, "befalls": befalls, "n": self.used}) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        said, out = ([(self.place / f"{self.used}.{rank}.{name}").read_text() for rank in range(size)]
                     for name in ("err", "out"))  # fmt: skip
        return End(told["codes"], told["seconds"], said, out)

    def torchrun(self, *words: str, size: int = 2, **how) -> subprocess.Popen:
        """The same by PyTorch's own launcher, from cold."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size),
                   "-m", "regard", *words]  # fmt: skip
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.place, env=self.env, text=True, **{**pipes, **how})


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def gone(process: int, within: float) -> bool:
    """Whether a process ends in so many seconds."""
    try:
        handle = os.pidfd_open(process)
    except OSError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


# ---------------------------------------------------------------- what befalls them


def poison(step: int, rank: int) -> None:
    """Rank 1's share of a step's loss is no number."""
    ask = import_module("regard.training.loop").StepRunner.backward_micro_batch
    before(step, rank, lambda *how: {name: sum * float("nan") for name, sum in ask(*how).items()})


def fail(text: str, rank: int) -> None:
    """Rank 1 cannot read its data, at the third step."""

    def raising(*how):
        raise import_module("regard.config").DataError(text)

    before(3, rank, raising)


def stop(step: int, rank: int) -> None:
    """A signal comes to rank 1 alone."""
    before(step, rank, lambda *how: os.kill(os.getpid(), signal.SIGTERM))


def stop_while_agreeing(step: int, rank: int) -> None:
    """A signal comes to every rank while they ask each other whether one has come."""
    ranks = import_module("regard.training.parallel.ranks").ProcessRanks
    most, calls = ranks.max, []

    def interrupted(self, number):
        calls.append(number)
        found = most(self, number)
        if len(calls) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    ranks.max = interrupted


def found(backend: str, rank: int) -> None:
    """Whoever started the ranks has brought them together already."""
    import_module("torch.distributed").init_process_group(backend)


def freeze(step: int, rank: int) -> None:
    """Rank 1 says and does nothing for a while, which the others notice early."""
    pulse = import_module("regard.training.parallel.process_group")
    pulse.SILENT = 1.5

    def silent(*how):
        pulse.Heartbeat.send = lambda self: None
        select.select([], [], [], 4.0)

    before(step, rank, silent)


def before(step: int, rank: int, what) -> None:
    """Before rank 1 asks its model in a step; where `what` answers, in its place."""
    advance = import_module("regard.training.loop").StepRunner
    ask = advance.backward_micro_batch

    def asked(self, batch, place, last):
        answer = what(self, batch, place, last) if rank == 1 and self.run.step + 1 == step else None
        return ask(self, batch, place, last) if answer is None else answer

    advance.backward_micro_batch = asked


# ---------------------------------------------------------------- the warm process


def launch(trial: dict) -> tuple[list[int], float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun, group = time.monotonic(), []
    for rank in range(trial["size"]):
        if not (child := os.fork()):
            os._exit(guarded(trial, rank, port))
        group.append(child)
    codes = [ended(child, begun) for child in group]
    return codes, time.monotonic() - begun


def ended(child: int, begun: float) -> int:
    if not gone(child, begun + LONGEST - time.monotonic()):
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def guarded(trial: dict, rank: int, port: int) -> int:
    """A child must never come back into the loop of its parent."""
    try:
        for number, place in ((0, os.devnull), (1, f"{trial['n']}.{rank}.out"), (2, f"{trial['n']}.{rank}.err")):
            os.dup2(os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if trial["size"] > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(trial["size"]),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
        for name, value in trial["befalls"].items():
            globals()[name](value, rank)
        code = import_module("regard.cli").main(trial["words"])
        sys.stdout.flush()
        sys.stderr.flush()
        return code
    except BaseException as problem:
        os.write(2, f"the trial itself failed: {problem!r}\n".encode())
        return 99


if __name__ == "__main__":
    for name in HEAVY:
        import_module(name)
    import_module("torch").set_num_threads(1)
    import_module("regard.measure.calibration").matmul_speed = lambda *sizes: (
        1e9
    )  # known without half a second of measuring
    import_module("regard.training.validation").SHORT = 5
    import_module("regard.cli.errors").PATIENCE = 0.1  # here no launcher ends the others with whoever ends first
    print("warm", flush=True)
    for line in sys.stdin:
        codes, seconds = launch(json.loads(line))
        print(json.dumps({"codes": codes, "seconds": seconds}), flush=True)
