"""Inference: the public `Model`, loading it, and its verbs with texts, images, sounds and tables in, answers out."""
