"""Clients that leave, that do not read, that are too many; and a server that closes."""

import json
import socket
import threading

import openai
import pytest
from serve.served_models import Gate, Plain, Reply, events, until

LONG = {"prompt": "the", "max_tokens": 250}


def engine_of(server):
    return server.house.residents["writer"].engine


def ticket_of(server):
    """The request that is on its way."""
    [line] = server.house.lines
    return line.tickets[0]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_the_slot_of_a_client_that_leaves_is_free_at_once(small, stream):
    server = small()
    engine, body = engine_of(server), json.dumps(LONG | {"stream": stream}).encode()
    place = Plain(server.url).place
    for _ in range(3):
        gate = Gate(engine)
        gate.open.clear()
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # fmt: skip
            until(lambda: engine.stats.running == 1)
            ticket = ticket_of(server)
        until(lambda here=ticket: here.cancelled, 0.2)
        gate.open.set()
        assert ticket.wait(0.2) and ticket.reason == "cancelled"
        engine.forward = gate.forward
    until(lambda: not server.house.lines)
    assert engine.stats.running == 0 and server.house.inside == 0


def test_a_client_that_leaves_while_it_waits_is_forgotten(small):
    server = small(slots=1, max_queue=5)
    gate = Gate(engine_of(server))
    gate.open.clear()
    first = Plain(server.url).connect()
    first.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
    until(lambda: engine_of(server).stats.running == 1)
    second = Plain(server.url).connect()
    second.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
    until(lambda: engine_of(server).stats.waiting == 1)
    second.close()
    until(lambda: len(server.house.lines) == 1)
    gate.open.set()

    assert json.loads(first.getresponse().read())["usage"]["completion_tokens"] == 250
    assert engine_of(server).stats.waiting == 0
    first.close()


def test_who_is_too_much_is_told_when_to_come_again(small):
    server = small(slots=1, max_queue=1)
    gate = Gate(engine_of(server))
    gate.open.clear()
    told = []

    def one():
        told.append(Plain(server.url).post("/v1/completions", {"prompt": "a", "max_tokens": 3}))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for place, thread in enumerate(threads, 1):
        thread.start()
        until(lambda many=place: engine_of(server).line.here == many)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client, pytest.raises(
            openai.RateLimitError) as busy:  # fmt: skip
        client.completions.create(model="writer", prompt="a")
    assert busy.value.code == "rate_limit_exceeded" and int(busy.value.response.headers["retry-after"]) >= 1
    several = Plain(server.url).post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3})
    assert several.status == 429
    gate.open.set()
    for thread in threads:
        thread.join()

    assert [reply.status for reply in told] == [200, 200]
    page = Plain(server.url).get("/metrics").body.decode()
    assert 'regard_refused_total{model="writer"} 2.0' in page


def test_a_request_of_which_a_part_is_refused_leaves_nothing_behind(small):
    server = small(slots=1, max_queue=2)
    gate, plain = Gate(engine_of(server)), Plain(server.url)
    gate.open.clear()
    thread = threading.Thread(target=plain.post, args=("/v1/completions", {"prompt": "a", "max_tokens": 3}))
    thread.start()
    until(lambda: engine_of(server).line.here == 1)
    told = plain.post("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 200})
    here = engine_of(server).line.here
    gate.open.set()
    thread.join()

    assert told.status == 429 and here == 1
    until(lambda: engine_of(server).line.here == 0, 2.0)
    assert not server.house.lines


@pytest.mark.parametrize("many", [{"prompt": "a", "n": 4}, {"prompt": ["a", "b"], "n": 2}, {"prompt": list("abcd")}])
def test_more_texts_than_an_empty_server_has_room_for_are_refused_and_not_told_to_come_again(small, many):
    told = Plain(small(slots=1, max_queue=2).url).post("/v1/completions", many | {"max_tokens": 3})

    assert told.status == 400 and "retry-after" not in told.headers
    assert "4 texts are more than the 3 that this server generates" in told.error["message"]


def test_a_reader_that_does_not_read_stalls_nobody_and_is_left(small):
    server = small(slots=2, max_queue=9, patience=0.3)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what it accepts from now on has this as well
    place = Plain(server.url).place
    body = json.dumps(LONG | {"stream": True, "n": 2, "logprobs": 20}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect((place.hostname, place.port))
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # fmt: skip
        until(lambda: engine_of(server).stats.running == 2)
        quick = Plain(server.url).post("/v1/completions", {"prompt": "a", "max_tokens": 3})
        until(lambda: not server.house.inside, 20.0)
        until(lambda: engine_of(server).stats.running == 0)

        assert quick.status == 200 and not server.house.lines
        read = b""
        while more := slow.recv(1 << 16):
            read += more
    assert read.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in read


def test_a_stream_that_is_on_its_way_ends_well_while_the_server_closes(small):
    server = small(drain=10)
    gate, plain = Gate(engine_of(server)), Plain(server.url)
    connection, answer = plain.stream("/v1/completions", {"prompt": "the", "max_tokens": 40})
    gate.open.clear()
    closing = threading.Thread(target=server.drain, args=(10.0,))
    closing.start()
    until(lambda: server.house.closing)
    refused, health = plain.post("/v1/completions", {"prompt": "a"}), plain.get("/health")
    gate.open.set()
    parts = events(answer)
    closing.join(10)

    assert refused.status == 503 and refused.error["code"] == "closing" and int(refused.headers["retry-after"]) >= 1
    assert (health.status, health.json) == (503, {"status": "closing"})
    assert len(parts) == 40 and parts[-1]["choices"][0]["finish_reason"] == "length" and not closing.is_alive()
    connection.close()


def test_a_text_that_takes_too_long_is_ended_and_the_client_told(small):
    server = small()
    gate, plain = Gate(engine_of(server)), Plain(server.url)
    connection, answer = plain.stream("/v1/completions", LONG)
    gate.open.clear()
    closing = threading.Thread(target=server.drain, args=(1.2,))
    closing.start()
    parts = events(answer)
    gate.open.set()
    closing.join(10)

    assert "closing" in parts[-1]["error"]["code"] and not closing.is_alive()
    connection.close()


def test_who_waits_for_the_whole_is_told_too(small):
    server = small()
    gate, plain, told = Gate(engine_of(server)), Plain(server.url), list[Reply]()
    gate.open.clear()
    asking = threading.Thread(target=lambda: told.append(plain.post("/v1/completions", LONG)))
    asking.start()
    until(lambda: engine_of(server).stats.running == 1)
    server.drain(1.2)
    gate.open.set()
    asking.join()

    assert told[0].status == 503 and told[0].error["code"] == "closing"


def test_a_step_that_fails_ends_one_request_and_says_so_to_the_next(small):
    server = small()
    plain, engine = Plain(server.url), engine_of(server)
    forward = engine.forward

    def broken(ids, cache):
        raise RuntimeError("secret words")

    engine.forward = broken
    told = plain.post("/v1/completions", {"prompt": "abc", "max_tokens": 3})
    engine.forward = forward

    assert told.status == 500 and "secret" not in told.error["message"]
    assert plain.post("/v1/completions", {"prompt": "abc", "max_tokens": 3}).status == 200
