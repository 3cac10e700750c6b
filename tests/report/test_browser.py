"""The report in a real browser: Debian's Chromium opens it from the disk, and everything is there."""

import base64
import io
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from report.run_folders import HOSTILE, SAID, data_in, eventful, put, whole_run
from torch import Tensor
from torch.testing import assert_close

import regard
from regard import config as C
from regard import lens, report
from regard.training.api import fit

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
VIEWS = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
# Colours in a canvas: a picture has several, an empty one has one.
COLOURS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), found = new Set();
  for (let i = 0; i < data.length; i += 4) found.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return found.size;
}"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]  # what its tests share is made once


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None and "CI" not in os.environ:
        pytest.skip("there is no chromium here; apt-get install chromium, and this page is looked at")
    assert CHROMIUM is not None, "CI has no chromium: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        folder = str(tmp_path_factory.mktemp("chromium"))  # a fresh profile, and no traces of it
        context = driver.chromium.launch_persistent_context(folder, executable_path=CHROMIUM, args=FLAGS)
        yield context.browser or context
        context.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return report.write_report(*whole_run(tmp_path_factory.mktemp("runs") / "lab", sentence="hear me,\nspeak, speak"))


TRUNK = {"dim": 24, "depth": 2, "attention": C.Attention(heads=3), "position": C.RotaryPosition()}
BOTH = C.Transformer(embed=C.TextEmbedding(vocab=1), trunk=C.Trunk(**TRUNK, mask="causal", cross="last"),
                     encoder=C.Encoder(trunk=C.Trunk(**TRUNK)))  # fmt: skip
