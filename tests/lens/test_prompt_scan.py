"""A scan: the findings of a prompt are those of the lenses behind them, and what has no meaning is left out aloud."""

import io
import json
import math
from contextlib import redirect_stdout

import pytest
import torch
from lens.pairs import writer
from lens.small_models import SHAPES
from torch.nn.functional import cross_entropy

import regard
from regard import lens
from regard.config.errors import ConfigError, DataError

NAMES = ["decision", "inputs", "parts", "heads", "surprise"]
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
    name, _, contribution, without, effect = lens.scan(model, prompt)["heads"].table.rows[0]
    place, head = name.split(" head ")
    with torch.no_grad():
        before = model(prompt.first, **prompt.given)[0, -1]
        with lens.ablate(model, {f"trunk.{place}": [int(head)]}):
            after = model(prompt.first, **prompt.given)[0, -1]

    assert effect == pytest.approx(float((after - before)[before.argmax()]), abs=1e-5)
    assert without == pytest.approx(float(after[before.argmax()]), abs=1e-5)
    assert contribution == pytest.approx(lens.attribute_logit(model, prompt)[name])


def test_the_decision_is_where_the_top_stays_what_it_is_in_the_end():
    model, prompt = scanned("decoder")
    found, every = lens.scan(model, prompt)["decision"], lens.logit_lens(model, prompt).table().rows
    tops = {row[0]: row[1] for row in every}
    since = found.sentence.split("from ")[1].split(" on")[0]

    assert all(top == tops["final"] for top in list(tops.values())[list(tops).index(since) :])
    assert since == "embed" or tops[list(tops)[list(tops).index(since) - 1]] != tops["final"]
    assert repr(tops["final"]) in found.sentence
    changes = [row[:3] for row, last in zip(every, [None, *every], strict=False) if last is None or row[1] != last[1]]
    assert list(found.table.rows) in (changes, [*changes, every[-1][:3]])


def test_surprise_at_a_pixel_is_of_what_is_said_of_it_and_not_of_the_next():
    model, prompt = scanned("pixels")  # the model reads a start before the image, so output i is of pixel i
    with torch.no_grad():
        bits = cross_entropy(model(prompt.first)[0], prompt.ids[0], reduction="none") / math.log(2)
    rows = lens.scan(model, prompt)["surprise"].table.rows

    assert [at for _, at, _ in rows] == bits.topk(5).indices.tolist()


# ---------------------------------------------------------------- the lines of Python


def run_lines(page, **names):
    """What each line of the page makes, after the lines before them."""
    exec(page.setup, names)
    made = {}
    for finding in page.findings:
        if finding.name == "heads":
            with redirect_stdout(io.StringIO()) as said:
                exec(finding.code, names)
            made["heads"] = float(said.getvalue())
        else:
            exec(f"found = {finding.code}", names)
            made[finding.name] = names["found"]
    return made


def check_numbers(page, made):
    """The numbers of the page are those of its lines."""
    rows = {finding.name: finding.table.rows for finding in page.findings}
    places = {row[0]: row[1:3] for row in made["decision"].rows}
    assert all((top, share) == pytest.approx(places[place]) for place, top, share in rows["decision"])
    assert dict(rows["parts"]) == pytest.approx(dict(made["parts"].table().rows[:5]))
    if "inputs" in rows:
        strongest = sorted(made["inputs"].table().rows, key=lambda row: -abs(row[2]))[:5]
        assert [row[2:] for row in rows["inputs"]] == [pytest.approx(row[2:], abs=1e-5) for row in strongest]
    if "heads" in rows:
        assert rows["heads"][0][3] == pytest.approx(made["heads"], abs=1e-5)
    if "surprise" in rows:
        bits = made["surprise"].topk(len(rows["surprise"])).values.tolist()
        assert [row[2] for row in rows["surprise"]] == pytest.approx(bits, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "towers"])
def test_every_line_of_python_makes_the_numbers_above_it(name):
    model, prompt = scanned(name)
    page = lens.scan(model, prompt)

    check_numbers(page, run_lines(page, model=model, prompt=prompt))
    assert all(f"    {finding.code}" in str(page) for finding in page.findings)


def test_a_page_of_a_text_is_made_again_from_what_it_prints_alone(monkeypatch):
    """The lines open the model by its name and read the text: nothing else is needed."""
    model = writer().eval()
    monkeypatch.setattr(regard, "load", {"my-run": model}.get)
    page = lens.scan(model, "the cat sat on the log", name="my-run")
    printed = str(page).rsplit("after these:\n\n", 1)[1]

    assert [line.strip() for line in printed.splitlines()] == page.setup.splitlines()
    assert "model = regard.load('my-run')" in printed and "prompt = lens.read_prompt(model, 'the cat sat" in printed
    check_numbers(page, run_lines(page))


@pytest.mark.parametrize("ids", [[3, 1, 4, 1, 5], torch.tensor([3, 1, 4, 1, 5]), torch.tensor([[3, 1, 4, 1, 5]])])
def test_short_ids_are_written_into_the_lines(ids):
    model, _ = scanned("decoder")
    page = lens.scan(model, ids)

    assert "prompt = lens.read_prompt(model, [3, 1, 4, 1, 5])" in page.setup
    check_numbers(page, run_lines(page, model=model))


def test_rows_and_models_that_cannot_be_scanned_are_refused_in_a_sentence():
    model, _ = scanned("decoder")
    with pytest.raises(DataError, match="2 rows; a scan reads one"):
        lens.scan(model, torch.ones(2, 5, dtype=torch.long))
    towers = SHAPES["towers"].model()
    with pytest.raises(ConfigError):
        lens.scan(towers, torch.ones(1, 5, dtype=torch.long))
