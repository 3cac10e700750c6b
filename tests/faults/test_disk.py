"""A disk that is full, broken or closed: one sentence with the path, nothing half-written is taken for whole, and the
run goes on as if nothing had happened once the disk is well.
"""

import re
import shutil
from itertools import cycle

import pytest
from faults.trials import count, damaged

# What each call may meet. `short` is no error: the rest must be written too.
MEETS = {
    "open": ("EACCES", "EROFS", "ENOSPC"),
    "write": ("ENOSPC", "EIO", "short"),
    "tensors": ("ENOSPC", "EIO"),
    "fsync": ("EIO", "ENOSPC"),
    "mkdir": ("ENOSPC", "EACCES"),
    "rename": ("EIO", "EACCES"),
    "chmod": ("EPERM", "EROFS"),
    "truncate": ("EIO", "EROFS"),
    "remove": ("EIO", "EACCES"),
    "rmdir": ("EIO", "EACCES"),
}


def trials(points, wanted):
    """(strike, point) for each point and all that it may meet, by turns once and for good; or some, evenly spread."""
    stay = cycle((False, True, True))  # three: then one error is not always met in the same way
    every = [({"at": at, "how": how, "stay": how != "short" and next(stay)}, point)
             for at, point in enumerate(points, 1) for how in MEETS[point.split()[0]]]  # fmt: skip
    return every[:: max(1, len(every) // wanted)]


def assert_survived(desk, run, end, strike, point):
    """One sentence and exit code 1, or all is well; whatever it was, the next command ends the run as it should."""
    why = f"{strike} at {point}: {end}"
    assert any(line.startswith(strike["how"]) for line in end.points), f"never came to pass: {why}"
    assert end.code in ((0, 1, 2) if point == "mkdir run" else (0, 1)), why  # 2: --out names a bad place
    if end.code:
        assert desk.name(run) in end.sentence, why
    assert damaged(run) == [], why
    again = desk.restart(run)
    assert again.code == 0, f"{why}\n{again}"
    desk.assert_nothing_lost(run, why)
    shutil.rmtree(run.parent)


@pytest.mark.slow
def test_a_new_run_survives_a_fault_at_every_point(desk, figures):
    points, failed = desk.train(desk.new()).points, 0
    chosen = trials(points, count(10**9, 16))
    for strike, point in chosen:
        run = desk.new()
        end = desk.train(run, strike=strike)
        assert_survived(desk, run, end, strike, point)
        failed += end.code != 0

    figures(faults=len(chosen), points=len(points), told=failed)


@pytest.mark.slow
def test_a_resumed_run_survives_a_fault_at_every_point(desk, figures):
    """It was killed inside its second save, and meets the fault on its way back."""
    dead, failed = desk.new(), 0
    assert desk.train(dead, strike={"at": 20, "how": "kill", "inside": "step-000006"}).killed
    change = "train.steps=12"  # as before, so that config.toml is written again
    points = desk.resume(copied(desk, dead), change).points
    chosen = trials(points, count(10**9, 12))
    for strike, point in chosen:
        run = copied(desk, dead)
        end = desk.resume(run, change, strike=strike)
        assert_survived(desk, run, end, strike, point)
        failed += end.code != 0

    figures(faults=len(chosen), points=len(points), told=failed)


def copied(desk, run):
    place = desk.new()
    shutil.copytree(run, place)
    return place


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_told_and_nothing_is_lost(desk, figures):
    """A real file system of so many bytes: what fits of a file is written, and the rest is refused."""
    sizes, told = range(0, 520_000, count(4096, 74 * 1024)), 0
    for size in sizes:
        run = desk.new()
        end = desk.train(run, room=size + 4096)
        skip_where_nobody_may_mount(end)
        assert end.code in (0, 1), (size, end)
        desk.assert_nothing_lost(run.parent.with_name(f"{run.parent.name}.kept") / "run", (size, end))
        told += end.code
    assert 0 < told < len(sizes)  # from too small for anything to large enough

    figures(disks=len(sizes), told=told)


@pytest.mark.parametrize("size", [8192, 60_000, 120_000])
def test_a_full_disk_is_told_with_what_is_free_on_it(desk, size):
    end = desk.train(desk.new(), room=size)
    skip_where_nobody_may_mount(end)

    assert re.search(r"no space left on device.* \d[\d.,]* \w*B are free", end.sentence)


def skip_where_nobody_may_mount(end):
    if "the trial itself failed: PermissionError" in end.said:
        pytest.skip("this system lets nobody but root mount a disk")
