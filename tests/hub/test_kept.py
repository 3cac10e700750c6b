"""Folders of every format that was ever written still open, and still mean the same.

A format is kept once, when it is new, by `PYTHONPATH=tests python -c "from hub.test_kept import keep; keep()"`;
then it is never written again. Beside each model lie the logits that it had on the day.
"""

from pathlib import Path

import pytest
import torch
from hub.made import words
from parity.near import assert_near, randomise

from regard import config as C
from regard.core.model import Transformer
from regard.files import manifest
from regard.hub import read_folder, weights, write_folder

KEPT = Path(__file__).parent / "kept"
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 8]])
SMALL = dict(dim=8, depth=2, mlp=C.MLP(hidden=12, activation="gelu_tanh"))
FAMILY = C.Trunk(position=C.LearnedPosition(length=7), mask="causal", attention=C.Attention(heads=2), **SMALL)
NOBODYS = C.Trunk(
    position=C.AlibiPosition(), mask="causal & window(3)", attention=C.Attention(heads=4, groups=2), **SMALL
)
MODELS = {
    "gpt2": C.Transformer(embed=C.TextEmbedding(vocab=13), trunk=FAMILY),
    "regard": C.Transformer(embed=C.TextEmbedding(vocab=13), trunk=NOBODYS, head=C.LMHead(tied=False, bias=True)),
}


@torch.no_grad()
def keep() -> None:
    for name, c in MODELS.items():
        made = Transformer(c).eval()
        randomise(made)
        logits = {"logits": made(IDS)}

        def more(place: Path, logits: dict[str, torch.Tensor] = logits) -> None:
            weights.save_tensors(place / "logits.safetensors", logits)

        write_folder.save_model(
            KEPT / f"format-{read_folder.FOLDER_FORMAT}" / name, made, words(13), context=7, more=more
        )


def test_the_format_that_is_written_today_is_kept():
    assert (KEPT / f"format-{read_folder.FOLDER_FORMAT}").is_dir()


@pytest.mark.parametrize("place", sorted(KEPT.glob("format-*/*")), ids=lambda path: f"{path.parent.name} {path.name}")
def test_a_kept_folder_still_opens_and_means_the_same(place):
    found = read_folder.read_model_folder(place)
    made = Transformer(found.config).eval()
    read_folder.load_weights(made, found)

    assert manifest.verify_manifest(place) == ""
    assert (found.config, found.context) == (MODELS[place.name], 7)
    assert found.family == (None if place.name == "regard" else place.name)
    assert_near(made(IDS), weights.load_tensors_lazy(place / "logits.safetensors")["logits"])
