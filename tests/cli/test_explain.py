"""regard explain: what it shows is what the config says and the model has."""

import json
import tomllib

import pytest

from regard import config
from regard.inference.load import load_model


def counted(model):
    return sum(weight.numel() for weight in model.parameters())


def test_explaining_a_checkpoint_counts_its_weights(say, checkpoint):
    told = json.loads(say("explain", checkpoint, "--json").out)

    assert told["parameters"] == sum(told["parts"].values()) == counted(load_model(checkpoint))
    assert told["family"] == {"class": "GPT2LMHeadModel", "reasons": told["family"]["reasons"]}
    assert config.from_dict(config.Transformer, told["config"]) == load_model(checkpoint).c


def test_explaining_a_recipe_finds_its_vocabulary_in_the_text(say, desk):
    told = json.loads(say("explain", "recipe.toml", "model.depth=3", "--json").out)
    recipe = config.from_dict(config.Recipe, told["config"])

    assert recipe.model.embed.vocab == len(set((desk / "text.txt").read_text()))
    assert recipe.model.trunk.depth == 3 and (told["batch"], told["context"]) == (2, 7)


@pytest.mark.parametrize("override, vocab", [("tokenizer.kind=byte", 256), ("tokenizer.kind=bpe", 8192)])
def test_a_vocabulary_that_is_known_is_not_searched_for(say, desk, override, vocab):
    """A text that is not there is not missed."""
    toml = (desk / "recipe.toml").read_text().replace("byte_fallback = false", "").replace("text.txt", "nowhere.txt")
    (desk / "other.toml").write_text(toml)
    told = json.loads(say("explain", "other.toml", override, "--json").out)

    assert told["config"]["model"]["embed"]["vocab"] == vocab


def test_people_read_parts_plans_cost_family_and_the_whole_config(say, desk):
    told = say("explain", "recipe.toml")
    above, _, toml = told.out.partition("\nconfig\n")

    assert (told.code, told.err) == (0, "")
    assert all(word in above for word in ("part", "attn", "plans", "fused", "cost", "memory", "family"))
    assert "transformers opens it as GPT2LMHeadModel" in above
    assert config.from_dict(config.Recipe, tomllib.loads(toml)).train.context == 7


def test_a_model_without_a_family_is_told_why(say, desk):
    told = say("explain", "recipe.toml", "model.mask=causal & window(3)").out

    assert "transformers has no class for it" in told and "mask" in told.partition("family")[2].partition("config")[0]


def test_a_text_in_records_is_looked_for_in_its_column(say, desk):
    """A vocabulary that is learnt from the text is the column's, and a record that is none is passed over."""
    (desk / "said.jsonl").write_text('{"line": "abab", "who": "xyz"}\n{"line": \n{"line": "abc", "who": "x"}\n')
    changes = ["data.source=said.jsonl", "data.text_column=line", "data.on_bad_record=skip"]

    assert json.loads(say("explain", "recipe.toml", *changes, "--json").out)["config"]["model"]["embed"]["vocab"] == 3
    assert say("explain", "recipe.toml", *changes[:2]).code == 3
