"""regard models: the list for scripts and for people, the page of a preset, and the recipes as they stand."""

import json
import tomllib

import pytest

from regard import config, measure, zoo
from regard.zoo.packaged import packaged_facts, packaged_model, packaged_names


def test_scripts_get_name_shape_and_exact_parameters_of_every_preset(say):
    told = say("models", "--json")
    rows = json.loads(told.out)

    assert (told.code, told.err) == (0, "")
    assert [row["name"] for row in rows] == list(config.PRESETS)
    assert {tuple(row) for row in rows} == {("name", "shape", "parameters")}
    found = {row["name"]: (row["shape"], row["parameters"]) for row in rows}
    assert found["transformer-base"] == ("encoder-decoder", 63_082_496)
    assert found["bert-large"] == ("encoder", 335_141_888)
    assert found["gpt3-175b"] == ("decoder", 174_604_259_328)
    assert found["clip-vit-b32"] == ("towers", 151_277_313)


def test_people_get_models_then_recipes_then_presets_in_lines_that_fit_the_terminal(say, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    blocks = [block.splitlines() for block in say("models").out.split("\n\n")]
    trained, above, below = blocks
    lines = sum(blocks, [])

    assert [line.split()[0] for line in trained] == packaged_names() and "English to French" in " ".join(trained)
    assert all(packaged_facts(line.split()[0])["size"] in line for line in trained)
    assert [line.split()[0] for line in above] == list(zoo.packaged_recipes())
    assert [line.split()[0] for line in below] == list(config.PRESETS)
    assert all(zoo.preset_info(line.split()[0]).title in line for line in below)
    assert "174,604,259,328" in "".join(below) and max(map(len, lines)) <= 80


def test_a_page_tells_the_sentence_the_paper_the_parts_and_what_was_rounded(say, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    told = say("models", "bert-large").out
    words = " ".join(told.split())

    assert told.startswith("bert-large: BERT large, uncased\n")
    assert zoo.describe_model(zoo.preset("bert-large")) in words
    assert all(word in words for word in ("Devlin et al. 2019", "said 340M", "340 million is 335.1 million"))
    assert "attention 100,761,600" in words and "total 335,141,888" in words
    assert "with the masked-token and next-sentence heads 336,226,108" in words
    assert max(map(len, told.splitlines())) <= 100


def test_cross_attention_has_a_line_of_its_own(say):
    lines = say("models", "t5-small").out.splitlines()

    assert "  cross-attention" in [line[:17] for line in lines]
    assert "  cross-attention" not in [line[:17] for line in say("models", "gpt2").out.splitlines()]


@pytest.mark.parametrize("name", config.PRESETS)
def test_a_page_ends_with_the_toml_that_makes_the_preset(say, name):
    c = zoo.preset(name)
    toml = say("models", name).out.partition("\nconfig\n")[2]

    assert config.from_dict(type(c), tomllib.loads(toml)) == c


def test_scripts_get_the_page_as_an_object(say):
    told = json.loads(say("models", "bert-base", "--json").out)
    about = zoo.preset_info("bert-base")

    assert (told["kind"], told["shape"], told["parameters"]) == ("preset", "encoder", 109_482_240)
    assert told["parts"] == measure.count_parameters(zoo.preset("bert-base"))
    assert told["also"] == [{"what": about.also[0].what, "parameters": 110_106_428}]
    assert {word: told[word] for word in ("title", "paper", "source", "said", "rounded")} == {
        word: getattr(about, word) for word in ("title", "paper", "source", "said", "rounded")
    }
    assert config.from_dict(config.Transformer, tomllib.loads(told["toml"])) == zoo.preset("bert-base")


@pytest.mark.parametrize("name", zoo.packaged_recipes())
def test_a_recipe_is_shown_as_it_stands(say, name):
    toml = zoo.packaged_recipes()[name].read_text()
    told = json.loads(say("models", name, "--json").out)

    assert say("models", name).out == toml == told["toml"]
    assert told["kind"] == "recipe" and told["about"] and "\n" not in told["about"]


@pytest.mark.parametrize("name", packaged_names())
def test_a_trained_model_is_shown_by_its_card(say, name):
    told, text = json.loads(say("models", name, "--json").out), say("models", name).out
    card = (packaged_model(name) / "README.md").read_text(encoding="utf8")

    assert told["card"] and card.endswith(told["card"]) and "license:" not in told["card"]
    assert text == told.get("toml", told["card"]) and told["kind"] == ("recipe" if "toml" in told else "model")


def test_recipes_and_presets_have_different_names():
    assert not {*zoo.packaged_recipes()} & {*config.PRESETS}


NEAR = [("gpt3-175", "gpt3-175b"), ("shakespear", "shakespeare"), ("bert", "bert-base")]


@pytest.mark.parametrize("name, near", NEAR)
def test_a_name_that_is_not_there_is_told_the_nearest(say, name, near):
    told = say("models", name)

    assert (told.code, told.out) == (2, "")
    assert told.err == f"regard: {name}: no such model; did you mean '{near}'? regard models lists what there is\n"


def test_a_name_like_none_is_one_sentence(say):
    told = say("models", "zzz")

    assert told.code == 2 and told.err == "regard: zzz: no such model; regard models lists what there is\n"
