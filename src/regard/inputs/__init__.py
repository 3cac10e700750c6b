"""Raw data to Tokens: one file a kind of data, each entering itself in the table of front ends."""

from regard.inputs import text

__all__ = ["text"]
