"""A disk that fails when it is told to. Every call that changes it is a point; at one of them the process is struck:

    kill               it is dead at once; of what should be written, half is
    ENOSPC, EIO, ...   the call fails with that error; of what should be written, half is
    short              half is written, and that is no error: who writes must write the rest
    SIGTERM, SIGINT    it is asked to stop, and the call goes on

Python's own calls are met where Python tells of them (audit hooks), files on their way to the disk, and safetensors,
which writes by itself, as a whole. There is no way back: a Disk is for a process that will end soon.
"""

import errno
import io
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from regard.hub import weights

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
TOLD = {"os.mkdir": "mkdir", "os.rename": "rename", "os.remove": "remove", "os.rmdir": "rmdir",
        "os.truncate": "truncate", "os.chmod": "chmod"}  # fmt: skip
CHANCE = re.compile(r"\.[0-9a-f]{8}(?=\.)")  # what makes the name of a temporary file or folder its own


@dataclass(frozen=True)
class Strike:
    """Which point, counted from one among those with `inside` in their path, and how; `stay`: at all after it too."""

    at: int
    how: str
    inside: str = ""
    stay: bool = False

    @property
    def fails(self) -> bool:
        return self.how == "kill" or self.how.startswith("E")


class Disk:
    """The calls of this process that change what is under `root`; each is a line in the file `trace`."""

    def __init__(self, root: Path, trace: Path, strike: Strike | None) -> None:
        self.root, self.strike, self.count, self.busy = f"{root}{os.sep}", strike, 0, False
        self.trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.open, self.sync, self.save = io.open, os.fsync, weights.save_file
        io.open, os.fsync, weights.save_file = self.opened, self.synced, self.saved
        sys.addaudithook(self.told)

    # ------------------------------------------------------------ the points

    def told(self, event: str, args: tuple) -> None:
        """Python is about to do something."""
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING and not isinstance(args[0], int):
            self.call("open", str(args[0]))
        elif event in TOLD:
            above = args[-1] if event in ("os.remove", "os.rmdir") else -1  # an open folder, where rmtree removes
            self.call(TOLD[event], os.path.join(of_handle(above), args[0]) if above >= 0 else str(args[0]))

    def call(self, kind: str, path: str) -> None:
        if self.struck(kind, path):
            self.hit("" if kind == "fsync" else path)

    def opened(self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **rest):
        """As io.open, with a hand on what is written."""
        if isinstance(file, int) or not set(mode) & set("wax+") or not self.ours(str(file)):
            return self.open(file, mode, buffering, encoding, errors, newline, **rest)
        raw = Held(self, file, mode.replace("b", "").replace("t", ""))
        buffered = raw if buffering == 0 else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def synced(self, handle: int) -> None:
        self.call("fsync", of_handle(handle))
        self.sync(handle)

    def saved(self, tensors, path: Path, metadata) -> None:
        """safetensors writes a file of another name, and gives it its own when it is whole."""
        struck = self.struck("tensors", str(path))
        self.save(tensors, path, metadata)
        if struck and self.strike.fails:
            self.tear(path)
        elif struck:
            self.hit("")

    def tear(self, path: Path) -> None:
        """As if it had come half the way; an error is told in its own words."""
        self.busy = True
        half = path.rename(path.with_name(".tmpHaLf"))
        os.truncate(half, half.stat().st_size // 2)
        try:
            self.hit("")
        except OSError as problem:
            half.unlink()
            told = f"Error while serializing: I/O error: {problem.strerror} (os error {problem.errno})"
            raise SafetensorError(told) from None
        finally:
            self.busy = False

    # ------------------------------------------------------------ the strike

    def ours(self, path: str) -> bool:
        return os.path.abspath(path).startswith(self.root)

    def struck(self, kind: str, path: str) -> bool:
        """Whether it is now; nothing that a strike does is a point itself."""
        path, strike = os.path.abspath(path), self.strike
        if self.busy or not path.startswith(self.root):
            return False
        name = CHANCE.sub("", os.path.relpath(path, self.root))
        os.write(self.trace, f"{kind} {name}\n".encode())
        if strike is None or strike.inside not in path:
            return False
        self.count += 1
        return self.count == strike.at or (strike.stay and self.count > strike.at)

    def hit(self, path: str) -> None:
        how = self.strike.how
        os.write(self.trace, f"{how} {time.monotonic()}\n".encode())
        if how.startswith("E"):
            number = getattr(errno, how)
            raise OSError(number, os.strerror(number), *([path] if path else []))
        if how != "short":
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else getattr(signal, how))


class Held(io.FileIO):
    """A file whose writes are points."""

    def __init__(self, disk: Disk, file, mode: str) -> None:
        self.disk = disk
        super().__init__(file, mode)

    def write(self, data) -> int:
        if not self.disk.struck("write", str(self.name)):
            return super().write(data)
        half = super().write(memoryview(data)[: max(1, len(data) // 2)])
        self.disk.hit("")
        return half  # a signal or a short write: the caller writes the rest


def of_handle(handle: int) -> str:
    return os.readlink(f"/proc/self/fd/{handle}")
