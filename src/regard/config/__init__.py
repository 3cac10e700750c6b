"""Settings: what can be said, checked before anything is built. Imports nothing but the standard library.

`settings` are the frozen dataclasses of a model, `recipe` those of a run, `expressions` the masks written as text;
`reader` makes settings from TOML, dotted overrides or nested dicts, and writes them back.
"""

from regard.config.errors import DataError, RunError
from regard.config.expressions import MASKS
from regard.config.reader import ConfigError, make, read, schema, text, tree
from regard.config.recipe import (
    MAY_CHANGE,
    PACKAGED,
    PRESETS,
    AdamW,
    Bytes,
    Characters,
    Data,
    Muon,
    Noam,
    Pieces,
    Recipe,
    Report,
    Sampling,
    Saved,
    Slope,
    Text,
    Train,
    Trapezoid,
    Words,
)
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
from regard.config.version import VERSION

__all__ = [
    "ACTIVATIONS", "INITS", "KERNELS", "MASKS", "MAY_CHANGE", "MLP", "NO_DROPOUT", "PACKAGED", "PRESETS", "VERSION",
    "AdamW", "Alibi", "Attention", "Bare", "Buckets", "Bytes", "Characters", "ConfigError", "Data", "DataError",
    "Dropout", "Embed", "Encoder", "Head", "Learned", "Muon", "Noam", "Norm", "Nowhere", "OneHot", "Pieces", "Pooled",
    "Position", "Recipe", "Relative", "Report", "Rotary", "RunError", "Sampling", "Saved", "Shaw", "Sinusoidal",
    "Slope", "Text", "Towers", "Train", "Transformer", "Trapezoid", "Trunk", "Vocabulary", "Words", "make", "read",
    "schema", "text", "tree",
]  # fmt: skip
