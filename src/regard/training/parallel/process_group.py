"""The process group of a run, from the environment that torchrun, SLURM, Kubernetes or Ray sets; and its heartbeat.

    WORLD_SIZE=4 RANK=2 LOCAL_RANK=0 MASTER_ADDR=node1 MASTER_PORT=29500

An error on one rank is sent to all ranks before it exits: all end with the same code, and it is reported once.

Each rank sends a heartbeat twice a second. Collectives may wait for minutes (one rank compiles longer, one reads the
data for all), but never for a failed rank: a rank that misses another's heartbeat exits. Checkpoints make this safe,
since a run can be killed at any time.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from regard import config
from regard.training.parallel.ranks import ERROR_KINDS, PROBLEM_KEY, SINGLE_PROCESS, ProcessRanks, parse_problem
from regard.training.reproducibility import training_device

HEARTBEAT_SECONDS = 0.5  # between heartbeats
SILENT = 15.0  # seconds without a heartbeat after which a rank counts as failed
LATE = 10.0  # seconds for this process to exit by itself after another failed
CODES = {"ConfigError": 2, "DataError": 3}


class Heartbeat:
    """Heartbeat thread of this rank, which also watches the others, over its own store connection."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size, self.count = store.clone(), rank, size, 0
        self.over = threading.Event()
        self.heard = dict.fromkeys(range(size), (b"", time.monotonic()))  # last heartbeat of each rank, and its time
        self.told, self.failed = b"", 0.0  # error of another rank, and when it arrived
        self.send()
        self.thread = threading.Thread(target=self.loop, daemon=True, name="pulse")

    def __enter__(self) -> "Heartbeat":
        self.thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending, and mark this rank as finished so that others do not take it for failed."""
        if not self.over.is_set():
            self.over.set()
            self.thread.join(HEARTBEAT_SECONDS)
            with suppress(Exception):  # the store may be gone
                self.store.set(self.key(self.rank), "over")

    def key(self, rank: int) -> str:
        return f"pulse {rank}"

    def loop(self) -> None:
        while not self.over.wait(HEARTBEAT_SECONDS):
            try:
                self.send()
                self.check_peers()
            except Exception:  # store and launcher are gone: only this process can end itself
                if not self.over.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                return

    def send(self) -> None:
        self.count += 1
        self.store.set(self.key(self.rank), str(self.count))

    def check_peers(self) -> None:
        now = time.monotonic()
        *beats, self.told = self.store.multi_get([*map(self.key, range(self.size)), PROBLEM_KEY])
        for rank, beat in enumerate(beats):
            if beat != self.heard[rank][0]:
                self.heard[rank] = beat, now
        silent = [rank for rank, (beat, when) in self.heard.items() if beat != b"over" and now - when > SILENT]
        if silent:
            self.end(f"rank {silent[0]} has been silent for {SILENT:.0f} seconds, so the run ends here", 1, silent)
        if self.told and json.loads(self.told)["rank"] != self.rank:
            self.failed = self.failed or now
            if now - self.failed > LATE:
                self.end(json.loads(self.told)["text"], CODES.get(json.loads(self.told)["kind"], 1), [])

    def end(self, why: str, code: int, silent: list[int]) -> None:
        if self.over.is_set():
            return
        if self.rank == min(set(range(self.size)) - set(silent)):  # one report: by the lowest live rank
            with suppress(OSError):
                os.write(2, f"regard: {why}; `regard resume` continues from the last checkpoint\n".encode())
        os._exit(code)


LINGER = 3 * HEARTBEAT_SECONDS  # time for the others to read an error, even from within a collective
WAIT = timedelta(minutes=10)  # timeout of collectives; failed ranks are detected much earlier
TORN = ("gloo", "nccl", "connection closed", "connection reset", "socket", "broken pipe", "tcpstore")


@contextmanager
def join_process_group(c: config.Train | None = None) -> Iterator[ProcessRanks]:
    """Join the process group described by the environment; a single process without one."""
    c = c or config.Train()
    check_parallel(c)
    rank, size, local = read_rank_env(os.environ)
    if size == 1:
        yield SINGLE_PROCESS
        return
    if c.parallel == "none":
        raise config.ConfigError(f"train.parallel: none, and there are {size} processes; set it to auto, ddp or fsdp, "
                                 "or start one")  # fmt: skip
    device = pin_device(c, local)
    found = dist.is_initialized()  # initialised by the launcher, as by Ray
    if not found:
        init_process_group(device)
    host = None if "gloo" in dist.get_backend_config() else dist.new_group(backend="gloo")
    ranks = ProcessRanks(rank, size, local, "fsdp" if c.parallel == "fsdp" else "ddp", default_store(), host)
    with report_errors(ranks):
        yield ranks
    if not found and dist.is_initialized():
        dist.destroy_process_group()


def check_parallel(c: config.Train) -> None:
    """Refuse settings that do not work with sharded parameters."""
    if c.parallel == "fsdp" and not isinstance(c.optimizer, config.AdamW):
        raise config.ConfigError(f"train.parallel: fsdp, and {c.optimizer.kind} needs whole matrices, and each "
                                 "rank has a shard; set it to ddp, or train.optimizer.kind adamw")  # fmt: skip
    if c.parallel == "fsdp" and c.compile is True:
        raise config.ConfigError("train.compile: a sharded model is not compiled; leave it out, or set train.parallel "
                                 "to ddp")  # fmt: skip


def read_rank_env(env: Mapping[str, str]) -> tuple[int, int, int]:
    """RANK, WORLD_SIZE and LOCAL_RANK."""
    size = env_number(env, "WORLD_SIZE", 1)
    if size == 1:
        return 0, 1, 0
    rank, local = env_number(env, "RANK", None), env_number(env, "LOCAL_RANK", 0)
    if rank >= size:
        raise config.ConfigError(f"RANK={rank}: expected a number below WORLD_SIZE={size}; torchrun sets both")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not env.get(name) and not dist.is_initialized():
            raise config.ConfigError(f"{name}: not set, and WORLD_SIZE={size}; torchrun sets it, or name the machine "
                                     "and the port of rank 0")  # fmt: skip
    return rank, size, local


def env_number(env: Mapping[str, str], name: str, usual: int | None) -> int:
    text = env.get(name) or ("" if usual is None else str(usual))
    if not text.isdecimal() or (name == "WORLD_SIZE" and int(text) < 1):
        raise config.ConfigError(f"{name}={text}: expected a number, as torchrun sets it")
    return int(text)


def pin_device(c: config.Train, local: int) -> torch.device:
    """The device of this rank: its own GPU, or the CPU."""
    device = training_device(c.device)
    if device.type == "mps":
        raise config.ConfigError("train.device: several processes cannot share mps; set it to cpu, or start one")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if local >= count:
            raise config.ConfigError(f"train.device: LOCAL_RANK={local}, and this machine has {count} GPUs; start a "
                                     "process for each")  # fmt: skip
        torch.cuda.set_device(local)
    return device


def init_process_group(device: torch.device) -> None:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=WAIT)
    except (dist.DistError, RuntimeError, ValueError) as lost:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = next(iter(str(lost).splitlines()), type(lost).__name__)
        raise config.RunError(f"{where}: the processes did not connect ({reason}); check that all are started, "
                              "and can reach it") from None  # fmt: skip


def default_store() -> object:
    """The store of the process group, which has no public accessor."""
    return dist.distributed_c10d._get_default_store()


@contextmanager
def report_errors(ranks: ProcessRanks) -> Iterator[None]:
    """Context that reports an error to all other ranks, or raises the error that another rank reported."""
    if ranks.is_main:
        ranks.store.set(PROBLEM_KEY, "")
    with Heartbeat(ranks.store, ranks.rank, ranks.size) as pulse:
        try:
            ranks.max(0)  # a barrier: all ranks have joined
            yield
            ranks.barrier()
            pulse.stop()
            leave_group(ranks, last=ranks.is_main)  # rank 0 may host the store
        except Exception as raised:
            raise first_error(ranks, raised, pulse) from raised
        except KeyboardInterrupt as raised:
            first_error(ranks, raised, pulse)
            raise


def first_error(ranks: ProcessRanks, raised: BaseException, pulse: Heartbeat) -> BaseException:
    """The first error of the run: this rank's, or the one of another rank, of which only a lost connection is seen
    here."""
    torn = isinstance(raised, dist.DistError) or (
        isinstance(raised, RuntimeError) and any(word in str(raised).lower() for word in TORN))  # fmt: skip
    own = {"rank": ranks.rank, "kind": type(raised).__name__, "text": str(raised)}
    if type(raised).__name__ not in ERROR_KINDS:
        own["text"] = f"rank {ranks.rank} failed: {' '.join(str(raised).split())[:300] or type(raised).__name__}"
    told = pulse.told
    with suppress(Exception):  # the store may have gone with its rank
        told = ranks.store.get(PROBLEM_KEY) if torn else ranks.store.compare_set(PROBLEM_KEY, "", json.dumps(own))
        pulse.stop()  # a rank that leaves after this is not missed
        leave_group(ranks, last=not torn)
    if told and json.loads(told)["rank"] != ranks.rank:
        return parse_problem(told)
    if not torn:
        return raised
    return config.RunError("another process of this run failed; `regard resume` continues from "
                           "its last checkpoint")  # fmt: skip


def leave_group(ranks: ProcessRanks, last: bool) -> None:
    """Leave the group; the `last` rank waits until the others have left or seen the error, since it may host
    the store."""
    gone, until = ranks.store.add("gone", 1), time.monotonic() + LINGER
    while last and gone < ranks.size and time.monotonic() < until:
        time.sleep(0.02)
        gone = ranks.store.add("gone", 0)
