"""Tokenizers: text to ids and back, by characters, bytes, words or subwords; special tokens and chat templates.

The only package that imports `tokenizers` and `jinja2`.
"""

from regard.text.special_tokens import EncodedText
from regard.text.tokenizer import Tokenizer, UnknownCharacter
from regard.text.trainers import train_tokenizer

__all__ = ["EncodedText", "Tokenizer", "UnknownCharacter", "train_tokenizer"]
