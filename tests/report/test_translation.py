"""The page of a translator: pairs, an alignment, and heads of three kinds."""

import base64

import pytest
import torch
from report.run_folders import asked_run, data_in, eventful, put

from regard import config as C
from regard import lens, report

PAIRS = [{"en": f"the cat saw {place} dogs", "fr": f"le chat a vu {place} chiens"} for place in range(61)]
SAMPLES = [{"step": step, "source": pair["en"], "text": pair["fr"][: step // 9], "target": pair["fr"]}
           for step in (60, 120) for pair in PAIRS[:3]]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run, model, tokenizer = asked_run(folder, C.Translation(source="en", target="fr"), PAIRS)
    put(run / "samples.jsonl", SAMPLES)
    eventful(run, {"encoder": 3, "trunk": 3}, {"accuracy": 0.5})
    return run, model, tokenizer


@pytest.fixture(scope="module")
def data(made):
    return data_in(report.write_report(*made).read_text(encoding="utf8"))


def table(packed, *shape):
    return torch.tensor(list(base64.b64decode(packed))).view(*shape) / 255


def test_translations_stand_beside_what_was_meant(data):
    assert data["translations"] == SAMPLES and data["samples"] == [] and data["answers"] == {}


@pytest.mark.spec("S157")
def test_the_alignment_is_of_the_translation_that_is_shown(made, data):
    _, model, _ = made
    seen, last = data["alignment"], SAMPLES[3]
    [across] = [view for view in heard(made) if view.where == "trunk.1.cross"]

    assert (seen["text"], seen["told"]) == (last["source"], last["text"]) and seen["layer"] == 1
    weights = table(seen["weights"], len(seen["target"]), len(seen["source"]))
    assert (weights - across.pattern[0].mean(0)).abs().max() < 0.003  # the heads' mean, in steps of 1/255


def heard(made):
    """Where the heads look when a plain call gives them the last translation."""
    _, model, tokenizer = made
    begin, end = tokenizer.special_ids["bos"], tokenizer.special_ids["eos"]
    source, target = (tokenizer.encode(SAMPLES[3][name]) for name in ("source", "text"))
    ids, read = torch.tensor([[begin, *target]]), torch.tensor([[*source, end]])
    return lens.attention_views(model, ids, source=read, real=torch.ones_like(ids, dtype=torch.bool))


def test_heads_are_shown_in_three_groups_each_on_its_own_tokens(made, data):
    groups = {group["name"]: group for group in data["attention"]["groups"]}
    assert list(groups) == ["encoder", "decoder", "across"]

    for view in heard(made):
        trunk, layer, side = view.where.split(".")
        group = groups["across" if side == "cross" else {"encoder": "encoder", "trunk": "decoder"}[trunk]]
        seen = table(group["maps"], 3, 3, len(group["queries"]), len(group["keys"]))[int(layer)]
        assert (seen.square() - view.pattern[0]).abs().max() < 0.005


def test_heads_have_names_of_their_own_and_no_role_where_it_means_nothing(data):
    names = [head["name"] for head in data["heads"]]

    assert len(set(names)) == 27 and names[0] == "encoder 0.0" and names[-1] == "across 2.2"
    across = [head for head in data["heads"] if head["name"].startswith("across")]
    assert all(head["distance"] is None and "previous" not in head["scores"] for head in across)
    assert data["likeness"]["names"] == names and len(set(data["likeness"]["groups"])) == 3


def test_a_smoothed_loss_makes_no_perplexity(data):
    names = [line["name"] for line in data["headline"]]

    assert names[:2] == ["accuracy", "validation loss"] and "perplexity" not in names
    assert "smoothed" in data["headline"][1]["note"]


def test_a_sentence_that_is_asked_for_is_translated_and_looked_at(tmp_path):
    run, model, tokenizer = asked_run(tmp_path, C.Translation(source="en", target="fr"), PAIRS)
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(settings.replace('sentence = "none"', 'sentence = "the cat saw"'))
    data = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))

    assert data["alignment"]["text"] == "the cat saw" and data["alignment"]["told"] == model.translate("the cat saw")
    assert data["attention"]["note"] == ""


def test_a_translator_that_said_nothing_yet_says_so(tmp_path):
    made = asked_run(tmp_path, C.Translation(source="en", target="fr"), PAIRS)
    data = data_in(report.write_report(*made).read_text(encoding="utf8"))

    assert "no sentence to translate" in data["alignment"]["absent"] and "no sentence" in data["absent"]
    assert data["cost"]["parts"]["cross-attention"] > 0
