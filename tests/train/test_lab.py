"""The lab's recipes do what their first lines say."""

import json

import pytest

from regard.train import fit
from regard.zoo import read_recipe, recipes


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-gpu", "shakespeare-nano"])
def test_a_packaged_recipe_can_be_read_and_says_what_it_is_for(name):
    made = read_recipe(name)

    assert made.data.source == "shakespeare"
    assert recipes()[name].read_text(encoding="utf8").startswith("# ")


@pytest.mark.slow
@pytest.mark.spec("S179")
def test_the_nano_recipe_learns_what_nanogpt_learns_in_as_many_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    recipe = read_recipe("shakespeare-nano")
    c = recipe.model.trunk
    assert (c.depth, c.heads[0], c.dim, recipe.train.context, recipe.train.batch, recipe.train.steps) == (
        4, 4, 128, 64, 12, 2000)  # fmt: skip

    done = fit(recipe, tmp_path / "run", quiet=True)
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])

    assert done.steps == 2000 and last["eval_tokens"] == 111_539 and last["whole"]
    assert done.eval_loss == last["eval_loss"] <= 1.88
