"""Prediction rows with images: inputs other than text, captions, matched pairs and generated images.

    patch 2,3      the fourth patch of the third row        whole     a learned class token
    17             the eighteenth token of a recording

Images are small PNGs encoded here (RFC 2083), as data URIs; other inputs are described in a few words.
"""

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard import config, tasks
from regard.config.errors import DataError
from regard.data.batching import batch_to_device
from regard.inputs.processors import TensorExample
from regard.lens.attention_maps import TrunkInput
from regard.report.attention_inputs import ShownInput
from regard.tasks.classification import classify_batch
from regard.tasks.collate import TaskBatch
from regard.tasks.image_text import TEXT_KEY
from regard.training.data.read import ValidationExamples
from regard.training.diagnostics import model_inputs

Row = dict[str, Any]
WHOLE = "whole"
FEW = 4  # rows for head roles


def prediction_rows(
    task: Any, model: Any, batch: TaskBatch, examples: Sequence[TensorExample], places: Sequence[int]
) -> list[Row]:
    """The predicted class or number of each input, with its image or description."""
    said, meant = classify_batch(model, batch).float(), batch["label"].tolist()
    shown = [example_row(example, place) for example, place in zip(examples, places, strict=True)]
    if isinstance(task.c, config.Regression):
        return [row | {"said": f"{a:.3g}", "meant": f"{b:.3g}"}
                for row, a, b in zip(shown, said[:, 0].tolist(), meant, strict=True)]  # fmt: skip
    sure, best = said.softmax(-1).max(-1)
    names = task.c.classes
    return [row | {"said": names[a], "meant": names[b], "sure": round(share, 3), "right": a == b}
            for row, a, b, share in zip(shown, best.tolist(), meant, sure.tolist(), strict=True)]  # fmt: skip


def prediction_errors(task: Any, model: Any, batch: TaskBatch, device: Any) -> list[float]:
    """The error of each prediction: the probability of the wrong class, or the distance of the number."""
    if not isinstance(task, tasks.InputTask):
        raise DataError(f"{task.c.kind!r} has no prediction for each row")
    said, meant = classify_batch(model, batch_to_device(batch, device)).float().cpu(), batch["label"]
    if isinstance(task.c, config.Regression):
        return (said[:, 0] - meant).abs().tolist()  # type: ignore[no-any-return]
    sure, best = said.softmax(-1).max(-1)
    return torch.where(best == meant, torch.zeros_like(sure), sure).tolist()


def example_row(example: TensorExample, place: int) -> Row:
    drawn, name = image_of_example(example), describe_example(example, place)
    return {"asked": [[name]]} if drawn is None else {"asked": [], "picture": drawn, "name": name}


def input_rows_shown(model: Any, batch: TaskBatch | None) -> ShownInput:
    """One row for attention maps and a few for head roles."""
    if batch is None:
        raise DataError("there is no validation data to show")
    whole = model_inputs(batch, model)
    return ShownInput({name: table[:1] for name, table in whole.items()},
                 {name: table[:FEW] for name, table in whole.items()}, "one that it never trained on")  # fmt: skip


def patch_labels(read: TrunkInput) -> list[str]:
    """Labels of the first row's tokens: positions in an image, or indices."""
    if read.image and read.at.shape[-1] == 2:
        return [WHOLE if row != row else f"{int(row)},{int(column)}" for row, column in read.at[0].tolist()]
    return [str(int(order)) for order in read.order[0].tolist()]


def patch_grid(read: TrunkInput) -> list[int] | None:
    """Rows and columns of an image's tokens."""
    if not read.image or read.at.shape[-1] != 2:
        return None
    most: Tensor = read.at[0].nan_to_num(0).amax(0)
    return [int(size) + 1 for size in most.tolist()]


SHOWN = 12  # rows on the page
AMONG = 1000  # candidates for the text of an image
ImageTextRow = dict[str, Any]


