"""Carried states: the text is read on and on, gradients go back one window, and nothing is lost on the way."""

import signal

import pytest
import torch
from models.recurrent_models import RECIPE
from torch.testing import assert_close
from training.builders import advanced, assert_same, bits, laid
from training.test_resume import assert_same_run, signals

from regard import config, data
from regard.core.tokens import sequence_tokens
from regard.models.rnn import RNNLayer
from regard.training.api import fit, resume_fit
from regard.training.carry_state import with_carried_state
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

CARRY = "train.carry_state=true"
KINDS = {
    "lstm": [], "gru": ["model.trunk.cell=gru"], "cnn": ["model.trunk.cell=cnn"],
    "accumulated": ["train.gradient_accumulation=2"],
    "mixed": ["train.precision=mixed"], "bf16": ["train.precision=bf16"], "averaged": ["train.ema_decay=0.9"],
    "mixer": ["model.trunk={kind='blocks', dim=12, depth=2, attention={heads=3}, mixer={kind='recurrent'}, "
              "mask='causal'}"],
    "state space": ["model.trunk={kind='blocks', dim=12, depth=1, attention={heads=3}, mixer={kind='ssm'}, "
                    "mask='causal', position={kind='none'}}"],
    "attention": ["model.trunk={kind='blocks', dim=12, depth=2, attention={heads=3}, mask='causal', "
                  "position={kind='rotary'}}"],
}  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return laid(tmp_path, monkeypatch, RECIPE)


@pytest.fixture
def recipe(desk):
    """The recipe of a small recurrent model, with changes."""
    return lambda *changes: read_recipe("recipe.toml", changes)


def shards(count=200):
    return data.TokenShards(torch.arange(count, dtype=torch.int32), "text", "digest")


# ---------------------------------------------------------------- stripes


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_row_reads_on_where_it_stopped(accumulate):
    stripes = data.StripedBatches(shards(), context=7, size=3, seed=5, accumulate=accumulate)

    for step in range(stripes.count - 1):
        for part in range(accumulate):
            now, then = (stripes.batch((step + more) * accumulate + part) for more in (0, 1))
            assert torch.equal(now[:, -1], then[:, 0])


def test_no_token_is_a_target_twice_in_an_epoch():
    stripes = data.StripedBatches(shards(), context=7, size=3, seed=5, accumulate=2)
    targets = torch.cat([stripes.batch(step)[:, 1:].flatten() for step in range(2 * stripes.count)])

    assert len(targets.unique()) == len(targets) > 0.75 * 200


def test_epochs_begin_at_different_places_and_any_step_can_be_asked_for():
    stripes = data.StripedBatches(shards(), context=7, size=3, seed=5)
    first = {stripes.names(epoch * stripes.count)[0] for epoch in range(20)}

    assert len(first) > 3 and max(first) < 7
    assert [step for step in range(3 * stripes.count) if stripes.begins(step)] == [0, stripes.count, 2 * stripes.count]
    assert stripes.epochs(stripes.count) == 1
    assert torch.equal(data.StripedBatches(shards(), 7, 3, 5).batch(11), stripes.batch(11))


def test_a_text_too_short_for_its_stripes_is_refused():
    with pytest.raises(config.DataError, match="200 tokens are too few for 40 stripes"):
        data.StripedBatches(shards(), context=7, size=40, seed=0)


# ---------------------------------------------------------------- truncated back-propagation


def loss_of(cell, x, state=None):
    """A sum that asks for something at every step."""
    out, after = cell(x, None, state)
    return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), after


