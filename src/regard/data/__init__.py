"""From files to batches: texts become shards of token ids, records become examples; batches are cut from both."""

from regard.data import idx, stacks
from regard.data.ahead import Ahead
from regard.data.arrays import Arrays
from regard.data.asked import ask, learned, sense
from regard.data.batches import Windows, blocks, chance
from regard.data.columns import Document
from regard.data.examples import Example, Examples, kept
from regard.data.graph_files import Tables as Tables
from regard.data.graph_lists import Lists as Lists
from regard.data.leaking import leaks
from regard.data.packed import Packed
from regard.data.prepared import Prepared, prepare
from regard.data.records import Record, Table, Tally
from regard.data.shards import Notice, Progress, Shards, quiet
from regard.data.sources import find, read_texts, tables
from regard.data.steps import Batch, Buckets, Fixed, in_order
from regard.data.streams import Stripes

__all__ = [
    "Ahead", "Arrays", "Batch", "Buckets", "Document", "Example", "Examples", "Fixed", "Notice", "Packed", "Prepared",
    "Progress", "Record", "Shards", "Table", "Tally", "Windows", "ask", "blocks", "chance", "find", "idx", "in_order",
    "kept", "leaks", "learned", "prepare", "quiet", "read_texts", "sense", "stacks", "tables",
    "Stripes",
]  # fmt: skip
