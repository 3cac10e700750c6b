"""Parts that are frozen stay as they are, bit for bit, and the others learn as if nothing had happened."""

import copy

import pytest
import torch
from training.builders import N, V, assert_same, copied, model

import regard
from regard import config
from regard.training.init.trainable import freeze_parameters
from regard.training.optim.optimizer import OptimizerGroup

SETTINGS = [config.AdamW(lr=0.03, weight_decay=0.5), config.Muon(weight_decay=0.5), config.Adafactor(weight_decay=0.5)]
IDS = torch.randint(V, (3, N), generator=torch.Generator().manual_seed(0))


def under(made, *starts):
    return {name for name, _ in made.named_parameters() if name.startswith(starts)}


def learn(made, optimizer, steps):
    for _ in range(steps):
        made(IDS).square().mean().backward()
        optimizer.step(1.0)
        optimizer.zero_grad()


@pytest.mark.parametrize("names, starts", [
    (["trunk.blocks.0"], ("trunk.blocks.0.",)),
    (["trunk.blocks.0.attn"], ("trunk.blocks.0.attn.",)),  # and not attn_norm
    (["trunk.blocks.1.mlp.up.weight"], ("trunk.blocks.1.mlp.up.weight",)),
    (["trunk.blocks.*.attn_norm"], ("trunk.blocks.0.attn_norm.", "trunk.blocks.1.attn_norm.")),
    (["trunk.blocks.[0]", "trunk.final_norm"], ("trunk.blocks.0.", "trunk.final_norm.")),
    (["trunk"], ("trunk.",)),
    (["embed", "trunk.*.?"], ("embed.", "trunk.blocks.", "trunk.positions.")),
], ids=str)  # fmt: skip
def test_a_name_freezes_what_it_names_and_nothing_else(names, starts):
    made = model()
    frozen = freeze_parameters(made, names)

    assert set(frozen) == under(made, *starts) and len(frozen) == len(set(frozen)) > 0
    assert {name for name, weight in made.named_parameters() if not weight.requires_grad} == set(frozen)


def test_a_star_stands_for_one_step_of_a_path():
    made = model()

    assert set(freeze_parameters(made, ["trunk.*norm"])) == under(
        made, "trunk.final_norm"
    )  # not those inside of blocks


@pytest.mark.parametrize("name", ["embed", "head"])
def test_a_tied_weight_is_frozen_under_each_of_its_names(name):
    made = model()

    assert made.head.weight is made.embed.tokens.weight
    assert freeze_parameters(made, [name]) == ["embed.tokens.weight"]
    assert not made.head.weight.requires_grad


def test_a_shared_block_is_frozen_in_every_layer():
    made = regard.build(regard.preset("albert-base", dim=12, depth=3, heads=3, vocab=V))
    freeze_parameters(made, ["trunk.blocks.0"])

    assert {weight.requires_grad for block in made.trunk.blocks for weight in block.parameters()} == {False}


@pytest.mark.parametrize("c", SETTINGS, ids=lambda c: c.kind)
def test_frozen_weights_keep_their_bits_get_no_state_and_no_decay(c):
    made = model()
    frozen = freeze_parameters(made, ["embed", "trunk.blocks.0", "trunk.blocks.1.*norm"])
    before, optimizer = copied(dict(made.named_parameters())), OptimizerGroup(made, c)
    learn(made, optimizer, 10)
    after = copied(dict(made.named_parameters()))

    assert_same({name: after[name] for name in frozen}, {name: before[name] for name in frozen})
    assert all(not torch.equal(after[name], before[name]) for name in after.keys() - set(frozen))
    assert {name.rpartition("/")[0] for name in optimizer.state()} == after.keys() - set(frozen)


def test_the_others_have_the_gradients_that_they_would_have_had():
    made = model()
    whole = copy.deepcopy(made)
    frozen = freeze_parameters(made, ["trunk.blocks.0.mlp", "trunk.positions", "head"])
    for each in (made, whole):
        each(IDS).square().mean().backward()
    grads = {name: weight.grad for name, weight in made.named_parameters()}

    assert {name for name, grad in grads.items() if grad is None} == set(frozen)
    for name, weight in whole.named_parameters():
        assert name in frozen or torch.equal(grads[name], weight.grad), name


@pytest.mark.parametrize("name, near", [
    ("emebd", "'embed'"), ("trunk.block.0", "'trunk.blocks.0'"), ("trunk.blocks.0.attention", "'trunk.blocks.0.attn'"),
])  # fmt: skip
def test_a_name_of_nothing_is_refused_with_the_nearest_and_nothing_is_frozen(name, near):
    made = model()

    with pytest.raises(config.ConfigError, match=rf"train\.freeze: no part '{name}'.* did you mean {near}\?.*trunk"):
        freeze_parameters(made, ["embed", name])
    assert all(weight.requires_grad for weight in made.parameters())


@pytest.mark.parametrize("name", ["trunk.blocks.7", "embed.tokens.weight.extras", "blocks", "norm", "*.nothing"])
def test_a_part_that_is_not_there_is_refused(name):
    with pytest.raises(config.ConfigError, match=r"train\.freeze: no part"):
        freeze_parameters(model(), [name])


@pytest.mark.parametrize("names", [["*"], ["trunk", "embed"], ["trunk", "head"]], ids=str)
def test_freezing_everything_is_refused(names):
    made = model()

    with pytest.raises(config.ConfigError, match=r"train\.freeze: .* none would be trained"):
        freeze_parameters(made, names)
    assert all(weight.requires_grad for weight in made.parameters())


def test_no_names_freeze_nothing():
    made = model()

    assert freeze_parameters(made, []) == [] and all(weight.requires_grad for weight in made.parameters())
