"""Ctrl-C in a process of its own: it saves, tells by its exit code, and the run ends with the same bits."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from training.builders import lines

from regard.measure.calibration import matmul_speed
from regard.training.api import fit, resume_fit
from regard.training.signals import SignalHandler

SLOW = """
import sys, time
from regard.cli import main
from regard.training.run_files import JsonlLog
write = JsonlLog.write
def slowly(log, line):
    time.sleep(0.05)  # the signal finds the run under way, however busy the machine
    write(log, line)
JsonlLog.write = slowly
sys.exit(main())
"""
TENSORS = ("model.safetensors", "train/optim.safetensors", "train/rng.safetensors")


@pytest.mark.slow
@pytest.mark.spec("S089")
@pytest.mark.parametrize("kind, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_process_that_is_told_to_stop_saves_and_its_run_ends_the_same(desk, recipe, kind, code, monkeypatch):
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", matmul_speed)  # as the process will
    changes = ["train.steps=150", "train.save_every=60"]
    words = [sys.executable, "-c", SLOW, "train", "recipe.toml", *changes, "--out", "run"]
    process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    log = desk / "run/log.jsonl"
    end = time.monotonic() + 90
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < end and process.poll() is None, "the first step never came"
        time.sleep(0.01)
    process.send_signal(kind)
    _, err = process.communicate(timeout=90)
    reached = len(lines(log))
    again = resume_fit(desk / "run", quiet=True)
    fit(recipe(*changes), desk / "straight", quiet=True)

    assert process.returncode == code and "Traceback" not in err, err
    assert 0 < reached < 150 == again.steps
    assert lines(log) == lines(desk / "straight/log.jsonl")
    for name in TENSORS:
        ours, theirs = (desk / run / "checkpoints/step-000150" / name for run in ("run", "straight"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_the_first_signal_is_noted_and_the_second_stops_at_once():
    with pytest.raises(KeyboardInterrupt), SignalHandler() as signals:
        assert signals.caught is None
        signal.raise_signal(signal.SIGTERM)
        assert signals.caught == signal.SIGTERM
        signal.raise_signal(signal.SIGINT)


def test_handlers_come_back_also_after_a_failure():
    before = [signal.getsignal(each) for each in SignalHandler.WATCHED]
    with pytest.raises(RuntimeError), SignalHandler():
        raise RuntimeError

    assert [signal.getsignal(each) for each in SignalHandler.WATCHED] == before


def test_in_another_thread_signals_are_left_alone():
    before, inside = signal.getsignal(signal.SIGINT), []

    def work():
        with SignalHandler() as signals:
            inside.append((signal.getsignal(signal.SIGINT), signals.caught))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert inside == [(before, None)]


@pytest.mark.slow
def test_a_signal_during_the_last_samples_ends_them_and_loses_nothing(desk, recipe):
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    done = fit(recipe("report.max_new_tokens=1000000"), desk / "run", quiet=True)

    assert done.interrupted == signal.SIGINT and done.steps == 6
    assert (desk / "run/checkpoints/step-000006/MANIFEST.json").is_file()
