"""A server with many clients, some of whom leave, sleep, or are too many: each text is the one said to one alone."""

import asyncio
import json
import signal
import socket
import struct
import time
from contextlib import suppress
from itertools import cycle

import pytest
from faults.attacks import READER, TALKER, WRITER, attack, attacks, renamed
from faults.clients import Heard, ask, closed, complete, metrics, request, share
from faults.server_process import KINDS, ON_LINUX, ROOM, Alone, Others, Served, scribe
from faults.trials import count

SLOTS, WAITING = 64, 64
LONG = {"model": "scribe", "prompt": "Once", "max_tokens": 200, "temperature": 0.8, "seed": 5}
pytestmark = [pytest.mark.slow, pytest.mark.alone, ON_LINUX]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return scribe(tmp_path_factory.mktemp("shelf") / "scribe")


@pytest.fixture(scope="module")
def alone(folder):
    """What is said to each kind of client alone."""
    alone = Alone(folder, SLOTS)
    for kind in KINDS:
        alone(kind)
    return alone


@pytest.fixture(scope="module")
def served(folder, request, tmp_path_factory):
    server = Served(tmp_path_factory.mktemp("log") / "lines", folder, "--slots", SLOTS, "--max-queue", WAITING)
    try:
        request.getfixturevalue("alone")  # while it starts
        yield server.ready()
    finally:
        code, said, _ = server.end()
    assert (code, said, server.bugs()) == (143, "", [])


class Crowd:
    """Clients that ask for one stream after the other, each of another kind, until they are told that it is enough."""

    def __init__(self, served, alone, many):
        self.place, self.alone, self.many, self.enough = served.place, alone, many, False
        self.texts, self.firsts, self.gaps = 0, [], []

    async def client(self, number):
        for kind in cycle(KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]):
            if self.enough:
                return
            heard = await complete(self.place, kind)
            assert heard.text == self.alone(kind), kind
            self.texts += 1
            self.firsts.append(heard.first)
            self.gaps += heard.gaps

    async def during(self, work):
        """The result of some work, with the crowd beside it."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.many):
                group.create_task(self.client(number))
            try:
                return await work
            finally:
                self.enough = True


def test_many_streams_at_once_are_as_alone_and_nobody_waits(served, alone, figures):
    seconds, healths, memory = count(600, 15), [], []

    async def watch():
        """/health all the while; and the memory, after a while and at the end."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            heard = await ask(served.place, "/health")
            assert heard.status == 200
            healths.append(heard.ended - heard.began)
            if not memory and left < 0.7 * seconds:
                memory.append(served.memory)
            await asyncio.sleep(0.05)
        memory.append(served.memory)

    crowd, others = Crowd(served, alone, SLOTS), Others(served)
    asyncio.run(crowd.during(watch()))
    first, gap, health = share(crowd.firsts, 0.99), share(crowd.gaps, 0.99), share(healths, 0.99)
    grown = memory[-1] / memory[0] - 1

    assert crowd.texts > SLOTS and len(crowd.gaps) > 20 * crowd.texts
    assert grown < 0.03, f"{memory} bytes"
    figures(texts=crowd.texts, pieces=len(crowd.gaps), first_p99=f"{first:.3f} s", gap_p99=f"{gap:.3f} s",
            health_p99=f"{health:.4f} s", memory=f"{grown:+.1%}", others=f"{others.share:.0%}")  # fmt: skip
    others.excuse(first=(first, 1.5), gap=(gap, 0.25), health=(health, 0.05))


# ---------------------------------------------------------------- clients that attack


@pytest.fixture
def besieged(folder, tmp_path, request):
    """As many slots, and a queue that holds whatever an attacker asks for beside the others."""
    server = Served(tmp_path / "lines", folder, "--slots", SLOTS, "--max-queue", 4 * WAITING)
    try:
        request.getfixturevalue("alone")
        yield server.ready()
    finally:
        code, said, _ = server.end()
    assert (code, said, server.bugs()) == (143, "", [])


