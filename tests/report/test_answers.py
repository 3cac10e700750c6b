"""Answers: rows that were kept back, what is said of them, and what is right; every kind of task."""

import re

import pytest
import torch
from report.run_folders import asked_run, data_in, put
from sklearn.metrics import confusion_matrix

from regard import config as C
from regard import report
from regard.files import content_cache
from regard.report.answers import answer_section, spread_indices, validation_examples
from regard.report.run_data import read_logged_run

SAID = "the cat sat on a mat and saw some dogs run past it in the rain while nobody cared much at all"
WORDS = SAID.split()
TEXTS = [" ".join(WORDS[place % 7 :][: 5 + place % 11]) + f" {place}" for place in range(61)]
CLASSED = [{"text": said, "label": ("bad", "fair", "good")[place % 3]} for place, said in enumerate(TEXTS)]
PIECES = C.SubwordTokenizer(vocab=540)


def shown(made):
    """What the page of a run says about answers."""
    return data_in(report.write_report(*made).read_text(encoding="utf8"))["answers"]


def spelt(text, of):
    """A text with what was said, or what is meant, at each place."""
    return "".join(part if isinstance(part, str) else part[of] for part in text)


def among(text, texts=TEXTS):
    """Whether this is one of the texts, or a piece of one; spaces do not count."""
    bare = text.replace(" ", "").replace("·", "")
    return any(bare in each.replace(" ", "") for each in texts)


# ---------------------------------------------------------------- one answer for a text


def test_a_confusion_table_is_that_of_scikit_learn(tmp_path):
    run, model, tokenizer = asked_run(
        tmp_path, C.Classification(), CLASSED, head=C.PoolingHead(pooling="mean"), context=99
    )
    table = shown((run, model, tokenizer))["confusion"]
    validation = validation_examples(read_logged_run(run), tokenizer)
    said, meant = [], []
    with torch.no_grad():
        for batch in validation.batches():
            logits = model.eval()(batch["ids"], real=batch.get("real"))
            said, meant = said + logits.argmax(-1).tolist(), meant + batch["label"].tolist()

    assert table["classes"] == ["bad", "fair", "good"]
    assert table["counts"] == confusion_matrix(meant, said, labels=[0, 1, 2]).tolist()
    assert table["always"] == round(max(map(meant.count, (0, 1, 2))) / len(meant), 4)


def test_the_rows_shown_are_among_those_kept_back_and_told_as_they_are(tmp_path):
    run, model, tokenizer = asked_run(
        tmp_path, C.Classification(), CLASSED, head=C.PoolingHead(pooling="mean"), context=99
    )
    found = shown((run, model, tokenizer))
    right = {row["text"]: row["label"] for row in CLASSED}
    back = {tokenizer.decode(row["ids"]) for row in validation_examples(read_logged_run(run), tokenizer).rows}

    assert len(found["rows"]) == 6 and found["count"] == len(back)
    for row in found["rows"]:
        [[text]] = row["asked"]
        assert text in back and row["meant"] == right[text] and row["right"] == (row["said"] == row["meant"])
        assert 1 / 3 <= row["sure"] <= 1  # the likeliest of three


def test_both_texts_of_a_pair_are_shown(tmp_path):
    pairs = [row | {"pair": row["text"][::-1]} for row in CLASSED]
    made = asked_run(
        tmp_path, C.Classification(input_pair="pair"), pairs, head=C.PoolingHead(pooling="cls"), context=199
    )

    assert all(first == [second[0][::-1]] for row in shown(made)["rows"] for first, second in [row["asked"]])


def test_many_classes_are_shown_in_part(tmp_path):
    many = [{"text": said, "label": f"k{place % 19:02}"} for place, said in enumerate(TEXTS)]
    table = shown(asked_run(tmp_path, C.Classification(), many, head=C.PoolingHead(pooling="mean")))["confusion"]

    assert table["of"] == 19 and len(table["classes"]) == 12 == len(table["counts"])
    assert table["classes"] == sorted(table["classes"])


def test_numbers_stand_beside_those_that_are_right(tmp_path):
    numbers = [{"text": said, "label": place / 4} for place, said in enumerate(TEXTS)]
    found = shown(asked_run(tmp_path, C.Regression(), numbers, head=C.PoolingHead(pooling="mean")))

    assert found["asked"] == found["count"] == len(found["points"])
    assert {meant for _, meant in found["points"]} <= {row["label"] for row in numbers}
    assert all("right" not in row and float(row["meant"]) >= 0 for row in found["rows"])


# ---------------------------------------------------------------- an answer at some tokens


@pytest.mark.parametrize(
    "kind", [C.CharTokenizer(), PIECES, C.SubwordTokenizer(kind="wordpiece", vocab=540)], ids=lambda c: c.kind
)
def test_a_text_with_the_right_words_in_its_gaps_is_the_text(tmp_path, kind):
    run, model, tokenizer = asked_run(tmp_path, C.MaskedLM(rate=0.4), [{"text": said} for said in TEXTS], said=kind)
    rows = shown((run, model, tokenizer))["rows"]

    assert rows and all(any(isinstance(part, dict) for part in row["asked"][0]) for row in rows)
    for row in rows:
        [text] = row["asked"]
        assert among(spelt(text, "meant"))
        assert all(part["right"] == (part["said"] == part["meant"]) for part in text if isinstance(part, dict))


def test_next_sentence_is_answered_beside_the_gaps(tmp_path):
    texts = [{"text": [f"{said} once", f"{said} twice", f"{said} again"]} for said in TEXTS]
    made = asked_run(tmp_path, C.MaskedLM(next_sentence=True), texts, head=C.PretrainingHead(), context=96)

    assert {row["said"] for row in shown(made)["rows"]} <= {"it follows", "it does not follow"}


