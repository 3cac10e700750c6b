"""Text to ids and back: one Tokenizer for characters, bytes, words and pieces of words. Alone imports `tokenizers`."""

from regard.text.framing import Framed
from regard.text.kinds import train
from regard.text.tokenizer import Tokenizer, Unsayable

__all__ = ["Framed", "Tokenizer", "Unsayable", "train"]
