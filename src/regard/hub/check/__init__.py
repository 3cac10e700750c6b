"""A published model here and in `transformers`, side by side: the same question, both answers, and where they part.

    questions ─ what both are asked      theirs ─ the only file that imports `transformers`
    walk ─ layer by layer                back ─ whether every tensor goes back as it came
"""

from regard.hub.check.back import Back, back
from regard.hub.check.equal import DTYPES, Equal, equal
from regard.hub.check.questions import Question, question
from regard.hub.check.theirs import answers, class_of, library, opened, version
from regard.hub.check.walk import Step, walk

__all__ = [
    "Back", "DTYPES", "Equal", "Question", "Step", "answers", "back", "class_of", "equal", "library", "opened",
    "question", "version", "walk",
]  # fmt: skip
