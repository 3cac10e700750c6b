"""Requests that are cheap to send and dear to answer: the event loop stays at hand, and everybody else is served."""

import asyncio
import json
import re
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from faults.attacks import attack, attacks
from faults.clients import ask
from faults.server_process import ON_LINUX, Others, Served, scribe
from faults.trials import FULL, HERE
from serve.served_models import judge, masked, talker, writer

LOOP = 0.05  # seconds that the loop may be away
GIB = 1 << 30
pytestmark = [pytest.mark.slow, pytest.mark.alone, ON_LINUX]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    place = tmp_path_factory.mktemp("shelf")
    writer().save(place / "writer")
    for make in (talker, masked, judge):
        make(place / make.__name__)
    return place


@pytest.fixture(scope="module")
def served(shelf):
    names, program = ("writer", "talker", "masked", "judge"), (str(HERE / "loop_watchdog.py"),)
    server = Served(shelf / "lines", *(shelf / name for name in names), "en-fr", program=program)
    try:
        yield server.ready()
    finally:
        code, said, _ = server.end()
    assert (code, said, server.bugs()) == (143, "", [])


async def longest(served):
    return float((await ask(served.place, "/longest")).body)


def statuses(one, heard):
    """Those of the answers to an attack, of which none is the server's fault; each refusal is a sentence."""
    found = [int(word) for word in re.findall(rb"^HTTP/1\.1 (\d{3}) ", heard, re.MULTILINE)]
    assert found or one.leaves, one.name
    assert all(status < 500 for status in found), (one.name, heard[-300:])
    if found and found[-1] >= 400:
        message = json.loads(heard.rpartition(b"\r\n\r\n")[2])["error"]["message"]
        assert message and "\n" not in message and "bug" not in message, (one.name, message)
    return found


def test_the_loop_is_at_hand_whatever_is_asked(served, figures):
    """The whole corpus, one after the other, and the longest time that the loop was away; then eight at a time."""
    corpus, others, times, memory, came = attacks(), Others(served), {}, [served.memory], Counter()

    async def everything():
        await longest(served)
        for one in corpus:
            came.update(statuses(one, await attack(served.place, one)))
            times[one.name] = await longest(served)
            memory.append(served.memory)
        left = iter(corpus)

        async def some():
            for one in left:
                came.update(statuses(one, await attack(served.place, one)))
                memory.append(served.memory)

        await asyncio.gather(*(some() for _ in range(8)))
        return await longest(served)

    together = asyncio.run(everything())
    worst = max(times, key=times.get)
    figures(attacks=len(corpus), longest=f"{times[worst]:.3f} s, {worst},", eight_at_a_time=f"{together:.3f} s",
            memory=f"{max(memory) / GIB:.2f} GiB", **{str(status): many for status, many in sorted(came.items())},
            others=f"{others.share:.0%}")  # fmt: skip
    assert max(memory) < GIB and served.bugs() == []
    others.excuse(loop=(times[worst], LOOP))


# ---------------------------------------------------------------- clients that leave, and servers that close

BEAMS = ("/v1/translate", {"model": "en-fr", "input": ["A dog runs on the beach with two men and a red ball."] * 128,
                           "num_beams": 32})  # fmt: skip
VECTORS = ("/v1/embeddings", {"model": "scribe", "input": ["once upon a time " * 18] * 128})
ALOUD = ("/v1/completions", {"model": "scribe", "prompt": ["once upon a time " * 18] * 64, "max_tokens": 1,
                             "echo": True, "logprobs": 1})  # fmt: skip
STREAMS = ("/v1/completions", {"model": "scribe", "prompt": "Once", "max_tokens": 300, "n": 64, "stream": True})
LOADS = {"beams": BEAMS, "vectors": VECTORS, "aloud": ALOUD, "streams": STREAMS}


def start(place):
    return Served(place / "lines", scribe(place / "scribe"), "en-fr", "--slots", 4, "--max-queue", 99).ready()


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    server = start(tmp_path_factory.mktemp("open"))
    yield server
    code, said, _ = server.end()
    assert (code, said, server.bugs()) == (143, "", [])


@pytest.fixture
def closing(tmp_path):
    server = start(tmp_path)
    yield server
    server.process.kill()
    server.process.communicate()


