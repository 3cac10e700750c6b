"""Every packaged model is whole, and the figures on its card are those that it has."""

import csv
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from movie_reviews import cut_in_pieces, read_reviews, write_table
from sizes import in_full

import regard
from regard import zoo
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records
from regard.files.manifest import verify_manifest
from regard.report.image_rows import encode_png
from regard.zoo.packaged import packaged_card, packaged_dir, packaged_facts, packaged_names


def rows_of(source):
    [table] = find_records([source])
    return list(table.records(BadRecordPolicy()))


def card_figure(name, words):
    """The number behind some words of a card, such as "accuracy 0.98"."""
    return float(re.search(rf"{words}\s(\d+\.\d+)", (packaged_dir() / name / "README.md").read_text())[1])


@pytest.mark.parametrize("name", packaged_names())
def test_its_folder_is_as_it_was_written(name):
    assert verify_manifest(packaged_dir() / name) == ""


def test_the_accuracy_of_digits_is_the_one_on_its_card():
    found = regard.evaluate("digits", "digits:test")

    assert found.rows == 359
    assert packaged_facts("digits")["figure"] == f"accuracy {found.scores['accuracy']:.4f} on `digits:test`, 359 images"
    assert found.scores["accuracy"] > 0.98


def test_the_nearest_image_names_as_many_digits_as_the_card_of_digits_says():
    seen, asked = rows_of("digits"), rows_of("digits:test")
    images = [torch.tensor([row["pixels"] for row in rows], dtype=torch.float) for rows in (seen, asked)]
    nearest = torch.cdist(images[1], images[0]).argmin(1).tolist()
    right = sum(seen[one]["label"] == row["label"] for one, row in zip(nearest, asked, strict=True))

    assert round(right / len(asked), 4) == card_figure("digits", "right name for")


@pytest.mark.slow
def test_classify_names_a_digit_of_a_file_offline_and_from_any_folder(tmp_path):
    row = next(row for row in rows_of("digits:test") if row["label"] == 9)
    image = torch.tensor(row["pixels"]).view(1, 8, 8).mul(255).div(16).round().to(torch.uint8)
    (tmp_path / "nine.png").write_bytes(encode_png(image))
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(regard.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "regard", "classify", "digits", "nine.png", "--json"], cwd=tmp_path,
                          env=offline, capture_output=True, encoding="utf8", timeout=120)  # fmt: skip

    assert done.returncode == 0, done.stderr
    [answer] = json.loads(done.stdout)["answers"]
    assert list(answer["classes"]) == ["9"]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    table = tmp_path_factory.mktemp("reviews") / "reviews.test.tsv"
    write_table(table, read_reviews("movie-reviews:test").values())
    return str(table)


def test_sentiment_tells_a_fantastic_course_from_a_terrible_one():
    good, bad = regard.load("sentiment").classify(["This course is fantastic", "This course is terrible"])

    assert good["positive"] > 0.9 and bad["negative"] > 0.9


def test_the_limits_on_the_card_of_sentiment_are_there():
    bad, rain = regard.load("sentiment").classify(["The film was not bad.", "It is raining."])

    assert bad["negative"] > 0.5 and round(rain["positive"], 3) == card_figure("sentiment", "positive with")


def test_sentiment_is_right_on_most_of_twenty_reviews(reviews):
    assert regard.evaluate("sentiment", reviews, limit=20, notice=[].append).scores["accuracy"] >= 0.7


@in_full
@pytest.mark.slow
def test_the_accuracy_of_sentiment_is_the_one_on_its_card(reviews):
    with pytest.warns(UserWarning, match="10 of 200 rows were too long"):
        found = regard.evaluate("sentiment", reviews)
    accuracy = f"accuracy {found.scores['accuracy']:.4f}"

    assert packaged_card("sentiment")["figure"] == f"{accuracy} on `movie-reviews:test`, 200 reviews"


def test_pieces_of_a_review_are_all_of_it_in_order_and_have_its_label():
    rows = [("positive", " ".join(map(str, range(200)))), ("negative", "short")]
    first, *_ = pieces = cut_in_pieces(rows, 64)

    assert [label for label, _ in pieces] == ["positive"] * 3 + ["negative"]
    assert " ".join(text for _, text in pieces) == " ".join(text for _, text in rows)
    assert 64 <= len(first[1].split()) <= 68


@pytest.mark.parametrize("name", packaged_names())
def test_shape_parameters_and_size_on_a_card_are_those_of_the_folder(name):
    folder, facts = packaged_dir() / name, packaged_facts(name)
    model = regard.load(name)

    assert facts["shape"] == zoo.model_shape(model.c)
    assert facts["parameters"] == f"{sum(each.numel() for each in model.parameters()):,}"
    assert facts["size"] == f"{sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB"
    assert facts["recipe"].strip("`").removeprefix("recipes/").removesuffix(".toml") in zoo.packaged_recipes()


def test_all_of_them_together_are_at_most_40_megabytes():
    assert sum(path.stat().st_size for path in packaged_dir().rglob("*") if path.is_file()) <= 40_000_000


def test_the_page_of_packaged_models_says_what_their_cards_say():
    page = Path(__file__).parents[2] / "docs" / "packaged_models.md"
    header, _, *rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    keys = [cell.strip() for cell in header.strip("|").split("|")]
    found = {}
    for row in rows:
        name, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        recipe = re.fullmatch(r"\[\S+\]\(\.\./(\S+)\)", cells.pop())
        found[re.match(r"\[(\S+)\]", name)[1]] = dict(zip(keys[1:], [*cells, f"`{recipe[1]}`"], strict=True))

    assert found == {name: packaged_facts(name) for name in packaged_names()}


def test_the_ten_folds_on_the_card_of_sentiment_are_those_of_the_benchmark():
    with (Path(__file__).parents[2] / "bench" / "results" / "sentiment.csv").open(newline="") as file:
        rows = {row["fold"]: row for row in csv.DictReader(file)}
    ways, card = ("encoder", "logistic regression"), " ".join(packaged_card("sentiment").split())
    folds = {way: [float(rows[str(fold)][way]) for fold in range(10)] for way in ways}
    (mine, spread), (theirs, other) = ((f"{statistics.mean(each):.4f}", f"{statistics.stdev(each):.4f}")
                                       for each in folds.values())  # fmt: skip

    assert f"mean accuracy {mine}, standard deviation {spread}; logistic regression" in card
    assert f"of the words {theirs} and {other} (" in card
