"""Prediction rows by kind of task: a readable text, with predictions for all or parts of it."""

from collections.abc import Callable, Sequence
from typing import Any

from regard import tasks
from regard.data.packing import IGNORE_INDEX
from regard.tasks.collate import TaskBatch, TaskExample
from regard.tasks.losses import model_outputs
from regard.tasks.masked_lm import NEXT_SENTENCE_LABELS
from regard.tasks.task import Task

LONGEST = 90  # tokens of a text that are shown
Row = dict[str, Any]
Text = list[Any]  # strings, and predictions: {"said": ..., "meant": ..., "right": ...}


def rows_with_labels(batch: TaskBatch) -> list[int]:
    """The rows with labels: a short text may have no masked token."""
    count = len(batch["ids"])
    if "labels" not in batch:
        return list(range(count))
    return [row for row in range(count) if bool((batch["labels"][row] != IGNORE_INDEX)[:LONGEST].any())]


# ---------------------------------------------------------------- classes and numbers


def classification_rows(
    task: Task, model: Any, batch: TaskBatch, examples: Sequence[TaskExample], tokenizer: Any
) -> list[Row]:
    said = model_outputs(model, batch).float()
    meant = batch["label"].tolist()
    texts = [text_sides(example, tokenizer) for example in examples]
    if isinstance(task, tasks.Regression):
        numbers = said[:, 0].tolist()
        return [{"asked": text, "said": f"{a:.3g}", "meant": f"{b:.3g}"}
                for text, a, b in zip(texts, numbers, meant, strict=True)]  # fmt: skip
    sure, best = said.softmax(-1).max(-1)
    names = task.c.classes
    return [{"asked": text, "said": names[a], "meant": names[b], "sure": round(share, 3), "right": a == b}
            for text, a, b, share in zip(texts, best.tolist(), meant, sure.tolist(), strict=True)]  # fmt: skip


def text_sides(example: TaskExample, tokenizer: Any) -> list[Text]:
    """A text, or both texts of a pair, shortened for display."""
    ids, segment = example["ids"], example.get("segment") or [0] * len(example["ids"])
    parts = [[id for id, side in zip(ids, segment, strict=True) if side == which] for which in sorted(set(segment))]
    return [[tokenizer.decode(part[:LONGEST]) + ("…" if len(part) > LONGEST else "")] for part in parts]


# ---------------------------------------------------------------- predictions at some tokens


def mask_rows(task: Task, model: Any, batch: TaskBatch, examples: Sequence[TaskExample], tokenizer: Any) -> list[Row]:
    """Texts with masks, and the prediction at each."""
    said = model_outputs(model, batch)
    words, follows = said if task.c.next_sentence else (said, None)
    rows: list[Row] = [
        {
            "asked": [text_with_gaps(task, example["ids"][:LONGEST], best, labels, tokenizer)],
            "cut": len(example["ids"]) > LONGEST,
        }
        for example, best, labels in zip(examples, words.argmax(-1).tolist(), batch["labels"].tolist(), strict=True)
    ]
    if follows is not None:
        for row, a, b in zip(rows, follows.argmax(-1).tolist(), batch["next"].tolist(), strict=True):
            row |= {"said": f"it {NEXT_SENTENCE_LABELS[a]}", "meant": f"it {NEXT_SENTENCE_LABELS[b]}", "right": a == b}
    return rows


def text_with_gaps(task: Task, ids: Sequence[int], best: Sequence[int], labels: Sequence[int], tokenizer: Any) -> Text:
    text: Text = []
    for place, id in enumerate(ids):
        if labels[place] != IGNORE_INDEX:
            said, meant = (token_addition(tokenizer, ids, place, each) for each in (best[place], id))
            text += [" "] * (meant.startswith(" ") and meant != " ")
            text.append(
                {
                    "said": printable_gap(said, best[place], tokenizer),
                    "meant": printable_gap(meant, id, tokenizer),
                    "right": best[place] == id,
                }
            )
        elif bool(task.specials.special[id]):
            text += [f" {tokenizer.token(id)} "] if 0 < place < len(ids) - 1 else []
        else:
            text.append(token_addition(tokenizer, ids, place, id))
    return merge_strings(text)


def token_addition(tokenizer: Any, ids: Sequence[int], place: int, id: int) -> str:
    """The text that a token adds to the one before it, with its space."""
    before = tokenizer.decode(ids[:place])
    after: str = tokenizer.decode([*ids[:place], id])
    return after[len(before) :] if after.startswith(before) else f" {tokenizer.decode([id])}"


def printable_gap(text: str, id: int, tokenizer: Any) -> str:
    """The prediction for a mask, printable: spaces and partial characters as symbols."""
    bare = text.strip()
    return bare if bare and "\ufffd" not in bare else str(tokenizer.token_text(id))


def merge_strings(text: Text) -> Text:
    """Join adjacent strings."""
    found: Text = []
    for part in text:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


