"""A front end of your own, as the page about senses has it: entered in the tables, then trained like any other."""

import json
import re
from pathlib import Path

import pytest
import torch
from training.builders import advanced, assert_same, bits

from regard import config, zoo
from regard.config.reader import EXTRA_KINDS
from regard.core.model import FRONT_ENDS
from regard.doctor import examine_run
from regard.inputs.processors import PROCESSORS
from regard.training.run import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "senses.md"
RECIPE = """
[data]
source = "clouds.jsonl"
[task]
kind = "classification"
[model]
dim = 12
depth = 2
heads = 3
position = {kind = "none"}
embed = {kind = "points"}
[train]
steps = 6
batch_size = 5
device = "cpu"
compile = false
[train.schedule]
warmup = 2
"""


@pytest.fixture
def page(desk):
    """What the page defines; it leaves the tables afterwards."""
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf8"), re.MULTILINE | re.DOTALL)[1]
    tables, names = (EXTRA_KINDS, FRONT_ENDS, PROCESSORS), {}
    before = [dict(table) for table in tables]
    exec(compile(code, str(PAGE), "exec"), names)
    rows = ({"points": torch.randn(4 + n % 5, 3).tolist(), "label": "ab"[n % 2]} for n in range(40))
    (desk / "clouds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (desk / "clouds.toml").write_text(RECIPE)
    yield names | {"code": code}
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@pytest.mark.spec("S138", "S185")
@pytest.mark.parametrize("how", [[], ["train.batch_tokens=30"], ["train.gradient_accumulation=2"]], ids=str)
def test_a_front_end_of_your_own_trains_from_a_recipe_and_goes_on_bit_for_bit(how, page, tmp_path):
    whole, half, again = (Run.from_recipe(zoo.read_recipe("clouds.toml", how)) for _ in range(3))
    expected = advanced(whole)
    assert advanced(half, 3) == expected[:3]
    half.save(tmp_path / "half")
    again.load(tmp_path / "half")

    assert advanced(again) == expected[3:]
    assert_same(bits(again), bits(whole))
    assert whole.recipe.model.embed == page["Points"]() and whole.recipe.task.input == "points"


def test_it_takes_thirty_lines_beside_the_imports():
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf8"), re.MULTILINE | re.DOTALL)[1]
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("from ", "import "))]

    assert len(lines) <= 30


def test_other_clouds_in_the_padding_change_nothing(page):
    run = Run.from_recipe(zoo.read_recipe("clouds.toml"))
    batch = run.data.batch(0)
    other = batch["ids"].where(batch["real"][..., None], torch.randn_like(batch["ids"]))
    with torch.no_grad():
        ours, theirs = (run.model.eval()(ids, real=batch["real"]) for ids in (batch["ids"], other))

    assert not torch.equal(other, batch["ids"]) and torch.equal(ours, theirs)


@pytest.mark.slow
def test_the_doctor_sees_padding_that_is_looked_at(page, monkeypatch):
    forward = page["PointFront"].forward
    monkeypatch.setattr(page["PointFront"], "forward", lambda self, points, *, real=None: forward(self, points))
    found = {finding.check: finding for finding in examine_run(Run.from_recipe(zoo.read_recipe("clouds.toml")), 10)}

    assert found["padding"].verdict == "wrong" and "the model attends to padding" in found["padding"].evidence


@pytest.mark.parametrize(("change", "message"), [
    ("model.embed.axes=2", "clouds.jsonl:1: 'points' holds no points of 2 numbers"),
    ("model.embed.axis=2", "model.embed.axis: no such setting; did you mean 'axes'"),
    ("model.embed.kind=pints", "model.embed.kind: no 'pints'; did you mean 'points'"),
])  # fmt: skip
def test_a_slip_is_one_sentence_as_for_any_setting(change, message, page):
    with pytest.raises((config.ConfigError, config.DataError), match=message):
        Run.from_recipe(zoo.read_recipe("clouds.toml", [change]))
