"""The log: one line of JSON for each request, and never what was said."""

import io
import json
import threading

from serve.served_models import Plain, events, until

from regard.web import access_log


def test_each_request_is_a_line_that_says_how_it_went(small):
    stream = io.StringIO()
    server = small(keys=("hidden-key",))
    plain = Plain(server.url, "hidden-key")
    with access_log.log_to_stream(stream):
        plain.post("/v1/completions", {"prompt": "secret words", "max_tokens": 5, "stop": "secret stop"})
        connection, answer = plain.stream("/v1/completions", {"prompt": "secret words", "max_tokens": 4})
        events(answer)
        connection.close()
        plain.post("/v1/completions", {"prompt": "secret ☃"})
        plain.get("/secret?secret=secret")
        Plain(plain.place.geturl()).get("/version", Authorization="Bearer secret")
        plain.get("/health")
        until(lambda: not server.house.inside)  # a line is written when the answer is out
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert "secret" not in stream.getvalue() and "hidden" not in stream.getvalue()
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/v1/completions", 200), ("/v1/completions", 200), ("/v1/completions", 400), ("none", 404), ("none", 401),
        ("/health", 200)]  # fmt: skip
    assert (lines[0]["model"], lines[0]["prompt_tokens"], lines[0]["completion_tokens"]) == ("writer", 12, 5)
    assert lines[1]["completion_tokens"] == 4
    assert all(line["time"].endswith("Z") and line["seconds"] >= 0 for line in lines)


def test_a_bug_is_told_by_its_place_and_not_by_its_words(small):
    server, stream = small(), io.StringIO()
    resident = server.house.residents["writer"]
    resident.run = None  # what nobody foresaw
    with access_log.log_to_stream(stream):
        told = Plain(server.url).post("/v1/embeddings", {"input": "secret"})
        until(lambda: not server.house.inside)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert told.status == 500 and told.error["code"] == "internal_error" and "log" in told.error["message"]
    assert lines[0]["bug"] == "TypeError" and any("task_routes.py" in place for place in lines[0]["at"])
    assert lines[1]["status"] == 500 and "secret" not in stream.getvalue()


def test_a_pipe_that_nobody_empties_stops_no_request(small):
    class Stuck(io.StringIO):
        free = threading.Event()

        def write(self, text):
            assert self.free.wait(30)
            return super().write(text)

    server, stream = small(), Stuck()
    with access_log.log_to_stream(stream):
        assert [Plain(server.url).get("/health").status for _ in range(5)] == [200] * 5
        until(lambda: not server.house.inside)
        stream.free.set()
    assert len(stream.getvalue().splitlines()) == 5