def test_every_word_keeps_its_name_and_its_place(tmp_path):
    records = [{"words": said.split(), "labels": ["B-X" if word == "cat" else "O" for word in said.split()]}
               for said in TEXTS]  # fmt: skip
    rows = shown(asked_run(tmp_path, C.TokenClassification(), records, said=PIECES, head=C.TokenHead(out=2)))["rows"]

    for row in rows:
        [text] = row["asked"]
        assert spelt(text, "text").strip() in TEXTS
        assert all((part["meant"] == "B-X") == (part["text"] == "cat") for part in text if isinstance(part, dict))


def test_an_answer_is_shown_where_it_stands(tmp_path):
    records = [{"question": f"who sat {place}?", "context": said, "answer": said.split()[1], "start": None}
               for place, said in enumerate(TEXTS)]  # fmt: skip
    task = C.QuestionAnswering(answer_start=None)
    rows = shown(asked_run(tmp_path, task, records, head=C.TokenHead(out=2), context=160))["rows"]

    for row in rows:
        [[question], text] = row["asked"]
        asked = next(each for each in records if each["question"] == question)
        assert row["meant"] == asked["answer"]
        assert row["said"] in ("no answer", "·", *(part["text"] for part in text if isinstance(part, dict)))
        assert spelt(text, "text").strip("… ") in asked["context"]  # not a space more or less


# ---------------------------------------------------------------- a text for a text


def test_how_a_text_goes_on_continues_how_it_begins(tmp_path):
    rows = shown(asked_run(tmp_path, C.PrefixLM(), [{"text": said} for said in TEXTS]))["rows"]

    assert rows and all(among(row["asked"][0][0] + row["meant"]) for row in rows)


MARKED = [(C.SpanCorruption(rate=0.4), "<extra_id_0>"), (C.TextInfilling(), "mask")]


@pytest.mark.parametrize(("task", "mark"), MARKED, ids=["span_corruption", "text_infilling"])
def test_marks_are_seen_where_words_were_cut_out(tmp_path, task, mark):
    rows = shown(asked_run(tmp_path, task, [{"text": said} for said in TEXTS]))["rows"]

    assert any(mark in row["asked"][0][0] for row in rows) and all(row["meant"] for row in rows)


# ---------------------------------------------------------------- rows that cannot be read


def gone(run):
    (run.parent / "rows.jsonl").unlink()


def on_standard_input(run):
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub('source = ".*"', 'source = "-.jsonl"', settings))


def none_kept_back(run):
    settings = (run / "config.toml").read_text()
    (run / "config.toml").write_text(settings.replace("validation = 0.5", "validation = 0.0"))


def no_recipe(run):
    (run / "config.toml").unlink()


MISSED = [(gone, "no such file"), (on_standard_input, "is not read again"), (none_kept_back, "data.validation is 0"),
          (no_recipe, "config.toml")]  # fmt: skip


@pytest.mark.parametrize(("what", "why"), MISSED, ids=[what.__name__ for what, _ in MISSED])
def test_rows_that_cannot_be_read_again_are_missed_in_a_sentence(tmp_path, monkeypatch, what, why):
    run, model, tokenizer = asked_run(
        tmp_path, C.Classification(), CLASSED, head=C.PoolingHead(pooling="mean"), context=99
    )
    monkeypatch.setattr("sys.stdin", None)  # who reads it fails otherwise
    what(run)
    found = data_in(report.write_report(run, model, tokenizer).read_text(encoding="utf8"))

    assert why in found["answers"]["absent"] and "rows" not in found["answers"]
    assert why in found["absent"] or "no sentence" in found["absent"]


def test_a_row_padded_on_the_left_is_shown_like_any_other(tmp_path):
    plain, left = (
        asked_run(tmp_path / side, C.Classification(), CLASSED, head=C.PoolingHead(pooling="mean"), padding_side=side)
        for side in ("right", "left")
    )
    rows = [[row["asked"] for row in shown(made)["rows"]] for made in (plain, left)]

    assert rows[0] == rows[1]


def test_rows_are_taken_from_everywhere():
    assert (
        spread_indices(100, 4) == [0, 25, 50, 75] and spread_indices(3, 6) == [0, 1, 2] and spread_indices(0, 6) == []
    )


def test_what_is_read_again_is_what_training_kept(tmp_path, monkeypatch):
    run, model, tokenizer = asked_run(
        tmp_path, C.Classification(), CLASSED, head=C.PoolingHead(pooling="mean"), context=99
    )
    before = set(content_cache.cache_dir(None).iterdir())
    answer_section(read_logged_run(run), model, tokenizer, model.task)

    assert set(content_cache.cache_dir(None).iterdir()) == before  # nothing was made anew


def test_a_hostile_row_stays_text(tmp_path):
    hostile = [{"text": f"</script><script>alert({place})</script>", "label": "<b>a" if place % 2 else "<b>b"}
               for place in range(61)]  # fmt: skip
    run, model, tokenizer = asked_run(tmp_path, C.Classification(), hostile, head=C.PoolingHead(pooling="mean"))
    page = report.write_report(run, model, tokenizer).read_text(encoding="utf8")

    assert "<script>alert" not in page and "<b>a" not in page
    assert data_in(page)["answers"]["rows"][0]["asked"][0][0].startswith("</script><script>alert(")


def test_records_that_grew_still_make_a_page(tmp_path):
    run, model, tokenizer = asked_run(
        tmp_path, C.Classification(), CLASSED, head=C.PoolingHead(pooling="mean"), context=99
    )
    put(tmp_path / "rows.jsonl", [*CLASSED, {"text": "what is this", "label": "unheard of"}])

    assert "unheard of" in shown((run, model, tokenizer))["absent"]
