"""Model parts outside the core: heads, mixers, recurrent stacks, LoRA, further positions, dual encoders.

Each registers its config kinds in the core's tables when it is imported.
"""

from regard.models import heads, mixers, positions, recurrent, relative_bias, reversible

__all__ = ["heads", "mixers", "positions", "recurrent", "relative_bias", "reversible"]
