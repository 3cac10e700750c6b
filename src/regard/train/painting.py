"""Reading images as pixels: where a recipe names no colours, they are learned from what it trains on."""

from dataclasses import replace

from regard import config, data
from regard.inputs import palette
from regard.train.reading import READERS, Reading, Voice
from regard.train.sensing import read_sensed

MOST = 4096  # images that colours are learned from


def read_pixels(recipe: config.Recipe, voice: Voice) -> Reading:
    """The data of a recipe through its palette, which the recipe then says."""
    reading, model = read_sensed(recipe, voice), recipe.model
    assert isinstance(model, config.Transformer) and isinstance(model.embed, config.Pixels)  # the task has checked it
    front = model.embed
    if front.values == "levels" or front.colours:
        return reading
    assert isinstance(reading.train, data.Fixed | data.Buckets)
    rows = reading.train.rows
    chance = data.chance(recipe.train.seed, "palette", 0)
    step = -(-len(rows) // MOST)
    images = [rows[place]["image"] for place in range(0, len(rows), step)]
    embed = replace(front, colours=palette.learned(images, front.palette, chance))
    return read_sensed(replace(recipe, model=replace(model, embed=embed)), Voice(lambda line: None))


READERS["pixels"] = read_pixels
