"""The data of a recipe as batches, by kind of data."""