def tag_rows(task: Task, model: Any, batch: TaskBatch, examples: Sequence[TaskExample], tokenizer: Any) -> list[Row]:
    """Words with their tags; the most frequent tag, which marks no entity, is not shown."""
    names, rows = task.c.classes, []
    for example, best in zip(examples, model_outputs(model, batch).argmax(-1).tolist(), strict=True):
        ids, labels, text = example["ids"][:LONGEST], example["labels"], Text()
        starts = [place for place in range(len(ids)) if labels[place] != IGNORE_INDEX]
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            word = tokenizer.decode(ids[start:stop]).strip()
            said, meant = names[best[start]], names[labels[start]]
            place = {"text": word, "said": said, "meant": meant, "right": said == meant}
            text += [f"{word} "] if said == meant == "O" else [place, " "]
        rows.append({"asked": [merge_strings(text)], "cut": len(example["ids"]) > LONGEST})
    return rows


def qa_rows(task: Task, model: Any, batch: TaskBatch, examples: Sequence[TaskExample], tokenizer: Any) -> list[Row]:
    """A question, and the context around the predicted answer."""
    said, meant, rows = task.answers(model, batch)["loss"], task.expected_answers(batch)["loss"], []
    for example, a, b in zip(examples, said, meant, strict=True):
        ids, outside = example["ids"], [place for place, at in enumerate(example["from"]) if at < 0]
        question = tokenizer.decode([ids[place] for place in outside if not example["segment"][place]])
        spans, right = [tokens_of_span(example, *each[:2]) for each in (a, b)], a[:2] == b[:2]
        told = [tokenizer.decode(ids[start:stop]).strip() or "·" if stop else "no answer" for start, stop in spans]
        rows.append({"asked": [[question], answer_context(example, *spans[0], right, tokenizer)], "said": told[0],
                     "meant": told[1], "right": right})  # fmt: skip
    return rows


def answer_context(example: TaskExample, first: int, last: int, right: bool, tokenizer: Any) -> Text:
    """The context on both sides of an answer, and the answer marked in it."""
    ids, inside = example["ids"], [place for place, at in enumerate(example["from"]) if at >= 0]
    first, last = (first, last) if last else (inside[0], inside[0])
    start, stop = max(inside[0], first - LONGEST // 2), min(inside[-1] + 1, last + LONGEST // 2)
    ends = [tokenizer.decode(ids[start:place]) for place in (first, last, stop)]  # each from the start
    before, told, after = ends[0], ends[1][len(ends[0]) :], ends[2][len(ends[1]) :]
    bare = told.strip()
    left, rest = told.split(bare, 1) if bare else (told, "")  # spaces around the answer are not marked
    answer = [left, *([{"text": bare, "right": right}] if bare else []), rest]
    return merge_strings(["… " * (start > inside[0]) + before, *answer, after + " …" * (stop <= inside[-1])])


def tokens_of_span(example: TaskExample, start: int, stop: int) -> tuple[int, int]:
    """The first and last token of a character span; (0, 0) outside the text."""
    inside = [place for place, (a, b) in enumerate(zip(example["from"], example["upto"], strict=True))
              if a >= 0 and a < stop and b > start]  # fmt: skip
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


# ---------------------------------------------------------------- generated texts


def generation_rows(
    task: Task, model: Any, batch: TaskBatch, examples: Sequence[TaskExample], tokenizer: Any
) -> list[Row]:
    """Inputs, and the model's own generation, by greedy decoding."""
    most = batch["labels"].shape[1] + 8
    begin = batch["ids"][:, :1]
    sources = {name: batch[name] for name in ("source", "source_real") if name in batch}
    made = model.generate(begin, max_new_tokens=most, temperature=0.0, **sources).tolist()
    end, rows = task.specials.roles.get("eos"), []
    for row, ids in enumerate(made):
        read = batch["source"][row][: LONGEST + 1].tolist()
        ids = ids[: ids.index(end)] if end in ids else ids
        meant = [id for id in batch["labels"][row].tolist() if id not in (IGNORE_INDEX, end)]
        rows.append(
            {
                "asked": [[mark_gaps(task, read, tokenizer)]],
                "said": mark_gaps(task, ids, tokenizer),
                "meant": mark_gaps(task, meant, tokenizer),
                "cut": len(batch["source"][row]) > LONGEST,
            }
        )
    return rows


def mark_gaps(task: Task, ids: Sequence[int], tokenizer: Any) -> str:
    """A text with visible mask tokens, and no other special token."""
    shown = {*task.specials.sentinels, task.specials.roles.get("mask")}
    text, run = "", list[int]()
    for id in [*ids, None]:
        if id is None or id in shown:
            text += tokenizer.decode(run) + ("" if id is None else f" {tokenizer.token(id)} ")
            run = []
        else:
            run.append(id)
    return " ".join(text.split())


ROW_BUILDERS: dict[str, Callable[[Task, Any, TaskBatch, Sequence[TaskExample], Any], list[Row]]] = {
    "classification": classification_rows,
    "regression": classification_rows,
    "masked_lm": mask_rows,
    "token_classification": tag_rows,
    "question_answering": qa_rows,
    "span_corruption": generation_rows,
    "text_infilling": generation_rows,
    "prefix_lm": generation_rows,
}
