"""Who is updated by what: against torch's own optimizers, step by step, and the formula by hand."""

import copy
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from training.builders import assert_same, copied, gradients, model

from regard import config
from regard.core import layers
from regard.training.optim.adafactor import Adafactor
from regard.training.optim.muon import Muon, newton_schulz
from regard.training.optim.optimizer import OptimizerGroup

ADAM = config.AdamW(lr=0.03, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.2)
PENALTY = replace(ADAM, decoupled=False)
MUON = config.Muon(lr=0.05, adam_lr=0.01, weight_decay=0.3)
FACTOR = config.Adafactor(lr=0.04, weight_decay=0.1)
SETTINGS = {"adamw": ADAM, "penalty": PENALTY, "muon": MUON, "adafactor": FACTOR}


def near(ours, theirs, within=1e-6):
    torch.testing.assert_close(ours, theirs, atol=within, rtol=0)


def members(optimizer, part):
    """The names of the weights in a group of one of the parts."""
    names = {weight: name for name, weight in optimizer.own.items()}
    return [{names[weight] for weight in group["params"]} for group in optimizer.parts[part].param_groups]


# ---------------------------------------------------------------- AdamW


@pytest.mark.parametrize("c", [ADAM, FACTOR], ids=lambda c: c.kind)
@pytest.mark.parametrize("name", ["gpt2", "llama-7b"])
def test_matrices_and_tables_are_decayed_and_no_bias_or_gain_is(name, c):
    made = model(name)
    optimizer = OptimizerGroup(made, c)
    decayed, free = members(optimizer, 0)
    amounts = [group["weight_decay"] for group in optimizer.groups()]

    assert amounts == [c.weight_decay, 0.0]
    assert free == {name for name, _ in made.named_parameters() if name.endswith("bias") or "norm" in name}
    assert decayed | free == {name for name, _ in made.named_parameters()} and not decayed & free
    assert {"embed.tokens.weight", "trunk.blocks.1.attn.qkv.weight"} <= decayed


def test_the_first_step_is_the_formula_by_hand():
    made = model()
    optimizer, before = OptimizerGroup(made, ADAM), copied(dict(made.named_parameters()))
    gradients(made)
    grads = {name: weight.grad.clone() for name, weight in made.named_parameters()}
    optimizer.step(clip=None)

    for name, weight in made.named_parameters():
        decay = 0.2 if weight.dim() > 1 else 0.0
        step = grads[name] / (grads[name].abs() + ADAM.eps)  # both moments are the gradient's, after their corrections
        near(weight.detach(), before[name] * (1 - 0.03 * decay) - 0.03 * step)


@pytest.mark.parametrize("c, kind", [(ADAM, torch.optim.AdamW), (PENALTY, torch.optim.Adam)])
def test_several_steps_are_torch_s_own(c, kind):
    ours = model()
    theirs = copy.deepcopy(ours)
    optimizer = OptimizerGroup(ours, c)
    tables = [weight for weight in theirs.parameters() if weight.dim() > 1]
    others = [weight for weight in theirs.parameters() if weight.dim() < 2]
    plain = kind([{"params": tables}, {"params": others, "weight_decay": 0.0}], lr=0.03, betas=(0.9, 0.95), eps=1e-8,
                 weight_decay=0.2, foreach=False)  # fmt: skip
    for step in range(5):
        factor = 1 / (1 + step)
        optimizer.set_lr_factor(factor)
        for group in plain.param_groups:
            group["lr"] = 0.03 * factor
        for each in (ours, theirs):
            gradients(each, step)
        optimizer.step(clip=None)
        plain.step()

    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        near(mine, other)


