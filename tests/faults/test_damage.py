"""Flipped and missing bytes in a checkpoint: every one is found, said aloud, and the checkpoint before takes over."""

import random
import shutil
from importlib import import_module

import pytest
from faults.trials import count

from regard.files import manifest
from regard.hub import locate
from regard.training.parallel.ranks import SINGLE_PROCESS
from regard.training.progress import DataProgress

restored = import_module("regard.training.api").restore_run


@pytest.fixture
def run(desk, monkeypatch):
    """A finished run with two checkpoints, to be damaged."""
    monkeypatch.chdir(desk.place)
    monkeypatch.setenv("REGARD_CACHE", str(desk.place / "cache"))
    place = desk.new()
    shutil.copytree(desk.straight, place)
    yield place
    shutil.rmtree(place.parent)


def files(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flipped(data, chance):
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def replaced(data, chance):
    place = chance.randrange(len(data))
    return data[:place] + bytes([(data[place] + chance.randrange(1, 256)) % 256]) + data[place + 1 :]


def truncated(data, chance):
    return data[: chance.randrange(len(data))]


HARMS = (flipped, flipped, replaced, truncated)


@pytest.mark.slow
def test_every_damaged_byte_is_found_and_the_checkpoint_before_is_used(run, figures):
    chance, (before, newest), wanted = random.Random(2), locate.list_checkpoints(run), count(2000, 60)
    for number in range(wanted):
        path = chance.choice(files(newest))
        data, harm = path.read_bytes(), chance.choice(HARMS)
        path.write_bytes(harm(data, chance))
        try:
            with pytest.warns(UserWarning, match=f"{newest.name}.*; {before.name} is used in its place"):
                found = locate.newest_checkpoint(run)
            assert found == before, (number, path, harm)
            if number % 20 == 0:
                made, *_ = restored(run, found, [], DataProgress(quiet=True), SINGLE_PROCESS)
                assert made.step == 9
        finally:
            path.write_bytes(data)

    assert locate.newest_checkpoint(run) == newest
    figures(damaged=wanted)


@pytest.mark.slow
def test_a_run_with_a_damaged_checkpoint_says_so_and_ends_the_same(desk, run, figures):
    chance, newest, wanted = random.Random(3), locate.list_checkpoints(run)[-1], count(40, 4)
    for _ in range(wanted):
        path, harm = chance.choice(files(newest)), chance.choice(HARMS)
        path.write_bytes(harm(path.read_bytes(), chance))
        end = desk.resume(run)

        assert end.code == 0 and f"{newest.name}" in end.said and "step-000009 is used in its place" in end.said, end
        desk.assert_nothing_lost(run, (path, harm))
    figures(damaged=wanted)


@pytest.mark.slow
def test_the_only_whole_checkpoint_is_kept_however_many_damaged_ones_are_newer(desk):
    """A run was killed before it could remove its oldest checkpoint, and then the two newer ones were damaged."""
    run = desk.new()
    assert desk.train(run, strike={"at": 1, "how": "kill", "inside": "checkpoints/step-000003"}).killed
    oldest, *newer = locate.list_checkpoints(run)
    for step in newer:
        (step / "model.safetensors").write_bytes(b"")
    assert desk.resume(run, strike={"at": 9, "how": "kill", "inside": "step-000006"}).killed

    assert (oldest.name, len(newer), manifest.verify_manifest(oldest)) == ("step-000003", 2, "")
    assert desk.resume(run).code == 0
    desk.assert_nothing_lost(run)


@pytest.mark.slow
def test_where_no_checkpoint_is_whole_that_is_one_sentence(desk, run):
    log = (run / "log.jsonl").read_bytes()
    for step in locate.list_checkpoints(run):
        path = step / "model.safetensors"
        path.write_bytes(flipped(path.read_bytes(), random.Random(4)))
    end = desk.resume(run)

    assert end.code == 3 and "all checkpoints are damaged" in end.sentence and "model.safetensors" in end.sentence
    assert (run / "log.jsonl").read_bytes() == log and len(locate.list_checkpoints(run)) == 2


def test_a_finished_run_whose_checkpoints_are_gone_is_not_begun_again(desk, run):
    log = (run / "log.jsonl").read_bytes()
    for step in locate.list_checkpoints(run):
        shutil.rmtree(step)
    end = desk.resume(run)

    assert end.code == 3 and "no checkpoint" in end.sentence and (run / "log.jsonl").read_bytes() == log
