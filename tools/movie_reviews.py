"""Write the movie reviews as the tables that recipes/sentiment.toml reads: negative or positive, and a text.

    python tools/movie_reviews.py         # reviews.tsv, reviews.validation.tsv and reviews.test.tsv

The reviews are the packaged ones (polarity dataset 2.0 of Pang and Lee). Those to train on are cut into pieces of about
`--words` words, each with the label of its review: 1,600 long texts are few, and a model soon knows them by heart; of
pieces there are 18,000, and none is longer than what people write in a line or two. The others stay whole.
"""

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

from regard import data

LABELS = {"neg": "negative", "pos": "positive"}
Row = tuple[str, str]


def read_reviews(source: str) -> dict[str, Row]:
    """Label and text of each review, by label and id: "neg cv000_29416" is of fold 0, by its first digit."""
    [records] = data.find_records([source])
    rows = records.records(data.BadRecordPolicy())
    return {f"{row['label']} {row['id']}": (LABELS[row["label"]], row["text"]) for row in rows}


def cut_in_pieces(rows: Iterable[Row], words: int) -> list[Row]:
    pieces = []
    for label, text in rows:
        found = text.split()
        count = max(1, round(len(found) / words))
        cuts = [len(found) * n // count for n in range(count + 1)]
        pieces += [(label, " ".join(found[a:b])) for a, b in zip(cuts, cuts[1:], strict=False)]
    return pieces


def write_table(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf8") as file:
        table = csv.writer(file, "excel-tab")
        table.writerow(("label", "text"))
        table.writerows(rows)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--out", type=Path, default=Path("reviews"))
    ask.add_argument("--words", type=int, default=64)
    asked = ask.parse_args()
    for suffix, part in ((".tsv", "train"), (".validation.tsv", "validation"), (".test.tsv", "test")):
        rows = list(read_reviews(f"movie-reviews:{part}").values())
        write_table(asked.out.with_suffix(suffix), cut_in_pieces(rows, asked.words) if part == "train" else rows)


if __name__ == "__main__":
    main()
