"""Evaluation: metrics of a trained model on a dataset."""
