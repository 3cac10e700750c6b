"""Presets, recipes and packaged models: whole models as data, by name. Imports nothing but config."""

from regard.zoo.describe import describe_model, model_shape
from regard.zoo.preset import PresetInfo, preset, preset_info
from regard.zoo.recipe import describe_kind_changes, packaged_recipes, read_recipe

__all__ = [
    "PresetInfo",
    "describe_kind_changes",
    "describe_model",
    "model_shape",
    "packaged_recipes",
    "preset",
    "preset_info",
    "read_recipe",
]
