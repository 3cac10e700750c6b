"""A text that is a list of phrases: some of them say the same thing in other words.

    "grinning face, cheerful, happy"   ──►   " happy, grinning face"     " cheerful"     " grinning face, happy"

Who reads other phrases each time cannot know a text by heart, and a single word is a text as good as any.
"""

import torch

from regard.config import ConfigError, DataError
from regard.text import Tokenizer


def listed(text: str) -> str:
    """A list with a space before every phrase, the first too: a word is the same token wherever it stands."""
    return ",".join(f" {phrase.strip()}" for phrase in text.split(",") if phrase.strip())


def comma(tokenizer: Tokenizer) -> int:
    """The id that stands between phrases."""
    try:
        marks = [id for id in tokenizer.encode(" a, a") if tokenizer.decode([id]) == ","]
    except DataError:  # it can say no comma at all
        marks = []
    if len(marks) != 1:
        raise ConfigError("task.phrases: this tokenizer has no token that is a comma and nothing else; choose another "
                          "in text, or leave phrases out")  # fmt: skip
    return marks[0]


def some(ids: list[int], comma: int, chance: torch.Generator) -> list[int]:
    """Every second time all phrases of a list, else some, as many or as few as chance has it; in any order."""
    ends = [place for place, id in enumerate(ids) if id == comma]
    phrases = [ids[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(ids)], strict=True)]
    half, least = torch.rand(2, generator=chance).tolist()
    count = len(phrases) if half < 0.5 else 1 + int(least * len(phrases))
    first, *rest = [phrases[place] for place in torch.randperm(len(phrases), generator=chance)[:count].tolist()]
    return [*first, *(id for phrase in rest for id in (comma, *phrase))]
