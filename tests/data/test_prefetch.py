"""Batches made ahead by other processes are the same batches."""

import gc
import os
import signal
from multiprocessing import active_children

import pytest
import torch

from regard.config.errors import DataError, RunError
from regard.data.prefetch import Prefetcher
from regard.data.token_shards import TokenShards
from regard.data.windows import WindowBatches


class Slow:
    """Batches that know who made them; one is bad, and one kills whoever makes it."""

    def batch(self, step):
        if step == 7:
            raise DataError("rows.jsonl:7: no good")
        if step == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"step": torch.tensor(step), "maker": torch.tensor(os.getpid())}


def windows():
    return WindowBatches(TokenShards(torch.arange(500, dtype=torch.int32)), 7, 5, seed=3)


def test_what_a_prefetcher_lacks_is_an_error_of_its_own():
    ahead = Prefetcher(windows(), 0)

    assert len(ahead.data.names(0)) == 5
    with pytest.raises(AttributeError, match="'Prefetcher' object has no attribute 'bacth'"):
        ahead.bacth(0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_several_processes_give_the_same_batches_as_none(workers):
    here, ahead = Prefetcher(windows(), 0), Prefetcher(windows(), workers)
    try:
        for step in (0, 1, 2, 3, 4, 40, 41, 2, 3):  # a resume begins elsewhere
            assert torch.equal(ahead.batch(step), here.batch(step))
            assert torch.equal(ahead.batch(step + 1), windows().batch(step + 1))
    finally:
        ahead.close()


@pytest.mark.slow
def test_others_make_the_batches_leave_our_chance_alone_and_are_gone_at_the_end():
    before, handler = torch.get_rng_state(), signal.getsignal(signal.SIGCHLD)
    ahead = Prefetcher(Slow(), 2)
    makers = {int(ahead.batch(step)["maker"]) for step in range(6)}

    assert len(makers) == 2 and os.getpid() not in makers
    assert torch.equal(torch.get_rng_state(), before) and signal.getsignal(signal.SIGCHLD) == handler
    ahead.close()
    assert not {child.pid for child in active_children()} & makers


class Graph:
    """As a captured CUDA graph: it lies in a cycle, and kills the process that frees it, unless that one made it."""

    def __init__(self):
        self.me, self.maker = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)


class Collecting:
    def batch(self, step):
        return torch.tensor([gc.collect() * 0 + step, gc.isenabled()])


@pytest.mark.slow
def test_a_worker_frees_nothing_that_was_garbage_before_it_began():
    gc.collect()
    Graph()
    ahead = Prefetcher(Collecting(), 1)
    try:
        assert ahead.batch(0).tolist() == [0, 1] and ahead.batch(1).tolist() == [1, 1]
    finally:
        ahead.close()
        assert gc.isenabled()


@pytest.mark.slow
def test_bad_data_is_the_same_sentence_and_a_killed_process_is_one():
    ahead = Prefetcher(Slow(), 1, depth=1)
    for step in (5, 6):
        assert int(ahead.batch(step)["step"]) == step
    with pytest.raises(DataError) as caught:
        ahead.batch(7)
    assert str(caught.value) == "rows.jsonl:7: no good"
    assert int(ahead.batch(8)["step"]) == 8
    with pytest.raises(RunError, match="a process that made batches was killed before step 9; .*fewer than 1 workers"):
        ahead.batch(9)
    assert int(ahead.batch(3)["step"]) == 3  # and it can begin again
    ahead.close()


@pytest.mark.parametrize("problem", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_process_that_is_killed_while_it_hands_a_batch_over_is_told_alike(problem):
    def broken():
        raise problem
        yield

    ahead = Prefetcher(Slow(), 1)
    ahead.next, ahead.coming = 9, broken()

    with pytest.raises(RunError, match="a process that made batches was killed before step 9; "):
        ahead.batch(9)
