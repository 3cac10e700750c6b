"""Raw data to Tokens: one file a kind of data, each entering itself in the table of front ends."""

from regard.inputs import image, stages, text

__all__ = ["image", "stages", "text"]
