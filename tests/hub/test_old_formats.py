"""Folders of every format that was ever written still open, and still mean the same.

A format is kept once, when it is new, by `PYTHONPATH=tests python -c "from hub.test_old_formats import keep; keep()"`;
then it is never written again. Beside each model lie the logits that it had on the day.
"""

from pathlib import Path

import pytest
import torch
from hub.builders import words
from parity.tolerance import assert_near, randomise

from regard import config as C
from regard.core.model import Transformer
from regard.files import manifest
from regard.hub import read_folder, weights, write_folder

FOLDER = Path(__file__).parent / "formats"
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 8]])
SMALL = dict(dim=8, depth=2, mlp=C.MLP(hidden=12, activation="gelu_tanh"))
FAMILY = C.Trunk(position=C.LearnedPosition(length=7), mask="causal", attention=C.Attention(heads=2), **SMALL)
NOBODYS = C.Trunk(
    position=C.AlibiPosition(), mask="causal & window(3)", attention=C.Attention(heads=4, kv_heads=2), **SMALL
)
BOTH_WAYS = C.Trunk(
    position=C.T5Bias(num_buckets=4, max_distance=9, bidirectional=True), mask="full & ~window(0)",
    norm_placement="post", share_layers=True, embed_dim=6, dropout=C.NO_DROPOUT,
    attention=C.Attention(heads=4, kv_heads=2, head_dim=3), **SMALL,
)  # fmt: skip
AFTER_AN_IMAGE = C.Trunk(
    position=C.RotaryPosition(fraction=0.5), mask="prefix(4)", attention=C.Attention(heads=2), **SMALL
)
PIXELS = C.PatchEmbedding(
    patch_size=2, image_size=4, channels=1, cls_tokens=False, resize=C.ImageResize(mode="stretch")
)
MODELS = {
    "gpt2": C.Transformer(embed=C.TextEmbedding(vocab=13), trunk=FAMILY),
    "regard": C.Transformer(embed=C.TextEmbedding(vocab=13), trunk=NOBODYS, head=C.LMHead(tied=False, bias=True)),
    # where format 1 had other names for settings, values and tensors
    "pretraining": C.Transformer(
        embed=C.TextEmbedding(vocab=13, pad_id=0), trunk=BOTH_WAYS, init="zero_init",
        head=C.PretrainingHead(lm=C.LMHead(tied=False, bias=True), pooling=C.PoolingHead(pooling="mean", out=2)),
    ),
    "multimodal": C.Transformer(
        embed=C.MultimodalEmbedding(prefix=PIXELS, text=C.TextEmbedding(vocab=13)), trunk=AFTER_AN_IMAGE
    ),
}  # fmt: skip


def logits_of(name: str, made: Transformer, kept: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    out = made(IDS, seen=kept["images"]) if name == "multimodal" else made(IDS)
    return {"logits": out} if isinstance(out, torch.Tensor) else {f"logits.{i}": each for i, each in enumerate(out)}


@torch.no_grad()
def keep() -> None:
    for name, c in MODELS.items():
        made = Transformer(c).eval()
        randomise(made)
        given = {"images": torch.rand(2, 1, 4, 4)} if name == "multimodal" else {}
        kept = given | logits_of(name, made, given)

        def more(place: Path, kept: dict[str, torch.Tensor] = kept) -> None:
            weights.save_tensors(place / "logits.safetensors", kept)

        write_folder.save_model(
            FOLDER / f"format-{read_folder.FOLDER_FORMAT}" / name, made, words(13), context=7, more=more
        )


def test_the_format_that_is_written_today_is_kept():
    assert (FOLDER / f"format-{read_folder.FOLDER_FORMAT}").is_dir()


@pytest.mark.parametrize("place", sorted(FOLDER.glob("format-*/*")), ids=lambda path: f"{path.parent.name} {path.name}")
def test_a_kept_folder_still_opens_and_means_the_same(place):
    found = read_folder.read_model_folder(place)
    made = Transformer(found.config).eval()
    read_folder.load_weights(made, found)

    assert manifest.verify_manifest(place) == ""
    assert (found.config, found.context) == (MODELS[place.name], 7)
    assert found.family == ("gpt2" if place.name == "gpt2" else None)
    kept = weights.load_tensors_lazy(place / "logits.safetensors")
    for name, logits in logits_of(place.name, made, kept).items():
        assert_near(logits, kept[name])
