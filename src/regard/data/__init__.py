"""Datasets: sources to records, texts to token shards, records to examples, and batches of all of them; no model."""

from regard.data.batching import BucketedBatches, FixedSizeBatches, TensorBatch, ordered_batches, seeded_generator
from regard.data.example_store import Example, Examples, store_examples
from regard.data.packing import PackedBatches
from regard.data.prefetch import Prefetcher
from regard.data.prepare import PreparedText, prepare_examples, prepare_tensors, prepare_text, tokenizer_from_records
from regard.data.readers import arrays
from regard.data.readers.graph_files import AdjacencyLists, GraphTables
from regard.data.records import BadRecordPolicy, Document, Record, RecordSource
from regard.data.sources import find_records, find_texts, read_texts
from regard.data.tensor_store import TensorRows
from regard.data.token_shards import Notice, Progress, TokenShards, no_progress
from regard.data.windows import StripedBatches, WindowBatches, sequential_windows

__all__ = [
    "AdjacencyLists",
    "BadRecordPolicy",
    "BucketedBatches",
    "Document",
    "Example",
    "Examples",
    "FixedSizeBatches",
    "GraphTables",
    "Notice",
    "PackedBatches",
    "Prefetcher",
    "PreparedText",
    "Progress",
    "Record",
    "RecordSource",
    "StripedBatches",
    "TensorBatch",
    "TensorRows",
    "TokenShards",
    "WindowBatches",
    "arrays",
    "find_records",
    "find_texts",
    "no_progress",
    "ordered_batches",
    "prepare_examples",
    "prepare_tensors",
    "prepare_text",
    "read_texts",
    "seeded_generator",
    "sequential_windows",
    "store_examples",
    "tokenizer_from_records",
]
