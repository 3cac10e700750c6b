"""A scan: the findings of a prompt are those of the lenses behind them, and what has no meaning is left out aloud."""

import json
import math

import pytest
import torch
from lens.small_models import SHAPES

from regard import lens
from regard.config.errors import ConfigError, DataError

NAMES = ["surprise", "decision", "parts", "inputs", "heads"]
TEXTS = {"decoder", "windowed decoder", "attention only", "grouped", "translator", "t5", "layerwise", "captioner",
         "relative", "shaw"}  # fmt: skip


def scanned(name):
    shape = SHAPES[name]
    model = shape.model()
    torch.manual_seed(1)
    (first,) = shape.reads()
    given = {key: table[:1] for key, table in shape.named.items()}
    return model, lens.read_prompt(model, first[:1], **given)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "towers"])
def test_every_finding_has_its_numbers_or_says_why_it_is_left_out(name):
    model, prompt = scanned(name)
    found = lens.scan(model, prompt)
    there = [finding.name for finding in found.findings]

    assert len(there) + len(found.left_out) == len(NAMES) and there == [each for each in NAMES if each in there]
    assert {"decision", "parts"} <= set(there)
    assert ("surprise" in there) == (name in TEXTS or name == "pixels")
    assert all(finding.table.rows and finding.sentence.endswith(".") for finding in found.findings)
    assert str(found).count("\n\n\n") >= len(there) - 1
    json.dumps(found.to_json(), allow_nan=False)


def test_surprise_is_the_log_probability_of_each_token():
    model, prompt = scanned("decoder")
    with torch.no_grad():
        logs = model(prompt.first).log_softmax(-1)[0]
    ids = prompt.first[0].tolist()
    bits = {place: -float(logs[place - 1, ids[place]]) / math.log(2) for place in range(1, len(ids))}
    rows = lens.scan(model, prompt)["surprise"].table.rows

    assert {place: value for _, place, value in rows} == pytest.approx(
        dict(sorted(bits.items(), key=lambda item: -item[1])[:5])
    )


def test_a_head_is_scanned_by_taking_it_away():
    model, prompt = scanned("translator")
    name, _, contribution, effect = lens.scan(model, prompt)["heads"].table.rows[0]
    place, head = name.split(" head ")
    with torch.no_grad():
        before = model(prompt.first, **prompt.given)[0, -1]
        with lens.ablate(model, {f"trunk.{place}": [int(head)]}):
            after = model(prompt.first, **prompt.given)[0, -1]

    assert effect == pytest.approx(float((after - before)[before.argmax()]), abs=1e-5)
    assert contribution == pytest.approx(lens.attribute_logit(model, prompt)[name])


def test_the_decision_is_where_the_top_stays_what_it_is_in_the_end():
    model, prompt = scanned("decoder")
    rows = lens.scan(model, prompt)["decision"].table.rows
    sentence = lens.scan(model, prompt)["decision"].sentence
    since = sentence.split("from ")[1].split(" on")[0]
    tops = {place: top for place, top, _ in rows}

    assert all(top == tops["final"] for top in list(tops.values())[list(tops).index(since) :] if since in tops)
    assert repr(tops["final"]) in sentence


def test_rows_and_models_that_cannot_be_scanned_are_refused_in_a_sentence():
    model, _ = scanned("decoder")
    with pytest.raises(DataError, match="2 rows; a scan reads one"):
        lens.scan(model, torch.ones(2, 5, dtype=torch.long))
    towers = SHAPES["towers"].model()
    with pytest.raises(ConfigError):
        lens.scan(towers, torch.ones(1, 5, dtype=torch.long))
