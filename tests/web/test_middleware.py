"""Who is let in: the door stands before every route, those that nobody has thought of included."""

import json
import socket
import time
from contextlib import suppress

import openai
import pytest
from serve.served_models import Plain, writer

from regard.config.errors import ConfigError
from regard.serve.app import create_app
from regard.web.server import BackgroundServer
from regard.web.settings import ServerSettings, is_loopback

KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def locked():
    app = create_app({"writer": writer()}, ServerSettings(keys=KEYS, body=4000, header=2000, patience=0.5))

    @app.get("/forgotten")
    async def forgotten():
        return "secret"

    with BackgroundServer(app) as server:
        yield server


def routes(server):
    """Every route of the application itself, also those that are added by others."""
    found = Plain(server.url, KEYS[0]).get("/openapi.json").json["paths"]
    return [(method.upper(), path.replace("{name}", "writer")) for path in found for method in found[path]] + [
        ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/"), ("POST", "/nowhere")]  # fmt: skip


def test_every_route_but_health_needs_the_key(locked):
    closed = [(method, path) for method, path in routes(locked) if path != "/health"]

    assert ("GET", "/forgotten") in closed and len(closed) > 15
    for method, path in closed:
        for key in (None, "wrong", "", "first-ke", "first-key2", "FIRST-KEY", "ä"):
            told = Plain(locked.url).ask(method, path, **({} if key is None else {"Authorization": f"Bearer {key}"}))
            assert told.status == 401 and told.error["code"] == "invalid_api_key", (method, path, key)
            assert told.headers["www-authenticate"] == "Bearer" and "first" not in told.error["message"]
    assert Plain(locked.url).get("/health").status == 200


@pytest.mark.parametrize("said", ["Basic first-key", "first-key", "Bearer", "Bearer first-key second-key",
                                  "Bearer\tfirst-key"])  # fmt: skip
def test_a_key_comes_as_bearer(locked, said):
    assert Plain(locked.url).get("/version", Authorization=said).status == 401


@pytest.mark.parametrize("said", ["Bearer first-key", "bearer second-key", "BEARER  first-key "])
def test_each_of_the_keys_opens(locked, said):
    assert Plain(locked.url).get("/version", Authorization=said).status == 200


def test_the_client_is_told_as_by_openai(locked):
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as told:
            stranger.models.list()
        assert told.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=KEYS[1]) as friend:
        assert friend.models.list().data[0].id == "writer"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example",
                                  "", "[::]", "0.0.0.0", "192.168.0.7:8000", "127.0.0.1@evil.example"])  # fmt: skip
def test_a_name_that_only_points_here_is_refused(plain, host):
    told = plain.get("/health", Host=host)

    assert told.status == 403 and told.error["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.0.0.9:81", "[::1]:8000", "[::1]"])
def test_this_machine_has_several_names(plain, host):
    assert plain.get("/health", Host=host).status == 200


def test_every_answer_says_that_nothing_in_it_is_run(plain):
    for path in ("/health", "/metrics", "/v1/models", "/nowhere"):
        headers = plain.get(path, Origin="https://evil.example").headers
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert not [name for name in headers if name.startswith("access-control")]
        assert "server" not in headers


@pytest.mark.parametrize("headers", [{"X-Long": "a" * 3000}, {f"X-{place}": "a" * 20 for place in range(90)}])
def test_headers_have_an_end(locked, headers):
    told = Plain(locked.url, KEYS[0]).get("/version", **headers)

    assert told.status == 431 and told.error["code"] == "too_large"


def test_a_body_has_an_end(locked):
    plain = Plain(locked.url, KEYS[0])
    fits = plain.post("/tokenize", {"text": "a" * 3900})
    long = plain.post("/tokenize", {"text": "a" * 4000})

    assert fits.status == 200
    assert long.status == 413 and "4,000 bytes" in long.error["message"]


def test_a_body_that_does_not_say_its_length_has_the_same_end(locked):
    parts = [b'{"text": "', *[b"a" * 500] * 9, b'"}']
    connection = Plain(locked.url).connect()
    connection.request(
        "POST",
        "/tokenize",
        iter(parts),
        encode_chunked=True,
        headers={
            "Transfer-Encoding": "chunked",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {KEYS[0]}",
        },
    )
    answer = connection.getresponse()

    assert answer.status == 413 and json.loads(answer.read())["error"]["code"] == "too_large"
    connection.close()


@pytest.mark.parametrize("key, status", [("first-key", 413), ("wrong", 401)])
def test_who_sends_too_much_and_then_listens_hears_why(locked, key, status):
    body = b"a" * 30_000
    head = (f"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n")  # fmt: skip
    with raw(locked, head.encode()) as connection:
        for start in range(0, len(body), 1000):
            connection.sendall(body[start : start + 1000])
            time.sleep(0.002)
        said = b"".join(iter(lambda: connection.recv(1 << 16), b""))

    assert said.startswith(f"HTTP/1.1 {status} ".encode())


def test_who_never_stops_sending_is_cut_off(locked):
    head = (b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer first-key\r\n"
            b"Content-Length: 1000000000\r\n\r\n")  # fmt: skip
    sent = 0
    with raw(locked, head) as connection, pytest.raises(OSError):
        while sent < 500 << 20:
            sent += connection.send(b"a" * 65536)


def raw(server, text):
    connection = socket.create_connection((Plain(server.url).place.hostname, Plain(server.url).place.port), timeout=30)
    connection.sendall(text)
    return connection


def test_a_body_that_never_comes_is_not_waited_for(locked):
    with raw(
        locked,
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first-key\r\n"
        b"Content-Type: application/json\r\nContent-Length: 90\r\n\r\n{",
    ) as connection:
        assert connection.recv(999).startswith(b"HTTP/1.1 408 ")


def test_a_header_that_never_ends_is_not_waited_for(locked):
    with raw(locked, b"GET /health HTTP/1.1\r\nHost: loc") as connection, suppress(ConnectionResetError):
        assert connection.recv(9) == b""


def test_nor_is_a_second_one_on_the_same_connection(locked):
    with raw(locked, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        with connection.makefile("rb") as first:
            assert first.readline().startswith(b"HTTP/1.1 200 ")
            while not first.peek().startswith(b"{"):
                first.readline()
            assert json.loads(first.read(len(b'{"status":"ok"}'))) == {"status": "ok"}
        connection.sendall(b"GET /hea")
        with suppress(ConnectionResetError):
            assert connection.recv(9) == b""


def test_what_is_no_http_is_refused(locked):
    with raw(locked, b"\x16\x03\x01\x02\x00\x01\r\n\r\n") as connection:
        assert connection.recv(99).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", ""])
def test_an_address_that_others_reach_needs_a_key(host):
    with pytest.raises(ConfigError, match="can be reached from other machines, and there is no key"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, keys=("k",)).keys == ("k",)


def test_a_key_is_not_shown_by_accident():
    assert "hidden" not in repr(ServerSettings(keys=("hidden",)))


@pytest.mark.parametrize("key", ["", "two words", "ümlaut", "line\nbreak"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(ConfigError, match="is not valid in a header"):
        ServerSettings(keys=(key,))


def test_what_loopback_is():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "example"]))