def test_a_penalty_is_the_gradient_of_half_the_squares():
    """(g + decay · w) in place of g, and nothing beside it."""
    made, other = model(), model()
    other.load_state_dict(made.state_dict())
    optimizers = [OptimizerGroup(made, PENALTY), OptimizerGroup(other, replace(ADAM, weight_decay=0.0))]
    for step in range(3):
        gradients(made, step)
        for weight, theirs in zip(made.parameters(), other.parameters(), strict=True):
            theirs.grad = weight.grad + 0.2 * weight.detach() * (weight.dim() > 1)
        for optimizer in optimizers:
            optimizer.step(clip=None)

    for mine, theirs in zip(made.parameters(), other.parameters(), strict=True):
        near(mine, theirs)


def test_frozen_weights_stay_where_they_are():
    made = model()
    made.embed.requires_grad_(False)
    before = copied(dict(made.embed.named_parameters()))
    optimizer = OptimizerGroup(made, ADAM)
    gradients(made)
    optimizer.step(clip=1.0)

    assert not any(name.startswith("embed") for name in optimizer.own)
    assert_same(copied(dict(made.embed.named_parameters())), before)


def test_muon_also_leaves_frozen_weights_alone():
    made = model()
    made.trunk.blocks[0].requires_grad_(False)
    optimizer = OptimizerGroup(made, MUON)

    assert not any(name.startswith("trunk.blocks.0") for name in optimizer.own)


def test_muon_alone_is_enough_where_only_blocks_are_trained():
    made = model("lab")
    made.requires_grad_(False)
    for block in made.trunk.blocks:
        block.requires_grad_(True)

    assert [type(part) for part in OptimizerGroup(made, MUON).parts] == [Muon]


# ---------------------------------------------------------------- Adafactor


def plain_adafactor(made, c):
    """PyTorch's, told the same: its first floor is the root of ours."""
    matrices, vectors = ([w for w in made.parameters() if (w.dim() > 1) is many] for many in (True, False))
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.Adafactor(groups, lr=c.lr, beta2_decay=c.decay_rate, eps=(c.eps[0] ** 0.5, c.eps[1]),
                                 d=c.clip_threshold, weight_decay=c.weight_decay)  # fmt: skip


@pytest.mark.parametrize("c", [
    FACTOR, config.Adafactor(), config.Adafactor(lr=0.5, decay_rate=-0.5, clip_threshold=3.0, eps=(1e-12, 0.3)),
], ids=["decayed", "as it is", "otherwise"])  # fmt: skip
def test_twenty_steps_are_torch_s_adafactor(c):
    ours = model()
    theirs = copy.deepcopy(ours)
    optimizer, plain = OptimizerGroup(ours, c), plain_adafactor(theirs, c)
    for step in range(20):
        factor = 1 / (1 + step)
        optimizer.set_lr_factor(factor)
        for group in plain.param_groups:
            group["lr"] = c.lr * factor
        for each in (ours, theirs):
            gradients(each, step)
        optimizer.step(clip=None)
        plain.step()

    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        near(mine, other)
    for name, weight in theirs.named_parameters():
        for key, value in plain.state[weight].items():
            near(optimizer.state()[f"{name}/{key}"], value, within=2e-6)


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 9), (9, 1), (4,), ()], ids=str)
def test_adafactor_is_torch_s_for_weights_of_any_shape(shape):
    ours, theirs = (torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1))) for _ in "ab")
    group = {"params": [ours], "lr": torch.tensor(0.05), "weight_decay": 0.3}
    mine = Adafactor([group], -0.8, (1e-30, 1e-3), 1.0)
    other = torch.optim.Adafactor([theirs], lr=0.05, eps=(1e-15, 1e-3), weight_decay=0.3)
    for step in range(7):
        ours.grad = torch.randn(shape, generator=torch.Generator().manual_seed(2 + step))
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()

    near(ours, theirs)


