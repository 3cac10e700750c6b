"""Settings: what can be said, checked before anything is built. Imports nothing but the standard library.

`settings` are the frozen dataclasses, `expressions` the masks written as text, `reader` makes settings from TOML,
dotted overrides or nested dicts, and writes them back.
"""

from regard.config.expressions import MASKS
from regard.config.reader import ConfigError, make, read, schema, text, tree
from regard.config.settings import (
    ACTIVATIONS,
    INITS,
    KERNELS,
    MLP,
    NO_DROPOUT,
    Alibi,
    Attention,
    Bare,
    Buckets,
    Dropout,
    Embed,
    Encoder,
    Head,
    Learned,
    Norm,
    Nowhere,
    OneHot,
    Pooled,
    Position,
    Relative,
    Rotary,
    Shaw,
    Sinusoidal,
    Towers,
    Transformer,
    Trunk,
    Vocabulary,
)

__all__ = [
    "ACTIVATIONS", "INITS", "KERNELS", "MASKS", "MLP", "NO_DROPOUT", "Alibi", "Attention", "Bare", "Buckets",
    "ConfigError", "Dropout", "Embed", "Encoder", "Head", "Learned", "Norm", "Nowhere", "OneHot", "Pooled", "Position",
    "Relative", "Rotary", "Shaw", "Sinusoidal", "Towers", "Transformer", "Trunk", "Vocabulary", "make", "read",
    "schema", "text", "tree",
]  # fmt: skip
