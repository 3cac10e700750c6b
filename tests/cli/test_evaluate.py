"""regard evaluate: the loss that torch computes from the model's own logits, said in several units."""

import json
import math
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import config, text
from regard.generate.model import build, load


def surprise(model, ids):
    """Nats of every token but the first, each seen with what stands before it in its block of the context."""
    total = 0.0
    for start in range(0, len(ids) - 1, model.context):
        block = torch.tensor(ids[start : start + model.context + 1])
        total += float(cross_entropy(model(block[None, :-1])[0], block[1:], reduction="sum").detach())
    return total


def test_the_loss_is_torch_s_own_over_the_whole_text(say, checkpoint, desk):
    words = (desk / "text.txt").read_text()
    told = json.loads(say("evaluate", checkpoint, "text.txt", "--json").out)
    model = load(checkpoint)
    loss = surprise(model, model.tokenizer.encode(words)) / (len(words) - 1)

    assert told["tokens"] == told["bytes"] == len(words) - 1
    assert told["loss"] == pytest.approx(loss, rel=1e-5)
    assert told["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert told["bits_per_token"] == told["bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-5)


def test_bits_per_byte_count_the_bytes_of_utf8(say, desk):
    letters = "aé日🙂 "
    model = build(config.Transformer(embed=config.Embed(vocab=len(letters)), trunk=config.Trunk(
        dim=12, depth=1, mask="causal", attention=config.Attention(heads=3))))  # fmt: skip
    model.tokenizer, model.context = text.train(config.Characters(fallback=False), [letters]), 5
    model.save(desk / "far")
    (desk / "far.txt").write_text("aé日🙂 🙂日éa 日")
    told = json.loads(say("evaluate", "far", "far.txt", "--json").out)

    assert told["tokens"] == 10 and told["bytes"] == len("é日🙂 🙂日éa 日".encode())
    assert told["bits_per_byte"] * told["bytes"] == pytest.approx(told["bits_per_token"] * told["tokens"])


def test_a_run_and_its_checkpoints_know_their_validation_text(say, checkpoint, desk):
    words = (desk / "text.txt").read_text()
    (desk / "run" / "checkpoints").mkdir(parents=True)
    shutil.move(checkpoint, desk / "run" / "checkpoints" / "step-000003")
    shutil.copy(desk / "recipe.toml", desk / "run" / "config.toml")
    (desk / "last.txt").write_text(words[int(0.75 * len(words)) :])
    told = [say("evaluate", *typed, "--json") for typed in (["run"], ["run/checkpoints/step-000003"],
                                                            ["run", "last.txt"])]  # fmt: skip
    losses = [json.loads(each.out)["loss"] for each in told]

    assert losses[0] == losses[1] == losses[2]


def test_people_read_rows(say, checkpoint):
    told = say("evaluate", checkpoint, "text.txt")

    assert [line.split()[0] for line in told.out.splitlines()] == ["text", "loss", "perplexity", "bits", "tokens"]
    assert told.err == ""


def test_a_model_that_sees_the_answer_is_not_asked(say, desk):
    model = build(config.Transformer(embed=config.Embed(vocab=256), trunk=config.Trunk(
        dim=12, depth=1, mask="everything", attention=config.Attention(heads=3))))  # fmt: skip
    model.tokenizer, model.context = text.train(config.Bytes(), []), 7
    model.save(desk / "seer")
    told = say("evaluate", "seer", "text.txt")

    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1) and "left to right" in told.err


def test_a_run_that_kept_no_text_says_so(say, desk):
    (desk / "run").mkdir()
    (desk / "run" / "config.toml").write_text("[data]\nvalidation = 0.0")
    told = say("evaluate", "run")

    assert told.code == 2 and "data.validation" in told.err and "FILE" in told.err
