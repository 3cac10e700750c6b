"""Evaluation: the metrics of a finished model on a dataset."""
