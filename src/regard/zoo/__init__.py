"""Presets are data: whole models by name, said in the words of `regard.config`. Imports nothing but config."""

from regard.zoo.presets import preset
from regard.zoo.recipes import read_recipe, recipes

__all__ = ["preset", "read_recipe", "recipes"]
