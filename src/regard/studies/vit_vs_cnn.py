"""Looking or convolving, over the size of the data: both learn from the first images, ever more of them (S131).

A convolution is told that neighbours belong together and that a shape is the same wherever it stands; a vision
transformer has to learn that from images, and needs more of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from regard.data import Record, Tally
from regard.data.sources import tables
from regard.train.compare.claims import Asked, Drawing, Sheet, Stopped, claim
from regard.train.compare.comparison import Comparison
from regard.train.compare.study import VARIANT, Part, Study
from regard.train.compare.table import Row, columns, notes, rows, tree
from regard.train.facts import write_text
from regard.train.fit import make_folder

SIZES, KEPT = (80, 160, 320, 640, 1280), 500  # images to learn from; those that all are asked about, the last ones
RECIPES = {"compare-digits-vit": "ViT", "compare-digits-cnn": "CNN"}
QUICK = ("train.steps=4", "train.batch=8")


@claim("vit-vs-cnn", "Vision transformer or convolutions, with few images and with many?",
       "Both have as many weights, see the same digits of 8 x 8 pixels and take the same steps; the number of images "
       "that they learn from doubles from row to row.")  # fmt: skip
def pictures(asked: Asked) -> list[Sheet]:
    sizes = SIZES[:2] if asked.quick else SIZES
    files = written(asked.out / "data", sizes)
    lines = tuple(f"{size}: data.source={json.dumps(str(file))}" for size, file in files.items())
    test = json.dumps(str(asked.out / "data" / "test.jsonl"))
    settings = (*(QUICK if asked.quick else ()), f"data.validation={test}", *asked.settings)
    part = Part(recipe=next(iter(RECIPES)), settings=settings, variants=lines, over=VARIANT,
                grid=(f"recipe={','.join(RECIPES)}",))  # fmt: skip
    seeds = asked.seeds or (1 if asked.quick else 3)
    compared = Comparison(Study(seeds=seeds, parts=(part,)), asked.out / "runs", command=asked.command,
                          tell=asked.tell, measured=False)  # fmt: skip
    if (stopped := compared.go()) is not None:
        raise Stopped(stopped)
    return [sheet(rows(compared, compared.tables[0]))]


def written(folder: Path, sizes: Sequence[int]) -> dict[int, Path]:
    """The first so many of the digits in a file each, and the last ones to be asked about; all known already stay."""
    make_folder(folder)
    [table] = tables(["digits"])
    every = list(table.records(Tally("stop")))
    files = {size: folder / f"train-{size}.jsonl" for size in sizes}
    parts = {folder / "test.jsonl": every[-KEPT:], **{path: every[:size] for size, path in files.items()}}
    for path, some in parts.items():
        if not path.exists():
            write_text(path, "".join(line(record) for record in some))
    return files


def line(record: Record) -> str:
    return json.dumps({name: record[name] for name in ("pixels", "label")}) + "\n"


def sheet(made: list[Row]) -> Sheet:
    names = [f"{each.chosen[VARIANT]} images, {RECIPES[each.chosen['recipe']]}" for each in made]
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in made:
        if accuracy := each.scores.get("accuracy"):
            points = lines.setdefault(RECIPES[each.chosen["recipe"]], [])
            points.append((float(each.chosen[VARIANT]), 100 * (1 - accuracy.mean)))
    drawing = Drawing("Who needs fewer images?", "images to learn from", "percent wrong", lines, (True, True))
    said = [note for note in notes(made) if "did not read" not in note]
    return Sheet(f"{KEPT} digits that nobody saw", names, columns(made), [tree(each) for each in made], said,
                 [drawing] if lines else [])  # fmt: skip
