"""Movie reviews, positive or negative: the recipe `sentiment` beside logistic regression, on the authors' ten folds.

    python bench/sentiment.py

In each of ten turns 1,800 reviews are trained on and 200 others asked. Logistic regression reads tf-idf of the words
(scikit-learn: sublinear counts, words of two reviews or more, C=10). Kept in bench/results/sentiment.csv, a row a fold,
and the mean and the standard deviation over the folds. Six to ten minutes on one core.
"""

import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from common import keep, show
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import regard
from regard import zoo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from movie_reviews import Row, cut_in_pieces, read_reviews, write_table

ENCODER, REGRESSION = "encoder", "logistic regression"


def train_encoder(train: list[Row], test: list[Row]) -> tuple[float, float]:
    """Accuracy, and seconds of training; the fold is only looked at when the run is over."""
    with TemporaryDirectory() as name:
        table, asked = Path(name) / "train.tsv", Path(name) / "test.tsv"
        write_table(table, cut_in_pieces(train, 64))
        write_table(asked, test)
        changes = [f'data.source="{table}"', f'data.validation="{asked}"', "train.device=cpu", "train.eval_every=none"]
        begin = time.perf_counter()
        regard.fit(zoo.read_recipe("sentiment", changes), Path(name) / "run")
        seconds = time.perf_counter() - begin
        return regard.evaluate(Path(name) / "run", str(asked)).scores["accuracy"], seconds


def fit_logistic_regression(train: list[Row], test: list[Row]) -> float:
    words = TfidfVectorizer(sublinear_tf=True, min_df=2, token_pattern=r"\S+")
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000))
    model.fit([text for _, text in train], [label for label, _ in train])
    return float(model.score([text for _, text in test], [label for label, _ in test]))


def main() -> None:
    folds: list[list[Row]] = [[] for _ in range(10)]
    for part in ("train", "validation", "test"):
        for key, row in read_reviews(f"movie-reviews:{part}").items():
            folds[int(key.partition(" cv")[2][0])].append(row)  # "neg cv000_29416"
    rows = []
    for fold, test in enumerate(folds):
        train = [row for place, each in enumerate(folds) if place != fold for row in each]
        accuracy, seconds = train_encoder(train, test)
        rows.append({"fold": fold, "trained on": len(train), "asked": len(test), ENCODER: accuracy,
                     REGRESSION: fit_logistic_regression(train, test), "seconds": round(seconds, 1)})  # fmt: skip
        show(rows[-1:])
    for name, summary in (("mean", statistics.mean), ("standard deviation", statistics.stdev)):
        rows.append({"fold": name, **{way: summary([row[way] for row in rows[:10]]) for way in (ENCODER, REGRESSION)}})
    show(rows)
    keep("sentiment", rows)


if __name__ == "__main__":
    main()
