"""Hierarchical stages with patch merging (Swin: Liu et al. 2021): each stage has a quarter of the previous tokens.

patches ─ trunk ─ merge ─ trunk ─ merge ─ trunk ─ merge ─►  the model's own trunk
56 x 56           28 x 28         14 x 14          7 x 7
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard import config
from regard.core.hooks import HookContext
from regard.core.layers import Norm
from regard.core.model import FRONT_ENDS, Trunk
from regard.core.tokens import Tokens, grid_tokens
from regard.inputs.cost import FrontEndCost, TrunkCost, linear_flops
from regard.inputs.image import PatchEmbedding


class PatchMerging(nn.Module):
    """Patch merging: every 2 x 2 tokens become one: concatenated, normalised, projected to the next width."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.norm = Norm(config.Norm(), 4 * width)
        self.map = nn.Linear(4 * width, wider, bias=False)

    def forward(self, tokens: Tokens) -> Tokens:
        assert tokens.grid is not None
        rows, columns = tokens.grid
        x = tokens.x.unflatten(1, (rows, columns))
        # rows before columns: the order in which the published weights read the four
        four = torch.cat([x[:, down::2, across::2] for across in (0, 1) for down in (0, 1)], -1)
        return grid_tokens(self.map(self.norm(four.flatten(1, 2))), (rows // 2, columns // 2))


class StageEmbedding(nn.Module):
    """Staged front end: images to the Tokens of the last stage, through the trunks before it."""

    def __init__(self, c: config.StageEmbedding, width: int) -> None:
        super().__init__()
        self.c = c
        self.trunks: list[Trunk] = nn.ModuleList(Trunk(each) for each in c.trunks)  # type: ignore[assignment]
        self.patches = PatchEmbedding(c.patches, self.trunks[0].incoming)
        widths = [*(trunk.incoming for trunk in self.trunks[1:]), width]
        self.merges = nn.ModuleList(PatchMerging(c.dim, wider) for c, wider in zip(c.trunks, widths, strict=True))

    def forward(self, images: Tensor, *, watch: HookContext | None = None, **given: Tensor) -> Tokens:
        tokens = self.patches(images, **given)
        for place, (trunk, merge) in enumerate(zip(self.trunks, self.merges, strict=True)):
            tokens = merge(trunk(tokens, watch=None if watch is None else watch.at(str(place))))
        return tokens  # type: ignore[no-any-return]

    def cost(self, context: int, trunk_cost: TrunkCost) -> FrontEndCost:
        made = self.patches.cost(context, trunk_cost)
        found, tokens, grid = made.parts, made.tokens, made.grid
        for trunk, merge in zip(self.trunks, self.merges, strict=True):
            assert grid is not None
            found += trunk_cost(trunk, tokens, grid)
            tokens, grid = tokens // 4, (grid[0] // 2, grid[1] // 2)
            found["embedding"] += linear_flops(merge, tokens)
        return FrontEndCost(found, tokens, grid)

    def addresses(self) -> Iterator[str]:
        for place, trunk in enumerate(self.trunks):
            yield from (f"{place}.{step}" for step in trunk.addresses())


FRONT_ENDS["stages"] = StageEmbedding
