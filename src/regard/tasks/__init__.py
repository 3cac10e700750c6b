"""Objectives: what is asked of a model, as named parts of (sum, count, weight); from the columns of a file to a score.

Each kind is a file of its own: next_token, masked, translate, spans, infill, prefix, classify, tag, answer.
"""

from regard.tasks.answer import Answer
from regard.tasks.caption import Caption
from regard.tasks.chunks import chunked
from regard.tasks.classify import Classify, Regress
from regard.tasks.contrast import Contrast
from regard.tasks.discover import discovered, spoken
from regard.tasks.draw import Draw
from regard.tasks.forecast import Forecast
from regard.tasks.infill import Infill
from regard.tasks.masked import Masked
from regard.tasks.next_token import NextToken
from regard.tasks.nodes import Nodes
from regard.tasks.objective import Objective, Part, total, whole
from regard.tasks.pixels import NextPixel
from regard.tasks.prefix import Prefix
from regard.tasks.rows import Batch, Example, Rows
from regard.tasks.sensed import ClassifySensed, RegressSensed, Sensed
from regard.tasks.spans import Spans
from regard.tasks.tag import Tag
from regard.tasks.task import SENSED, TASKS, Task, build, build_sensed, equip, joined, scored
from regard.tasks.translate import Translate

__all__ = [
    "SENSED", "TASKS", "Answer", "Batch", "Caption", "Classify", "ClassifySensed", "Contrast", "Draw", "Example",
    "Forecast", "Infill", "Masked", "NextPixel", "NextToken", "Nodes", "Objective", "Part", "Prefix", "Regress",
    "RegressSensed", "Rows", "Sensed", "Spans", "Tag", "Task", "Translate", "build", "build_sensed", "chunked",
    "discovered", "equip", "joined", "scored", "spoken", "total", "whole",
]  # fmt: skip
