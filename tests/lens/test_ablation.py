"""Ablation: a row for every head and layer says how much worse the model is without it, and nothing is left behind."""

import math

import pytest
import torch
import torch.nn.functional as F
from lens.small_models import SHAPES, B, Shape, ids, ragged
from torch import Tensor, nn

import regard
from regard import config as C
from regard import lens
from regard.lens.attention_maps import find_attentions

every = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


def loss_of(shape: Shape):
    """Half the squared distance to a fixed target, whatever the model says: a loss for every shape."""
    target = torch.Generator().manual_seed(3)
    wanted: list[Tensor] = []

    def loss(model: nn.Module) -> Tensor:
        said = shape.ask(model)
        if not wanted:
            wanted.append(torch.randn(said.shape, generator=target))
        return F.mse_loss(said, wanted[0])

    return loss


def silenced(model: nn.Module, where: str, head: int) -> nn.Module:
    """The same model with a head's columns of the last map at zero: what taking it away must mean, by other means."""
    attention = find_attentions(model)[where]
    columns = slice(head * attention.value_head_dim, (head + 1) * attention.value_head_dim)
    attention.out.weight.data[:, columns] = 0
    return model


def emptied(last: nn.Module) -> None:
    """A last map that adds nothing at all."""
    for weight in last.parameters():
        weight.data.zero_()


@every
@pytest.mark.spec("S151")
def test_a_heads_delta_is_the_loss_of_a_model_whose_head_says_nothing(shape: Shape):
    loss, model = loss_of(shape), shape.model()
    whole, rows = loss(model), lens.ablate_all(model, loss)
    heads = [row for row in rows if row.head is not None]

    assert {row.where for row in heads} == ({"trunk.*.attn"} if shape is SHAPES["shared"] else set(shape.places))
    for row in heads:
        other = silenced(shape.model(), row.where.replace("*", "0"), row.head)
        assert row.delta == pytest.approx(float(loss(other) - whole), rel=1e-6, abs=1e-6)
        assert row.whole == pytest.approx(float(whole)) and math.isnan(row.error)
    assert any(abs(row.delta) > 1e-5 for row in heads)


