"""regard explain CHECKPOINT --heads: what it prints is what the lens says of that model on that text."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import config, lens, text
from regard.core.kernels import KERNELS
from regard.data.prepare import prepare_text
from regard.data.windows import WindowBatches
from regard.inference.load import load_model
from regard.inference.model import build_model


def asked(say, *words):
    told = say("explain", *words, "--heads", "--json")
    assert (told.code, told.err) == (0, "")
    return json.loads(told.out)


def kept(desk, name, vocab=256, **trunk):
    """A byte model of another kind, in a folder."""
    base = dict(dim=12, depth=1, attention=config.Attention(heads=3))
    model = build_model(
        config.Transformer(embed=config.TextEmbedding(vocab=vocab), trunk=config.Trunk(**(base | trunk)))
    )
    model.tokenizer, model.context = text.train_tokenizer(config.ByteTokenizer(), []), 9
    model.save(desk / name)
    return name


@pytest.mark.spec("S150", "S156", "S191")
def test_every_head_is_told_with_its_roles_width_and_twin(say, checkpoint):
    told = asked(say, checkpoint, "--text", "text.txt")

    assert [(row["where"], row["head"]) for row in told["heads"]] == [
        (f"trunk.{layer}.attn", head) for layer in range(2) for head in range(3)
    ]
    assert (told["windows"], told["tokens"], told["text"], told["seed"]) == (8, 17, "text.txt", 0)
    for row in told["heads"]:
        assert set(row["scores"]) == {role.name for role in lens.ROLES} and row["layer"] == int(row["where"][6])
        assert all(set(one) == {"value", "chance", "lift"} for one in row["scores"].values())
        assert 0 < row["entropy"] < 4.1 and 0 < row["relative"] <= 1 and 0 < row["distance"] < 16
        twin = row["like"]
        assert 0 <= twin["value"] <= 1 and (twin["where"], twin["head"]) != (row["where"], row["head"])


@pytest.mark.spec("S151")
def test_deltas_are_the_losses_of_models_that_were_pruned(say, checkpoint):
    told, model = asked(say, checkpoint, "--text", "text.txt"), load_model(checkpoint)
    rows = {(row["where"], row["head"]): row for row in told["without"]}
    ids = windows(model)

    assert told["loss"] == pytest.approx(float(loss(model, ids)), rel=1e-5)
    assert [where for where, head in rows if head is None] == [
        "trunk.0.attn", "trunk.0.mlp", "trunk.1.attn", "trunk.1.mlp"
    ]  # fmt: skip
    for where in ("trunk.0.attn", "trunk.1.attn"):
        for head in range(3):
            small = lens.prune_heads(model, {where: [head]})
            delta = float(loss(small, ids) - loss(model, ids))
            assert rows[where, head]["delta"] == pytest.approx(delta, abs=1e-5)
    idle = [name for name, row in rows.items() if name[1] is not None and abs(row["delta"]) < told["within"]]
    assert [(row["where"], row["head"]) for row in told["idle"]] == idle


def windows(model):
    """The seeded windows, once more."""
    ready = prepare_text(
        config.Data(source="text.txt", validation=0.0), config.ByteTokenizer(), tokenizer=model.tokenizer
    )
    return WindowBatches(ready.train, 17, 8, 0).batch(0)


@torch.no_grad()
def loss(model, ids):
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_people_read_a_table_a_line_for_each_head(say, checkpoint):
    told = say("explain", checkpoint, "--heads", "--text", "text.txt")
    top, heads, layers, idle = told.out.split("\n\n")

    assert (told.code, told.err) == (0, "")
    assert "8 x 17 tokens of text.txt, seed 0" in top and "loss" in top
    assert [line.split()[:2] for line in heads.splitlines()[1:]] == [
        [f"trunk.{layer}.attn", str(head)] for layer in range(2) for head in range(3)
    ]
    assert all("bits" in line and " ± " in line for line in heads.splitlines()[1:])
    assert [line.split()[0] for line in layers.splitlines()[1:]] == [
        "trunk.0.attn", "trunk.0.mlp", "trunk.1.attn", "trunk.1.mlp"
    ]  # fmt: skip
    assert idle.startswith("heads that do nothing (less than 0.00")


def test_the_same_is_told_every_time(say, checkpoint):
    once, again = (say("explain", checkpoint, "--heads", "--text", "text.txt").out for _ in range(2))

    assert once == again


def test_a_run_is_read_on_its_own_validation_text(say, checkpoint, desk):
    (desk / "run" / "checkpoints").mkdir(parents=True)
    shutil.move(checkpoint, desk / "run" / "checkpoints" / "step-000003")
    shutil.copy(desk / "recipe.toml", desk / "run" / "config.toml")
    told = asked(say, "run")

    assert told["text"] == "the last 0.25 of text.txt"
    assert told == asked(say, "run/checkpoints/step-000003")


def test_a_short_text_is_read_as_far_as_it_goes(say, checkpoint, desk):
    (desk / "short.txt").write_text("the cat")

    assert [asked(say, checkpoint, "--text", "short.txt")[name] for name in ("windows", "tokens")] == [1, 6]


def test_a_block_that_layers_share_has_a_line_for_each_layer_and_one_loss(say, desk):
    told = asked(say, kept(desk, "shared", depth=3, mask="causal", share_layers=True), "--text", "text.txt")

    assert [row["where"] for row in told["heads"]] == [f"trunk.{layer}.attn" for layer in range(3) for _ in range(3)]
    assert [(row["where"], row["head"]) for row in told["without"]] == [
        ("trunk.*.attn", 0), ("trunk.*.attn", 1), ("trunk.*.attn", 2), ("trunk.*.attn", None), ("trunk.*.mlp", None)
    ]  # fmt: skip
    assert say("explain", "shared", "--heads", "--text", "text.txt").out.count(" ± ") == 3 * 3 + 2


def test_a_model_that_sees_ahead_has_roles_and_no_loss(say, desk):
    told = asked(say, kept(desk, "seer"), "--text", "text.txt")

    assert told["loss"] is None and told["without"] == [] and len(told["heads"]) == 3
    assert "none: the model does not predict" in say("explain", "seer", "--heads", "--text", "text.txt").out


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("words, code, why", [
    (["gpt2", "--heads"], 2, "gpt2: --heads reads a trained model; name a run, a checkpoint or a Hugging Face folder"),
    (["recipe.toml", "--heads"], 2, "recipe.toml: --heads reads a trained model"),
    (["shakespeare", "--heads"], 2, "shakespeare: --heads reads a trained model"),
    (["modle", "--heads"], 3, "modle: no such folder; did you mean 'model'?"),
    (["model", "--heads"], 2, "model: not of a run, so it has no validation data of its own; name a FILE"),
    (["model", "--heads", "--text", "nowhere.txt"], 3, "nowhere.txt"),
    (["model", "--heads", "--text", "tiny.txt"], 3, "tiny.txt: 3 tokens are too few to read heads on"),
    (["model", "--heads", "--text", "far.txt"], 3, "far.txt: 'é' (character 0, line 1) is not in the vocabulary"),
    (["model", "model.dim=3", "--heads"], 2, "model.dim=3: the settings of a trained model are fixed; leave it out"),
    (["model", "--text", "text.txt"], 2, "--text text.txt: is the text for --heads; add --heads"),
    (["deaf", "--heads", "--text", "text.txt"], 3, "deaf: no tokenizer.json; put"),
    (["images", "--heads", "--text", "text.txt"], 2, "images: --heads reads a text, and this model reads images"),
], ids=lambda given: " ".join(given) if isinstance(given, list) else "")  # fmt: skip
def test_a_mistake_is_one_sentence(say, checkpoint, desk, words, code, why):
    (desk / "tiny.txt").write_text("cat")
    (desk / "far.txt").write_text("é" * 30)
    shutil.copytree(checkpoint, desk / "deaf")
    (desk / "deaf" / "tokenizer.json").unlink()
    (desk / "deaf" / "MANIFEST.json").unlink()
    build_model(
        config.Transformer(
            embed=config.PatchEmbedding(patch_size=2, image_size=4),
            head=config.PoolingHead(),
            trunk=config.Trunk(dim=12, depth=1, attention=(config.Attention(heads=3))),
        )
    ).save(desk / "images")
    told = say("explain", *words)

    assert (told.code, told.out, told.err.count("\n")) == (code, "", 1), told.err
    assert told.err.startswith(f"regard: {why}"), told.err


def test_a_kernel_without_a_table_is_told(say, desk, monkeypatch):
    kept(desk, "vague", mask="causal", attention=config.Attention(heads=3, kernel="fused"))
    monkeypatch.setitem(KERNELS, "fused", replace(KERNELS["fused"], exact=False))
    told = say("explain", "vague", "--heads", "--text", "text.txt")

    assert told.code == 2 and told.err.count("\n") == 1
    assert told.err.startswith("regard: vague: trunk.attention.kernel: 'fused' has no table of attention weights")
