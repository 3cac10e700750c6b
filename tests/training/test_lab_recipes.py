"""The lab's recipes do what their first lines say."""

import json

import pytest
from sizes import FULL

from regard.training.api import fit
from regard.zoo.recipe import packaged_recipes, read_recipe


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-gpu", "shakespeare-nano"])
def test_a_packaged_recipe_can_be_read_and_says_what_it_is_for(name):
    made = read_recipe(name)

    assert made.data.source == "shakespeare"
    assert packaged_recipes()[name].read_text(encoding="utf8").startswith("# ")


def learnt(tmp_path, *changes):
    """The nano recipe trained: what it is, how it ended, and the last line of its log."""
    recipe = read_recipe("shakespeare-nano", changes)
    done = fit(recipe, tmp_path / "run", quiet=True)
    return recipe, done, json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow(seconds=60)
@pytest.mark.spec("S179")
@pytest.mark.skipif(not FULL, reason="a minute of one core; make test-full runs it")
def test_the_nano_recipe_learns_what_nanogpt_learns_in_as_many_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    recipe, done, last = learnt(tmp_path)
    c = recipe.model.trunk

    assert (c.depth, c.heads[0], c.dim, recipe.train.context, recipe.train.batch_size, recipe.train.steps) == (
        4, 4, 128, 64, 12, 2000)  # fmt: skip
    assert done.steps == 2000 and last["eval_tokens"] == 111_539 and last["whole"]
    assert done.eval_loss == last["eval_loss"] <= 1.88


@pytest.mark.slow(seconds=20)
def test_a_fifth_of_the_nano_recipe_is_past_pairs_of_letters(tmp_path, monkeypatch):
    """Of this text, a table of pairs of letters has a loss of 2.48."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    _, done, last = learnt(tmp_path, "train.steps=400", "train.compile=false")

    assert done.steps == 400 and last["eval_tokens"] == 111_539 and last["whole"]
    assert done.eval_loss == last["eval_loss"] <= 2.34
