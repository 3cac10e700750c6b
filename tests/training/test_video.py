"""Films and series from records to a run, by the classifier that every sense has."""

import json

import numpy as np
import pytest
import torch

from regard import config as C
from regard.training.loop import train_steps
from regard.training.run import Run

EMBEDS = {
    "film": C.VideoEmbedding(frames=3, image_size=8, channels=1, tubelet_size=1, patch_size=4),
    "series": C.SeriesEmbedding(channels=2, length=12, patch_length=4, stride=4, channel_mixing="mixed"),
}


def records(kind, folder):
    """Things that grow or fade, a line each; films beside the table, series in it."""
    luck = np.random.default_rng(0)
    for place in range(24):
        loud = np.linspace(0, 1, 3 if kind == "film" else 12)[:: 1 if place % 2 else -1]
        if kind == "film":
            name = f"{place}.npz"
            np.savez(folder / name, film=(luck.random((3, 8, 8)) * 255 * loud[:, None, None]).astype(np.uint8))
            yield {"film": name, "label": ("fades", "grows")[place % 2]}
        else:
            yield {"series": (luck.random((12, 2)) * loud[:, None]).tolist(), "label": ("fades", "grows")[place % 2]}


@pytest.mark.parametrize("kind", EMBEDS)
def test_a_recipe_trains_on_records_of_this_kind(kind, tmp_path):
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, records(kind, tmp_path))))
    axes = 3 if kind == "film" else 1
    run = Run.from_recipe(C.Recipe(
        data=C.Data(source=str(tmp_path / "all.jsonl"), validation=0.2), task=C.Classification(),
        model=C.Transformer(embed=EMBEDS[kind], head=C.PoolingHead(pooling="mean"), trunk=C.Trunk(
            dim=24, depth=1, attention=C.Attention(heads=2), position=C.SinusoidalPosition(axes=axes))),
        train=C.Train(steps=3, batch_size=5, device="cpu"),
    ))  # fmt: skip
    losses = [float(step.loss) for step in train_steps(run)]

    assert run.recipe.task.input == kind and run.recipe.task.classes == ("fades", "grows")
    assert run.recipe.model.head.out == 2 and len(losses) == 3 and torch.tensor(losses).isfinite().all()
    assert run.data.batch(0)["tokens"].tolist() == [EMBEDS[kind].count] * 5
