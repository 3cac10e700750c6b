"""Settings: what can be said, checked before anything is built. Imports nothing but the standard library.

`positions`, `trunk`, `fronts`, `heads` and `models` hold the frozen dataclasses of a model, `tasks` those of what is
asked of it, `recipe` those of a run, `expressions` the masks written as text; `reader` makes settings from TOML,
dotted overrides or nested dicts, and writes them back.
"""

from regard.config.augment import Augment
from regard.config.errors import DataError, RunError
from regard.config.expressions import MASKS
from regard.config.films import Film
from regard.config.fronts import Chunks, Embed, Front, Patches, Pixels, Stages
from regard.config.graphs import Graph, Neighbours, Spatial
from regard.config.heads import Bare, Both, Each, Head, Pooled, Vocabulary
from regard.config.images import Convolutions, Frame, MaskedPixels
from regard.config.lora import LoRA
from regard.config.mixed import Mixed
from regard.config.mixers import Attend, Connect, Convolve, Mixer, Nothing, Recur, Space
from regard.config.models import INITS, Encoder, Transformer
from regard.config.near import Near
from regard.config.positions import (
    Alibi,
    Buckets,
    Learned,
    Nowhere,
    OneHot,
    Position,
    Relative,
    Rotary,
    Shaw,
    Sinusoidal,
)
from regard.config.reader import ConfigError, enter, make, read, schema, text, tree
from regard.config.recipe import (
    MAY_CHANGE,
    PACKAGED,
    PRESETS,
    Bytes,
    Characters,
    Data,
    Pieces,
    Recipe,
    Report,
    Saved,
    Specials,
    Text,
    Words,
)
from regard.config.recurrent import Recurrent
from regard.config.sampling import Nudge, Sampling
from regard.config.search import Search
from regard.config.series import Horizon, Series
from regard.config.sounds import Convolved, Frames, Mel, Rates, Sound, Vary
from regard.config.tasks import (
    Answer,
    Classify,
    Infill,
    Masked,
    NextToken,
    Prefix,
    Regress,
    Spans,
    Tag,
    Task,
    Translate,
)
from regard.config.tasks_forecast import Forecast
from regard.config.tasks_mixtures import Caption, Contrast, Draw
from regard.config.tasks_nodes import Nodes
from regard.config.tasks_pixels import NextPixel
from regard.config.towers import Model, Towers
from regard.config.train import Adafactor, AdamW, Guard, Muon, Noam, Optimizer, Schedule, Slope, Train, Trapezoid
from regard.config.trunk import ACTIVATIONS, KERNELS, MLP, NO_DROPOUT, Attention, Dropout, Norm, Trunk
from regard.config.version import VERSION

__all__ = [
    "ACTIVATIONS", "INITS", "KERNELS", "MASKS", "MAY_CHANGE", "MLP", "NO_DROPOUT", "PACKAGED", "PRESETS", "VERSION",
    "Adafactor", "AdamW", "Alibi", "Answer", "Attend", "Attention", "Bare", "Both", "Buckets", "Bytes", "Characters",
    "Classify", "ConfigError", "Data", "DataError", "Dropout", "Each", "Embed", "Encoder", "Front", "Guard", "Head",
    "Infill", "Learned", "Masked", "Mixer", "Muon", "NextToken", "Noam", "Norm", "Nowhere", "OneHot", "Optimizer",
    "Nudge", "Patches",
    "Pieces", "Pixels", "Pooled", "Position", "Prefix", "Recipe", "Regress", "Relative", "Report", "Rotary",
    "RunError", "Sampling", "Saved", "Schedule", "Search", "Shaw", "Sinusoidal", "Slope", "Spans", "Specials",
    "Stages", "Tag", "Task", "Text", "Towers", "Train", "Transformer", "Translate", "Trapezoid", "Trunk", "Vocabulary",
    "Words",
    "Convolved", "Film", "Forecast", "Frames", "Horizon", "Mel", "Rates", "Series", "Sound", "Vary",
    "Graph", "Neighbours", "Nodes", "Spatial",
    "Connect", "Convolve", "Nothing", "Recur", "Recurrent", "Space",
    "Caption", "Chunks", "Contrast", "Draw", "Mixed", "Model",
    "Augment", "Convolutions", "Frame", "LoRA", "MaskedPixels", "Near", "NextPixel",
    "enter", "make", "read", "schema", "text", "tree",
]  # fmt: skip