def image_text_rows(validation: ValidationExamples, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Evenly spaced validation rows."""
    rows, count = validation.rows, len(validation.rows)
    some = min(count, SHOWN)
    places = [place * count // some for place in range(some)]
    made = ROWS[validation.task.c.kind](validation, model, tokenizer, places)
    return {"name": rows.name, "count": count, "rows": made}


def decode_texts(examples: Sequence[TensorExample], tokenizer: Any) -> list[str]:
    return [tokenizer.decode(example[TEXT_KEY].tolist()) for example in examples]


def judged_rows(
    examples: Sequence[TensorExample], places: Sequence[int], predictions: Sequence[str], labels: Sequence[str]
) -> list[ImageTextRow]:
    """Prediction and label of each row, with its image or description."""
    rows = zip(examples, places, predictions, labels, strict=True)
    return [image_or_name(each, place) | {"said": a, "meant": b, "right": a == b} for each, place, a, b in rows]


def image_or_name(example: TensorExample, place: int) -> ImageTextRow:
    drawn, name = image_of_example(example), describe_example(example, place)
    return {"asked": [[name]]} if drawn is None else {"asked": [], "picture": drawn, "name": name}


def caption_rows(
    validation: ValidationExamples, model: Any, tokenizer: Any, places: Sequence[int]
) -> list[ImageTextRow]:
    examples = [validation.rows[place] for place in places]
    return judged_rows(examples, places, model.caption(processor_inputs(examples)), decode_texts(examples, tokenizer))


def match_rows(validation: ValidationExamples, model: Any, tokenizer: Any, places: Sequence[int]) -> list[ImageTextRow]:
    """The most similar text among the candidates, for each image."""
    rows = validation.rows
    every = sorted({*places, *range(min(len(rows), AMONG))})
    known = decode_texts([rows[place] for place in every], tokenizer)
    examples = [rows[place] for place in places]
    near = (model.embed_images(processor_inputs(examples)) @ model.embed_texts(known).mT).argmax(-1).tolist()
    return judged_rows(examples, places, [known[best] for best in near], decode_texts(examples, tokenizer))


def generated_rows(
    validation: ValidationExamples, model: Any, tokenizer: Any, places: Sequence[int]
) -> list[ImageTextRow]:
    """A generated image for each text."""
    asked = decode_texts([validation.rows[place] for place in places], tokenizer)
    images: Tensor = model.generate_images(asked, seed=0)
    return [{"asked": [[text]], "picture": data_uri(image), "name": text}
            for text, image in zip(asked, images.to(torch.uint8).cpu(), strict=True)]  # fmt: skip


def processor_inputs(examples: Sequence[TensorExample]) -> list[Tensor]:
    """The input tensors as the processor stored them."""
    return [next(iter(example.values())) for example in examples]


ROWS: dict[str, Callable[[ValidationExamples, Any, Any, Sequence[int]], list[ImageTextRow]]] = {
    "captioning": caption_rows, "contrastive": match_rows, "text_to_image": generated_rows,
}  # fmt: skip

COLOURS = {1: 0, 3: 2, 4: 6}  # PNG colour types of grey, RGB and RGBA
MOST = 128  # pixels a side: larger images are subsampled


def encode_png(image: Tensor) -> bytes:
    """Encode a uint8 image (channels, rows, columns) as PNG."""
    channels, rows, columns = image.shape
    raw = image.movedim(0, -1).reshape(rows, columns * channels).contiguous()
    lines = torch.cat([torch.zeros(rows, 1, dtype=torch.uint8), raw], 1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, COLOURS[channels], 0, 0, 0)
    packed = zlib.compress(bytes(lines.flatten().tolist()), 9)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def data_uri(image: Tensor) -> str:
    every = -(-max(image.shape[1:]) // MOST)
    return "data:image/png;base64," + base64.b64encode(encode_png(image[:, ::every, ::every])).decode()


def image_of_example(example: dict[str, Tensor]) -> str | None:
    """The image of an example as a data URI; None if it has none."""
    image = example.get("image")
    if image is None or image.dim() != 3 or image.dtype != torch.uint8 or image.shape[0] not in COLOURS:
        return None
    return data_uri(image)


def describe_example(example: dict[str, Tensor], row: int) -> str:
    """A description of an input without image: row, type and size."""
    name, first = next(iter(example.items()))
    return f"row {row:,}: {name} of {' x '.join(map(str, first.shape)) or 1} numbers"
