"""Presets are data: whole models by name, said in the words of `regard.config`. Imports nothing but config."""

from regard.zoo.presets import preset
from regard.zoo.presets.about import About, about
from regard.zoo.recipes import describe_kind_changes, read_recipe, recipes
from regard.zoo.sentence import sentence, shape

__all__ = ["About", "about", "describe_kind_changes", "preset", "read_recipe", "recipes", "sentence", "shape"]
