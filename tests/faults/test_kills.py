"""SIGKILL at any moment: the run goes on from a whole checkpoint, and ends with the bits of one that nobody killed."""

import random
import shutil

import pytest
from faults.trials import count, damaged

from regard.files import atomic

AGAIN = 3  # a run is killed so often, at most, before it is left alone


def survives(desk, blows):
    """A run that is struck by one blow after the other, and restarted after each, loses nothing; how many landed."""
    run, ends = desk.new(), []
    for blow in blows:
        ends.append(desk.restart(run, **blow))
        assert damaged(run) == [], ends
        if not ends[-1].killed:
            break
    landed = sum(end.killed for end in ends)
    if ends[-1].killed:
        ends.append(desk.restart(run))
    assert ends[-1].code == 0, (run, ends)
    desk.assert_nothing_lost(run, ends)
    shutil.rmtree(run.parent)
    return landed


def until(wanted, desk, seed, blow):
    """Runs that are struck up to three times, until enough blows have landed; how many that were, and runs."""
    chance, landed, runs = random.Random(seed), 0, 0
    while landed < wanted:
        landed += survives(desk, [blow(chance) for _ in range(chance.randint(1, AGAIN))])
        runs += 1
    return landed, runs


def dead_at(point, inside=""):
    return {"strike": {"at": point, "how": "kill", "inside": inside}}


@pytest.mark.slow
@pytest.mark.spec("S089")
def test_a_run_killed_at_random_moments_loses_nothing(desk, figures):
    whole = desk.train(desk.new()).seconds
    kills, runs = until(count(100, 5), desk, 0, lambda chance: {"after": chance.uniform(0, whole)})

    figures(kills=kills, runs=runs)


@pytest.mark.slow
@pytest.mark.spec("S089")
def test_a_run_killed_inside_a_save_loses_nothing(desk, figures):
    points = len([point for point in desk.train(desk.new()).points if "checkpoints" in point])
    kills, runs = until(count(100, 8), desk, 1, lambda chance: dead_at(chance.randint(1, points), "checkpoints"))

    figures(kills=kills, runs=runs, points=points)


@pytest.mark.slow
@pytest.mark.spec("S089")
def test_a_run_killed_while_it_writes_anything_else_loses_nothing(desk, figures):
    """Its config, its log, its samples, what it tells of itself, its report."""
    points = [at for at, point in enumerate(desk.train(desk.new()).points, 1) if "checkpoints" not in point]
    chosen = points[:: count(1, 6)]

    figures(kills=sum(survives(desk, [dead_at(at)]) for at in chosen), points=len(points))


def test_a_file_that_is_being_written_is_not_swept(tmp_path):
    with atomic.open_atomic(tmp_path / "file") as file:
        atomic.recover_folders(tmp_path)
        file.write(b"whole")

    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_bytes() == b"whole"
