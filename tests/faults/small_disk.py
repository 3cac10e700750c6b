"""A real disk with little room: a file system in memory, mounted where this process alone can see it (Linux)."""

import ctypes
import os
import shutil
from pathlib import Path

NEWNS, NEWUSER, REMOUNT, PRIVATE, DEEP = 0x20000, 0x10000000, 32, 1 << 18, 1 << 14
LARGE = 64 << 20


class Room:
    """`place` is a disk of so many bytes until the process ends."""

    def __init__(self, place: Path, size: int) -> None:
        self.place, self.libc = place, ctypes.CDLL(None, use_errno=True)
        who = os.getuid()
        self.try_to("unshare", NEWNS if who == 0 else NEWNS | NEWUSER)
        if who:  # who is nobody outside is root in here
            Path("/proc/self/uid_map").write_text(f"0 {who} 1")
        self.try_to("mount", b"none", b"/", None, PRIVATE | DEEP, None)
        place.mkdir(exist_ok=True)
        self.mount(0, size)

    def mount(self, flags: int, size: int) -> None:
        self.try_to("mount", b"tmpfs", os.fsencode(self.place), b"tmpfs", flags, f"size={size}".encode())

    def grow(self) -> None:
        """Somebody made room."""
        self.mount(REMOUNT, LARGE)

    def keep(self, other: Path) -> None:
        """What is on the disk, where others can see it."""
        shutil.copytree(self.place, other)

    def try_to(self, name: str, *args: object) -> None:
        if getattr(self.libc, name)(*args):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
