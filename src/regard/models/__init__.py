"""Model parts outside of the core: heads, mixers, recurrent stacks, LoRA, further positions, dual encoders.

What a config can name registers itself in the core's tables when it is imported.
"""

from regard.models import heads, mixers, positions, recurrent, relative_bias, reversible

__all__ = ["heads", "mixers", "positions", "recurrent", "relative_bias", "reversible"]
