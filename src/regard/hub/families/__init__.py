"""Models that other libraries have a class for: a table of families, each a small file that enters itself."""

from regard.hub.families import gpt2, llama  # noqa: F401
from regard.hub.families.table import FAMILIES, Family, enter, family_of, heard, reasons, settled

__all__ = ["FAMILIES", "Family", "enter", "family_of", "heard", "reasons", "settled"]