def test_a_token_that_is_not_in_the_batch_stays_where_it_is_under_adafactor():
    made = model()
    optimizer, before = OptimizerGroup(made, config.Adafactor()), made.embed.tokens.weight.detach().clone()
    for step in range(3):
        gradients(made, step)
        made.embed.tokens.weight.grad[7] = 0.0  # as of a row that nobody looked up
        optimizer.step(clip=None)
    after = made.embed.tokens.weight.detach()

    assert torch.equal(after[7], before[7]) and after.isfinite().all()
    assert (after != before).any(dim=1).sum() == len(after) - 1


def test_adafactor_remembers_a_row_and_a_column_for_each_matrix():
    made = model()
    held = {name: tuple(value.shape) for name, value in OptimizerGroup(made, FACTOR).state().items()}
    weight = "trunk.blocks.0.mlp.up.weight"

    assert [held[f"{weight}/row_var"], held[f"{weight}/col_var"]] == [(48, 1), (1, 12)]
    assert f"{weight}/variance" not in held and held["trunk.blocks.0.mlp.up.bias/variance"] == (48,)


# ---------------------------------------------------------------- Muon


@pytest.fixture(autouse=True)
def with_bf16(monkeypatch):
    """A CPU with bf16 products, as the figures here are of; another one emulates them."""
    monkeypatch.setattr(layers, "CPU_BF16", True)


@pytest.mark.parametrize("shape", [(7, 7), (13, 5), (5, 13), (1, 9), (9, 1)], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_muon_is_torch_s(shape, decay):
    ours, theirs = (torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1))) for _ in "ab")
    mine = Muon([(ours, [shape[0]])], 0.05, 0.9, 5, decay)
    other = torch.optim.Muon([theirs], lr=0.05, momentum=0.9, weight_decay=decay)
    for step in range(7):
        ours.grad = torch.randn(shape, generator=torch.Generator().manual_seed(2 + step))
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()

    near(ours, theirs)


def test_muon_works_on_each_part_of_a_fused_map_as_on_a_matrix_of_its_own():
    made = model(kv_heads=1)
    fused = made.trunk.blocks[0].attn.qkv
    parts = [torch.nn.Parameter(weight.detach().clone()) for weight, _ in fused.named_parts().values()]
    apart = torch.optim.Muon(parts, lr=0.05, momentum=0.95, weight_decay=0.3)
    optimizer = OptimizerGroup(made, MUON)
    for step in range(4):
        gradients(made, step)
        for part, grad in zip(parts, fused.weight.grad.split(list(fused.sizes.values())), strict=True):
            part.grad = grad.clone()
        optimizer.step(clip=None)
        apart.step()

    assert [tuple(part.shape) for part in parts] == [(12, 12), (4, 12), (4, 12)]
    near(fused.weight, torch.cat(parts))


@pytest.mark.parametrize("name", ["gpt2", "llama-7b", "lab"])
def test_muon_moves_the_blocks_matrices_and_adamw_all_else_undecayed(name):
    made = model(name)
    optimizer = OptimizerGroup(made, MUON)
    adam, (muon,) = set().union(*members(optimizer, 0)), members(optimizer, 1)

    assert muon == {f"trunk.blocks.{i}.{part}.weight" for i in range(2)
                    for part in ("attn.qkv", "attn.out", "mlp.up", "mlp.down")}  # fmt: skip
    assert adam | muon == {name for name, _ in made.named_parameters()} and not adam & muon
    assert {group["weight_decay"] for group in optimizer.parts[0].param_groups} == {0.0}


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 21, 9), (3, 9, 21)], ids=str)
def test_orthogonal_matrices_have_singular_values_near_one_and_their_old_directions(shape):
    x = torch.randn(shape)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    found = newton_schulz(x, 5).float()
    inner = u.mT @ found @ v.mT  # diagonal where the directions are kept

    assert ((torch.linalg.svdvals(found) > 0.3) & (torch.linalg.svdvals(found) < 1.3)).all()
    assert (inner - torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))).abs().max() < 0.1  # bf16 knows two digits


# ---------------------------------------------------------------- bf16 and its masters


