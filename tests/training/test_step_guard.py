"""The guard: healthy steps are all taken, bad ones are not and leave no trace, and the host is asked nothing."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from training.builders import TEXT, N, assert_same, copied, model

from regard import config
from regard.training.optim.guard import WARMUP_STEPS, StepGuard
from regard.training.optim.optimizer import OptimizerGroup

BAD = [math.nan, math.inf, -math.inf]
SETTINGS = [config.AdamW(lr=0.01, eps=1e-8), config.Muon(), config.Adafactor()]


def judged(guard, losses, norms):
    return [bool(guard.check(torch.tensor(loss), torch.tensor(norm))) for loss, norm in zip(losses, norms, strict=True)]


def calm(count, loss=2.5, norm=0.7, seed=0):
    """Losses and norms as they come in the middle of a run: some percent here, some ten there."""
    noise = torch.randn(2, count, generator=torch.Generator().manual_seed(seed))
    return (loss * (1 + 0.03 * noise[0])).tolist(), (norm * (0.2 * noise[1]).exp()).tolist()


def seasoned(count=200, **how):
    guard = StepGuard(config.StepGuard())
    assert all(judged(guard, *calm(count, **how)))
    return guard


# ---------------------------------------------------------------- what is no number


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("which", [0, 1], ids=["loss", "norm"])
@pytest.mark.parametrize("count", [0, 3, 200])
@pytest.mark.parametrize("spike", [8.0, None])
def test_what_is_no_number_is_refused_from_the_first_step_on(bad, which, count, spike):
    guard = StepGuard(config.StepGuard(spike_sigmas=spike))
    judged(guard, *calm(count))
    before = guard.known.clone()
    given = [2.5, 0.7]
    given[which] = bad

    assert judged(guard, *([each] for each in given)) == [False]
    assert torch.equal(guard.known[2:], before[2:]) and guard.steps == count and guard.row == 1
    assert judged(guard, [2.5], [0.7]) == [True]


def test_refused_steps_are_counted_until_one_is_taken():
    guard, rows = StepGuard(config.StepGuard()), []
    for loss in (1.0, math.nan, math.nan, 1.0, math.inf, math.nan, math.nan):
        guard.check(torch.tensor(loss), torch.tensor(1.0))
        rows.append(int(guard.row))

    assert rows == [0, 1, 2, 0, 1, 2, 3] and guard.steps == 2


# ---------------------------------------------------------------- spikes


@pytest.mark.parametrize("loss, norm", [(7.5, 0.7), (2.5, 15.0), (1e30, 0.7), (2.5, 1e30), (9.0, 40.0)])
def test_a_spike_is_refused_and_leaves_no_trace(loss, norm):
    guard, twin = seasoned(), seasoned()
    refused = judged(guard, [loss], [norm])

    assert refused == [False]
    assert judged(guard, *calm(30, seed=1)) == judged(twin, *calm(30, seed=1)) == 30 * [True]
    assert_same(copied(guard.state()), copied(twin.state()))


def test_before_fifty_steps_nothing_is_a_spike():
    losses, norms = calm(WARMUP_STEPS - 1)

    assert judged(StepGuard(config.StepGuard()), [*losses, 20.0], [*norms, 50.0])[-1] is True


def test_without_a_limit_spikes_are_taken():
    guard = StepGuard(config.StepGuard(spike_sigmas=None))
    losses, norms = calm(200)

    assert all(judged(guard, [*losses, 20.0], [*norms, 500.0]))


def test_a_higher_limit_lets_more_pass():
    losses, norms = calm(200)
    given = [*losses, 6.5], [*norms, 0.7]

    assert [judged(StepGuard(config.StepGuard(spike_sigmas=spike)), *given)[-1] for spike in (5.0, 8.0, 14.0)] == [
        False,
        False,
        True,
    ]


def test_the_scale_of_gradients_does_not_matter():
    losses, norms = calm(300)
    norms[200:] = [norm * 1.01**step for step, norm in enumerate(norms[200:])]
    verdicts = [judged(StepGuard(config.StepGuard()), [*losses, 2.5], [scale * norm for norm in (*norms, 80.0)])
                for scale in (1.0, 1e-4, 1e4)]  # fmt: skip

    assert verdicts[0] == verdicts[1] == verdicts[2] and verdicts[0][-1] is False


# ---------------------------------------------------------------- what is healthy


def test_falls_warm_up_and_slow_growth_are_no_spikes():
    noise = torch.randn(2, 900, generator=torch.Generator().manual_seed(3)).tolist()
    losses = [0.01 + 10 * math.exp(-step / 150) * (1 + 0.05 * noise[0][step]) for step in range(900)]
    norms = [(0.1 + min(step, 500) / 50) * math.exp(0.3 * noise[1][step]) for step in range(900)]

    assert all(judged(StepGuard(config.StepGuard()), losses, norms))
    assert all(judged(StepGuard(config.StepGuard()), losses, [1 / norm for norm in norms]))


@pytest.mark.parametrize("count", [0, 7, 300])
def test_a_loss_of_zero_and_below_and_a_norm_of_zero_break_nothing(count):
    losses, norms = calm(count)
    guard = StepGuard(config.StepGuard())

    assert all(judged(guard, [*losses, 0.0, -3.0, 0.0, *losses], [*norms, 0.0, 0.5, 0.0, *norms]))
    assert guard.known.isfinite().all()


def test_a_loss_that_was_zero_for_long_may_rise_again():
    guard = StepGuard(config.StepGuard())
    losses, norms = calm(100, loss=0.6)

    assert all(judged(guard, [*losses, *[0.0] * 500, 0.7], [*norms, *[0.0] * 500, 1.3]))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 32])
def test_rare_surprises_are_learned_from_when_all_else_is_known(batch):
    """A wrong label in every few hundred: loss and norm jump by a factor of hundreds, and nothing is amiss."""
    torch.manual_seed(batch)
    table, top = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 2)
    made = torch.nn.Sequential(table, torch.nn.GELU(), top)
    optimizer, guard, losses, verdicts = (
        OptimizerGroup(made, config.AdamW(lr=0.01, eps=1e-8)),
        StepGuard(config.StepGuard()),
        [],
        [],
    )
    for _ in range(1000):
        ids = torch.randint(50, (batch,))
        labels = torch.where(torch.rand(batch) < 0.003, 1 - ids % 2, ids % 2)
        loss = F.cross_entropy(made(ids), labels)
        loss.backward()
        norm, taken = optimizer.step(1.0, lambda norm, loss=loss: guard.check(loss, norm))
        optimizer.zero_grad()
        verdicts.append(bool(taken))
        losses.append(loss.item())

    tail = torch.tensor(losses[500:])
    assert tail.max() > 50 * tail.median()  # it was put to the test
    assert all(verdicts)


class Reader:
    """Learns to read on a small text; some steps bring noise instead."""

    def __init__(self, c):
        torch.manual_seed(0)
        letters = sorted(set(TEXT))
        self.ids = torch.tensor([letters.index(letter) for letter in TEXT])
        self.made = model(vocab=len(letters))
        self.optimizer, self.guard = OptimizerGroup(self.made, c), StepGuard(config.StepGuard())

    def step(self, noise=False):
        starts = torch.randint(len(self.ids) - N, (8,))
        batch = torch.stack([self.ids[start : start + N + 1] for start in starts])
        right = torch.randint(int(self.ids.max()) + 1, (8, N)) if noise else batch[:, 1:]
        loss = F.cross_entropy(self.made(batch[:, :-1]).flatten(0, 1), right.flatten())
        loss.backward()
        _, taken = self.optimizer.step(1.0, lambda norm: self.guard.check(loss, norm))
        self.optimizer.zero_grad()
        return bool(taken)

    def bits(self):
        return {**copied(self.made.state_dict()), **copied(self.optimizer.state())}


@pytest.mark.slow
@pytest.mark.spec("S161")
@pytest.mark.parametrize("c", SETTINGS, ids=lambda c: c.kind)
def test_a_planted_bad_batch_is_refused_and_every_healthy_one_taken(c):
    reader = Reader(c)
    assert all(reader.step() for _ in range(250))
    before = reader.bits()

    assert not reader.step(noise=True)
    assert_same(reader.bits(), before)
    assert all(reader.step() for _ in range(20))


# ---------------------------------------------------------------- where it stands


def test_a_guard_that_is_loaded_judges_as_the_one_that_was_saved():
    guard, again = seasoned(), StepGuard(config.StepGuard())
    again.load(copied(guard.state()))
    losses, norms = calm(60, seed=2)
    losses[40] = 9.0

    assert judged(again, losses, norms) == judged(guard, losses, norms) == [step != 40 for step in range(60)]
    assert_same(copied(again.state()), copied(guard.state()))


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(config.DataError, match="guard: known"):
        StepGuard(config.StepGuard()).load({"known": torch.zeros(3)})


@pytest.mark.parametrize("spike", [8.0, None])
def test_no_host_is_asked_for_a_number(spike):
    with FakeTensorMode():  # tensors without numbers: whoever asks for one fails
        guard = StepGuard(config.StepGuard(spike_sigmas=spike))
        taken = guard.check(torch.tensor(1.0), torch.tensor(2.0))
        with pytest.raises(DataDependentOutputException):
            bool(taken)

    assert taken.shape == () and taken.dtype == torch.bool