@pytest.mark.parametrize("name", ["decoder", "encoder", "shared", "translator"])
@pytest.mark.spec("S151")
def test_a_layers_delta_is_the_loss_of_a_model_whose_layer_adds_nothing(name):
    shape = SHAPES[name]
    loss, model = loss_of(shape), shape.model()
    whole, rows = loss(model), [row for row in lens.ablate_all(model, loss) if row.head is None]

    parts = ["attn", "mlp"] * 4 if name != "translator" else ["attn", "mlp"] * 2 + ["attn", "cross", "mlp"] * 2
    assert [row.where.rpartition(".")[2] for row in rows] == parts[: {"shared": 2, "translator": None}.get(name, 4)]
    for row in rows:
        other = shape.model()
        trunk, layer, side = row.where.replace("*", "0").split(".")
        part = getattr(getattr(other, trunk).blocks[int(layer)], side)
        emptied(part.down if side == "mlp" else part.out)
        assert row.delta == pytest.approx(float(loss(other) - whole), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_the_mean_in_a_heads_place_is_that_of_all_real_tokens(name):
    shape = SHAPES[name]
    loss, model = loss_of(shape), shape.model()
    whole = loss(model)
    with regard.looking(model, "trunk.1.attn.result", "trunk.1.mlp.out") as seen:
        shape.ask(model)
    torch.manual_seed(1)
    real = ragged()[0] != 0 if name == "encoder" else torch.ones(B, 11).bool()

    for address, head in (("trunk.1.attn.result", 2), ("trunk.1.mlp.out", None)):
        x = seen[address] if head is None else seen[address][:, head]
        mean = torch.stack([x[b, i] for b in range(B) for i in range(11) if real[b, i]]).mean(0)
        with regard.looking(model, address, heads=head if head is None else [head],
                            edit=lambda name, x, mean=mean: mean.expand_as(x)):  # fmt: skip
            expected = float(loss(model) - whole)
        (row,) = [row for row in lens.ablate_all(model, loss, mean=True) if f"{row.where}." in address
                  and row.head == head]  # fmt: skip
        assert row.delta == pytest.approx(expected, abs=1e-6)


def test_a_table_costs_a_forward_for_each_row_and_one_more():
    model, calls, told = SHAPES["decoder"].model(), [], []
    rows = lens.ablate_all(
        model, lambda model: float(len(calls.append(1) or calls)), progress=lambda *n: told.append(n)
    )

    assert len(rows) == 2 * (3 + 1 + 1) and len(calls) == len(rows) + 1
    assert told == [(done, len(rows)) for done in range(1, len(rows) + 1)]


def test_a_model_in_training_is_measured_without_its_dropout_and_left_training():
    shape = SHAPES["decoder"]
    model = shape.model().train()
    for block in model.trunk.blocks:
        block.dropout = 0.5
    loss = loss_of(shape)

    assert lens.ablate_all(model, loss) == lens.ablate_all(model, loss)
    assert model.training and all(part.training for part in model.modules()) and not model.hooks


def test_what_is_raised_in_a_loss_leaves_the_model_as_it_was():
    model, calls = SHAPES["decoder"].model().train(), []

    def loss(model: nn.Module) -> float:
        calls.append(model(*ids()))
        if len(calls) == 4:
            raise RuntimeError("enough")
        return 1.0

    with pytest.raises(RuntimeError, match="enough"):
        lens.ablate_all(model, loss, mean=True)
    assert model.training and not model.hooks and not any(part._forward_pre_hooks for part in model.modules())


def test_losses_by_batch_give_each_delta_its_error():
    shape = SHAPES["decoder"]
    model, (rows,) = shape.model(), ids()

    def loss(model: nn.Module) -> Tensor:
        said = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        return said.view(B, -1).mean(1)  # each row a batch

    with torch.no_grad(), lens.ablate(model, {"trunk.0.attn": [1]}):
        apart = loss(model).double()
    apart -= loss(model).detach().double()
    row = lens.ablate_all(model, loss)[1]

    assert (row.where, row.head) == ("trunk.0.attn", 1)
    assert row.delta == pytest.approx(float(apart.mean()), abs=1e-6)
    spread = sum((float(x) - float(apart.mean())) ** 2 for x in apart) / (B - 1)
    assert row.error == pytest.approx(math.sqrt(spread / B), rel=1e-4)


@pytest.mark.parametrize(
    "told, why",
    [(torch.zeros(2, 3), "loss: one number or one for each batch"), (torch.zeros(0), "loss: one number or one")],
)
def test_a_loss_that_is_no_number_is_refused(told, why):
    with pytest.raises(C.ConfigError, match=why):
        lens.ablate_all(SHAPES["decoder"].model(), lambda model: told)


def test_a_loss_that_is_not_finite_is_told():
    with pytest.raises(C.RunError, match="loss: nan before anything was taken away"):
        lens.ablate_all(SHAPES["decoder"].model(), lambda model: math.nan)


def test_data_that_do_not_stay_the_same_are_refused():
    calls = []
    with pytest.raises(C.ConfigError, match="gave 3 numbers at first and then 2"):
        lens.ablate_all(SHAPES["decoder"].model(), lambda model: torch.ones(2 if calls else calls.append(1) or 3))


# ---------------------------------------------------------------- what a table is good for


def rows(*deltas: float, where: str = "trunk.0.attn") -> list[lens.AblationRow]:
    return [lens.AblationRow(where, head, 2.0 + delta, 2.0) for head, delta in enumerate(deltas)]


@pytest.mark.spec("S151")
def test_heads_that_do_nothing_are_listed():
    table = [*rows(0.5, 0.0019, -0.0019, 0.0021), lens.AblationRow("trunk.0.mlp", None, 2.0, 2.0)]

    assert lens.noise_threshold(table) == pytest.approx(0.002)  # a thousandth of the loss
    assert [row.head for row in lens.idle_heads(table)] == [1, 2]
    assert [row.head for row in lens.idle_heads(table, within=0.1)] == [1, 2, 3] and lens.idle_heads(
        table, within=0
    ) == []


def test_a_delta_that_the_batches_cannot_tell_from_nothing_is_nothing():
    deltas, errors = (0.5, 0.004, -0.006, 0.0), (0.1, 0.003, 0.005, 0.0)
    table = [lens.AblationRow("trunk.0.attn", head, 2.0 + delta, 2.0, error)
             for head, (delta, error) in enumerate(zip(deltas, errors, strict=True))]  # fmt: skip

    assert lens.noise_threshold(table) == pytest.approx(0.004)  # the median error
    assert [row.head for row in lens.idle_heads(table, 0.0041)] == [1, 3]
    assert (
        lens.noise_threshold(table[3:]) == pytest.approx(0.002) and lens.noise_threshold([]) == 0
    )  # never less than a thousandth


def test_a_head_without_a_voice_is_idle_in_a_real_table():
    shape = SHAPES["translator"]
    model = silenced(shape.model(), "trunk.1.cross", 2)
    found = lens.idle_heads(lens.ablate_all(model, loss_of(shape)), within=1e-9)

    assert [(row.where, row.head) for row in found] == [("trunk.1.cross", 2)]


def test_spared_are_the_heads_that_are_missed_least_and_one_stays():
    model = SHAPES["decoder"].model()
    table = rows(0.3, 0.1, 0.2) + rows(0.05, -0.1, 0.15, where="trunk.1.attn")

    assert lens.prunable_heads(model, table, count=1) == {"trunk.1.attn": [1]}
    assert lens.prunable_heads(model, table, count=3) == {"trunk.0.attn": [1], "trunk.1.attn": [0, 1]}
    assert lens.prunable_heads(model, table) == {"trunk.0.attn": [1, 2], "trunk.1.attn": [0, 1]}
    assert (
        lens.prunable_heads(model, table[:1]) == {"trunk.0.attn": [0]} and lens.prunable_heads(model, [], count=3) == {}
    )


def test_heads_that_share_keys_are_spared_together():
    model = SHAPES["grouped"].model()  # six heads, pairs of them share
    table = rows(0.1, 0.5, 0.2, 0.3, 0.0, 0.9)

    assert lens.prunable_heads(model, table, count=1) == {}
    assert lens.prunable_heads(model, table, count=2) == {"trunk.0.attn": [2, 3]}
    assert lens.prunable_heads(model, [table[0], *table[2:4]]) == {"trunk.0.attn": [2, 3]}
    lens.prune_heads(model, lens.prunable_heads(model, table))


def test_what_is_spared_can_be_pruned_in_a_shared_block():
    model = SHAPES["shared"].model()
    table = lens.ablate_all(model, loss_of(SHAPES["shared"]))
    small = lens.prune_heads(model, lens.prunable_heads(model, table, count=2))

    assert small.c.trunk.attention.heads == 1
