"""How far news travels, measured by gradients: through a state, through windows, and in one step by attention."""

import math

import pytest
import torch

import regard
from regard import config as C
from regard import lens
from regard.config.errors import ConfigError
from regard.measure.complexity import contiguous_path, dilated_path

V, D, FAR = 23, 24, 101


def model(trunk):
    return regard.build(C.Transformer(embed=C.TextEmbedding(vocab=V, scale=5.0), trunk=trunk))


def stack(**changes):
    return C.RecurrentStack(**{"dim": D, "depth": 1, "dropout": 0.0, **changes})


def ids(count=FAR):
    return torch.randint(V, (3, count))


@pytest.mark.spec("S128")
@pytest.mark.parametrize("cell, most", [("rnn", 0.7), ("gru", 0.8), ("lstm", 0.95)])
def test_the_pull_of_a_token_on_a_state_decays_exponentially(cell, most):
    pull = lens.jacobian_norms(model(stack(cell=cell)), ids(41))
    factor = lens.gradient_decay(pull)

    assert 0.1 < factor < most
    distance, logs = torch.arange(40, 0, -1).to(pull), pull[:-1].log()
    line = (logs - logs.mean()) - (distance - distance.mean()) * math.log(factor)
    assert logs[-1] - logs[0] > 5 and line.abs().max() < 1  # a line in logarithms, where they span 7 to 33


@pytest.mark.spec("S128")
def test_the_pull_of_a_token_on_a_transformer_stays_within_a_factor_of_ten():
    trunk = C.Trunk(dim=D, depth=3, mask="causal", attention=C.Attention(heads=3))
    pull = lens.jacobian_norms(model(trunk), torch.randint(V, (9, FAR)))

    assert pull[:-1].max() < 10 * pull[:-1].min()
    assert 0.95 < lens.gradient_decay(pull) < 1.05


def test_the_pull_is_the_norm_of_the_jacobian():
    made, given = model(stack(cell="gru")).eval(), ids(7)[:1]
    tokens = made.embed(given)

    table = torch.autograd.functional.jacobian(lambda x: made.trunk(tokens.with_vectors(x)).x[0, -1], tokens.x.detach())

    share = lens.jacobian_norms(made, given, probes=500) / table.square().sum((0, 1, 3)).sqrt()
    assert (share - 1).abs().max() < 0.15  # of so many random probes


@pytest.mark.spec("S125")
@pytest.mark.parametrize("size, count", [(2, 30), (3, 80), (5, 100)])
def test_dilated_windows_need_a_logarithm_of_layers_and_contiguous_ones_a_fraction(size, count):
    """The fewest layers through which the last token hears of the first, found by gradients."""

    def fewest(dilation):
        depth = 1 if dilation > 1 else contiguous_path(count, size) - 1  # from one too few
        while (
            lens.receptive_field(model(stack(cell="cnn", kernel_size=size, dilation=dilation, depth=depth)), ids(count))
            < count
        ):
            depth += 1
        return depth

    assert fewest(size) == dilated_path(count, size)
    if count < 50:
        assert fewest(1) == contiguous_path(count, size)


@pytest.mark.parametrize("size, dilation, depth", [(3, 1, 2), (3, 3, 3), (2, 2, 4)])
def test_a_stack_of_windows_sees_so_far_and_no_further(size, dilation, depth):
    far = 1 + (size - 1) * sum(dilation**layer for layer in range(depth))

    assert (
        lens.receptive_field(model(stack(cell="cnn", kernel_size=size, dilation=dilation, depth=depth)), ids(far + 9))
        == far
    )


def test_the_pull_leaves_a_model_as_it_was():
    made = model(stack(cell="lstm", dropout=0.5)).train()

    lens.jacobian_norms(made, ids(9))

    assert all(part.training for part in made.modules())
    assert all(weight.grad is None for weight in made.parameters())


def test_a_pair_of_texts_has_no_one_distance():
    encoder = C.Encoder(trunk=stack(mask="full"))
    made = regard.build(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=stack(cross="additive"), encoder=encoder))

    with pytest.raises(ConfigError, match="one text"):
        lens.jacobian_norms(made, ids(5))