@pytest.mark.spec("S093")
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_window_as_long_as_the_text_gives_the_gradient_of_the_whole(recipe, kind):
    """The trainer's own step with train.context = 30 against plain autograd through every step of torch's layers."""
    run = Run.from_recipe(recipe(CARRY, f"model.trunk.cell={kind}", "model.trunk.dropout=0.0", "train.context=30"))
    batch = run.data.batch(0)
    run.objective.loss_sums(run.carried_state.models[0], batch)["loss"].backward()
    ours = {name: weight.grad.clone() for name, weight in run.model.named_parameters()}
    run.model.zero_grad()

    x = run.model.embed(batch[:, :-1]).x
    for block in run.model.trunk.blocks:  # step by step, the state handed on with its gradient
        state, out = None, []
        for t in range(30):
            now, state = block.rnn(x[:, t : t + 1], state)
            out.append(now)
        x = torch.cat(out, 1)
    logits = run.model.head(sequence_tokens(x))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").backward()

    for name, weight in run.model.named_parameters():
        assert_close(ours[name], weight.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.spec("S093")
def test_the_past_is_known_without_its_gradient(recipe):
    run = Run.from_recipe(recipe(CARRY, "model.trunk.dropout=0.0"))
    first, second = run.data.batch(0), run.data.batch(1)

    def gradient():
        loss = run.objective.loss_sums(run.carried_state.models[0], second)["loss"]
        return loss.detach(), torch.autograd.grad(loss, run.model.embed.tokens.weight)[0]

    alone, _ = gradient()
    run.carried_state.forget()
    run.objective.loss_sums(run.carried_state.models[0], first)
    after, ours = gradient()
    both = torch.cat([first, second[:, 1:]], 1)
    whole = run.model(both[:, :-1])[:, 7:]
    loss = torch.nn.functional.cross_entropy(whole.flatten(0, 1), both[:, 8:].flatten(), reduction="sum")
    full = torch.autograd.grad(loss, run.model.embed.tokens.weight)[0]

    assert_close(after, loss.detach())  # the past is known
    assert abs(float(alone - after)) > 1e-3
    assert (ours - full).abs().max() > 1e-4  # and not trained


def test_a_detached_state_is_where_the_gradient_ends():
    cell, x = RNNLayer("gru", 5, 12), torch.randn(3, 8, 5)
    early = x[:, :4].clone().requires_grad_()
    _, after = loss_of(cell, early)

    loss, _ = loss_of(cell, x[:, 4:], [part.detach() for part in after])

    assert torch.autograd.grad(loss, early, allow_unused=True) == (None,)


# ---------------------------------------------------------------- a run


def test_what_is_remembered_goes_on_and_is_forgotten_at_an_epoch_s_end(recipe):
    still = ["train.optimizer.lr=0.0", "model.trunk.dropout=0.0", "train.batch_size=25", "train.steps=99"]
    run = Run.from_recipe(recipe(CARRY, *still))
    advanced(run, run.data.count + 1)
    ours, fresh = run.carried_state.clone_tensors(), Run.from_recipe(recipe(CARRY, *still))

    fresh.objective.loss_sums(fresh.carried_state.models[0], fresh.data.batch(run.data.count))
    assert_same(ours, fresh.carried_state.state())  # the first window of the second epoch, after nothing
    advanced(run, 1)
    fresh.objective.loss_sums(fresh.carried_state.models[0], fresh.data.batch(run.data.count + 1))
    assert_same(run.carried_state.state(), fresh.carried_state.state())
    assert not torch.equal(ours["0.4"], run.carried_state.state()["0.4"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_carries_goes_on_bit_for_bit(recipe, tmp_path, kind):
    straight = Run.from_recipe(recipe(CARRY, *KINDS[kind]))
    losses = advanced(straight)
    half = Run.from_recipe(recipe(CARRY, *KINDS[kind]))
    begun = advanced(half, 4)
    half.save(tmp_path / "half")
    again = Run.from_recipe(recipe(CARRY, *KINDS[kind]))
    again.load(tmp_path / "half")

    assert begun + advanced(again) == losses
    assert_same(bits(again), bits(straight))
    assert_same(again.carried_state.state(), straight.carried_state.state())


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_bits_as_one_that_was_not(desk, recipe):
    changes = [CARRY, "train.eval_every=3", "report.max_new_tokens=3"]
    with signals(4, kind=signal.SIGINT):
        fit(recipe(*changes), desk / "run", quiet=True)
    resume_fit(desk / "run", quiet=True)
    fit(recipe(*changes), desk / "straight", quiet=True)

    assert_same_run(desk / "run", desk / "straight")
    assert (desk / "run/checkpoints/step-000009/train/carry.safetensors").is_file()


def test_without_what_was_carried_a_run_would_go_on_otherwise(recipe, tmp_path):
    half = Run.from_recipe(recipe(CARRY))
    advanced(half, 4)
    half.save(tmp_path / "half")
    whole, robbed = (Run.from_recipe(recipe(CARRY)) for _ in range(2))
    whole.load(tmp_path / "half")
    robbed.load(tmp_path / "half")
    robbed.carried_state.forget()

    assert advanced(whole, 1) != advanced(robbed, 1)


def test_validation_is_read_with_one_state_from_beginning_to_end(recipe):
    run = Run.from_recipe(recipe(CARRY, "model.trunk.dropout=0.0"))
    ids = run.validation.shards.ids(0, len(run.validation.shards))[None]

    score = validate(with_carried_state(run.model, run.validation), run.validation.batches(), run.objective)

    logits = run.model(ids[:, :-1]).detach()
    whole = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum")
    assert score.count == ids.shape[1] - 1
    assert score.sum == pytest.approx(float(whole), rel=1e-5)


def test_a_state_that_is_no_number_begins_anew(recipe):
    run = Run.from_recipe(recipe(CARRY))
    advanced(run, 1)
    run.carried_state.state()["0.4"].fill_(torch.nan)

    losses = advanced(run, 3)

    assert losses[0] != losses[0]  # the guard takes no such step
    assert all(loss == loss for loss in losses[1:])


@pytest.mark.parametrize("changes, says", [
    (["model.trunk={kind='blocks', dim=12, depth=1, attention={heads=3}, mask='causal', position={kind='learned'}}"],
     "train.carry_state: trunk.position 'learned' has a fixed length"),
    (["model.trunk={kind='blocks', dim=12, depth=1, attention={heads=3}, mask='causal', mixer={kind='none'}}"],
     "train.carry_state: this model has no recurrent state"),
    (["model.trunk.mask=full"], "causal"),
    (["train.pack=true"], r"train\.carry_state: rows of pack"),
    (["train.batch_tokens=99"], r"train\.carry_state: rows of pack"),
    (["task.kind=masked_lm", "model.trunk.mask=full"], "train.carry_state: task 'masked_lm' treats each row"),
])  # fmt: skip
def test_what_cannot_be_carried_is_refused(recipe, changes, says):
    with pytest.raises(config.ConfigError, match=says):
        Run.from_recipe(recipe(CARRY, *changes))
