"""Every command takes a recurrent model as it takes a transformer, or says in a sentence why it cannot."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from models.recurrent_models import RECIPE
from training.builders import laid

import regard
from regard import config, lens
from regard.cli import main
from regard.doctor import examine_run
from regard.measure.estimate import estimate_model
from regard.measure.explain import explain_model
from regard.measure.flops import count_flops
from regard.training.api import fit
from regard.training.run import Run
from regard.zoo.describe import describe_model
from regard.zoo.recipe import packaged_recipes, read_recipe

pytestmark = pytest.mark.slow
OLDER = ("lstm", "gru", "rnn", "cnn", "bilstm", "bahdanau", "fixed-vector")
TINY = ["train.steps=4", "train.minutes=none", "train.epochs=none", "train.batch_size=3", "train.context=24",
        "train.eval_every=2", "train.device=cpu", "train.compile=false"]  # fmt: skip


def small(name):
    """A packaged recipe, cut down to a moment."""
    given = read_recipe(name)
    changes = [*TINY, "model.dim=12", "model.depth=1"]
    changes += ["data.source=toy:copy(9, 300)"] if given.task.kind == "translation" else []
    changes += ["data.source=text.txt"] if given.task.kind == "next_token" else []
    if given.task.kind == "classification":
        changes += ["data.source=reviews.csv", "data.validation=0.2", "train.batch_tokens=none"]
    return read_recipe(name, changes)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    desk = laid(tmp_path, monkeypatch, RECIPE)
    told = {"good": "what a film", "bad": "a waste of time"}
    rows = [f"{text} number {i},{label}" for label, text in told.items() for i in range(30)]
    (desk / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    return desk


@pytest.fixture
def recipe(desk):
    """The recipe of a small recurrent model, with changes."""
    return lambda *changes: read_recipe("recipe.toml", changes)


@pytest.mark.parametrize("name", OLDER)
def test_a_packaged_recipe_trains_reports_and_is_evaluated(desk, capsys, name):
    fit(small(name), desk / "run", quiet=True)

    assert main(["report", str(desk / "run")]) == 0
    assert f"of {small(name).model.trunk.cell}, 12 wide" in (desk / "run/report.html").read_text()
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # translations of four steps are no sentences
        assert main(["evaluate", str(desk / "run"), "--limit", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0


@pytest.mark.parametrize("name", OLDER)
def test_the_doctor_finds_nothing_wrong_with_a_packaged_recipe_s_model(desk, name):
    found = examine_run(Run.from_recipe(small(name)), steps=10)

    about_so_few_data = ("leaks", "amount of data", "learning rate")
    assert not [finding for finding in found if finding.verdict == "wrong" and finding.check not in about_so_few_data]


@pytest.mark.parametrize("name", OLDER)
def test_what_a_packaged_recipe_costs_is_told_before_it_runs(name):
    c = small(name).model
    bill = estimate_model(c, batch=3, context=24)

    assert bill.parameters == sum(weight.numel() for weight in regard.build(c).parameters())
    assert bill.flops.forward > 0 and bill.memory.activations > 0 and not bill.growth
    assert c.trunk.cell in explain_model(c, 24)
    assert c.trunk.cell in describe_model(c)


def test_arithmetic_of_a_recurrent_stack_is_twice_its_weights_a_token():
    c = config.Transformer(
        embed=config.TextEmbedding(vocab=19), trunk=config.RecurrentStack(cell="lstm", dim=12, depth=2)
    )

    assert count_flops(c, 7).parts["recurrent"] == 2 * 2 * 8 * 12 * 12


def test_older_recipes_stand_beside_the_others():
    assert set(OLDER) <= set(packaged_recipes())


def test_heads_that_are_not_there_are_not_looked_at():
    made = regard.build(config.Transformer(embed=config.TextEmbedding(vocab=19), trunk=config.RecurrentStack(dim=12)))

    assert "no heads" in lens.why_not_watchable(made)
    with pytest.raises(config.ConfigError, match="has no attention"):
        lens.summarize_heads(made, torch.zeros(1, 3, dtype=torch.long))


def test_recomputing_blocks_that_are_not_there_is_refused(recipe):
    with pytest.raises(config.ConfigError, match=r"train\.activation_checkpointing: this model has no blocks"):
        Run.from_recipe(recipe("train.activation_checkpointing=true"))


def test_a_run_begins_with_the_weights_of_another(desk, recipe):
    fit(recipe("train.steps=2"), desk / "first", quiet=True)

    second = Run.from_recipe(recipe("train.init_from=first", "tokenizer.byte_fallback=true"), notice=lambda line: None)

    first = regard.load(desk / "first", device="cpu")
    assert all(bool((ours == theirs).all()) for ours, theirs in
               zip(second.model.state_dict().values(), first.state_dict().values(), strict=True))  # fmt: skip


@pytest.mark.spec("S124")
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "cnn"])
def test_language_models_of_all_kinds_have_as_many_weights_as_the_transformer(name):
    def count(recipe):
        c = read_recipe(recipe).model
        return sum(w.numel() for w in regard.build(replace(c, embed=replace(c.embed, vocab=65))).parameters())

    assert count(name) == pytest.approx(count("shakespeare-nano"), rel=0.01)
    same = [read_recipe(each) for each in (name, "shakespeare-nano")]
    assert len({(c.data, c.tokenizer, c.task, c.train.steps, c.train.batch_size, c.train.context) for c in same}) == 1


@pytest.mark.spec("S199")
def test_a_bidirectional_lstm_learns_which_class_a_text_is(desk):
    """The word that tells the classes apart stands anywhere, the same trainer and heads as for any encoder."""
    places = [(place, word) for place in range(9) for word in ("dull", "bright")] * 5
    rows = [f"{'so ' * place}{word}{' so' * (8 - place)},{word}" for place, word in places]
    (desk / "words.csv").write_text("\n".join(["text,label", *rows]))
    changes = ["data.source=words.csv", "data.validation=words.csv", "train.batch_tokens=none", "train.batch_size=18",
               "train.steps=60", "train.epochs=none", "model.dim=16", "train.optimizer.lr=1e-2"]  # fmt: skip
    made = fit(read_recipe("bilstm", [*TINY[2:3], *TINY[4:], *changes]), desk / "run", quiet=True)

    assert regard.evaluate(desk / "run").scores["accuracy"] > 0.95, made
