"""DDP and FSDP2 wrappers: a model replicated with averaged gradients (DDP), or sharded (FSDP2)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.config.errors import ConfigError
from regard.core.model import Trunk
from regard.training.parallel.ranks import ProcessRanks

Sums = Callable[[nn.Module, Any], dict[str, Tensor]]


class ObjectiveModule(nn.Module):
    """An objective applied to a model, as a module: objectives use parts of the model, so DDP wraps both together."""

    def __init__(self, model: nn.Module, sums: Sums) -> None:
        super().__init__()
        self.model, self.sums = model, sums

    def forward(self, batch: Any) -> dict[str, Tensor]:
        return self.sums(self.model, batch)


def wrap_ddp(model: nn.Module, sums: Sums, idle: bool) -> DistributedDataParallel:
    """Wrap a model in DDP; `idle`: some weights get no gradient, which DDP must then detect in every step."""
    return DistributedDataParallel(ObjectiveModule(model, sums), find_unused_parameters=idle)


def has_unused_parameters(model: nn.Module, sums: dict[str, Tensor]) -> bool:
    """Whether the losses leave some weights without a gradient."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    loss = torch.stack(list(sums.values())).sum()
    return any(grad is None for grad in torch.autograd.grad(loss, weights, allow_unused=True))


def wrap_fsdp(model: nn.Module, ranks: ProcessRanks, device: torch.device) -> None:
    """Shard every weight over the ranks (FSDP), block by block on the device, so that no rank holds the whole model."""
    from torch.distributed.device_mesh import init_device_mesh  # importing it takes as long as half of torch
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if any(isinstance(part, nn.RNNBase) for part in model.modules()):
        raise ConfigError("train.parallel: 'fsdp' shards every weight, which torch's recurrent "
                          "layers cannot run on; choose ddp")  # fmt: skip
    mesh = init_device_mesh(device.type, (ranks.size,))
    for part in (*model_blocks(model), model):
        fully_shard(part, mesh=mesh)
    for part in model.modules():
        if isinstance(part, FSDPModule):  # an evaluation would allocate buffers unfit for training
            part.unshard()
            part.reshard()


def model_blocks(model: nn.Module) -> list[nn.Module]:
    return [block for part in model.modules() if isinstance(part, Trunk) for block in part.blocks]


def reshard(model: nn.Module) -> None:
    """Free gathered weights after a forward without backward: they would be stale once the shards change."""
    reshard: Callable[[], object] = getattr(model, "reshard", lambda: None)
    reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """The value of a sharded tensor over all ranks; other tensors unchanged."""
    over_all: Callable[[], Tensor] = getattr(tensor, "full_tensor", lambda: tensor)
    return over_all()
