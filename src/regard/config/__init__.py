"""Settings: what can be said, checked before anything is built. Imports nothing but the standard library."""

from regard.config.expressions import MASKS as MASKS
from regard.config.settings import *  # noqa: F403