@pytest.mark.spec("S099")
@pytest.mark.parametrize("kind", SETTINGS)
def test_bf16_weights_follow_what_an_fp32_optimizer_does_to_their_masters(kind):
    half = model().to(torch.bfloat16)
    full = copy.deepcopy(half).float()
    ours, theirs = OptimizerGroup(half, SETTINGS[kind]), OptimizerGroup(full, SETTINGS[kind])
    for step in range(4):
        gradients(half, step)
        for mine, other in zip(half.parameters(), full.parameters(), strict=True):
            other.grad = mine.grad.float()
        ours.step(clip=1.0)
        theirs.step(clip=1.0)

    assert_same(copied(ours.masters), copied(dict(full.named_parameters())))
    assert_same(copied(half.state_dict()), copied(full.to(torch.bfloat16).state_dict()))


@pytest.mark.spec("S099")
def test_steps_too_small_for_bf16_add_up_in_the_masters():
    made = torch.nn.Linear(3, 5, bias=False).to(torch.bfloat16)
    torch.nn.init.ones_(made.weight)
    optimizer = OptimizerGroup(made, config.AdamW(lr=1e-3, weight_decay=0.0))
    for _ in range(20):
        made.weight.grad = torch.ones_like(made.weight)
        optimizer.step(clip=None)

    assert torch.equal(torch.ones(1).bfloat16() - 1e-3, torch.ones(1).bfloat16())  # one alone is lost
    assert made.weight.float().sub(0.98).abs().max() < 2**-8


# ---------------------------------------------------------------- clipping


@pytest.mark.spec("S098")
@pytest.mark.parametrize("clip", [0.5, 1e6])
@pytest.mark.parametrize("kind", SETTINGS)
def test_gradients_are_clipped_as_torch_clips_them(clip, kind):
    ours = model()
    theirs = copy.deepcopy(ours)
    optimizer = OptimizerGroup(ours, SETTINGS[kind])
    for each in (ours, theirs):
        gradients(each)
    norm, taken = optimizer.step(clip)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)

    assert torch.equal(norm, expected) and taken
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.spec("S098")
def test_without_a_limit_nothing_is_clipped_and_the_norm_is_still_told():
    made = model()
    gradients(made)
    before = [weight.grad.clone() for weight in made.parameters()]
    norm, _ = OptimizerGroup(made, ADAM).step(clip=None)

    near(norm, torch.cat([grad.flatten() for grad in before]).norm(), within=1e-4)
    assert all(torch.equal(weight.grad, grad) for weight, grad in zip(made.parameters(), before, strict=True))


