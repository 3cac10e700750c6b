"""Text to ids and back: one Tokenizer for characters, bytes, words and pieces of words. Alone imports `tokenizers`."""

from regard.text.kinds import train
from regard.text.tokenizer import Tokenizer, Unsayable

__all__ = ["Tokenizer", "Unsayable", "train"]
