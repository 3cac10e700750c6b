"""Raw data to Tokens: one file a kind of data, each entering itself in the table of front ends."""

from regard.inputs import image, shaw, stages, stretched, text

__all__ = ["image", "shaw", "stages", "stretched", "text"]
