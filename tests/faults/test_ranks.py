"""SIGKILL to a rank or to the launcher at any moment: the others end soon, and the run goes on with the same bits."""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from faults.trials import count, damaged, files
from training.builders import RECIPE, TEXT, lines
from training.launcher import Launcher, children, gone

from regard.hub import locate

pytestmark = pytest.mark.xdist_group("ranks")  # what its tests share is made once

SOON = 30.0  # seconds in which all are gone
CHANGES = ["train.steps=60", "train.save_every=7", "train.eval_every=20", "report.max_new_tokens=3"]
TENSORS = ("model.safetensors", "train/optim.safetensors", "train/guard.safetensors")


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("processes are watched as only Linux can")
    place = tmp_path_factory.mktemp("ranks")
    (place / "text.txt").write_text(TEXT)
    (place / "recipe.toml").write_text(RECIPE)
    made = Launcher(place)
    for way in ("ddp", "fsdp"):
        assert made.run(*train(way, f"straight {way}")).codes == [0, 0]
    yield made
    made.close()


def train(way, out):
    return "train", "recipe.toml", *CHANGES, f"train.parallel={way}", "--out", out


def struck(group, way, chance):
    """Launch a run and kill one of its processes; whether it was there to be killed, and how long the others lived."""
    run, quiet = group.place / "run", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    after, late = chance.randint(0, 50), chance.uniform(0, 0.3)  # lines of the log, and seconds after them
    launcher = group.torchrun(*train(way, "run"), **quiet)
    while not gone(launcher.pid, 0.005) and logged(run) < after:
        pass
    gone(launcher.pid, late if after else 12 * late)  # without a line it is anywhere in its beginning
    ranks = children(launcher.pid)
    victim = chance.choice([launcher.pid, *ranks])
    landed = launcher.poll() is None
    if landed:
        os.kill(victim, signal.SIGKILL)
    begun = time.monotonic()
    alive = [process for process in (launcher.pid, *ranks) if not gone(process, begun + SOON - time.monotonic())]
    took = time.monotonic() - begun
    launcher.wait()
    assert not alive, f"{alive} of {launcher.pid}, {ranks} live {took:.1f} s after {victim} was killed"
    return landed, took


def logged(run):
    try:
        return (run / "log.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def assert_goes_on(group, way):
    run, straight = group.place / "run", group.place / f"straight {way}"
    assert damaged(run) == []
    if not (run / "config.toml").exists():
        shutil.rmtree(run, ignore_errors=True)
    again = group.run("resume", "run") if run.exists() else group.run(*train(way, "run"))

    assert again.codes == [0, 0], again
    assert files(run) == files(straight)
    assert lines(run / "log.jsonl") == lines(straight / "log.jsonl")
    for name in TENSORS:
        assert (locate.newest_checkpoint(run) / name).read_bytes() == (
            locate.newest_checkpoint(straight) / name
        ).read_bytes(), name
    shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.spec("S089")
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_whoever_is_killed_nobody_hangs_and_nothing_is_lost(group, way, figures):
    chance, kills, slowest = random.Random(way), 0, 0.0
    while kills < count(20, 1):
        landed, took = struck(group, way, chance)
        kills, slowest = kills + landed, max(slowest, took)
        assert_goes_on(group, way)

    figures(kills=kills, slowest=f"{slowest:.1f} s until all are gone")