def test_streams_beside_an_attacker_are_as_alone_and_nobody_waits(besieged, alone, figures):
    """All attacks on this model, one after the other and all the while.

    The pace is a percentile of what two cores do for 64 streams, an attacker and all clients.
    """
    corpus = [renamed(one, "scribe") for one in attacks((WRITER, TALKER, READER), room=ROOM)]
    seconds, healths, memory, came = count(600, 12), [], [], 0

    async def siege():
        nonlocal came
        for one in cycle(corpus):
            await attack(besieged.place, one)
            came += 1

    async def watch():
        end = asyncio.get_running_loop().time() + seconds
        attacker = asyncio.create_task(siege())
        while asyncio.get_running_loop().time() < end:
            heard = await ask(besieged.place, "/health")
            assert heard.status == 200 and not attacker.done()
            healths.append(heard.ended - heard.began)
            memory.append(besieged.memory)
            await asyncio.sleep(0.05)
        attacker.cancel()

    crowd, others = Crowd(besieged, alone, SLOTS), Others(besieged)
    asyncio.run(crowd.during(watch()))
    gap, health = share(crowd.gaps, 0.99), share(healths, 0.99)

    assert crowd.texts > SLOTS and came > count(len(corpus), 5)
    assert max(memory) < 1 << 30
    figures(texts=crowd.texts, attacks=came, gap_p99=f"{gap:.3f} s", gap_max=f"{max(crowd.gaps):.3f} s",
            health_p99=f"{health:.4f} s", memory=f"{max(memory) >> 20} MiB", others=f"{others.share:.0%}")  # fmt: skip
    others.excuse(gap=(gap, 0.25), health=(health, 0.05))


# ---------------------------------------------------------------- clients that leave


async def begun(place, asked, pieces):
    """A connection on which so many pieces have come."""
    reader, writer = await asyncio.open_connection(*place)
    writer.write(request("/v1/completions", asked | {"stream": pieces > 0}))
    heard = Heard()
    while len(heard.moments) < pieces:
        some = await reader.read(1 << 16)
        assert some
        heard.hear(some)
    return reader, writer


async def leave(how, reader, writer):
    if how == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    elif how == "half":  # says that it is done, and listens: the server hangs up
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 5)
    await closed(writer)


def test_a_client_that_leaves_frees_its_slot_and_disturbs_nobody(served, alone, figures):
    together, watchers, late = 10, 8, []

    async def depart():
        cancelled = 'regard_cancelled_total{model="scribe"}'
        before = (await metrics(served.place)).get(cancelled, 0)
        rounds = count(50, 10)
        for _ in range(rounds):
            here = [await begun(served.place, LONG | {"max_tokens": 300}, place % 4) for place in range(together)]
            await until(served, lambda here: here >= together)  # some have not heard a word yet
            began = time.perf_counter()
            hows = ("close", "reset", "half")
            await asyncio.gather(*(leave(hows[place % 3], *each) for place, each in enumerate(here)))
            await asyncio.wait_for(until(served, lambda here: here <= watchers), 2)  # the texts would take longer
            late.append(time.perf_counter() - began)
        assert (await metrics(served.place))[cancelled] == before + rounds * together

    others, crowd = Others(served), Crowd(served, alone, watchers)
    asyncio.run(crowd.during(depart()))

    asyncio.run(asyncio.wait_for(until(served, lambda here: here == 0), 5))
    figures(disconnects=together * len(late), slowest=f"{max(late):.3f} s", texts_beside=crowd.texts,
            others=f"{others.share:.0%}")  # fmt: skip
    others.excuse(freed=(max(late), 0.2))


async def until(served, true):
    """Wait until this holds for the number of texts that run or wait; nobody tells of it."""
    while True:
        told = await metrics(served.place)
        if true(told['regard_running{model="scribe"}'] + told['regard_waiting{model="scribe"}']):
            return
        await asyncio.sleep(0.005)


# ---------------------------------------------------------------- clients that sleep


async def sleeper(place, asked, awake, slowly):
    """Reads a byte a second, or nothing at all, until it is awake; then all that it has missed."""
    loop, heard = asyncio.get_running_loop(), Heard()
    with socket.socket() as link:
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # so that neither side has large buffers
        await loop.sock_connect(link, place)
        await loop.sock_sendall(link, request("/v1/completions", asked | {"stream": True}))
        while slowly and not awake.is_set():
            heard.hear(await loop.sock_recv(link, 1))
            with suppress(TimeoutError):
                await asyncio.wait_for(awake.wait(), 1)
        await awake.wait()
        while some := await loop.sock_recv(link, 1 << 16):
            heard.hear(some)
    return heard


