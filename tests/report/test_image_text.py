"""What a page shows of pairs: pictures with what was said of them, and texts with what was drawn."""

import pytest
from tasks.image_text_models import FRONT, TEXTS, N, asked, crossing, drawing, lively, records, towers, words

from regard import config as C
from regard.report.image_rows import image_text_rows
from regard.training.data.read import ValidationExamples

PIXELS = C.PixelEmbedding(palette=3, grid=(2, 4), colors=("000000", "ffffff", "ff0000"))
DRAW = C.TextToImage(pixels=PIXELS)
SHAPES = {
    "contrastive": (C.Contrastive(), towers(), FRONT, N, {}),
    "captioning": (C.Captioning(), crossing(len(words(C.Captioning()))), FRONT, N, {"cross": True}),
    "text_to_image": (DRAW, drawing(len(words(DRAW)) + 3, 24), PIXELS, 24, {}),
}


class Rows(list):
    name = "pairs"


@pytest.mark.parametrize("kind", SHAPES)
def test_every_row_has_a_picture_and_what_was_said(kind):
    c, shape, front, length, how = SHAPES[kind]
    task, tokenizer = asked(c, shape, front, length, **how)
    model = lively(shape)
    model.tokenizer, model.context, model.task = tokenizer, length, c
    kept = ValidationExamples(Rows(task.example(record, tokenizer) for record in records()), task)
    page = image_text_rows(kept, model, tokenizer)

    assert (page["name"], page["count"], len(page["rows"])) == ("pairs", 5, 5)
    assert all(row["picture"].startswith("data:image/png;base64,") for row in page["rows"])
    if kind == "text_to_image":
        assert [row["asked"] for row in page["rows"]] == [[[text]] for text in TEXTS]
    else:
        assert [row["meant"] for row in page["rows"]] == TEXTS
        assert all(row["right"] == (row["said"] == row["meant"]) for row in page["rows"])
    if kind == "contrastive":
        assert {row["said"] for row in page["rows"]} <= set(TEXTS)
