"""regard train --dry-run: everything up to the first step: sizes, duration, cost and the first batch.

Data and model are prepared as for the real run; nothing is trained, and no run folder is written.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regard import config
from regard.cli.errors import print_stderr
from regard.cli.output import import_torch, print_json

ROWS = 2  # rows of the first batch that are shown
PIECES, EXPECTED_HANDLERS, WIDE = 24, 8, 100  # tokens, labels and characters of a row in text output; JSON has all


def show_dry_run(recipe: config.Recipe, json: bool) -> int:
    """Show what a recipe would train."""
    import_torch()
    from regard.training.run import Run

    recipe = replace(recipe, train=replace(recipe.train, workers=0))  # one batch needs no workers
    run = Run.from_recipe(recipe, notice=print_stderr)
    told = dry_run_facts(run)
    if json:
        print_json(told)
    else:
        print("\n\n".join(format_dry_run(told)))
    return 0


def dry_run_facts(run: Any) -> dict[str, Any]:
    """All that is known before the first step."""
    from regard import measure
    from regard.models import lora
    from regard.training.run_files import describe_run

    batch, known = run.data.batch(0), describe_run(run)
    counts = measure.count_parameters(run.recipe.model)
    counts["adapters"] = sum(weight.numel() for weight in lora.adapter_parameters(run.model).values())
    parts = {part: count for part, count in counts.items() if count}
    return {
        "parameters": known["parameters"],
        "trained": known["trained"],
        "parts": parts,
        "precision": known["precision"],
        "device": run.device.type,
        "predicted": known["predicted"],
        "run": run_length(run, batch, known["predicted"].get("step_seconds")),
        "batch": {
            "tensors": tensor_shapes(batch),
            "rows": [describe_row(run, named_tensors(batch), place) for place in range(row_count(batch))],
        },
        "config": config.to_dict(run.recipe),
    }


def run_length(run: Any, batch: Any, seconds: float | None) -> dict[str, Any]:
    """The length of the run by steps, epochs or minutes, whichever ends first; steps from minutes need a known step
    time."""
    from regard.training.data.read import batch_tokens
    from regard.training.run import unwrap_prefetch

    c, source = run.settings, unwrap_prefetch(run.data)
    an_epoch = source.epochs(c.gradient_accumulation)  # type: ignore[attr-defined]  # those of a recipe all have it
    ends = {"steps": c.steps, "epochs": None if c.epochs is None else math.ceil(c.epochs / an_epoch),
            "minutes": None if c.minutes is None or seconds is None else int(60 * c.minutes / seconds)}  # fmt: skip
    said = [(name, end) for name, end in ends.items() if end is not None] or [("minutes", None)]
    by, steps = min(said, key=lambda each: each[1] or 0)
    minutes = c.minutes if by == "minutes" else None if steps is None or seconds is None else steps * seconds / 60
    tokens, epochs = batch_tokens(batch) * c.gradient_accumulation, None if steps is None else steps * an_epoch
    return {"ends_by": by, "steps": steps, "epochs": epochs, "minutes": minutes, "tokens_in_step": tokens,
            "steps_in_epoch": 1 / an_epoch}  # fmt: skip


# ---------------------------------------------------------------- the first batch


def named_tensors(batch: Any) -> dict[str, Any]:
    """A batch as named tensors; text windows are split into inputs and labels."""
    return batch if isinstance(batch, dict) else {"ids": batch[:, :-1], "labels": batch[:, 1:]}


def tensor_shapes(batch: Any) -> dict[str, list[int]]:
    return {name: list(table.shape) for name, table in named_tensors(batch).items()}


def row_count(batch: Any) -> int:
    return min(ROWS, len(named_tensors(batch)["ids"]))


def describe_row(run: Any, batch: dict[str, Any], place: int) -> dict[str, Any]:
    """One row: its inputs and labels."""
    speaks = run.model.output_tokenizer
    if speaks is None:  # not a text model
        return {
            "seen": describe_tensor_row(batch["ids"][place]),
            "asked": list(expected_answers(run.task.c, batch, place, speaks)),
        }
    shown: dict[str, Any] = {"read": decode_row(batch, place, "ids", "real", speaks)}
    for name in ("seen", "source"):  # other inputs besides text
        if name in batch and batch[name].dim() > 2:
            shown = {"seen": describe_tensor_row(batch[name][place]), **shown}
    if "source" in batch and "seen" not in shown:
        shown = {"source": decode_row(batch, place, "source", "source_real", run.tokenizer), **shown}
    if "document" in batch:
        shown["documents"] = len(batch["document"][place].unique())
    return {**shown, "asked": list(expected_answers(run.task.c, batch, place, speaks))}


def describe_tensor_row(table: Any) -> dict[str, Any]:
    """A row of other data: its dtype, shape and range."""
    return {"type": str(table.dtype).removeprefix("torch."), "shape": list(table.shape),
            "least": float(table.min()), "most": float(table.max())}  # fmt: skip


def decode_row(batch: dict[str, Any], place: int, name: str, real: str, tokenizer: Any) -> dict[str, Any]:
    """A row of tokens without padding, as ids, as tokens and decoded."""
    ids = batch[name][place]
    there = batch[real][place] if real in batch else ids == ids
    told = ids[there].tolist()
    text = tokenizer.decode([id for id in told if id < len(tokenizer)])
    return {"ids": told, "pieces": [token_piece(tokenizer, id) for id in told], "text": text,
            "padding": int((~there).sum())}  # fmt: skip


def token_piece(tokenizer: Any, id: int) -> str:
    """The text of a token; ids after the vocabulary may be something else, such as colours."""
    return str(tokenizer.token_text(id)) if id < len(tokenizer) else f"#{id - len(tokenizer)}"


def expected_answers(c: config.Task, batch: dict[str, Any], place: int, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """The expected output: tokens by position, a class, a number, or the answer's span."""
    from regard.data.packing import IGNORE_INDEX
    from regard.tasks.masked_lm import NEXT_SENTENCE_LABELS

    classes, ids = getattr(c, "classes", ()), batch["ids"][place].tolist()
    for at, label in enumerate(batch["labels"][place].tolist() if "labels" in batch else []):
        if label != IGNORE_INDEX:
            answer = classes[label] if classes else label if tokenizer is None else token_piece(tokenizer, label)
            reads = {} if tokenizer is None else {"reads": token_piece(tokenizer, ids[at])}
            yield {"place": at, **reads, "answer": answer}
    if "label" in batch:
        label = batch["label"][place].item()
        yield {"answer": classes[label] if isinstance(c, config.Classification) else label}
    if "next" in batch:
        yield {"answer": f"the second part {NEXT_SENTENCE_LABELS[batch['next'][place]]}"}
    if "start" in batch:
        start, stop = int(batch["start"][place]), int(batch["stop"][place])
        yield {"place": start, "answer": tokenizer.decode(ids[start : stop + 1]) or "there is none"}


