"""The folder that tests of training work in."""

from training.fixtures import desk, recipe  # noqa: F401  pytest finds them by their names here
