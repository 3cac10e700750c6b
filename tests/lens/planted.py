"""Models with weights set by hand: what they read is known, so an explanation can be right or wrong."""

import torch

from regard import config as C
from regard.inference.model import Model

DIM, VOCAB = 8, 9
KEY, GIVEN, WRITTEN = 0, 1, 5  # channels: what attention compares, what it gathers, where it writes


def straight(pooling=None, depth=1, heads=1):
    """A linear model: sublayers that add nothing, norms of an eps so large that they only scale, and no positions."""
    norm = C.Norm(kind="rms", eps=1e8)
    trunk = C.Trunk(dim=DIM, depth=depth, position=C.NoPosition(), norm=norm, final_norm=False, dropout=C.NO_DROPOUT,
                    attention=C.Attention(heads=heads, scale=1.0), mlp=C.MLP(hidden=3),
                    mask="full" if pooling else "causal")  # fmt: skip
    head = C.PoolingHead(pooling=pooling, out=2) if pooling else C.LMHead(tied=False, vocab=2)
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk, head=head)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1e4 if "norm" in name else 0.0)  # 1e4 · x / sqrt(mean square + 1e8) is x
        (model.head.out if pooling else model.head).weight[0, WRITTEN] = 1.0
    return model


def attend(model, layer, head, sharpness, gathers=True):
    """Let a head look where channel KEY is large, whatever asks, and write channel GIVEN of it to WRITTEN."""
    attn = model.trunk.blocks[layer].attn
    first = head * attn.head_dim
    parts = attn.qkv.named_parts()
    with torch.no_grad():
        parts["q"][1][first] = 1.0
        parts["k"][0][first, KEY] = sharpness
        if gathers:
            parts["v"][0][first, GIVEN] = 1.0
            attn.out.weight[WRITTEN, first] = 1.0


def planted(pooling=None):
    """Two layers that look at token 1 alone; the first writes what the model answers with."""
    model = straight(pooling, depth=2)
    attend(model, 0, 0, 60.0)
    attend(model, 1, 0, 60.0, gathers=False)
    with torch.no_grad():
        model.embed.tokens.weight[:, 3].normal_()  # words differ, where nothing reads
        model.embed.tokens.weight[1, [KEY, GIVEN]] = 1.0
    return model
