"""Thousands of wrong requests: each is refused in a sentence, none shakes the server, and the next one is answered."""

import asyncio
import json
import re
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import schemathesis
from faults import request_tables
from faults.clients import Heard, ask, metrics
from faults.pathological_bodies import strange
from faults.server_process import ON_LINUX, Others, Served
from faults.trials import count
from faults.wrong_requests import posted, written, wrong
from hypothesis import HealthCheck, Phase, given, seed, settings
from serve.served_models import judge, masked, talker, writer

LATE = 2.0  # seconds until a body is answered, or another beside it
PATIENCE = 60.0  # seconds until an answer must have come, on a machine that others may use
RIGHT = {"model": "talker", "prompt": "the cat", "max_tokens": 12, "seed": 3}
MODELS = {"/v1/completions": "talker", "/v1/chat/completions": "talker", "/v1/embeddings": "masked",
          "/v1/classify": "judge", "/v1/fill": "masked", "/v1/translate": "en-fr", "/tokenize": "talker",
          "/detokenize": "talker"}  # fmt: skip
SHORT = {"/v1/completions": RIGHT, "/tokenize": {"model": "talker", "text": "a"},
         "/v1/chat/completions": {"model": "talker", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]},
         "/detokenize": {"model": "talker", "ids": [5]},
         "/v1/fill": {"model": "masked", "input": "the [MASK]"}}  # fmt: skip
pytestmark = [pytest.mark.slow, ON_LINUX]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = tmp_path_factory.mktemp("shelf")
    writer().save(place / "writer")
    for make in (talker, masked, judge):
        make(place / make.__name__)
    names = ("writer", "talker", "masked", "judge")
    server = Served(place / "lines", *(place / name for name in names), "en-fr").ready()
    try:
        yield server
    finally:
        code, said, _ = server.end()
    assert (code, said, server.bugs()) == (143, "", [])


def told(place, sent, answered=True):
    """All that comes back until the server hangs up. Who need not be answered is done with talking."""
    heard = Heard()
    with socket.create_connection(place, PATIENCE) as link:
        try:
            link.sendall(sent)
            if not answered:
                link.shutdown(socket.SHUT_WR)
            while some := link.recv(1 << 16):
                heard.hear(some)
        except TimeoutError:
            raise
        except OSError:  # it hung up while we were talking
            heard.ended = time.perf_counter()
    return heard


def assert_still_right(served, text=None):
    told_now = told(served.place, posted("/v1/completions", written(RIGHT))).text
    assert text in (None, told_now)
    return told_now


def assert_refused_well(place, number):
    """The statuses of the answers to this request, of which none is the server's fault, and how long they took."""
    how, sent, answered = wrong(number)
    heard = told(place, sent, answered)
    statuses = [int(word) for word in re.findall(rb"^HTTP/1\.1 (\d{3}) ", heard.raw, re.MULTILINE)]
    assert statuses or not answered, (number, how, sent[:300])
    assert all(status < 500 for status in statuses), (number, how, sent[:300], heard.raw[-500:])
    assert b"Traceback" not in heard.raw
    if how in ("values", "bytes") and statuses not in ([200], []):
        error = json.loads(heard.body)["error"]
        assert error["message"] and "\n" not in error["message"], (number, error)
    return statuses, (heard.ended - heard.began, f"{number}, {how}")