def test_clients_that_do_not_read_stall_nobody_and_miss_nothing(served, alone, figures):
    many, others = 8, Others(served)
    large = LONG | {"max_tokens": 300, "logprobs": 20}

    def over():
        """How many of the long texts have been sent to their last byte: the log has a line for each."""
        return sum(line.get("completion_tokens") == large["max_tokens"] for line in served.lines())

    async def beside(crowd, asleep):
        """Long texts are made for these clients, beside others who read as ever; then all wake up."""
        awake, before = asyncio.Event(), over()
        if not asleep:
            awake.set()
        clients = [asyncio.create_task(sleeper(served.place, large, awake, place % 2)) for place in range(many)]
        await until(served, lambda here: here > crowd.many)
        await until(served, lambda here: here <= crowd.many)
        assert not asleep or over() == before, "their texts went into some buffer"
        awake.set()
        assert {(await client).text for client in clients} == {alone(large)}

    crowds = []
    for asleep in (False, True):
        crowds.append(Crowd(served, alone, many))
        asyncio.run(crowds[-1].during(beside(crowds[-1], asleep)))
    (usual, gap), worst = (share(crowd.gaps, 0.5) for crowd in crowds), share(crowds[1].gaps, 0.99)

    figures(sleepers=many, gap=f"{gap:.4f} s", before=f"{usual:.4f} s", gap_p99=f"{worst:.3f} s",
            others=f"{others.share:.0%}")  # fmt: skip
    others.excuse(gap=(gap, 1.5 * usual + 0.005), worst=(worst, 0.25))


# ---------------------------------------------------------------- clients that are too many


def test_whoever_is_too_many_is_told_to_come_again_and_all_others_are_answered(served, alone, figures):
    async def everybody():
        kinds = [(KINDS[place % len(KINDS)], place % 3 > 0) for place in range(256)]
        return kinds, await asyncio.gather(*(complete(served.place, *each) for each in kinds))

    kinds, heard = asyncio.run(everybody())
    refused = [each for each in heard if each.status == 429]

    assert {each.status for each in heard} == {200, 429}
    assert len(heard) - len(refused) >= SLOTS + WAITING
    for each in refused:
        assert 1 <= int(each.response[0].headers["retry-after"]) <= 60
        assert json.loads(each.body)["error"]["code"] == "rate_limit_exceeded"
    for (kind, _), each in zip(kinds, heard, strict=True):
        assert each.status == 429 or each.text == alone(kind), kind
    assert asyncio.run(complete(served.place, KINDS[0])).text == alone(KINDS[0])
    figures(clients=len(heard), answered=len(heard) - len(refused), refused=len(refused))


# ---------------------------------------------------------------- a server that closes


@pytest.fixture
def closing(folder, tmp_path):
    """A server with few slots, so that many wait."""
    server = Served(tmp_path / "lines", folder, "--slots", 4, "--max-queue", 99).ready()
    yield server
    server.process.kill()
    server.process.communicate()


def test_a_signal_drains_the_server(folder, closing, figures):
    """Who has begun is told to the end, if that can be; the others are told that it closes."""
    many = 90

    async def drain():
        clients = [asyncio.create_task(complete(closing.place, LONG)) for _ in range(many)]
        await until(closing, lambda here: here == many)
        ending = asyncio.create_task(asyncio.to_thread(closing.end))
        while (health := await ask(closing.place, "/health")).status == 200:
            pass
        late = await complete(closing.place, KINDS[0])
        heard = await asyncio.gather(*clients)
        with pytest.raises(ConnectionError):
            while True:
                assert (await ask(closing.place, "/health")).status == 503
                await asyncio.sleep(0.02)
        return health, late, heard, await ending

    health, late, heard, (code, said, seconds) = asyncio.run(drain())
    broken = [each.events[-1]["error"]["code"] for each in heard if "error" in each.events[-1]]
    texts = [each.text for each in heard if "error" not in each.events[-1]]

    assert (code, said, closing.bugs()) == (143, "", [])
    assert (json.loads(health.body), late.status) == ({"status": "closing"}, 503)
    assert len(texts) >= 4 and set(texts) == {Alone(folder, 4)(LONG)} and set(broken) <= {"closing"}
    figures(streams=many, ended=len(texts), told=len(broken), seconds=f"{seconds:.1f}")
    assert seconds < 10


def test_a_second_signal_stops_at_once_whatever_is_on_its_way(closing):
    async def stop():
        clients = [asyncio.create_task(complete(closing.place, LONG)) for _ in range(40)]
        await until(closing, lambda here: here == 40)
        closing.process.send_signal(signal.SIGINT)
        while (await ask(closing.place, "/health")).status == 200:
            pass
        ended = await asyncio.to_thread(closing.end)
        await asyncio.gather(*clients, return_exceptions=True)
        return ended

    code, said, seconds = asyncio.run(stop())
    assert (code, said) == (143, "") and seconds < 2
