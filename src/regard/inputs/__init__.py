"""Front ends: raw data of a modality to Tokens, and the processor that reads its records; each registers itself."""

from regard.inputs import (
    audio,
    audio_processor,
    cnn,
    graph,
    graph_encodings,
    image,
    image_processor,
    multimodal,
    processors,
    series,
    stages,
    text,
    video,
)

__all__ = [
    "audio",
    "audio_processor",
    "cnn",
    "graph",
    "graph_encodings",
    "image",
    "image_processor",
    "multimodal",
    "processors",
    "series",
    "stages",
    "text",
    "video",
]
