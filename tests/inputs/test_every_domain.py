"""The table of what is a sequence: for each domain one front end, and all of them answer with the same thing."""

import pytest
import torch

import regard
from regard import config as C
from regard.core.model import FRONT_ENDS
from regard.core.tokens import Tokens

B, D = 2, 12
DOMAINS = {  # a front end, what it is given, and how many tokens that is
    "text": (C.TextEmbedding(vocab=31), torch.randint(31, (B, 7)), 7),
    "code": (C.TextEmbedding(vocab=256), torch.tensor([list(b"x += 1\n"), list(b"y = f(x")]), 7),
    "image": (C.PatchEmbedding(patch_size=4, image_size=8, channels=1, cls_tokens=False), torch.rand(B, 1, 8, 8), 4),
    "graph": (C.GraphEmbedding(num_tags=3), torch.randint(3, (B, 5)), 5),
    "audio": (
        C.AudioEmbedding(sample_rate=100, max_seconds=1.0, features=C.RawFrames(frame_size=20)),
        torch.randn(B, 100),
        5,
    ),
    "video": (
        C.VideoEmbedding(frames=4, image_size=8, channels=1, tubelet_size=2, patch_size=4),
        torch.rand(B, 4, 1, 8, 8),
        8,
    ),
    "series": (
        C.SeriesEmbedding(channels=1, length=16, patch_length=4, stride=4),
        torch.randn(B, 16, 1),
        5,
    ),  # the last row goes on
}
PADDED = ("text", "code", "graph", "audio")  # the others are as long as the setting says


@pytest.mark.spec("S078")
@pytest.mark.parametrize("domain", DOMAINS)
def test_every_domain_becomes_tokens_that_the_same_trunk_reads(domain):
    front, given, count = DOMAINS[domain]
    real = torch.arange(count) < torch.tensor([[count], [count - 2]])
    more = {"real": real} if domain in PADDED else {}
    trunk = C.Trunk(dim=D, depth=1, position=C.NoPosition(), attention=C.Attention(heads=3), mask="full")
    model = regard.Model(C.Transformer(embed=front, trunk=trunk, head=C.NoHead()))

    tokens = FRONT_ENDS[front.kind](front, D)(given, **more)

    assert isinstance(tokens, Tokens) and tokens.x.shape == (B, count, D)
    assert torch.equal(tokens.is_real, real) if domain in PADDED else tokens.is_real is None
    assert model(given, **more).shape == (B, count, D)
