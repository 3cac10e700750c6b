"""Extractive question answering: every token gets a score as the start of the answer, and one as its end.

    [CLS] who sat on the mat ? [SEP] it was the cat that sat there . [SEP]
      │   └──────────────── never chosen ──┘  begin: the, end: cat
      └─ chosen where there is no answer

A context too long for one row is read in windows; the best answer over all windows counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config
from regard.config.errors import DataError
from regard.tasks import columns
from regard.tasks.collate import TaskBatch, TaskExample, TaskSpecialTokens, tokenize_with_offsets, tokens_covering
from regard.tasks.columns import RecordLike
from regard.tasks.losses import model_outputs
from regard.tasks.masked_lm import missing_separators
from regard.tasks.metrics import exact_match, safe_ratio, token_f1
from regard.tasks.task import LossPart, Task, TaskOutputs, register_task
from regard.text.tokenizer import Tokenizer


class AnswerSpan(NamedTuple):
    """An answer span: its characters in the context (0 to 0: no answer), and its score."""

    start: int
    stop: int
    score: float


@register_task("question_answering")
@dataclass(frozen=True, eq=False)
class QuestionAnswering(Task):
    c: config.QuestionAnswering = config.QuestionAnswering()
    heads = ("token",)

    @classmethod
    def special_tokens_needed(cls, c: config.QuestionAnswering, specials: TaskSpecialTokens) -> tuple[str, ...]:
        return missing_separators(specials, True)

    def check(self, model: config.Transformer) -> None:
        super().check(model)
        if isinstance(model.head, config.TokenHead) and model.head.out != 2:
            raise config.ConfigError(f"model.head.out: {model.head.out}, and an answer is a span: set it to 2")

    # ---------------------------------------------------------------- examples

    def example(self, record: RecordLike, tokenizer: Tokenizer) -> TaskExample:
        """The window in which the answer has most context around it."""
        windows = self.windows(record, tokenizer)
        best = max(windows, key=lambda window: (window["stop"] > 0, context_margin(window)))
        if self.right_answers(record) and not best["stop"]:
            raise DataError(f"{columns.record_place(record)}: the answer does not fit in a row of {self.rows.length} "
                            "tokens; "
                            "set a larger train.context, or a smaller task.doc_stride")  # fmt: skip
        return best

    def windows(self, record: RecordLike, tokenizer: Tokenizer) -> list[TaskExample]:
        """The whole context in windows; "start" and "stop" are 0 where a window lacks the answer."""
        context, all_asked = (
            columns.get_text(record, self.c.context),
            columns.get_ids(record, self.c.question, tokenizer),
        )
        ids, offsets = tokenize_with_offsets(tokenizer, context)
        truth = self.truth(record, context)
        held = None if truth is None else tokens_covering(offsets, *truth)
        free = self.rows.length - len(self.specials.pair)
        question = all_asked[: free // 2]  # the context gets at least half of the row
        room, lost = free - len(question), len(all_asked) - len(question)
        step = min(self.c.doc_stride, room)
        starts = range(0, max(1, len(ids) - room + step), step)
        made = [
            self.window(question, ids[at : at + room], offsets[at : at + room], shift_span(held, at)) for at in starts
        ]
        return [window | {"cut": lost + len(ids) - window["read"]} for window in made]

    def window(
        self, question: list[int], ids: list[int], offsets: list[tuple[int, int]], held: tuple[int, int] | None
    ) -> TaskExample:
        """A question and a part of the context; `held` is the answer's first and last token in it."""
        special = self.specials.pair
        before, after = len(special.before) + len(question) + len(special.between), len(special.after)
        inside = held is not None and held[0] >= 0 and held[1] < len(ids)
        first, last = (before + held[0], before + held[1]) if inside and held is not None else (0, 0)
        return {
            "ids": special(question, ids), "segment": special.segments(question, ids),
            "from": [-1] * before + [start for start, _ in offsets] + [-1] * after,
            "upto": [-1] * before + [stop for _, stop in offsets] + [-1] * after,
            "start": first, "stop": last, "read": len(ids),
        }  # fmt: skip

    def truth(self, record: RecordLike, context: str) -> tuple[int, int] | None:
        """The character span of the first right answer; None if there is none."""
        if not (right := self.right_answers(record)):
            return None
        if self.c.answer_start is not None and self.c.answer_start not in record:
            raise DataError(f"{columns.record_place(record)}: no column {self.c.answer_start!r} with the answer's "
                            "first character; name it in task.answer_start, or set task.answer_start=none to look for "
                            "the answer")  # fmt: skip
        at = context.find(right[0]) if self.c.answer_start is None else first_of(record[self.c.answer_start])
        start = int(at) if str(at).isdecimal() else len(context)
        if context[start : start + len(right[0])] != right[0]:
            where = "in" if self.c.answer_start is None else f"at character {at} of"
            raise DataError(f"{columns.record_place(record)}: answer {right[0]!r} is not {where} column "
                            f"{self.c.context!r}; correct it, or leave the record out")  # fmt: skip
        return start, start + len(right[0])

    def right_answers(self, record: RecordLike) -> list[str]:
        """All right answers; empty if there is none."""
        found = columns.get_column(record, self.c.answer)
        return [str(text) for text in (found if isinstance(found, list | tuple) else [found]) if text]

    # ---------------------------------------------------------------- batches

    def collate(self, examples: Sequence[TaskExample], chance: torch.Generator) -> TaskBatch:
        rows = [example["ids"] for example in examples]
        ids = self.rows.pad(rows, self.specials.fill)
        shift = [ids.shape[1] - len(row) if self.rows.side == "left" else 0 for row in rows]
        batch = {"ids": ids} | self.rows.real(rows)
        if self.segments:
            batch["segment"] = self.rows.pad([example["segment"] for example in examples], 0)
        for name in ("from", "upto"):
            batch[name] = self.rows.pad([example[name] for example in examples], -1)
        for name in ("start", "stop"):
            batch[name] = torch.tensor([example[name] + by for example, by in zip(examples, shift, strict=True)])
        batch["none"] = torch.tensor(shift)  # the first token stands for "no answer"
        return batch

    def count_parts(self, batch: TaskBatch) -> dict[str, LossPart]:
        return {"loss": LossPart(2 * len(batch["start"]))}

    def loss_sums(self, model: nn.Module, batch: TaskBatch) -> dict[str, Tensor]:
        said = zip(("start", "stop"), self.logits(model, batch), strict=True)
        first, last = (F.cross_entropy(logits, batch[name], reduction="sum") for name, logits in said)
        return {"loss": first + last}

    def logits(self, model: nn.Module, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        """(B, N) each: start and end logits; -inf in the question and in padding."""
        may = (batch["from"] >= 0).scatter(1, batch["none"][:, None], True)
        starts, stops = model_outputs(model, batch).float().masked_fill(~may[..., None], float("-inf")).unbind(-1)
        return starts, stops

    # ---------------------------------------------------------------- answers

    def answers(self, model: nn.Module, batch: TaskBatch) -> TaskOutputs:
        """The best answer of each row, and its score relative to "no answer"."""
        starts, stops = self.logits(model, batch)
        none = (starts + stops).gather(1, batch["none"][:, None])[:, 0]
        spans = (starts[:, :, None] + stops[:, None, :]).masked_fill(~self.sensible(batch), float("-inf"))
        best, place = spans.flatten(1).max(-1)
        found = self.characters(batch, place // spans.shape[1], place % spans.shape[1])
        sure = (best - none).tolist()
        return {
            "loss": [
                AnswerSpan(*span, s) if s > 0 else AnswerSpan(0, 0, s) for span, s in zip(found, sure, strict=True)
            ]
        }

    def sensible(self, batch: TaskBatch) -> Tensor:  # (B, N, N): start x end
        """Valid spans: within the context, end not before start, and not too long."""
        inside = batch["from"] >= 0
        square = torch.ones_like(inside[0]).expand(inside.shape[1], -1)
        return (square.triu() & ~square.triu(self.c.max_answer_tokens)) & inside[:, :, None] & inside[:, None, :]

    def characters(self, batch: TaskBatch, first: Tensor, last: Tensor) -> list[tuple[int, int]]:
        """The character spans of token spans; 0 to 0 outside the context."""
        starts, stops = batch["from"].gather(1, first[:, None]), batch["upto"].gather(1, last[:, None])
        return list(zip(starts[:, 0].clamp(min=0).tolist(), stops[:, 0].clamp(min=0).tolist(), strict=True))

    def expected_answers(self, batch: TaskBatch) -> TaskOutputs:
        return {"loss": [AnswerSpan(*span, 0.0) for span in self.characters(batch, batch["start"], batch["stop"])]}

    def score(self, predictions: TaskOutputs, labels: TaskOutputs) -> dict[str, float]:
        """Accuracy of start and end characters; `squad` compares texts."""
        right = [a[:2] == b[:2] for a, b in zip(predictions["loss"], labels["loss"], strict=True)]
        return {"accuracy": safe_ratio(sum(right), len(right))}

    def squad(self, found: Sequence[Sequence[AnswerSpan]], given: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Exact match and F1 of the best answer over each record's windows, in percent as in SQuAD."""
        ems, f1s = [], []
        for windows, record in zip(found, given, strict=True):
            best = max(windows, key=lambda each: each.score)
            said, right = record[self.c.context][best.start : best.stop], self.right_answers(record) or [""]
            ems.append(exact_match(said, right))
            f1s.append(token_f1(said, right))
        return {"exact": 100 * safe_ratio(sum(ems), len(ems)), "f1": 100 * safe_ratio(sum(f1s), len(f1s))}


def context_margin(window: TaskExample) -> int:
    """The number of context tokens on the shorter side of the answer."""
    return min(int(window["start"]), len(window["ids"]) - int(window["stop"]))


def shift_span(held: tuple[int, int] | None, by: int) -> tuple[int, int] | None:
    return None if held is None else (held[0] - by, held[1] - by)


def first_of(found: Any) -> Any:
    """The first element: SQuAD has a list of answers, and a list of their starts."""
    return found[0] if isinstance(found, list | tuple) and found else found
