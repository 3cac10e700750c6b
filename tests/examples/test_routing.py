"""The routing figure and the gallery of masks."""

import pytest
import torch
from torch.testing import assert_close

from regard.config.masks import MASKS
from regard.core.kernels import AttentionArgs, AttentionSpec, make_plan
from regard.core.masks import CAUSAL, mask


def test_the_first_token_hears_a_tenth_three_tenths_and_six_tenths(example):
    """Only the weights of S018; the figure in the inspector is not built."""
    weights, brought = example.route()

    assert_close(weights[0], torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64))
    assert_close(weights, example.ROUTES)
    assert_close(brought, example.ROUTES @ example.CONTENT)


def test_routing_leaves_each_channel_alone(example):
    swapped = example.route(content=example.CONTENT.flip(-1))[1]

    assert_close(swapped, example.route()[1].flip(-1))


def test_the_causal_mask_shares_out_anew_what_the_future_had(example):
    weights, _ = example.route(who=CAUSAL)

    past = example.ROUTES.tril()
    assert_close(weights, past / past.sum(-1, keepdim=True))


@pytest.mark.spec("S020")
def test_the_causal_picture_of_four_tokens_is_the_slides():
    forbidden = torch.ones(4, 4).triu(diagonal=1)  # the slide marks what may not be seen; we mark what may
    slide = "\n".join(" ".join("·" if cell else "■" for cell in row) for row in forbidden.tolist())

    assert CAUSAL.picture(4) == slide == "■ · · ·\n■ ■ · ·\n■ ■ ■ ·\n■ ■ ■ ■"


@pytest.mark.spec("S027")
def test_the_gallery_shows_every_mask_there_is(example):
    shown = {text.partition("(")[0] for text in example.GALLERY}

    assert shown == set(MASKS)


@pytest.mark.spec("S027")
@pytest.mark.parametrize(
    "text, law",
    [
        ("window(2)", lambda q, k: abs(q - k) <= 2),
        ("strided(3)", lambda q, k: (q - k) % 3 == 0),
        ("dilated(2, 2)", lambda q, k: abs(q - k) in (0, 2, 4)),
        ("blocks(4)", lambda q, k: q // 4 == k // 4),
        ("global_tokens(2)", lambda q, k: q < 2 or k < 2),
        ("prefix(4)", lambda q, k: k < 4 or k <= q),
        ("padding", lambda q, k: k < 9),
        ("documents", lambda q, k: (q < 5) == (k < 5)),
        ("edges", lambda q, k: (q - k) % 12 in (0, 1, 11)),
        ("window2d(2)", lambda q, k: (q // 8, q % 4 // 2) == (k // 8, k % 4 // 2)),
        ("causal & (global_tokens(1) | window(2))", lambda q, k: k <= q and (k < 1 or q - k <= 2)),
        ("causal & (window(1) | strided(4))", lambda q, k: k <= q and (q - k <= 1 or (q - k) % 4 == 0)),
    ],
)
def test_each_picture_is_what_its_name_says(example, text, law):
    picture = example.gallery((text,))[text].splitlines()

    count = len(picture)
    drawn = "\n".join(" ".join("■" if law(q, k) else "·" for k in range(count)) for q in range(count))
    assert "\n".join(picture) == drawn


@pytest.mark.spec("S027")
@pytest.mark.parametrize(
    "text, layers, same",
    [
        ("window(2)", 3, "window(6)"),
        ("causal & window(2)", 3, "causal & window(6)"),
        ("strided(3)", 4, "strided(3)"),
        ("blocks(4)", 4, "blocks(4)"),
        ("global_tokens(1)", 2, "full"),
        ("dilated(2, 2)", 2, "dilated(4, 2)"),
    ],
)
def test_layers_reach_the_set_that_is_predicted(example, text, layers, same):
    assert example.reach(text, layers).equal(example.reach(same, 1))


@pytest.mark.spec("S027")
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("text", ["window(2)", "global_tokens(2)", "causal & (window(1) | strided(4))", "edges"])
def test_gradients_come_from_the_predicted_set_and_from_nowhere_else(example, text, layers):
    places = example.tokens(text)
    attend = make_plan("reference", AttentionSpec(mask=mask(text), q=places, k=places))

    def network(x):
        for _ in range(layers):
            x = x + attend.run(*[x[None, None]] * 3, AttentionArgs(1.0))[0, 0]
        return x.sum(-1)

    came = torch.autograd.functional.jacobian(network, torch.randn(12, 3, dtype=torch.float64)).abs().sum(-1) > 0
    assert came.equal(example.reach(text, layers))


@pytest.mark.slow
@pytest.mark.spec("S027")
def test_the_script_prints_the_routes_and_the_whole_gallery(example, printed):
    text = printed()

    assert "y1 = 0.10·x1 + 0.30·x2 + 0.60·x3" in text
    assert CAUSAL.picture(4) in text
    assert all(name in text for name in (*example.GALLERY, *example.DECODERS))
