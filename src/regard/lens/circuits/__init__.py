"""Circuits: the QK and OV matrices of heads, what they do to words, and how heads compose."""
