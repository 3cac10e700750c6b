"""A process that has imported all there is to import, and forks for each command: a page of thirty saves two minutes.

It reads lines of JSON, {"words": [...], "folder": ..., "environment": {...}}, and answers each with the exit code and
what was written.
"""

import gc
import json
import os
import sys
import tempfile
from importlib import import_module

import torch

from regard.cli import main
from regard.measure import calibration
from regard.native.library import load_library
from regard.studies import kernel_error


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            if not (child := os.fork()):
                os._exit(attempt(asked, out.fileno(), err.fileno()))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            told = [os.pread(file.fileno(), 1 << 24, 0).decode() for file in (out, err)]
        print(json.dumps({"code": code, "out": told[0], "err": told[1]}), flush=True)


def attempt(asked: dict, out: int, err: int) -> int:
    """One command, as if its process had just begun; a child never comes back into the loop of its parent."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        code = main(asked["words"])
        sys.stdout.flush()
        sys.stderr.flush()
        return code
    except BaseException as problem:
        os.write(2, f"it ended with {problem!r}\n".encode())
        return 99


def measure_briefly() -> None:
    """What a command measures of this machine it measures for a moment: that it says something is enough here."""
    calibration.matmul_speed.__wrapped__.__defaults__ = ("cpu", 0.01)
    calibration.calibrate.__defaults__ = (0.3, "cpu")
    kernel_error.SHORTEST, kernel_error.LONG = 128, 0.0


if __name__ == "__main__":
    torch.set_num_threads(1)  # one thread: it can fork
    measure_briefly()
    load_library()  # built once, and not in the cache of every test
    for module in sys.argv[1:]:
        import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot fork"
    gc.freeze()
    print("warm", flush=True)
    serve()
