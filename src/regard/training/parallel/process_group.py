"""Coming together: the environment that torchrun, SLURM, Kubernetes and Ray set, and a group of processes made of it.

    WORLD_SIZE=4 RANK=2 LOCAL_RANK=0 MASTER_ADDR=node1 MASTER_PORT=29500

What goes wrong for one rank is told to all before it leaves: all end by the same code, and it is said once.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from regard import config
from regard.train.device import device_of
from regard.train.parallel.pulse import EVERY, Pulse
from regard.train.parallel.ranks import ALONE, KINDS, PROBLEM, Ranks, problem

LINGER = 3 * EVERY  # in which the others have heard, also who waits in a collective and cannot go yet
WAIT = timedelta(minutes=10)  # for each other in a collective; the dead are noticed much earlier
TORN = ("gloo", "nccl", "connection closed", "connection reset", "socket", "broken pipe", "tcpstore")


@contextmanager
def together(c: config.Train | None = None) -> Iterator[Ranks]:
    """The ranks of this run, as the environment says; one alone where it says nothing."""
    c = c or config.Train()
    check(c)
    rank, size, local = placed(os.environ)
    if size == 1:
        yield ALONE
        return
    if c.parallel == "none":
        raise config.ConfigError(f"train.parallel: none, and there are {size} processes; let it be auto, ddp or fsdp, "
                                 "or start one")  # fmt: skip
    device = pinned(c, local)
    found = dist.is_initialized()  # by whoever started this process, as Ray does
    if not found:
        gather(device)
    host = None if "gloo" in dist.get_backend_config() else dist.new_group(backend="gloo")
    ranks = Ranks(rank, size, local, "fsdp" if c.parallel == "fsdp" else "ddp", shared(), host)
    with telling(ranks):
        yield ranks
    if not found and dist.is_initialized():
        dist.destroy_process_group()


def check(c: config.Train) -> None:
    """What cannot be done on parts of a model."""
    if c.parallel == "fsdp" and not isinstance(c.optimizer, config.AdamW):
        raise config.ConfigError(f"train.parallel: fsdp, and {c.optimizer.kind} looks at whole matrices, of which each "
                                 "rank has a part; let it be ddp, or train.optimizer.kind adamw")  # fmt: skip
    if c.parallel == "fsdp" and c.compile is True:
        raise config.ConfigError("train.compile: a model in parts is not compiled; leave it out, or let train.parallel "
                                 "be ddp")  # fmt: skip


def placed(said: Mapping[str, str]) -> tuple[int, int, int]:
    """RANK, WORLD_SIZE and LOCAL_RANK."""
    size = number(said, "WORLD_SIZE", 1)
    if size == 1:
        return 0, 1, 0
    rank, local = number(said, "RANK", None), number(said, "LOCAL_RANK", 0)
    if rank >= size:
        raise config.ConfigError(f"RANK={rank}: expected a number below WORLD_SIZE={size}; torchrun sets both")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not said.get(name) and not dist.is_initialized():
            raise config.ConfigError(f"{name}: not set, and WORLD_SIZE={size}; torchrun sets it, or name the machine "
                                     "and the port of rank 0")  # fmt: skip
    return rank, size, local


def number(said: Mapping[str, str], name: str, usual: int | None) -> int:
    text = said.get(name) or ("" if usual is None else str(usual))
    if not text.isdecimal() or (name == "WORLD_SIZE" and int(text) < 1):
        raise config.ConfigError(f"{name}={text}: expected a number, as torchrun sets it")
    return int(text)


def pinned(c: config.Train, local: int) -> torch.device:
    """The device of this rank: a GPU of its own, or the host."""
    device = device_of(c.device)
    if device.type == "mps":
        raise config.ConfigError("train.device: several processes cannot share mps; let it be cpu, or start one")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if local >= count:
            raise config.ConfigError(f"train.device: LOCAL_RANK={local}, and this machine has {count} GPUs; start a "
                                     "process for each")  # fmt: skip
        torch.cuda.set_device(local)
    return device


def gather(device: torch.device) -> None:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=WAIT)
    except (dist.DistError, RuntimeError, ValueError) as lost:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = next(iter(str(lost).splitlines()), type(lost).__name__)
        raise config.RunError(f"{where}: the processes did not come together ({reason}); check that all are started, "
                              "and can reach it") from None  # fmt: skip


def shared() -> object:
    """The table that the group was made with: no public name leads to it."""
    return dist.distributed_c10d._get_default_store()


@contextmanager
def telling(ranks: Ranks) -> Iterator[None]:
    """Whatever goes wrong inside is told to all the others, or is what another has told."""
    if ranks.leads:
        ranks.store.set(PROBLEM, "")
    with Pulse(ranks.store, ranks.rank, ranks.size) as pulse:
        try:
            ranks.most(0)  # all are here
            yield
            ranks.meet()
            pulse.stop()
            leave(ranks, last=ranks.leads)  # who may have the store
        except Exception as raised:
            raise first(ranks, raised, pulse) from raised
        except KeyboardInterrupt as raised:
            first(ranks, raised, pulse)
            raise


def first(ranks: Ranks, raised: BaseException, pulse: Pulse) -> BaseException:
    """What went wrong first: here, or for another rank, whose leaving is all that was noticed here."""
    torn = isinstance(raised, dist.DistError) or (
        isinstance(raised, RuntimeError) and any(word in str(raised).lower() for word in TORN))  # fmt: skip
    own = {"rank": ranks.rank, "kind": type(raised).__name__, "text": str(raised)}
    if type(raised).__name__ not in KINDS:
        own["text"] = f"rank {ranks.rank} failed: {' '.join(str(raised).split())[:300] or type(raised).__name__}"
    told = pulse.told
    with suppress(Exception):  # the store may have gone with its rank
        told = ranks.store.get(PROBLEM) if torn else ranks.store.compare_set(PROBLEM, "", json.dumps(own))
        pulse.stop()  # nobody is missed from here on
        leave(ranks, last=not torn)
    if told and json.loads(told)["rank"] != ranks.rank:
        return problem(told)
    if not torn:
        return raised
    return config.RunError("another process of this run is gone; what is saved is whole, and `regard resume` goes on "
                           "from there")  # fmt: skip


def leave(ranks: Ranks, last: bool) -> None:
    """Go; who goes `last` lets the others go before, or at least hear why: the store or the launcher ends with it."""
    gone, until = ranks.store.add("gone", 1), time.monotonic() + LINGER
    while last and gone < ranks.size and time.monotonic() < until:
        time.sleep(0.02)
        gone = ranks.store.add("gone", 0)
