"""What is known without asking a model."""

from prometheus_client.parser import text_string_to_metric_families
from serve.served_models import Plain

import regard


def counted(plain):
    """Every sample of /metrics, read by the reader of those who write the form."""
    told = plain.get("/metrics")
    assert told.status == 200 and told.headers["content-type"].startswith("text/plain")
    return {(each.name, *sorted(each.labels.items())): each.value
            for family in text_string_to_metric_families(told.body.decode()) for each in family.samples}  # fmt: skip


def test_all_models_are_listed_and_each_can_be_looked_up(client, models):
    assert [each.id for each in client.models.list()] == list(models)
    assert client.models.retrieve("en-fr").owned_by == "regard"


def test_health_and_version(plain):
    assert plain.get("/health").json == {"status": "ok"}
    assert plain.get("/version").json == {"version": regard.__version__}


def test_ids_become_texts_and_texts_ids(plain, models):
    text = "who é ☃ <|im_end|>\n"
    told = plain.post("/tokenize", {"model": "talker", "text": text}).json

    assert told["ids"] == models["talker"].tokenizer.encode(text) and len(told["pieces"]) == len(told["ids"])
    assert plain.post("/detokenize", {"model": "talker", "ids": told["ids"]}).json == {"text": text}


def test_the_only_model_needs_no_name(small):
    plain = Plain(small().url)

    assert plain.post("/tokenize", {"text": "abc"}).status == 200
    assert plain.post("/v1/completions", {"prompt": "abc", "max_tokens": 2}).json["model"] == "writer"


def test_requests_and_tokens_are_counted(small):
    plain = Plain(small().url)
    before = counted(plain)
    plain.post("/v1/completions", {"prompt": "abc", "max_tokens": 5})
    plain.post("/v1/completions", {"prompt": 1})
    plain.get("/nowhere/to/be/found")
    after = counted(plain)

    def more(name, **labels):
        key = (name, *sorted(labels.items()))
        return after[key] - before.get(key, 0)

    route = "/v1/completions"
    assert more("regard_requests_total", route=route, status="200") == 1
    assert more("regard_requests_total", route=route, status="400") == 1
    assert more("regard_requests_total", route="none", status="404") == 1
    assert more("regard_tokens_total", model="writer", kind="read") == 3
    assert more("regard_tokens_total", model="writer", kind="written") == 5
    assert more("regard_first_token_seconds_count", model="writer") == 1
    assert more("regard_token_gap_seconds_count", model="writer") == 4
    assert more("regard_request_seconds_count", route=route) == 2
    assert (after["regard_running", ("model", "writer")], after["regard_waiting", ("model", "writer")]) == (0, 0)
    assert after["regard_slots", ("model", "writer")] == 2


def test_the_schema_names_every_route(plain):
    told = plain.get("/openapi.json").json

    assert set(told["paths"]) == {
        "/health",
        "/version",
        "/metrics",
        "/v1/models",
        "/v1/models/{name}",
        "/tokenize",
        "/detokenize",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v1/classify",
        "/v1/fill",
        "/v1/translate",
    }
