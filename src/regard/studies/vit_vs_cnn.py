"""Demo: a vision transformer against a CNN over the amount of data, both trained on the first n images (S131).

A convolution assumes locality and translation invariance; a vision transformer has to learn both from images, and needs
more of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from regard.data.records import BadRecordPolicy, Record
from regard.data.sources import find_records
from regard.files.atomic import write_text
from regard.studies.comparison import StudyRun
from regard.studies.demo import DemoFigure, DemoInterrupted, DemoSettings, DemoTable, register_demo
from regard.studies.study import VARIANT_KEY, StudyPlan, StudyTable
from regard.studies.table import VariantRow, row_dict, table_columns, table_notes, variant_rows
from regard.training.api import create_folder

TRAIN_SIZES, TEST_IMAGES = (
    (80, 160, 320, 640, 1280),
    500,
)  # training images; test images, which are the last ones for all sizes
IMAGE_RECIPES = {"compare-digits-vit": "ViT", "compare-digits-cnn": "CNN"}
QUICK = ("train.steps=4", "train.batch_size=8")


@register_demo("vit-vs-cnn", "Vision transformer or convolutions, with few images and with many?",
       "Both have as many weights, see the same digits of 8 x 8 pixels and take the same steps; the number of images "
       "that they learn from doubles from row to row.")  # fmt: skip
def demo_vit_vs_cnn(demo: DemoSettings) -> list[DemoTable]:
    sizes = TRAIN_SIZES[:2] if demo.quick else TRAIN_SIZES
    files = write_subsets(demo.out / "data", sizes)
    lines = tuple(f"{size}: data.source={json.dumps(str(file))}" for size, file in files.items())
    test = json.dumps(str(demo.out / "data" / "test.jsonl"))
    settings = (*(QUICK if demo.quick else ()), f"data.validation={test}", *demo.settings)
    part = StudyTable(recipe=next(iter(IMAGE_RECIPES)), settings=settings, variants=lines, over=VARIANT_KEY,
                grid=(f"recipe={','.join(IMAGE_RECIPES)}",))  # fmt: skip
    seeds = demo.seeds or (1 if demo.quick else 3)
    compared = StudyRun(StudyPlan(seeds=seeds, parts=(part,)), demo.out / "runs", command=demo.command,
                          tell=demo.tell, measured=False)  # fmt: skip
    if (stopped := compared.run()) is not None:
        raise DemoInterrupted(stopped)
    return [accuracy_table(variant_rows(compared, compared.tables[0]))]


def write_subsets(folder: Path, sizes: Sequence[int]) -> dict[int, Path]:
    """Write the first digits of each size to a file, and the last ones as test data; existing files stay."""
    create_folder(folder)
    [table] = find_records(["digits"])
    every = list(table.records(BadRecordPolicy("error")))
    files = {size: folder / f"train-{size}.jsonl" for size in sizes}
    parts = {folder / "test.jsonl": every[-TEST_IMAGES:], **{path: every[:size] for size, path in files.items()}}
    for path, some in parts.items():
        if not path.exists():
            write_text(path, "".join(record_line(record) for record in some))
    return files


def record_line(record: Record) -> str:
    return json.dumps({name: record[name] for name in ("pixels", "label")}) + "\n"


def accuracy_table(rows: list[VariantRow]) -> DemoTable:
    names = [f"{each.chosen[VARIANT_KEY]} images, {IMAGE_RECIPES[each.chosen['recipe']]}" for each in rows]
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in rows:
        if accuracy := each.scores.get("accuracy"):
            points = lines.setdefault(IMAGE_RECIPES[each.chosen["recipe"]], [])
            points.append((float(each.chosen[VARIANT_KEY]), 100 * (1 - accuracy.mean)))
    drawing = DemoFigure("Error by number of images", "images to learn from", "percent wrong", lines, (True, True))
    said = [note for note in table_notes(rows) if "did not read" not in note]
    return DemoTable(f"{TEST_IMAGES} digits that no model "
                     "saw", names, table_columns(rows), [row_dict(each) for each in rows], said,
                 [drawing] if lines else [])  # fmt: skip
