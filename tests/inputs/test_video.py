"""Films as tokens: blocks in time and space, each where it stands; and motion can be told."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import regard
from regard import config as C
from regard.data.records import Record
from regard.inputs.video import VideoProcessor, tubelets

FILM = C.VideoEmbedding(frames=6, image_size=12, channels=3, tubelet_size=2, patch_size=4)


def model(c=FILM, position=None, out=4):
    trunk = C.Trunk(dim=24, depth=2, attention=C.Attention(heads=3), dropout=C.NO_DROPOUT,
                    position=position or C.SinusoidalPosition(axes=3))  # fmt: skip
    torch.manual_seed(0)
    return regard.build(C.Transformer(embed=c, trunk=trunk, head=C.PoolingHead(pooling="mean", out=out))).eval()


@pytest.mark.spec("S082")
def test_tokens_are_the_steps_of_a_convolution_in_time_and_space():
    front, films = model().embed, torch.randn(2, 6, 3, 12, 12)
    weight = front.map.weight.view(24, 3, 2, 4, 4)
    theirs = torch.nn.functional.conv3d(films.transpose(1, 2), weight, front.map.bias, stride=(2, 4, 4))
    tokens = front(films)

    assert_close(tokens.x, theirs.flatten(2).mT, atol=1e-5, rtol=1e-5)
    assert tokens.grid == FILM.grid == (3, 3, 3) and tokens.count == FILM.count == 27
    assert tokens.coords[0, [0, 1, 3, 9, 26]].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [2, 2, 2]]


def test_no_pixel_is_lost_or_counted_twice():
    films = torch.arange(6 * 3 * 12 * 12).view(1, 6, 3, 12, 12)

    assert tubelets(films, FILM).flatten().sort().values.tolist() == films.flatten().tolist()


@pytest.mark.parametrize(
    "position",
    [C.SinusoidalPosition(axes=3), C.LearnedPosition(length=(3, 3, 3)), C.RelativeBias(max_distance=2, axes=3)],
)
def test_positions_on_three_axes_tell_time_from_space(position):
    told, films = model(position=position), torch.randn(1, 6, 3, 12, 12)
    for place in told.trunk.position.parameters():
        torch.nn.init.normal_(place)
    backwards = films.unflatten(1, (3, 2)).flip(1).flatten(1, 2)  # the same blocks at other times

    assert not torch.allclose(told(films), told(backwards), atol=1e-4)
    nowhere = model(position=C.NoPosition())
    assert_close(nowhere(films), nowhere(backwards), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make, name", [
    (lambda: C.VideoEmbedding(frames=5, tubelet_size=2), "tubelet_size"),
    (lambda: C.VideoEmbedding(image_size=65, patch_size=16), "patch_size"),
    (lambda: C.VideoEmbedding(channels=2), "channels"),
])  # fmt: skip
def test_blocks_that_do_not_fill_a_film_are_refused(make, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        make()


def test_a_film_of_another_size_is_refused_by_its_setting():
    with pytest.raises(ValueError, match=r"\(batch, 6, 3, 12, 12\) by embed.frames"):
        model()(torch.zeros(1, 5, 3, 12, 12))


# ---------------------------------------------------------------- films of records


def shot(count=7, side=12):
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_a_folder_of_frames_an_npz_and_an_array_are_the_same_film(tmp_path):
    film, sense = shot(), VideoProcessor(FILM)
    (tmp_path / "frames").mkdir()
    for place, frame in enumerate(film):
        Image.fromarray(frame).save(tmp_path / "frames" / f"{place:03d}.png")
    np.savez(tmp_path / "film.npz", film=film)
    where = f"{tmp_path / 'films.jsonl'}:1"
    found = [sense.example(Record({"film": each}, where), "film")["film"] for each in ("frames", "film.npz", film)]

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert torch.equal(found[0], torch.from_numpy(film[[0, 1, 2, 3, 4, 5]]).movedim(-1, 1))  # evenly, 6 of 7
    batch = sense.collate([{"film": found[0]}], None)["ids"]
    assert batch.shape == (1, 6, 3, 12, 12) and float(batch.min()) >= -1 and float(batch.max()) <= 1


def test_frames_of_another_size_are_cut_to_a_square_and_resized():
    film = np.full((6, 20, 30, 3), 77, dtype=np.uint8)
    film[:, :, :5] = 255  # left of the middle square
    made = VideoProcessor(FILM).example(Record({"film": film}, "a:1"), "film")["film"]

    assert made.shape == (6, 3, 12, 12) and bool((made == 77).all())


BAD = {
    "too few frames": (shot(5), "5 frames, expected 6 or more by model.embed.frames"),
    "no folder": ("nowhere", "no folder of frames and no .npz file 'nowhere'"),
    "a number": (7, "expected a folder of frames"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_film_is_one_sentence_with_its_place(name):
    given, says = BAD[name]

    with pytest.raises(C.DataError, match=f"^list.jsonl:7: column 'film'.*{says}"):
        VideoProcessor(FILM).example(Record({"film": given}, "list.jsonl:7"), "film")


def moving(count, seed):
    """A dot that goes left, right, up or down from anywhere, round the edges: no frame alone tells where to."""
    luck = torch.Generator().manual_seed(seed)
    which = torch.arange(count) % 4
    step = torch.tensor([[0, -1], [0, 1], [-1, 0], [1, 0]])[which]
    start = torch.randint(8, (count, 2), generator=luck)
    at = (start[:, None] + torch.arange(6)[:, None] * step[:, None]) % 8  # (B, T, 2)
    films = torch.zeros(count, 6, 1, 8, 8)
    films[torch.arange(count)[:, None], torch.arange(6), 0, at[..., 0], at[..., 1]] = 1.0
    return films, which


@pytest.mark.slow
@pytest.mark.spec("S082")
def test_a_small_model_learns_which_way_a_dot_moves():
    learner = model(C.VideoEmbedding(frames=6, image_size=8, channels=1, tubelet_size=2, patch_size=4)).train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=5e-3)
    for step in range(200):
        films, which = moving(64, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(learner(films), which).backward()
        optimizer.step()
    films, which = moving(200, 10_000)

    assert float((learner.eval()(films).argmax(-1) == which).float().mean()) >= 0.9
