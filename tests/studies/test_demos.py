"""Claims that are shown: learning from a prompt, few images and many; and the drawings that show them."""

import json
import re
import xml.etree.ElementTree as xml
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

from regard import config, studies, text
from regard.data import builtin
from regard.data.sources import find_records
from regard.report import svg_plot
from regard.report.study_pages import write_demo_page
from regard.studies import demo, in_context, vit_vs_cnn

# ---------------------------------------------------------------- in context


def test_a_prompt_is_spelt_as_the_records_are():
    [table] = find_records(["toy:regress(4)"])
    record = table.record(5)
    points = [point.split("=") for point in record["text"].split(";")]

    made = in_context.format_points([(int(x), y) for x, y in points[:-1]], int(points[-1][0]))

    assert made + record["target"] == record["text"]


def test_least_squares_is_exact_from_two_points_on_and_leans_before():
    x, y = torch.tensor([-3.0, 1.0, 4.0]).double(), torch.tensor([-4.0, 4.0, 10.0]).double()  # 2x + 2

    assert float(in_context.ridge_prediction(x[:2], y[:2], x[2])) == pytest.approx(10.0, abs=1e-3)
    assert float(in_context.ridge_prediction(x[:0], y[:0], x[2])) == 0.0
    one = float(in_context.ridge_prediction(x[:1], y[:1], x[0]))
    assert one == pytest.approx(-4.0, abs=1e-3)


def test_least_squares_with_few_points_is_the_likeliest_line_of_bayes():
    """With the variance of slope and level that the lines are drawn with, by the formula of a Gaussian posterior."""
    spread = numpy.diag(in_context.LINE_SPREAD)
    at, seen, height = numpy.array([3.0, 1.0]), numpy.array([[-2.0, 1.0]]), numpy.array([5.0])
    posterior = at @ spread @ seen.T @ numpy.linalg.inv(seen @ spread @ seen.T + 1e-6) @ height

    ours = in_context.ridge_prediction(
        torch.tensor([-2.0]).double(), torch.tensor([5.0]).double(), torch.tensor(3.0).double()
    )

    assert float(ours) == pytest.approx(float(posterior), rel=1e-6)


class Knows:
    """A model that says what is right: the letter that comes next, for sure."""

    def __init__(self, vocab):
        self.vocab = vocab

    def __call__(self, ids):
        said = torch.cat([ids[:, 1:], ids[:, :1]], 1)
        return 50.0 * torch.nn.functional.one_hot(said, self.vocab).float()


def test_a_model_that_is_right_has_no_error():
    tokenizer = text.train_tokenizer(config.CharTokenizer(byte_fallback=False), [builtin.TOY_HEIGHTS + "0123456789=;"])

    task = SimpleNamespace(specials=SimpleNamespace(single=SimpleNamespace(before=())))
    run = SimpleNamespace(device=torch.device("cpu"), model=Knows(len(tokenizer)), task=task, tokenizer=tokenizer)
    found = in_context.errors_by_point(run, lines=17)

    assert [each["model"] for each in found] == pytest.approx([0.0] * in_context.PROMPT_POINTS, abs=1e-6)
    assert all(each["mean height"] > 1 for each in found)
    assert all(each["least squares"] < 1e-3 for each in found[2:]) and found[1]["least squares"] > 1


@pytest.mark.slow
@pytest.mark.spec("S111", "S196")
def test_a_small_model_learns_from_the_examples_in_its_prompt(desk):
    asked = studies.DemoSettings(
        desk / "out",
        (
            "train.steps=250",
            "model.dim=64",
            "model.depth=2",
            "model.heads=2",
            "train.eval_every=none",
            'data.source="toy:regress(9, 16000)"',
            "train.compile=false",
        ),
    )
    [sheet] = demo.DEMOS["in-context"][2](asked)

    errors = [each["model"] for each in sheet.numbers]
    assert numpy.mean(errors[-3:]) < 0.75 * errors[0]
    assert numpy.mean(errors[-3:]) < 0.8 * numpy.mean([each["mean height"] for each in sheet.numbers[-3:]])


# ---------------------------------------------------------------- images


