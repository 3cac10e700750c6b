"""The averaged model: against PyTorch's own, worn and taken off again, saved and gone on from."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.swa_utils import AveragedModel
from training.builders import assert_same, copied, gradients, model

from regard import config
from regard.training.init.trainable import freeze_parameters
from regard.training.optim.ema import ModelEMA
from regard.training.optim.optimizer import OptimizerGroup

YES, NO = torch.tensor(True), torch.tensor(False)


def trained(dtype=torch.float32):
    made = model().to(dtype)
    return made, OptimizerGroup(made, config.AdamW(lr=0.03))


def learn(made, optimizer, step):
    gradients(made, step)
    optimizer.step(1.0)


def near(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.999])
def test_the_average_is_torch_s_with_the_same_decay(decay):
    made, optimizer = trained()

    def ramp(mean, weight, count):
        keep = min(decay, int(count) / (9 + int(count)))  # theirs counts the beginning as a first one
        return keep * mean + (1 - keep) * weight

    ours, theirs = ModelEMA(made, decay), AveragedModel(made, avg_fn=ramp)
    theirs.update_parameters(made)  # the first time it copies
    for step in range(25):
        learn(made, optimizer, step)
        ours.update(YES)
        theirs.update_parameters(made)

    with ours.applied():
        for name, weight in theirs.module.named_parameters():
            near(made.get_parameter(name), weight)


def test_before_the_first_step_the_average_is_the_model():
    made, _ = trained()
    before, average = copied(made.state_dict()), ModelEMA(made, 0.99)

    with average.applied():
        assert_same(copied(made.state_dict()), before)


def test_weights_that_stand_still_are_their_own_average():
    made, _ = trained()
    before, average = copied(made.state_dict()), ModelEMA(made, 0.99)
    for _ in range(7):
        average.update()

    with average.applied():
        assert_same(copied(made.state_dict()), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_after_it_was_worn_the_model_has_its_own_bits_again(dtype):
    made, optimizer = trained(dtype)
    average = ModelEMA(made, 0.9)
    for step in range(3):
        learn(made, optimizer, step)
        average.update(YES)
    before, places = copied(made.state_dict()), [weight.data_ptr() for weight in made.parameters()]
    with average.applied():
        assert not torch.equal(made.trunk.blocks[0].mlp.up.weight, before["trunk.blocks.0.mlp.up.weight"])
        with average.applied():
            pass
        assert not torch.equal(made.trunk.blocks[0].mlp.up.weight, before["trunk.blocks.0.mlp.up.weight"])

    assert_same(copied(made.state_dict()), before)
    assert [weight.data_ptr() for weight in made.parameters()] == places  # where a captured step looks for them


def test_whatever_happens_while_it_is_worn_the_model_gets_its_own_weights_back():
    made, optimizer = trained()
    average = ModelEMA(made, 0.9)
    learn(made, optimizer, 0)
    average.update()
    before = copied(made.state_dict())
    with pytest.raises(KeyboardInterrupt), average.applied():
        raise KeyboardInterrupt

    assert_same(copied(made.state_dict()), before)


def test_a_step_that_was_not_taken_leaves_the_average_as_it_was():
    made, optimizer = trained()
    twin = copy.deepcopy(made)
    theirs, average, other = OptimizerGroup(twin, config.AdamW(lr=0.03)), ModelEMA(made, 0.9), ModelEMA(twin, 0.9)
    for step, taken in enumerate((YES, NO, YES, NO, NO, YES)):
        learn(made, optimizer, step)
        learn(twin, theirs, step)
        before = copied(average.state())
        average.update(taken)
        if taken:
            other.update()
        else:
            assert_same(copied(average.state()), before)

    assert_same(copied(average.state()), copied(other.state()))


def test_no_host_is_asked_for_a_number():
    with FakeTensorMode():  # tensors without numbers: whoever asks for one fails
        ModelEMA(model(), 0.9).update(torch.tensor(True))


def test_small_steps_of_bf16_weights_add_up_in_the_average():
    made = torch.nn.Linear(3, 5, bias=False).to(torch.bfloat16)
    average = ModelEMA(made, 0.99)
    torch.nn.init.ones_(made.weight)
    for _ in range(1000):
        average.update()

    assert average.means["weight"].dtype == torch.float32
    assert average.means["weight"].sub(1).abs().max() < 1e-3


def test_frozen_weights_are_not_averaged():
    made, _ = trained()
    frozen = freeze_parameters(made, ["trunk.blocks.0"])

    assert average_names(ModelEMA(made, 0.9)) == {name for name, _ in made.named_parameters()} - set(frozen)


def average_names(average):
    return {name.rpartition("/")[0] for name in average.state() if name.endswith("/mean")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_model_that_was_saved_in_its_average_goes_on_with_its_own_weights(dtype):
    made, optimizer = trained(dtype)
    average = ModelEMA(made, 0.9)
    for step in range(3):
        learn(made, optimizer, step)
        average.update(YES)
    with average.applied():
        saved, state = copied(made.state_dict()), copied(average.state())
    again = model().to(dtype)
    again.load_state_dict(saved)
    other, theirs = OptimizerGroup(again, config.AdamW(lr=0.03)), ModelEMA(again, 0.9)
    other.load(copied(optimizer.state()))
    theirs.load(state)
    assert_same(copied(again.state_dict()), copied(made.state_dict()))
    for step in range(3, 6):
        learn(made, optimizer, step)
        learn(again, other, step)
        average.update(YES)
        theirs.update(YES)

    assert_same(copied(theirs.state()), copied(average.state()))


def test_the_state_of_another_model_is_refused_and_nothing_of_it_taken():
    made, _ = trained()
    average = ModelEMA(made, 0.9)
    before = copied(average.state())

    with pytest.raises(config.DataError, match=r"averaged weights: trunk\.blocks\.2"):
        average.load(copied(ModelEMA(model(depth=3), 0.9).state()))
    assert_same(copied(average.state()), before)
