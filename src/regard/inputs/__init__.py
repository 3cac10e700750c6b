"""Raw data to Tokens: one file a kind of data, each entering itself in the table of front ends."""

from regard.inputs import (
    chunks,
    convolutions,
    film,
    graph,
    image,
    image_sense,
    mixed,
    near,
    senses,
    series,
    series_sense,
    shaw,
    sound,
    sound_convolved,
    sound_sense,
    stages,
    stretched,
    structure,
    text,
)

__all__ = [
    "chunks", "convolutions", "film", "graph", "image", "image_sense", "mixed", "near", "senses", "series",
    "series_sense", "shaw", "sound", "sound_convolved", "sound_sense", "stages", "stretched", "structure", "text",
]  # fmt: skip

