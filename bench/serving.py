"""How many tokens a second `regard serve` says, and how long its clients wait, with 1, 8 and 64 of them.

    python bench/serving.py                    # a minute and a half on two cores; writes bench/results/serving-cpu.csv
    python bench/serving.py --seconds 5

A model of a million random weights, so that what is measured is everything around the model: HTTP, the queue, choosing
tokens. Clients ask for one stream after the other, with thirteen kinds of settings, and every text is compared with the
one that an engine says to one request alone before its times count. Beside it stands the engine without a server.
Clients run on the same cores.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
from common import keep, show  # noqa: E402
from faults.clients import ask, complete, share  # noqa: E402
from faults.server_process import KINDS, Alone, Others, Served, scribe  # noqa: E402


class Load:
    """So many clients for so many seconds, and what they saw."""

    def __init__(self, served: Served, alone: Alone, clients: int, seconds: float) -> None:
        self.place, self.alone, self.clients, self.seconds = served.place, alone, clients, seconds
        self.firsts, self.gaps, self.healths = list[float](), list[float](), list[float]()
        self.tokens = 0

    async def run(self) -> None:
        self.end = time.perf_counter() + self.seconds
        await asyncio.gather(self.watch(), *(self.client(number) for number in range(self.clients)))

    async def client(self, number: int) -> None:
        for kind in islice(cycle(KINDS), number, None):
            if time.perf_counter() > self.end:
                return
            heard = await complete(self.place, kind)
            assert heard.text == self.alone(kind), kind
            self.firsts.append(heard.first)
            self.gaps += heard.gaps
            came = zip(heard.moments, heard.pieces, strict=True)
            self.tokens += sum(many for moment, many in came if moment < self.end)

    async def watch(self) -> None:
        while time.perf_counter() < self.end:
            heard = await ask(self.place, "/health")
            self.healths.append(heard.ended - heard.began)
            await asyncio.sleep(0.05)


def without_server(alone: Alone, texts: int) -> float:
    """Tokens a second of the engine itself, with as many texts at a time."""
    pieces: list = []
    began = time.perf_counter()
    for kind in islice(cycle(KINDS), texts):
        alone.ask(kind, pieces.append)
    while alone.answers.engine.step():
        pass
    return sum(len(piece.tokens) for piece in pieces) / (time.perf_counter() - began)


def measured(folder: Path, clients: int, seconds: float) -> dict[str, object]:
    slots = max(8, clients)
    served, alone = Served(folder.parent / f"log-{clients}", folder, "--slots", slots), Alone(folder, slots)
    try:
        for kind in KINDS:
            alone(kind)
        served.ready()
        asyncio.run(Load(served, alone, clients, min(seconds, 3.0)).run())  # warm
        load, others = Load(served, alone, clients, seconds), Others(served)
        asyncio.run(load.run())
        busy = others.share
    finally:
        served.end()
    times = {f"{name} p{round(100 * part)} ms": 1000 * share(values, part)
             for name, values in (("first", load.firsts), ("gap", load.gaps), ("health", load.healths))
             for part in (0.5, 0.99)}  # fmt: skip
    return {"clients": clients, "slots": slots, "seconds": seconds, "texts": len(load.firsts),
            "tokens a second": load.tokens / seconds, "engine alone": without_server(alone, clients), **times,
            "others' share of the cores": busy}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each row")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # as the server has it: the number of threads changes bits
    with tempfile.TemporaryDirectory() as place:
        folder = scribe(Path(place) / "scribe")
        rows = [measured(folder, clients, chosen.seconds) for clients in chosen.clients]
    show(rows)
    keep("serving-cpu", rows)


if __name__ == "__main__":
    main()
