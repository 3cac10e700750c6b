"""Inference: the public `Model`, loading, and its tasks, from texts, images, sounds and tables to results."""
