"""Objectives: what is asked of a model, as named parts of (sum, count, weight); from the columns of a file to a score.

Each kind is a file of its own: next_token, masked, translate, spans, infill, prefix, classify, tag, answer.
"""

from regard.tasks.answer import Answer
from regard.tasks.chunks import chunked
from regard.tasks.classify import Classify, Regress
from regard.tasks.discover import discovered, spoken
from regard.tasks.infill import Infill
from regard.tasks.masked import Masked
from regard.tasks.next_token import NextToken
from regard.tasks.objective import Objective, Part, total, whole
from regard.tasks.prefix import Prefix
from regard.tasks.rows import Batch, Example, Rows
from regard.tasks.spans import Spans
from regard.tasks.tag import Tag
from regard.tasks.task import TASKS, Task, build, equip, joined, scored
from regard.tasks.translate import Translate

__all__ = [
    "TASKS", "Answer", "Batch", "Classify", "Example", "Infill", "Masked", "NextToken", "Objective", "Part", "Prefix",
    "Regress", "Rows", "Spans", "Tag", "Task", "Translate", "build", "chunked", "discovered", "equip", "joined",
    "scored", "spoken", "total", "whole",
]  # fmt: skip
