"""ImageGPT (Chen et al. 2020): an autoregressive model of pixels as palette ids; causal, pre-norm RMS.

The palette and the shape of the images are in preprocessor_config.json; config.json has only the number of pixels, for
which the squarest grid is the default.
"""

import math
from typing import Any

from regard import config
from regard.hub.families.gpt_common import gpt_from_hf, gpt_to_hf, mlp_from_hf, mlp_to_hf, norm_eps_from_hf
from regard.hub.families.hf_config import HFConfig, body_without_head
from regard.hub.families.registry import Family, register_family


def to_hf(c: config.Transformer, context: int | None) -> dict[str, Any]:
    assert isinstance(c.embed, config.PixelEmbedding)
    return {**gpt_to_hf(c, c.embed.count), **mlp_to_hf(c), "tie_word_embeddings": False}


def from_hf(hf: HFConfig, head: config.Head) -> config.Transformer:
    hf = hf.default(n_embd=512, n_positions=1024, n_layer=24, n_head=8)
    norm = config.Norm(kind="rms", eps=norm_eps_from_hf(hf))
    trunk = gpt_from_hf(hf, mlp_from_hf(hf, "quick_gelu"), norm=norm)
    grid = squarest_grid(hf.get_int("n_positions"))
    embed = config.PixelEmbedding(palette=palette_size(hf), grid=grid, resize=config.ImageResize(mode="stretch"))
    return config.Transformer(embed=embed, trunk=trunk, head=head, init="gpt2")


def palette_size(hf: HFConfig) -> int:
    """The number of colours: the vocabulary without the start token."""
    words = hf.get_int("vocab_size", 513)
    if words < 2:
        raise hf.error("vocab_size", "expected at least one colour and the start token")
    return words - 1


def squarest_grid(pixels: int) -> tuple[int, int]:
    """Rows and columns, as near to each other as the number of pixels allows."""
    rows = next(rows for rows in range(math.isqrt(pixels), 0, -1) if pixels % rows == 0)
    return rows, pixels // rows


def pixel_lm_head(hf: HFConfig) -> config.Head:
    """Logits over the colours; the start token is never predicted."""
    hf.require("tie_word_embeddings", False)
    return config.LMHead(tied=False, vocab=palette_size(hf))


register_family(
    Family(
        "imagegpt",
        "ImageGPT",
        {"ImageGPTForCausalImageModeling": pixel_lm_head, "ImageGPTModel": body_without_head},
        to_hf,
        from_hf,
        "n_positions",
        "transformer.",
        body_prefix=("ImageGPTModel",),
        front_end=config.PixelEmbedding,
    )
)