async def begun(server, load):
    """A request whose work has begun: others wait for the thread of its model."""
    path, body = LOADS[load]
    task = asyncio.create_task(ask(server.place, path, body))
    await asyncio.sleep(0.5)
    assert not task.done()
    return task


@pytest.mark.parametrize("load", LOADS)
def test_work_stops_when_its_client_leaves(open_server, load, figures):
    """128 texts with 32 beams took 40 seconds, whether or not somebody waited for them."""
    small = ("/v1/translate", {"model": "en-fr", "input": "A dog."}) if load == "beams" else (
        "/v1/completions", {"model": "scribe", "prompt": "a", "max_tokens": 1})  # fmt: skip

    async def leave():
        task = await begun(open_server, load)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return await ask(open_server.place, *small)

    others = Others(open_server)
    heard = asyncio.run(leave())
    time = heard.ended - heard.began

    assert heard.status == 200
    figures(next=f"{time:.2f} s", others=f"{others.share:.0%}")
    others.excuse(next=(time, 2.0))


@pytest.mark.parametrize("load", LOADS if FULL else ["beams"])
def test_a_signal_closes_in_time_whatever_is_being_done(closing, load, figures):
    """/health says so at once, whoever waits is told, and the process ends within its ten seconds."""

    async def close():
        task = await begun(closing, load)
        ending = asyncio.create_task(asyncio.to_thread(closing.end))
        began = time.perf_counter()
        while (await ask(closing.place, "/health")).status == 200:
            pass
        told, busy = time.perf_counter() - began, others.share
        return told, busy, await task, await ending

    others = Others(closing)
    told, busy, heard, (code, said, seconds) = asyncio.run(close())

    assert (code, said, closing.bugs()) == (143, "", [])
    assert heard.status in (200, 503) and (b"closing" in heard.body) == (heard.status == 503 or load == "streams")
    figures(health=f"{told:.3f} s", seconds=f"{seconds:.1f}", status=heard.status, others=f"{busy:.0%}")
    assert seconds < 10.5 and (told < 0.25 or busy > Others.MUCH)


def test_a_second_signal_stops_at_once_while_beams_are_searched(closing):
    async def stop():
        task = await begun(closing, "beams")
        closing.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        ended = await asyncio.to_thread(closing.end, signal.SIGINT)
        await asyncio.gather(task, return_exceptions=True)
        return ended

    code, said, seconds = asyncio.run(stop())
    assert (code, said) == (130, "") and seconds < 1


# ---------------------------------------------------------------- connections

LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
sys.argv = ["regard", "serve", *sys.argv[1:]]
runpy.run_module("regard", run_name="__main__")
"""


def test_idle_connections_leave_room_for_others(shelf, tmp_path, figures):
    """More of them than there are files: those that wait longest are closed, and nothing is printed."""
    server = Served(tmp_path / "lines", shelf / "writer", program=("-c", LIMITED)).ready()
    idle, many, times = [], 1000, []
    try:
        for number in range(many):
            idle.append(socket.create_connection(server.place))
            if number % 3 == 0:  # some have begun to ask
                with suppress(ConnectionError):
                    idle[-1].sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"[: number % 40])
            if number % 50 == 49:
                heard = asyncio.run(ask(server.place, "/tokenize", {"text": "a"}))
                assert heard.status == 200
                times.append(heard.ended - heard.began)
        files = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
    finally:
        for each in idle:
            each.close()
        code, said, _ = server.end()

    assert (code, said, server.bugs()) == (143, "", []) and files < 512
    assert len(server.lines()) < 3 * many and max(times) < 5
    figures(connections=many, files=files, slowest=f"{max(times):.3f} s")


def test_a_refused_body_is_not_read_for_long(served, figures):
    """After 413 or 415 a client that goes on sending is cut off within a few seconds, not after 30."""
    for kind in (b"application/json", b"text/plain"):
        began = time.perf_counter()
        with socket.create_connection(served.place, 30) as link, suppress(ConnectionError):
            link.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\n" % kind)  # fmt: skip
            while time.perf_counter() - began < 25:
                link.sendall(b"10000\r\n%s\r\n" % (b"a" * 65536))
        assert time.perf_counter() - began < 8, kind
