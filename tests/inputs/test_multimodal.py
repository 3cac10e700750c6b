"""Two kinds of data in one sequence: each as its own front end makes it, and the mask says who looks at whom."""

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import config as C

V, D, SEEN, N = 23, 12, 9, 5


def mixed(mask="full", prefix=None, **text):
    made = C.Transformer(
        embed=C.MultimodalEmbedding(
            prefix=prefix or C.PatchEmbedding(patch_size=4, image_size=12, cls_tokens=False),
            text=C.TextEmbedding(vocab=V, **text),
        ),
        trunk=C.Trunk(
            dim=D,
            depth=2,
            attention=C.Attention(heads=3),
            mask=mask,
            dropout=C.NO_DROPOUT,
            position=C.LearnedPosition(length=SEEN + 1 + N),
            mlp=C.MLP(hidden=20),
        ),
        head=C.LMHead(),
    )
    return regard.build(made).eval()


def pair(rows=2, words=N):
    return torch.randn(rows, 3, 12, 12), torch.randint(1, V, (rows, words))


@pytest.mark.spec("S083", "S137")
def test_196_tokens_of_a_picture_and_20_of_a_text_are_216_that_look_at_each_other():
    model = regard.build(
        C.Transformer(
            embed=C.MultimodalEmbedding(
                prefix=C.PatchEmbedding(patch_size=16, image_size=224, cls_tokens=False), text=C.TextEmbedding(vocab=V)
            ),
            trunk=C.Trunk(dim=512, depth=1, attention=C.Attention(heads=8), position=C.LearnedPosition(length=216)),
        )
    ).eval()
    images, ids = torch.randn(1, 3, 224, 224), torch.randint(V, (1, 20))
    with regard.looking(model, "trunk.embed", "trunk.0.attn.pattern") as seen:
        model(ids, seen=images)

    assert seen["trunk.embed"].shape == (1, 216, 512)
    look = seen["trunk.0.attn.pattern"]
    assert (look[..., :196, 196:] > 0).all(), "the picture looks at the text"
    assert (look[..., 196:, :196] > 0).all(), "and the text at the picture"


def test_tokens_are_those_of_the_two_front_ends_side_by_side():
    front = mixed(segments=2).embed
    images, ids = pair()
    segment = torch.tensor([[0, 0, 1, 1, 1]]).expand(2, N)
    made, first, second = (
        front(ids, seen=images, segment=segment),
        front.prefix(images),
        front.text(ids, segment=segment),
    )

    kinds = front.kinds.weight
    assert_close(made.x, torch.cat([first.x + kinds[0], second.x + kinds[1]], 1))
    assert made.order.tolist() == [list(range(SEEN + N))] * 2
    assert made.segment.tolist() == [[0] * SEEN + [1] * N] * 2
    assert made.is_plain and made.is_real is None and made.coords is None


def test_places_run_on_over_padding_on_either_side_of_the_text():
    front = mixed().embed
    images, ids = pair()
    real = torch.tensor([[True, True, True, False, False], [False, True, True, True, True]])
    made = front(ids, seen=images, real=real)

    assert made.is_real.tolist() == [[True] * SEEN + row for row in real.tolist()]
    assert made.order[0, SEEN : SEEN + 3].tolist() == [9, 10, 11]
    assert made.order[1, SEEN + 1 :].tolist() == [9, 10, 11, 12]
    assert not made.is_plain


def test_what_is_no_token_of_the_text_changes_nothing():
    model, (images, ids) = mixed(), pair()
    real = torch.tensor([[True, True, True, False, False]] * 2)
    other = ids.where(real, (ids + 1) % V)

    assert_close(model(ids, seen=images, real=real)[:, : SEEN + 3], model(other, seen=images, real=real)[:, : SEEN + 3])
    assert_close(model(ids, seen=images, real=real)[:, : SEEN + 3], model(ids[:, :3], seen=images))


def test_behind_a_prefix_the_picture_sees_itself_alone_and_words_what_came_before():
    model, (images, ids) = mixed(f"prefix({SEEN})"), pair()
    said = model(ids, seen=images)
    later = torch.cat([ids[:, :2], (ids[:, 2:] + 1) % V], 1)
    corner = images.clone()
    corner[:, :, -4:, -4:] += 1  # the last patch

    told = model(later, seen=images)
    assert_close(told[:, : SEEN + 2], said[:, : SEEN + 2])
    assert not torch.allclose(told[:, SEEN + 2 :], said[:, SEEN + 2 :])
    assert not torch.allclose(model(ids, seen=corner)[:, 0], said[:, 0]), "the first patch sees the last one"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_text_goes_on_from_a_cache_that_has_seen_the_picture(rows):
    model, (images, ids) = mixed(f"prefix({SEEN})"), pair(rows)
    whole, cache = model(ids, seen=images), model.cache(rows, SEEN + N)
    first = model(ids[:, :2], seen=images, cache=cache)
    rest = [model(ids[:, place : place + 1], cache=cache) for place in range(2, N)]

    assert_close(torch.cat([first, *rest], 1), whole)


def test_a_sound_before_a_text_may_be_padded_too():
    front = C.AudioEmbedding(sample_rate=100, max_seconds=2.0, features=C.RawFrames(frame_size=20))
    model = mixed(prefix=front)
    samples, real = torch.randn(2, 160), torch.arange(8) < torch.tensor([[8], [3]])
    tokens = model.embed(pair()[1], seen=samples, seen_real=real)

    assert tokens.is_real.sum(-1).tolist() == [8 + N, 3 + N]
    assert tokens.order[1, -N:].tolist() == [3, 4, 5, 6, 7], "the text begins where the sound ends"


@pytest.mark.parametrize("given, sentence", [
    ({}, "seen: a multimodal model reads it before the text"),
    ({"seen": torch.zeros(3, 3, 12, 12)}, "seen: 3 rows, and there are 2 texts"),
    ({"seen": torch.zeros(2, 3, 12, 12), "document": torch.zeros(2, N)}, "document: the text after the prefix"),
])  # fmt: skip
def test_what_cannot_be_joined_is_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        mixed()(pair()[1], **given)


def test_a_text_is_not_seen_before_itself():
    with pytest.raises(ValueError, match="prefix.kind: 'text' is what comes after it"):
        C.MultimodalEmbedding(prefix=C.TextEmbedding(vocab=V))