ONE = C.Transformer(embed=C.TextEmbedding(vocab=1), trunk=C.Trunk(**TRUNK))
POOLED = C.Transformer(embed=C.TextEmbedding(vocab=1), trunk=C.Trunk(**TRUNK), head=C.PoolingHead(pooling="mean"))
LIVES = {  # what is asked, of what, and of whom
    "translation": (C.Translation(source="en", target="fr"), "tatoeba-en-fr:test", BOTH),
    "classification": (C.Classification(), "movie-reviews:validation", POOLED),
    "masked_lm": (C.MaskedLM(), "shakespeare", ONE),
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """The page of a run that was really trained, for a few steps, on data that come with the package."""
    pages: dict[str, Path] = {}

    def trained(kind: str) -> Path:
        if kind not in pages:
            task, source, model = LIVES[kind]
            said = C.Recipe(data=C.Data(source=source, validation=0.3), task=task, model=model,
                            train=C.Train(steps=7, batch_size=5, context=64, eval_every=2, eval_tokens=2000,
                                          save_every=None, compile=False))  # fmt: skip
            out = tmp_path_factory.mktemp("lived") / kind
            out.mkdir()
            fit(said, out, quiet=True)
            asked = regard.load(out)
            pages[kind] = report.write_report(out, asked, asked.tokenizer)
        return pages[kind]

    return trained


@pytest.fixture
def opened(browser):
    """Opens a page; a test fails on whatever the page complains about or asks the network for."""
    pages, complaints = [], []

    def look(path: Path, width: int = 1280, scheme: str = "light"):
        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield look
    for page in pages:
        page.close()
    assert complaints == []


@pytest.mark.parametrize(("width", "scheme"), VIEWS, ids=[f"{width} {scheme}" for width, scheme in VIEWS])
def test_every_figure_is_drawn_and_nothing_scrolls_sideways(opened, written, width, scheme):
    page = opened(written, width, scheme)

    assert page.evaluate("document.documentElement.scrollWidth") == width
    for chart in ("loss", "lr", "norm", "speed"):
        assert len(page.locator(f"#{chart} path.even").first.get_attribute("d")) > 100
    assert page.locator("#loss circle").count() == 5  # four evaluations, and the ring of the last
    assert page.locator(".mini canvas").count() == 9
    for canvas in page.locator("canvas").all():
        assert canvas.evaluate(COLOURS) > 5, canvas.get_attribute("aria-label")
    assert page.locator(".role svg").count() == 6 and page.locator("#role-table tbody tr").count() == 9
    assert page.locator(".plane text").count() > 10 and page.locator(".near li").count() == 5
    assert page.locator("#bill tbody tr").count() == 5 and page.locator(".absent").count() == 0


def test_light_and_dark_are_different_pages_of_paper(opened, written):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = (opened(written, 1280, scheme) for scheme in ("light", "dark"))

    assert light.evaluate(ground) != dark.evaluate(ground)
    light.click("#theme")
    assert light.get_attribute("#theme", "aria-label") == "Colours: light"
    light.click("#theme")
    assert light.evaluate(ground) == dark.evaluate(ground)


def test_pointing_at_a_curve_tells_its_values(opened, written):
    page = opened(written)
    assert "step" not in page.inner_text("#loss .keys")
    page.locator("#loss svg").hover()  # in the middle

    assert re.search(r"step [56]\d$", page.inner_text("#loss .keys"))
    assert re.search(r"step [56]\d$", page.inner_text("#norm .keys"))  # one cursor for all four


def test_curves_can_be_drawn_over_time_and_logarithmically(opened, written):
    page = opened(written)
    traced = page.locator("#loss path.even").first
    linear = traced.get_attribute("d")
    page.get_by_role("button", name="Logarithmic").click()
    logarithmic = traced.get_attribute("d")
    page.get_by_role("button", name="Time", exact=True).click()

    assert linear != logarithmic and "NaN" not in logarithmic
    assert "1 s" in page.text_content("#loss svg")


def test_a_chosen_head_and_token_are_told_in_words(opened, written):
    page = opened(written)
    page.get_by_role("button", name="Map of head 1.2").click()
    page.locator(".strip span").nth(7).hover()

    assert page.inner_text(".big h3") == "Where does head 1.2 look?"
    assert "‘,’ (7) looks at" in page.inner_text(".big .says")
    assert page.locator(".strip .asks").inner_text() == ","


def test_the_slider_goes_back_to_the_first_samples(opened, written):
    page = opened(written)
    page.locator("#samples input").fill("0")

    assert "step 30, validation loss" in page.inner_text("#samples .controls")
    assert page.locator(".sample").count() == 3 and SAID[:20] in page.locator(".sample p").first.inner_text()


def test_a_column_sorts_the_heads(opened, written):
    page = opened(written)
    page.get_by_role("button", name="entropy").click()
    bits = [float(cell) for cell in page.locator("#role-table tbody tr td:nth-child(8)").all_inner_texts()]

    assert bits == sorted(bits, reverse=True) and len(bits) == 9


def test_hostile_text_is_shown_and_not_run(opened, tmp_path):
    path = report.write_report(*whole_run(tmp_path / "lab", samples=HOSTILE + SAID, sentence=HOSTILE))
    page = opened(path)

    assert page.title() == "lab · regard" and page.locator("img").count() == 0
    assert "</script><script>" in page.locator(".sample p").first.inner_text()


def test_a_run_with_nothing_says_so_in_sentences(opened, tmp_path):
    _, model, tokenizer = whole_run(tmp_path / "lab")
    (tmp_path / "empty").mkdir()
    page = opened(report.write_report(tmp_path / "empty", model, tokenizer), 360)

    assert page.locator(".absent").count() >= 6 and page.evaluate("document.documentElement.scrollWidth") == 360
    assert "No samples were written" in page.inner_text("#samples")


# ---------------------------------------------------------------- other tasks


@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")], ids=["360 dark", "1280 light"])
def test_a_run_of_any_task_shows_all_that_it_has(opened, lived, kind, width, scheme):
    page = opened(lived(kind), width, scheme)

    assert page.evaluate("document.documentElement.scrollWidth") == width and page.locator(".absent").count() == 0
    assert page.locator("#health canvas:not([aria-hidden])").count() == 2
    for canvas in page.locator("canvas:visible").all():
        assert canvas.evaluate(COLOURS) > 2, canvas.get_attribute("aria-label")
    assert page.locator("#scores tr").count() == {"translation": 1, "classification": 3, "masked_lm": 1}[kind]
    assert page.locator("#scores path.even").count() == {"translation": 0, "classification": 3, "masked_lm": 0}[kind]
    assert page.locator("#quote").inner_text().strip() and page.locator("#loss path.even").count() == 2


def test_translations_go_along_the_training_and_an_alignment_is_a_table(opened, lived):
    page = opened(lived("translation"))
    page.locator("#samples input").fill("0")

    assert "step 2, validation loss" in page.inner_text("#samples .controls")
    assert page.locator(".pairs-of").count() == 3 and "meant:" in page.locator(".pairs-of").first.inner_text()
    rows, columns = page.locator(".align tbody tr").count(), page.locator(".align thead th").count()
    assert rows > 0 and page.locator(".align tbody td").count() == rows * columns


def test_heads_of_a_translator_are_looked_at_group_by_group(opened, lived):
    page = opened(lived("translation"))
    across, counts = page.locator(".big canvas"), []
    for name in ("encoder", "decoder", "across"):
        page.get_by_role("button", name=name, exact=True).click()
        page.locator(".strip span[tabindex]").nth(1).hover()
        counts.append(page.locator(".mini:visible").count())
        assert f"head {name}" in page.inner_text(".big h3") and "(1) looks at" in page.inner_text(".big .says")

    assert across.evaluate(COLOURS) > 5
    assert counts == [6, 6, 6] and page.locator(".strip").count() == 2  # what is told, and what is read


def test_every_class_is_told_apart_in_the_table(opened, lived):
    page = opened(lived("classification"))
    cells = [int(cell) for cell in page.locator(".confusion td").all_inner_texts()]

    assert len(cells) == 4 and sum(cells) > 20 and f"{sum(cells)} rows" in page.inner_text(".whole figcaption")
    assert page.locator(".answer").count() == 6
    assert page.locator(".answer .verdict").first.inner_text().split()[0] in ("neg", "pos")


def test_gaps_show_what_is_said_and_what_stood_there(opened, lived):
    page = opened(lived("masked_lm"))
    wrong = page.locator(".answer .spot.wrong").first

    assert page.locator(".answer").count() == 6
    assert re.fullmatch("wrong, it is .+", wrong.locator("s").get_attribute("aria-label"), re.S)


def test_steps_that_were_not_taken_are_crossed_and_told(opened, tmp_path):
    run, model, tokenizer = whole_run(tmp_path / "lab")
    eventful(run, {"trunk": 3})
    page = opened(report.write_report(run, model, tokenizer))

    assert page.locator("#loss .refused").count() == 3
    assert "steps 40, 41 (loss or gradient norm spiked), nor from step 77" in page.inner_text("#skipped")
    page.get_by_role("button", name="Time", exact=True).click()
    assert page.locator("#loss .refused").count() == 3


def test_pointing_at_a_layer_tells_its_gradient_and_its_update(opened, tmp_path):
    run, model, tokenizer = whole_run(tmp_path / "lab")
    eventful(run, {"trunk": 3})
    page = opened(report.write_report(run, model, tokenizer))
    first = page.locator("#health figure").first
    first.locator("canvas").first.hover()
    told = first.locator(".says").inner_text()
    first.get_by_role("button", name="Update").click()
    first.locator("canvas").first.hover(position={"x": 200, "y": 30})

    assert told == "trunk.1, step 60: 0.01667."
    assert first.locator(".says").inner_text().endswith("0.001 of its weights a step.")


# ---------------------------------------------------------------- images

FAINT = 12.5 / 255  # what is less is not coloured
# What lies over each patch: how much of the colour of a look, and where.
LOOKS = """patches => patches.map(patch => {
  const { x, y, width, height } = patch.getBoundingClientRect();
  const parts = getComputedStyle(patch).backgroundColor.match(/[\\d.]+/g).map(Number);
  return { name: patch.title, box: [x, y, width, height], colour: parts.slice(0, 3), share: parts[3] };
})"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> tuple[Path, Tensor]:
    """The page of a small ViT on a handful of images, and the maps (heads, 10, 10) of the first one that it shows."""
    folder, chance = tmp_path_factory.mktemp("seen"), torch.Generator().manual_seed(5)
    pixels = (torch.randint(0, 256, (6, 6), generator=chance).tolist() for _ in range(20))
    put(folder / "shapes.jsonl", [{"image": each, "label": number % 3} for number, each in enumerate(pixels)])
    trunk = C.Trunk(**TRUNK | {"position": C.SinusoidalPosition()})
    shape = C.Transformer(
        embed=C.PatchEmbedding(patch_size=2, image_size=6, channels=1), trunk=trunk, head=C.PoolingHead()
    )
    said = C.Recipe(data=C.Data(source=str(folder / "shapes.jsonl"), validation=0.3), task=C.Classification(),
                    model=shape, train=C.Train(steps=2, batch_size=5, compile=False, device="cpu"))  # fmt: skip
    fit(said, folder / "run", quiet=True)
    model = regard.load(folder / "run", device="cpu")
    with torch.no_grad():
        for weight in model.parameters():  # so that heads have something to look at
            weight.add_(0.3 * torch.randn(weight.shape, generator=chance))
    page = report.write_report(folder / "run", model, model.tokenizer)
    first = data_in(page.read_text(encoding="utf8"))["answers"]["rows"][0]["picture"].partition(",")[2]
    image = torch.tensor(list(Image.open(io.BytesIO(base64.b64decode(first))).tobytes()), dtype=torch.uint8)
    views = lens.attention_views(model, image.view(1, 1, 6, 6))
    return page, torch.cat([view.pattern[0] for view in views])


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")], ids=["360 dark", "1280 light"])
def test_the_patches_of_an_image_show_where_each_head_looks(opened, seen, width, scheme):
    path, maps = seen
    page = opened(path, width, scheme)
    over, drawn = page.locator(".patches span"), []
    for head in range(len(maps)):
        page.locator(".mini").nth(head).click()
        over.nth(5).hover()  # the last patch of the second row: after the learned token the seventh
        looks = over.evaluate_all(LOOKS)
        drawn.append([each["share"] for each in looks])

    assert [each["name"] for each in looks] == [f"{row},{column}" for row in range(3) for column in range(3)]
    assert {tuple(each["colour"]) for each in looks if each["share"]} == {(213, 94, 0)}
    weights = maps[:, 6, 1:].sqrt()
    assert_close(torch.tensor(drawn), 0.9 * weights * (weights > FAINT), atol=0.01, rtol=0)
    assert torch.pdist(torch.tensor(drawn)).min() > 0.05  # no two heads are drawn alike
    assert page.locator(".patches .asks").get_attribute("title") == "1,2"


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")], ids=["360 dark", "1280 light"])
def test_the_patches_cover_the_image_in_rows_and_columns(opened, seen, width, scheme):
    page = opened(seen[0], width, scheme)
    image, side = page.locator(".patches img").bounding_box(), page.locator(".patches").bounding_box()["width"] / 3
    shown = page.locator(".patches img").evaluate("image => [image.naturalWidth, image.naturalHeight]")
    boxes = torch.tensor([each["box"] for each in page.locator(".patches span").evaluate_all(LOOKS)])
    rows, columns = torch.arange(9) // 3, torch.arange(9) % 3
    meant = torch.stack([image["x"] + side * columns, image["y"] + side * rows], 1)

    assert shown == [6, 6] and side > 40 and page.evaluate("document.documentElement.scrollWidth") == width
    assert_close(boxes, torch.cat([meant, torch.full((9, 2), side)], 1), atol=1.0, rtol=0)


def test_the_maps_of_a_model_of_images_are_drawn(opened, seen):
    page = opened(seen[0])
    canvases = page.locator(".mini canvas, .big canvas")

    assert canvases.count() == len(seen[1]) + 1
    assert all(canvas.evaluate(COLOURS) > 20 for canvas in canvases.all())
