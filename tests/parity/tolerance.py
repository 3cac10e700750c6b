"""How near is equal: absolute distances in fp32, stated once; and the noise without which equal means little."""

import copy

import torch
from torch import Tensor, nn

from regard.hub import name_table

NORM, OUTPUT, GRADIENT = 1e-6, 1e-5, 1e-4


def assert_near(ours: Tensor, theirs: Tensor, within: float = OUTPUT, name: str = "") -> None:
    torch.testing.assert_close(ours, theirs, atol=within, rtol=0, msg=lambda text: f"{name}: {text}" if name else text)


def assert_all_near(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float = GRADIENT) -> None:
    """Every tensor on their side has one of ours under the same name, and near."""
    assert theirs and theirs.keys() <= ours.keys(), f"ours lack {sorted(theirs.keys() - ours.keys())}"
    for name, tensor in theirs.items():
        assert_near(ours[name], tensor, within, name)


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Fresh models have bias 0 and gain 1, which hides a wrong mapping: move everything."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and "embed_positions" not in name and "inv_freq" not in name:
            tensor.add_(0.1 * torch.randn_like(tensor))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def renamed_gradients(model: nn.Module, table: str | list[name_table.NameRow]) -> dict[str, Tensor]:
    """Our gradients under their names: saved from a model that has gradients for weights."""
    twin = copy.deepcopy(model).requires_grad_(False)
    for place, weight in zip(twin.parameters(), model.parameters(), strict=True):
        place.copy_(weight.grad)
    return name_table.export_tensors(twin, table)
