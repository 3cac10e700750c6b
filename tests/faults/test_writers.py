"""One writer a run folder: three processes start, are refused, crash and resume at any moment, in one folder."""

import json
import os
import random
import shutil

import pytest
from faults.trials import CHANGES, count, damaged

from regard.hub import locate

ROUNDS = count(200, 6)
PROCESSES = 3
CRASH = 0.4  # of the processes are killed
ACTS = {  # how often each, and what is typed
    "train": (5, lambda desk, run: ["train", "recipe.toml", *CHANGES, "--out", desk.name(run), "--quiet"]),
    "resume": (3, lambda desk, run: ["resume", desk.name(run), "--quiet"]),
    "refused": (3, lambda desk, run: ["train", "recipe.toml", *CHANGES, "data.source=missing.txt", "--out",
                                      desk.name(run), "--quiet"]),
}  # fmt: skip


def act(desk, run, chance, whole, place):
    """A process that does something there, at some moment, and may be killed at another."""
    kind = chance.choices(list(ACTS), [often for often, _ in ACTS.values()])[0]
    root = run.parent.with_name(f"{run.parent.name}.{place}")  # beside which its output goes
    crash = chance.uniform(0, whole) if chance.random() < CRASH else None
    later = chance.choice([0.0, 0.0, chance.uniform(0, whole)])
    return {"words": ACTS[kind][1](desk, run), "root": os.path.relpath(root, desk.place), "after": crash,
            "later": later, "journal": os.path.relpath(journal(run), desk.place)}  # fmt: skip


def journal(run):
    return run.parent / "journal"


def writers(run, ends):
    """From when to when each process wrote; one that was killed wrote to its death."""
    gone, spans = {pid: when for pid, _, when in ends}, {}
    for line in journal(run).read_text().splitlines() if journal(run).exists() else []:
        pid, what, when = line.split()
        spans.setdefault(int(pid), [0.0, gone[int(pid)]])[what == "ends"] = float(when)
    return sorted(spans.values())


def assert_one_writer(run, ends):
    spans = writers(run, ends)
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False)), (spans, ends)


def assert_one_log(run, ends):
    """Every step stands there once, in its order; the last line may be torn."""
    if not (run / "log.jsonl").exists():
        return
    rows = [json.loads(line) for line in (run / "log.jsonl").read_bytes().split(b"\n")[:-1]]
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, len(steps) + 1)), (steps, ends)


@pytest.mark.slow
def test_three_processes_in_one_folder_never_write_at_the_same_time(desk, figures):
    chance, whole = random.Random(0), desk.train(desk.new()).seconds
    trained = crashed = refused = 0
    for _ in range(ROUNDS):
        run = desk.new()
        ends = desk.crowd([act(desk, run, chance, whole, place) for place in range(PROCESSES)])
        codes = [code for _, code, _ in ends]
        assert set(codes) <= {0, 2, 3, -9}, (codes, run)
        assert_one_writer(run, ends)
        assert_one_log(run, ends)
        assert damaged(run) == []
        if run.exists() and any(run.iterdir()) and (locate.list_checkpoints(run) or (run / "config.toml").exists()):
            assert desk.restart(run).code == 0
            journal(run).unlink(missing_ok=True)
            desk.assert_nothing_lost(run, ends)
        trained, crashed, refused = trained + codes.count(0), crashed + codes.count(-9), refused + codes.count(2)
        shutil.rmtree(run.parent)

    figures(rounds=ROUNDS, trained=trained, crashed=crashed, refused=refused)
