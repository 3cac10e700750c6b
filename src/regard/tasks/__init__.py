"""Tasks: the objective as loss parts (sum, count, weight), from the columns of a file to a metric.

Each kind has its own file: next_token, masked_lm, translation, denoising, classification, token_classification, ...
"""

from regard.tasks.captioning import Captioning
from regard.tasks.classification import Classification, InputClassification, InputRegression, InputTask, Regression
from regard.tasks.collate import RowPadding, TaskBatch, TaskExample
from regard.tasks.columns import fill_classes, text_columns
from regard.tasks.contrastive import Contrastive
from regard.tasks.denoising import PrefixLM, SpanCorruption, TextInfilling
from regard.tasks.forecasting import Forecasting
from regard.tasks.losses import chunked_cross_entropy
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.next_pixel import NextPixel
from regard.tasks.next_token import NextToken
from regard.tasks.node_classification import NodeClassification
from regard.tasks.question_answering import QuestionAnswering
from regard.tasks.task import (
    INPUT_TASKS,
    TASKS,
    LossPart,
    Objective,
    Task,
    add_task_tokens,
    build_input_task,
    build_task,
    combine_losses,
    join_outputs,
    score_outputs,
    total_counts,
)
from regard.tasks.text_to_image import TextToImage
from regard.tasks.token_classification import TokenClassification
from regard.tasks.translation import Translation

__all__ = [
    "Captioning",
    "Classification",
    "Contrastive",
    "Forecasting",
    "INPUT_TASKS",
    "InputClassification",
    "InputRegression",
    "InputTask",
    "LossPart",
    "MaskedLM",
    "NextPixel",
    "NextToken",
    "NodeClassification",
    "Objective",
    "PrefixLM",
    "QuestionAnswering",
    "Regression",
    "RowPadding",
    "SpanCorruption",
    "TASKS",
    "Task",
    "TaskBatch",
    "TaskExample",
    "TextInfilling",
    "TextToImage",
    "TokenClassification",
    "Translation",
    "add_task_tokens",
    "build_input_task",
    "build_task",
    "chunked_cross_entropy",
    "combine_losses",
    "fill_classes",
    "join_outputs",
    "score_outputs",
    "text_columns",
    "total_counts",
]