# ---------------------------------------------------------------- steps that are not taken


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_with_a_gradient_that_is_no_number_changes_nothing(bad, kind, half, clip):
    made = model().to(torch.bfloat16 if half else torch.float32)
    optimizer = OptimizerGroup(made, SETTINGS[kind])
    gradients(made)
    optimizer.step(clip)
    weights, state = copied(made.state_dict()), copied(optimizer.state())
    gradients(made, 1)
    made.trunk.blocks[1].mlp.up.weight.grad[3, 5] = bad
    norm, taken = optimizer.step(clip)

    assert not norm.isfinite() and not taken
    assert_same(copied(made.state_dict()), weights)
    assert_same(copied(optimizer.state()), state)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_a_step_is_taken_where_its_judge_says_so_and_changes_nothing_where_not(kind, half):
    made, told = model().to(torch.bfloat16 if half else torch.float32), []
    optimizer = OptimizerGroup(made, SETTINGS[kind])
    for step, allowed in enumerate((True, False, True)):
        weights, state = copied(made.state_dict()), copied(optimizer.state())
        gradients(made, step)
        norm, taken = optimizer.step(1.0, lambda norm, allowed=allowed: told.append(norm) or torch.tensor(allowed))
        same = all(torch.equal(tensor, weights[name]) for name, tensor in made.state_dict().items())

        assert bool(taken) is allowed and same is not allowed and torch.equal(told[-1], norm)
        if not allowed:
            assert_same(copied(optimizer.state()), state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("first", [True, False], ids=["at first", "later"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_parts_that_are_told_on_the_device_not_to_move_do_not(kind, first, bad):
    """As on a GPU, where no host looks at the verdict."""
    made = model()
    optimizer = OptimizerGroup(made, SETTINGS[kind])
    if not first:
        gradients(made)
        optimizer.step(1.0)
    weights, state = copied(made.state_dict()), copied(optimizer.state())
    for weight in made.parameters():
        weight.grad = torch.full_like(weight, bad)
    for part in optimizer.parts:
        part.found_inf = torch.ones(())
        part.step()

    assert_same(copied(made.state_dict()), weights)
    assert_same(copied(optimizer.state()), state)


@pytest.mark.parametrize("kind", SETTINGS)
def test_parts_that_are_told_on_the_device_ask_no_host_for_a_number(kind):
    with FakeTensorMode():  # tensors without numbers: whoever asks for one fails
        made = model()
        optimizer = OptimizerGroup(made, SETTINGS[kind])
        for weight in made.parameters():
            weight.grad = torch.zeros_like(weight)
        for part in optimizer.parts:
            part.found_inf = torch.zeros(())
            part.step()


@pytest.mark.parametrize("kind", SETTINGS)
def test_parts_that_are_told_on_the_device_to_move_do_as_always(kind):
    ours = model()
    theirs = copy.deepcopy(ours)
    mine, other = OptimizerGroup(ours, SETTINGS[kind]), OptimizerGroup(theirs, SETTINGS[kind])
    for step in range(3):
        for each in (ours, theirs):
            gradients(each, step)
        for part in mine.parts:
            part.found_inf = torch.zeros(())
            part.step()
        other.step(clip=None)

    assert_same(copied(ours.state_dict()), copied(theirs.state_dict()))
    assert_same(copied(mine.state()), copied(other.state()))


@pytest.mark.parametrize("kind", SETTINGS)
def test_after_a_bad_step_learning_goes_on_as_if_it_had_not_been(kind):
    ours = model()
    theirs = copy.deepcopy(ours)
    mine, other = OptimizerGroup(ours, SETTINGS[kind]), OptimizerGroup(theirs, SETTINGS[kind])
    gradients(ours)
    ours.embed.tokens.weight.grad.fill_(float("nan"))
    mine.step(1.0)
    for step in range(3):
        for each, optimizer in ((ours, mine), (theirs, other)):
            gradients(each, step)
            optimizer.step(1.0)

    assert_same(copied(ours.state_dict()), copied(theirs.state_dict()))


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_a_state_that_is_loaded_goes_on_as_the_one_that_was_saved(kind, half):
    ours = model().to(torch.bfloat16 if half else torch.float32)
    mine = OptimizerGroup(ours, SETTINGS[kind])
    for step in range(3):
        gradients(ours, step)
        mine.step(1.0)
    theirs = copy.deepcopy(ours)
    other = OptimizerGroup(theirs, SETTINGS[kind])
    other.load(copied(mine.state()))
    for step in range(3, 6):
        for each, optimizer in ((ours, mine), (theirs, other)):
            gradients(each, step)
            optimizer.step(1.0)

    assert_same(copied(theirs.state_dict()), copied(ours.state_dict()))
    assert_same(copied(other.state()), copied(mine.state()))


@pytest.mark.parametrize("kind, plain", [
    ("adamw", torch.optim.AdamW), ("penalty", torch.optim.Adam), ("adafactor", torch.optim.Adafactor),
])  # fmt: skip
def test_the_state_that_is_begun_is_what_torch_makes_in_its_first_step(kind, plain):
    made = model()
    theirs = plain(made.parameters())
    gradients(made)
    theirs.step()
    made_by_them = {f"{name}/{key}": value for name, weight in made.named_parameters()
                    for key, value in theirs.state[weight].items()}  # fmt: skip
    ours = OptimizerGroup(made, SETTINGS[kind]).state()

    assert {name: (value.shape, value.dtype) for name, value in ours.items()} == \
           {name: (value.shape, value.dtype) for name, value in made_by_them.items()}  # fmt: skip
    assert not any(value.any() for value in ours.values())


@pytest.mark.parametrize("kind", SETTINGS)
def test_loading_writes_into_the_tensors_that_are_there(kind):
    """A captured step would not find others."""
    made = model().to(torch.bfloat16)
    optimizer = OptimizerGroup(made, SETTINGS[kind])
    before = {name: value.data_ptr() for name, value in optimizer.state().items()}
    other = OptimizerGroup(copy.deepcopy(made), SETTINGS[kind])
    gradients(made)
    optimizer.step(1.0)
    saved = copied(optimizer.state())
    optimizer.load(copied(other.state()))
    assert_same(copied(optimizer.state()), copied(other.state()))
    optimizer.load(saved)

    assert_same(copied(optimizer.state()), saved)
    assert {name: value.data_ptr() for name, value in optimizer.state().items()} == before


@pytest.mark.parametrize("spoil", [
    lambda held, name: held.pop(name), lambda held, name: held.update({"more": torch.zeros(3)}),
    lambda held, name: held.update({name: held[name][1:]}), lambda held, name: held.update({name: held[name].double()}),
], ids=["missing", "unknown", "another shape", "another kind"])  # fmt: skip
@pytest.mark.parametrize("key", {"adamw": "exp_avg", "muon": "momentum", "adafactor": "row_var"}.items(), ids=str)
def test_a_state_that_does_not_fit_is_refused_and_nothing_of_it_taken(key, spoil):
    made = model()
    optimizer = OptimizerGroup(made, SETTINGS[key[0]])
    gradients(made)
    optimizer.step(1.0)
    before = copied(optimizer.state())
    held, name = {name: value + 1 for name, value in before.items()}, f"trunk.blocks.1.mlp.up.weight/{key[1]}"
    spoil(held, name)

    with pytest.raises(config.DataError, match="more" if "more" in held else name):
        optimizer.load(held)
    assert_same(copied(optimizer.state()), before)


def test_a_loaded_state_is_the_optimizer_s_own():
    ours = model()
    theirs = copy.deepcopy(ours)
    mine, other = OptimizerGroup(ours, ADAM), OptimizerGroup(theirs, ADAM)
    gradients(ours)
    mine.step(1.0)
    other.load(mine.state())
    before = copied(other.state())
    mine.step(1.0)

    assert_same(copied(other.state()), before)


def test_a_state_of_another_model_is_refused_by_name():
    big, small = OptimizerGroup(model(depth=3), ADAM), OptimizerGroup(model(), ADAM)
    for weight in big.own.values():
        weight.grad = torch.ones_like(weight)
    big.step(1.0)

    with pytest.raises(config.DataError, match="trunk.blocks.2"):
        small.load(copied(big.state()))


@pytest.mark.parametrize("kinds", list(permutations(("adamw", "muon", "adafactor"), 2)), ids=" to ".join)
def test_a_state_of_another_optimizer_is_refused(kinds):
    made = model()
    first, second = (OptimizerGroup(made, SETTINGS[kind]) for kind in kinds)
    gradients(made)
    first.step(1.0)

    with pytest.raises(config.DataError):
        second.load(copied(first.state()))


def test_a_state_without_masters_is_refused_for_bf16():
    made = model()
    optimizer = OptimizerGroup(made, ADAM)
    gradients(made)
    optimizer.step(1.0)

    with pytest.raises(config.DataError):
        OptimizerGroup(copy.deepcopy(made).to(torch.bfloat16), ADAM).load(copied(optimizer.state()))
