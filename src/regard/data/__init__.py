"""From text files to batches: sources are read into shards of token ids, and windows and blocks are cut from those."""

from regard.data.batches import Windows, blocks
from regard.data.prepared import Prepared, prepare
from regard.data.shards import Shards
from regard.data.sources import Document, read_texts

__all__ = ["Document", "Prepared", "Shards", "Windows", "blocks", "prepare", "read_texts"]
