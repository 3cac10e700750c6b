"""Published checkpoints: reading and writing Hugging Face folders, GGUF, PEFT adapters, and the parity check.

The only package that knows other projects' names for tensors and settings.
"""
