"""The next token at every place at once: the chain rule, teacher forcing, and shares of a step that add up."""

import math

import pytest
import torch
import torch.nn.functional as F
from training.builders import V, model

from regard.tasks.next_token import NextToken
from regard.tasks.task import LossPart, combine_losses, total_counts
from regard.training.validation import ValidationScore, validate

B, N = 3, 15
MODELS = ["gpt2", "llama-7b"]


def text(rows=B, length=N + 1, seed=0):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def surprises(made, row):
    """-log p(x_n | x_<n) of one row, each from a pass over its own prefix and nothing else."""
    with torch.no_grad():
        last = [made(row[None, :n])[0, -1] for n in range(1, len(row))]
    return -torch.stack([F.log_softmax(logits, -1)[token] for logits, token in zip(last, row[1:], strict=True)])


@pytest.mark.spec("S084")
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_of_the_tokens_log_probabilities_is_the_sequence_s(name):
    made, ids = model(name), text()
    found = [NextToken().loss_sums(made, row[None])["loss"].item() for row in ids]
    sequence = [torch.exp(-surprises(made, row).double()).prod().log().item() for row in ids]  # the chain rule

    assert found == pytest.approx([-each for each in sequence], abs=1e-5)


@pytest.mark.spec("S084")
def test_perplexity_is_the_exponential_of_the_mean():
    made, ids = model(), text()
    score = validate(made, [ids])
    each = torch.cat([surprises(made, row) for row in ids]).double()

    assert score.count == B * N == len(each)
    assert score.loss == pytest.approx(each.mean().item(), abs=1e-5)
    assert score.perplexity == pytest.approx(math.exp(each.mean()), rel=1e-5)
    assert score.bits == pytest.approx(each.mean().item() / math.log(2), abs=1e-5)


@pytest.mark.spec("S084")
def test_a_model_that_knows_nothing_is_as_perplexed_as_there_are_tokens():
    made = model()
    made.embed.tokens.weight.data.zero_()

    assert validate(made, [text()]).perplexity == pytest.approx(V, rel=1e-6)


def test_a_hopeless_loss_is_still_a_number():
    assert math.isfinite(ValidationScore(1e6, 1).perplexity) and ValidationScore(0.0, 0).loss == 0.0


@pytest.mark.spec("S085")
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_all_places_at_once_is_the_loss_step_by_step(name):
    made, ids = model(name), text()
    cache, found = made.cache(B, N), []
    with torch.no_grad():
        for place in range(N):  # what was really there is fed, whatever the model would have said
            logits = made(ids[:, place : place + 1], cache=cache)[:, -1]
            found.append(F.cross_entropy(logits, ids[:, place + 1], reduction="sum"))

    assert NextToken().loss_sums(made, ids)["loss"].item() == pytest.approx(sum(found).item(), abs=1e-5 * B * N)


@pytest.mark.spec("S085")
def test_the_last_token_is_never_read_and_the_first_never_predicted():
    made, ids = model(), text()
    read = []

    def spy(given):
        read.append(given)
        return made(given)

    NextToken().loss_sums(spy, ids)
    logits = torch.randn(B, N, V)
    fixed = NextToken().loss_sums(lambda given: logits, ids)["loss"]
    other = torch.cat([(ids[:, :1] + 1) % V, ids[:, 1:]], 1)

    assert torch.equal(read[0], ids[:, :-1])
    assert torch.equal(fixed, NextToken().loss_sums(lambda given: logits, other)["loss"])
    torch.testing.assert_close(fixed, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"))


@pytest.mark.spec("S025")
@pytest.mark.parametrize("name", MODELS)
def test_one_masked_pass_is_a_lesson_for_every_prefix(name):
    made, ids = model(name), text(rows=1)
    with torch.no_grad():
        once = F.cross_entropy(made(ids[:, :-1])[0], ids[0, 1:], reduction="none")

    assert len(once) == 15
    torch.testing.assert_close(once, surprises(made, ids[0]), atol=1e-5, rtol=0)


def test_the_loss_is_summed_in_fp32_whatever_the_model_answers_in():
    made, ids = model().to(torch.bfloat16), text()
    found = NextToken().loss_sums(made, ids)["loss"]
    exact = F.cross_entropy(made(ids[:, :-1]).double().flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")

    assert found.dtype == torch.float32 and found.item() == pytest.approx(exact.item(), abs=1e-3)


# ---------------------------------------------------------------- shares of a step


def accumulated(made, objective, batches):
    made.zero_grad()
    parts = total_counts([objective.count_parts(batch) for batch in batches])
    losses = []
    for batch in batches:
        loss = combine_losses(objective.loss_sums(made, batch), parts)
        loss.backward()
        losses.append(loss.item())
    return sum(losses), {name: weight.grad.clone() for name, weight in made.named_parameters()}


@pytest.mark.spec("S099")
def test_micro_batches_give_the_gradients_of_one_batch():
    made, ids = model(), text(rows=12)
    loss, grads = accumulated(made, NextToken(), ids.split([4, 4, 4]))
    once, expected = accumulated(made, NextToken(), [ids])

    assert loss == pytest.approx(once, abs=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, atol=1e-6, rtol=0, msg=name)


@pytest.mark.spec("S099")
def test_ragged_micro_batches_give_the_gradients_of_the_mean_over_all_tokens():
    made = model()
    batches = [text(5, 8, 1), text(2, 16, 2), text(1, 3, 3)]
    loss, grads = accumulated(made, NextToken(), batches)
    made.zero_grad()
    logits = torch.cat([made(batch[:, :-1]).flatten(0, 1) for batch in batches])
    mean = F.cross_entropy(logits, torch.cat([batch[:, 1:].flatten() for batch in batches]))
    mean.backward()

    assert loss == pytest.approx(mean.item(), abs=1e-6)
    for name, weight in made.named_parameters():
        torch.testing.assert_close(grads[name], weight.grad, atol=1e-6, rtol=0, msg=name)


class Two:
    """Asks for every token, and half as loudly for the first of each row: two parts with counts of their own."""

    def count_parts(self, batch):
        return {"all": LossPart(batch[:, 1:].numel()), "first": LossPart(len(batch), 0.5)}

    def loss_sums(self, model, batch):
        each = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none")
        return {"all": each.sum(), "first": each[:, 0].sum()}


@pytest.mark.spec("S099")
def test_each_part_is_divided_by_its_own_count():
    made, ids = model(), text(rows=5)
    each = F.cross_entropy(made(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
    loss, grads = accumulated(made, Two(), ids.split([2, 3]))
    once, expected = accumulated(made, Two(), [ids])

    assert loss == pytest.approx((each.mean() + 0.5 * each[:, 0].mean()).item(), abs=1e-6)
    assert loss == pytest.approx(once, abs=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, atol=1e-6, rtol=0, msg=name)


def test_a_part_that_nobody_asked_for_adds_nothing():
    assert combine_losses({"loss": torch.tensor(0.0)}, {"loss": LossPart(0)}) == 0.0