def test_more_images_are_the_same_ones_and_more(tmp_path):
    files = vit_vs_cnn.write_subsets(tmp_path, (20, 40))
    few, many, test = ([json.loads(line) for line in path.read_text().splitlines()]
                       for path in (files[20], files[40], tmp_path / "test.jsonl"))  # fmt: skip

    assert (len(few), len(many), len(test)) == (20, 40, vit_vs_cnn.TEST_IMAGES) and many[:20] == few
    shown = {tuple(each["pixels"]) for each in many}
    assert not shown & {tuple(each["pixels"]) for each in test}
    assert set(few[0]) == {"pixels", "label"}


@pytest.mark.slow
def test_looking_and_convolving_learn_from_the_same_images(desk):
    [sheet] = demo.DEMOS["vit-vs-cnn"][2](studies.DemoSettings(desk / "out", quick=True))

    assert sheet.names == ["80 images, ViT", "80 images, CNN", "160 images, ViT", "160 images, CNN"]
    sizes = [each["parameters"] for each in sheet.numbers]
    assert max(sizes) < 1.02 * min(sizes) and all("accuracy" in each["scores"] for each in sheet.numbers)
    assert list(sheet.drawings[0].lines) == ["ViT", "CNN"]


# ---------------------------------------------------------------- drawings


def shapes(drawing):
    root = xml.fromstring(drawing)
    return [(each.tag.rpartition("}")[2], each.attrib) for each in root.iter()]


def test_a_point_stands_where_its_number_is():
    series = [
        svg_plot.PlotSeries("a", (svg_plot.PlotPoint(1, 10), svg_plot.PlotPoint(3, 30))),
        svg_plot.PlotSeries("b", (svg_plot.PlotPoint(2, 20, 5.0),)),
    ]
    drawing = svg_plot.draw_chart(series, "x", "y")
    circles = [(float(at["cx"]), float(at["cy"])) for tag, at in shapes(drawing) if tag == "circle"]

    (left, low), (right, high), (middle, half) = circles[:3]
    assert left < middle < right and low > half > high
    assert middle == pytest.approx((left + right) / 2, abs=0.1) and half == pytest.approx((low + high) / 2, abs=0.1)


@pytest.mark.parametrize("places, own", [((64, 96, 256), True), ((27.0, 27.5, 96, 256), False)])
def test_along_a_logarithm_places_have_their_own_ticks_unless_they_are_crowded(places, own):
    drawing = svg_plot.draw_chart(
        [svg_plot.PlotSeries("one", tuple(svg_plot.PlotPoint(x, 1.0) for x in places))], "x", "y", log_x=True
    )

    assert (">96<" in drawing) == own


def test_powers_are_evenly_apart_on_a_logarithmic_axis():
    across = svg_plot.build_axis([1, 10, 100], 0, 300, log=True, margin=0)

    assert [round(across(value)) for value in (1, 10, 100)] == [0, 150, 300]
    assert svg_plot.log_ticks(1, 1000) == [1, 3, 10, 30, 100, 300, 1000]


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (2.93, 3.11), (-4e5, 1e6), (7.0, 7.0)])
def test_ticks_are_round_and_inside(low, high):
    found = svg_plot.round_ticks(low, high)

    assert len(found) <= 12 and all(low - 1e-9 <= at <= high + 1e-9 for at in found)
    assert low == high or len(found) >= 3


def test_a_field_is_as_dark_as_its_numbers_are_high():
    drawing = svg_plot.draw_heatmap((-1.0, 0.0, 1.0), ((0.0, 1.0, 2.0), (3.0, 4.0, 5.0), (6.0, 7.0, 10.0)), "a", "b")
    cells = [at["fill"] for tag, at in shapes(drawing) if tag == "rect"][:9]

    assert cells[0] == "var(--ramp-0)" and cells[-1] == "var(--ramp-4)" and cells[4] == "var(--ramp-2)"


def test_names_cannot_leave_their_drawing(tmp_path):
    evil = '</svg><script>alert("x")</script>'
    told = {"title": evil, "about": evil, "tables": [{"title": evil, "names": [evil], "columns": {evil: [evil]},
            "notes": [evil], "drawings": [{"question": evil, "x": evil, "y": evil, "lines": {evil: [(1.0, 2.0)]},
            "log": (False, False), "dashed": (), "field": (), "places": ()}]}]}  # fmt: skip
    page = write_demo_page(tmp_path, told).read_text()

    assert "<script" not in page and page.count("</svg>") == 2 and not re.search(r"\{\{\w+\}\}", page)
    assert Path(tmp_path / "compare.html").exists()
