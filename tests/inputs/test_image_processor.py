"""The sense of images: whatever holds one is framed alike, and a front end of every kind takes what it makes."""

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import regard.config as C
from regard.config.errors import ConfigError, DataError
from regard.core.model import Transformer
from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import find_records
from regard.inputs import palette
from regard.inputs.image_processor import resize_image
from regard.inputs.processors import build_processor


def test_an_image_of_the_right_size_is_left_alone():
    image = torch.randint(256, (3, 8, 6), dtype=torch.uint8)

    assert resize_image(image, 8, 6) is image


def test_a_wider_image_is_cut_at_its_middle():
    image = torch.zeros(1, 4, 10, dtype=torch.uint8)
    image[..., 3:7] = 200

    assert torch.equal(resize_image(image, 4, 4), torch.full((1, 4, 4), 200, dtype=torch.uint8))
    assert torch.equal(resize_image(image.mT, 4, 4), torch.full((1, 4, 4), 200, dtype=torch.uint8))


def test_resizing_is_about_what_pillow_does():
    image = torch.randint(256, (3, 40, 40), dtype=torch.uint8)
    theirs = Image.frombytes("RGB", (40, 40), bytes(image.movedim(0, -1).flatten().tolist()))
    theirs = list(theirs.resize((12, 12), Image.Resampling.BILINEAR).tobytes())
    theirs = torch.tensor(theirs).view(12, 12, 3).movedim(-1, 0)

    assert (resize_image(image, 12, 12) - theirs).abs().max() <= 1


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1), (1, 1), (3, 2)])
def test_odd_proportions_cost_no_memory(shape):
    assert resize_image(torch.full((3, *shape), 9, dtype=torch.uint8), 32, 32).unique().tolist() == [9]


def test_a_folder_of_pictures_is_classes_by_their_folders(tmp_path):
    for kind, shade in (("cat", 10), ("dog", 240)):
        (tmp_path / kind).mkdir()
        for number in range(2):
            Image.new("RGB", (9, 7), (shade, shade, shade)).save(tmp_path / kind / f"{number}.png")
    images = build_processor(C.PatchEmbedding(patch_size=2, image_size=6))
    records = [record for table in find_records((str(tmp_path),)) for record in table.records(BadRecordPolicy())]

    assert [record["label"] for record in records] == ["cat", "cat", "dog", "dog"]
    assert [int(images.example(record, "image")["image"].max()) for record in records] == [10, 10, 240, 240]


def test_a_path_in_a_file_is_found_from_the_file(tmp_path):
    Image.new("L", (6, 6), 77).save(tmp_path / "one.png")
    (tmp_path / "all.jsonl").write_text('{"image": "one.png"}\n{"image": "two.png"}\n')
    first, second = (
        record for table in find_records((str(tmp_path / "all.jsonl"),)) for record in table.records(BadRecordPolicy())
    )
    images = build_processor(C.PatchEmbedding(patch_size=2, image_size=6, channels=1))

    assert images.example(first, "image")["image"].unique().tolist() == [77]
    with pytest.raises(DataError, match="all.jsonl:2: .*two.png"):
        images.example(second, "image")


FRONTS = {
    "patches": C.PatchEmbedding(patch_size=2, image_size=8, channels=1),
    "stages": C.StageEmbedding(
        patches=C.PatchEmbedding(patch_size=2, image_size=8, channels=1, cls_tokens=False),
        trunks=(C.Trunk(dim=8, depth=1, position=C.SinusoidalPosition(axes=2), attention=C.Attention(heads=2)),)),
    "conv": C.ConvEmbedding(image_size=8, channels=1, widths=(4, 6), blocks_per_stage=1),
    "pixels": C.PixelEmbedding(palette=16, grid=(8, 8), channels=1, values="levels"),
    "masked_conv": C.MaskedConvEmbedding(palette=16, grid=(8, 8), channels=1, values="levels", width=8, blocks=1),
}  # fmt: skip


@pytest.mark.parametrize("kind", FRONTS)
def test_every_front_end_takes_the_batch_of_its_sense(kind):
    front = FRONTS[kind]
    images = build_processor(front)
    examples = [images.example(Record({"image": torch.randint(256, (9, 11))}, "here:1"), "image") for _ in range(3)]
    trunk = C.Trunk(dim=12, depth=1, mask="causal", position=C.NoPosition(), attention=C.Attention(heads=3))
    model = Transformer(C.Transformer(embed=front, trunk=trunk, head=C.NoHead()))

    assert model(**images.collate(examples, None)).shape == (3, images.length(examples[0]), 12)
    assert images.length(examples[0]) == front.count


def test_how_images_are_seen_does_not_change_what_is_kept():
    one, two = (
        C.PatchEmbedding(patch_size=4, image_size=8),
        C.PatchEmbedding(patch_size=2, image_size=8, mean=(0.1,), cls_tokens=False),
    )

    assert (
        build_processor(one).about
        == build_processor(two).about
        != build_processor(C.PatchEmbedding(patch_size=4, image_size=8, channels=1)).about
    )


def test_a_palette_that_is_not_known_yet_is_asked_for():
    images = build_processor(C.PixelEmbedding(palette=4, grid=(2, 2)))
    with pytest.raises(ConfigError, match="model.embed.colors: the 4 colours are not set"):
        images.collate([{"image": torch.zeros(3, 2, 2, dtype=torch.uint8)}], None)
    known = build_processor(C.PixelEmbedding(palette=2, grid=(2, 2), colors=("000000", "ffffff")))
    assert known.collate([{"image": torch.full((3, 2, 2), 200, dtype=torch.uint8)}], None)["ids"].unique().tolist() == [
        1
    ]
    assert palette.palette_table(known.front).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FRONTS)
def test_every_front_end_compiles_whole(kind):
    front = FRONTS[kind]
    images = build_processor(front)
    batch = images.collate([images.example(Record({"image": torch.randint(256, (8, 8))}, "here:1"), "image")] * 2, None)
    trunk = C.Trunk(dim=12, depth=1, mask="causal", position=C.NoPosition(), attention=C.Attention(heads=3))
    model = Transformer(C.Transformer(embed=front, trunk=trunk, head=C.NoHead())).eval()
    torch.compiler.reset()

    assert_close(torch.compile(model, fullgraph=True, backend="eager")(**batch), model(**batch))