# ---------------------------------------------------------------- text output


def format_dry_run(result: dict[str, Any]) -> Iterator[str]:
    from regard.measure.format_estimate import format_duration, format_section, format_si

    run, cost, batch = result["run"], result["predicted"], result["batch"]
    learned = "" if result["trained"] == result["parameters"] else f", of which {result['trained']:,} are trained"
    yield f"{result['parameters']:,} parameters{learned}, {result['precision']}, {result['device']}; nothing is trained"
    yield format_section("parameters", [
        *((name, f"{count:,}", f"{100 * count / result['parameters']:.1f}%")
          for name, count in result["parts"].items()),
    ])  # fmt: skip
    yield format_section("the run", [
        ("steps", "as many as fit" if run["steps"] is None else f"{run['steps']:,}", f"ends by train.{run['ends_by']}"),
        *([("epochs", f"{run['epochs']:,.3g}", f"of {run['steps_in_epoch']:,.0f} steps")] if run["steps"] else []),
        ("tokens a step", f"{run['tokens_in_step']:,}", ""),
        *cost_rows(run, cost, format_duration, format_si),
    ], "<><")  # fmt: skip
    yield format_section(
        "the first batch", [(name, " x ".join(map(str, size))) for name, size in batch["tensors"].items()]
    )
    for place, each in enumerate(batch["rows"], 1):
        yield format_section(f"row {place}", row_lines(each), "<<")


def cost_rows(run: dict[str, Any], cost: dict[str, Any], lasting: Any, si: Any) -> Iterator[tuple[str, ...]]:
    if not cost:
        yield ("the cost of a step is not known before it runs",)
        return
    yield "a step", lasting(cost["step_seconds"]), "predicted"
    yield "all of it", lasting(60 * run["minutes"]), "predicted, without evaluations"
    yield "memory", si(cost["memory"], "B"), "predicted, at its peak"
    if cost["note"]:
        yield (cost["note"],)


def row_lines(row: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    if "seen" in row:
        side = row["seen"]
        size = " x ".join(map(str, side["shape"]))
        yield "read", f"{side['type']} {size}, from {side['least']:g} to {side['most']:g}"
    for name in ("source", "read"):
        if name in row:
            side = row[name]
            yield name, truncate_text(side["text"].replace("\n", "⏎"), WIDE)
            yield "pieces", join_few(side["pieces"], PIECES)
            yield "ids", join_few([str(id) for id in side["ids"]], PIECES)
            yield "tokens", f"{len(side['ids']):,}" + f" and {side['padding']:,} of padding" * bool(side["padding"])
    if "documents" in row:
        yield "documents", str(row["documents"])
    yield "asked", join_few([format_expected(each) for each in row["asked"]], EXPECTED_HANDLERS, "   ") or "nothing"
    if len(row["asked"]) > EXPECTED_HANDLERS:
        yield "", f"{len(row['asked']):,} in all"


def format_expected(expected: dict[str, Any]) -> str:
    if "reads" in expected:
        return f"{expected['reads']} → {expected['answer']}"
    return f"{expected['answer']} at {expected['place']}" if "place" in expected else str(expected["answer"])


def join_few(words: list[str], most: int, between: str = " ") -> str:
    return between.join(words[:most] + ["…"] * (len(words) > most))


def truncate_text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