def test_a_wrong_request_is_refused_and_the_next_is_answered(served, figures):
    many, text, came, slowest = count(9_000, 400), assert_still_right(served), Counter(), (0.0, "")
    memory = list[int]()
    for number in (*range(many), *range(many // 2)):  # what is asked again must not need more memory again
        statuses, took = assert_refused_well(served.place, number)
        came.update(statuses or ["nothing"])
        slowest = max(slowest, took)
        if number % 100 == 99:
            assert_still_right(served, text)
            memory.append(served.memory)
    grown = memory[-1] / max(memory[: many // 100]) - 1

    assert served.bugs() == []
    assert came[200] > many / 20 and came[400] > many / 5, came
    assert grown < 0.03, memory
    figures(requests=many + many // 2, slowest=f"{slowest[0]:.2f} s, {slowest[1]},",
            memory=f"{grown:+.1%}", **{str(status): many for status, many in came.items()})  # fmt: skip


@pytest.mark.alone
def test_a_body_of_any_shape_is_answered_soon_and_in_little_memory(served, figures):
    """Deep, wide, long, huge, odd, in tiny chunks: no answer is the server's fault, or takes long, or much memory.

    A body may come out right and ask for much: then its answer may take long, and another's must not.
    """
    many, came, late, others = count(10_000, 250), Counter(), [(0.0, "none")], Others(served)
    worked, text, memory = (0.0, "none"), assert_still_right(served), 0
    for number in range(many):
        how, sent = strange(number)
        heard, waited = told_beside_another(served, sent)
        found = [int(word) for word in re.findall(rb"^HTTP/1\.1 (\d{3}) ", heard.raw, re.MULTILINE)]
        assert len(found) == 1 and found[0] < 500, (number, how, heard.raw[-500:])
        if found[0] >= 400:
            error = json.loads(heard.body)["error"]
            assert error["message"] and "\n" not in error["message"] and "Traceback" not in error["message"], number
        came[found[0]] += 1
        took, name = heard.ended - heard.began, f"{number}, {how}"
        if found[0] == 200 and took > LATE:
            worked = max(worked, (took, name))
            late.append((waited, f"another beside {name}"))
        else:
            late.append((took, name))
        memory = max(memory, served.memory)
    slowest = max(late)

    assert served.bugs() == [] and memory < 1 << 30, memory
    assert_still_right(served, text)
    figures(bodies=many, slowest=f"{slowest[0]:.2f} s, {slowest[1]},", most_work=f"{worked[0]:.2f} s, {worked[1]},",
            memory=f"{memory >> 20} MiB", **{str(status): times for status, times in sorted(came.items())},
            others=f"{others.share:.0%}")  # fmt: skip
    others.excuse(**{slowest[1]: (slowest[0], LATE)})


def told_beside_another(served, sent):
    """An answer; and if that takes long, how long another client of the same model waits meanwhile, else 0 seconds."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(told, served.place, sent)
        if wait([answer], LATE / 2).done:
            return answer.result(), 0.0
        path = sent.split()[1].decode()
        other = told(served.place, posted(path, written(SHORT.get(path, {"model": MODELS[path], "input": "the cat"}))))
        assert other.raw.startswith(b"HTTP/1.1 200 "), other.raw
        return answer.result(), other.ended - other.began


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_what_the_schema_allows_or_forbids_is_never_the_servers_fault(served, mode, figures):
    schema, came = schemathesis.openapi.from_url(f"{served.url}/openapi.json"), Counter()
    text = assert_still_right(served)

    @seed(1)
    @settings(max_examples=count(500, 50), deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=schema.as_strategy(generation_mode=mode))
    def ask(case):
        if isinstance(case.body, dict) and (mode.is_positive or "model" in case.body):
            case.body["model"] = MODELS[case.operation.path]  # or else it hardly ever names one that is there
        answer = case.call(timeout=PATIENCE)
        came[answer.status_code] += 1
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    ask()
    assert served.bugs() == []
    assert_still_right(served, text)
    figures(**{f"{mode.value}_requests": sum(came.values())}, **{str(status): many for status, many in came.items()})


def test_what_several_models_are_asked_at_once_adds_up(served, figures):
    many = count(10_000, 150)
    kinds = [(path, {name: value for name, value in body.items() if not name.startswith("stream")})
             for path, body in request_tables.RIGHT]  # fmt: skip
    alone = [shown(told(served.place, posted(path, written(body)))) for path, body in kinds]
    left, wanted = iter(range(many)), Counter()

    async def client():
        for number in left:
            path, body = kinds[number % len(kinds)]
            heard = await ask(served.place, path, body)
            assert shown(heard) == alone[number % len(kinds)], body
            usage = json.loads(heard.body).get("usage", {})
            wanted.update({
                f'regard_requests_total{{route="{path}",status="200"}}': 1,
                f'regard_request_seconds_count{{route="{path}"}}': 1,
                f'regard_tokens_total{{kind="read",model="{body["model"]}"}}': usage.get("prompt_tokens", 0),
                f'regard_tokens_total{{kind="written",model="{body["model"]}"}}': usage.get("completion_tokens", 0),
            })  # fmt: skip

    async def everybody():
        before = await metrics(served.place)
        await asyncio.gather(*(client() for _ in range(16)))
        return before, await metrics(served.place)

    before, after = asyncio.run(everybody())
    assert {name: after[name] - before.get(name, 0) for name in wanted} == wanted
    assert not any(value for name, value in after.items() if name.startswith(("regard_running", "regard_waiting")))
    figures(requests=many, models=5, tokens=sum(value for name, value in wanted.items() if "tokens" in name))


def shown(heard):
    """An answer without what differs each time."""
    assert heard.status == 200, heard.raw
    return {name: value for name, value in json.loads(heard.body).items() if name not in ("id", "created")}
