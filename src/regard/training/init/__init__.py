"""Initialisation of a run: pretrained weights, word vectors, frozen parameters, LoRA."""
