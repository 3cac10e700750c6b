"""Exams: each kind of model is asked row by row, and its figures are those that others make of the same answers."""

import json
import math
import random
import warnings

import pytest
import sklearn.metrics
import torch
import torch.nn.functional as F
from tasks import builders

from regard import config as C
from regard import data, tasks
from regard.config.errors import ConfigError, DataError
from regard.evaluation.evaluator import ByteCounter, evaluate
from regard.evaluation.scoring import ScoredRow, sample_evenly
from regard.inference.model import build_model
from regard.tasks.collate import RowPadding

LENGTH = 61
WORDS = builders.PROSE.split()


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def learner(c, head=None, encoder=False, **said):
    """A model that has learnt nothing, and knows what it will be asked."""
    known = tasks.add_task_tokens(c, builders.tokenizer("wordpiece"))
    plain = builders.model(head, vocab=len(known), encoder=encoder, **said)
    model = build_model(plain.c)
    model.load_state_dict(plain.state_dict())
    model.tokenizer, model.context, model.task = known, LENGTH, c
    return model.eval()


def sentences(count, seed=0, most=15):
    luck = random.Random(seed)
    return [" ".join(luck.choices(WORDS, k=luck.randint(1, most))) for _ in range(count)]


def put(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf8")
    return str(path)


TWO = C.Classification(classes=("bad", "good"))


def reviews(count=41, seed=0):
    luck = random.Random(seed)
    return [{"text": text, "label": luck.choice(TWO.classes)} for text in sentences(count, seed)]


# ---------------------------------------------------------------- classes and numbers


def alone(model, c, record):
    """What the model says to one record, without any other beside it."""
    task = tasks.build_task(c, model.tokenizer, model.c, rows=RowPadding(LENGTH))
    batch = task.collate([task.example(record, model.tokenizer)], torch.Generator())
    with torch.no_grad():
        return model(batch["ids"], segment=batch.get("segment"))[0]


@pytest.mark.slow
@pytest.mark.spec("S164")
def test_classes_are_scored_as_scikit_learn_scores_the_same_answers(desk):
    model, records, told = learner(TWO, C.PoolingHead(pooling="cls", out=2)), reviews(), []
    found = evaluate(model, put(desk / "a.jsonl", records), each=told.append)
    logits = torch.stack([alone(model, TWO, record) for record in records])
    said = [TWO.classes[number] for number in logits.argmax(-1).tolist()]
    meant = [record["label"] for record in records]
    skl = sklearn.metrics

    assert [row["said"] for row in told] == said and [row["expected"] for row in told] == meant
    assert [row["asked"] for row in told] == [{"text": record["text"]} for record in records]
    assert [row["where"] for row in told] == [f"{desk}/a.jsonl:{line}" for line in range(1, 42)]
    assert found.scores["accuracy"] == pytest.approx(skl.accuracy_score(meant, said))
    assert found.scores["f1"] == pytest.approx(skl.f1_score(meant, said, pos_label="good"))
    assert found.scores["matthews"] == pytest.approx(skl.matthews_corrcoef(meant, said))
    table = [list(row.values()) for row in found.extras["confusion"].values()]
    assert table == skl.confusion_matrix(meant, said).tolist()
    right = torch.tensor([TWO.classes.index(label) for label in meant])
    assert found.loss == pytest.approx(F.cross_entropy(logits, right).item(), rel=1e-5)
    assert found.rows == 41 and "perplexity" not in found.tree() and "tokens" not in found.tree()


def test_numbers_are_compared_with_numbers(desk):
    c, told = C.Regression(input="first", input_pair="second", label="score"), []
    model = learner(c, C.PoolingHead(pooling="cls", out=1))
    records = [{"first": a, "second": b, "score": place / 7} for place, (a, b)
               in enumerate(zip(sentences(13, 1, 9), sentences(13, 2, 9), strict=True))]  # fmt: skip
    found = evaluate(model, put(desk / "a.jsonl", records), each=told.append)

    assert found.scores.keys() == {"pearson", "spearman"} and "confusion" not in found.tree()
    assert [row["expected"] for row in told] == pytest.approx([record["score"] for record in records])
    assert told[3]["asked"].keys() == {"first", "second"} and isinstance(told[3]["said"], float)
    squares = [(row["said"] - row["expected"]) ** 2 for row in told]
    assert found.loss == pytest.approx(sum(squares) / 13, rel=1e-5)


def test_tags_are_told_a_word_each(desk):
    c, told = C.TokenClassification(classes=("O", "B-A", "I-A")), []
    records = [{"words": line, "labels": ["B-A" if word[0].isupper() else "O" for word in line.split()]}
               for line in sentences(9, 3, 7)]  # fmt: skip
    found = evaluate(learner(c, C.TokenHead(out=3)), put(desk / "a.jsonl", records), each=told.append)

    assert [row["expected"] for row in told] == [record["labels"] for record in records]
    assert all(len(row["said"]) == len(row["expected"]) for row in told)
    assert found.scores.keys() == {"accuracy", "entity f1"} and "entity_f1" in found.tree()


# ---------------------------------------------------------------- words

HIDING = {
    "masked_lm": (C.MaskedLM(rate=0.3), None, False), "span_corruption": (C.SpanCorruption(rate=0.3), None, True),
    "text_infilling": (C.TextInfilling(), None, True), "prefix_lm": (C.PrefixLM(), None, True),
}  # fmt: skip


@pytest.mark.parametrize("kind", HIDING)
def test_what_is_hidden_is_told_beside_what_was_hidden_and_always_the_same(desk, kind):
    c, head, encoder = HIDING[kind]
    model, texts = learner(c, head, encoder), [text for text in sentences(17) if " " in text]
    path, first, second = put(desk / "a.jsonl", [{"text": text} for text in texts]), [], []
    found = evaluate(model, path, each=first.append)
    again = evaluate(model, path, each=second.append)
    pairs = [(a, b) for row in first for a, b in zip(row["said"], row["expected"], strict=True)]

    assert first == second and found == again
    assert found.score.count == len(pairs) == found.tree()["tokens"]
    assert found.scores["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert found.tree()["perplexity"] == pytest.approx(math.exp(found.loss))


def test_masked_words_and_next_sentences_have_a_loss_each(desk):
    c, told = C.MaskedLM(next_sentence=True), []
    head = C.PretrainingHead(lm=C.LMHead(tied=False), pooling=C.PoolingHead(pooling="cls", out=2))
    records = [{"text": sentences(5, seed, 6)} for seed in range(7)]
    found = evaluate(learner(c, head), put(desk / "a.jsonl", records), each=told.append)

    assert found.scores.keys() == {"masked accuracy", "next accuracy"}
    assert found.loss == pytest.approx(found.tree()["masked_loss"] + found.tree()["next_loss"])
    assert {row["expected"]["next"] for row in told} == {"follows", "does not follow"}
    assert found.rows == len(told) > 7


# ---------------------------------------------------------------- texts

EN_FR = C.Translation(source="en", target="fr", label_smoothing=0.2)


def spoken(count=23):
    return [{"en": a, "fr": b} for a, b in zip(sentences(count, 5, 9), sentences(count, 6, 9), strict=True)]


@pytest.mark.slow
@pytest.mark.spec("S094")
def test_translations_are_the_model_s_own_and_the_loss_is_of_people_s(desk):
    model, records, told = learner(EN_FR, encoder=True), spoken(), []
    found = evaluate(model, put(desk / "a.jsonl", records), each=told.append, num_beams=3, length_penalty=0.7)
    task = tasks.build_task(EN_FR, model.tokenizer, model.c, rows=RowPadding(LENGTH))
    total = 0.0
    for record in records:
        batch = task.collate([task.example(record, model.tokenizer)], torch.Generator())
        with torch.no_grad():
            logits = model(batch["ids"], source=batch["source"])
        total += F.cross_entropy(logits[0], batch["labels"][0], reduction="sum").item()

    assert [row["said"] for row in told] == [model.translate(record["en"], num_beams=3, length_penalty=0.7)
                                             for record in records]  # fmt: skip
    assert [(row["asked"], row["expected"]) for row in told] == [({"en": each["en"]}, each["fr"]) for each in records]
    assert found.score.sum == pytest.approx(total, rel=1e-5)  # unsmoothed, whatever training had
    assert found.scores.keys() == {"bleu", "chrf", "exact"} and found.extras["signatures"].keys() == {"bleu", "chrf"}


def test_a_source_that_stands_there_twice_is_translated_once(desk, monkeypatch):
    from regard.inference.translation import Translator

    asked, plain = [], Translator.batch
    monkeypatch.setattr(Translator, "batch", lambda self, texts, *how: asked.extend(texts) or plain(self, texts, *how))
    records = spoken(3) + [{"en": spoken(3)[0]["en"], "fr": "another"}]
    found = evaluate(learner(EN_FR, encoder=True), put(desk / "a.jsonl", records), by_group=True)

    assert sorted(asked) == sorted(record["en"] for record in records[:3])
    assert found.rows == 4 and "grouped_bleu" in found.tree()


def test_a_source_that_is_too_long_is_cut_and_somebody_is_told(desk):
    model, notes = learner(EN_FR, encoder=True), []
    records = [*spoken(3), {"en": " ".join(["cat"] * 90), "fr": "the"}]
    found = evaluate(model, put(desk / "a.jsonl", records), notice=notes.append)
    ids = model.tokenizer.encode(records[-1]["en"])
    over = len(ids) - tasks.build_task(EN_FR, model.tokenizer, rows=RowPadding(LENGTH)).room

    assert found.rows == 4 and len(notes) == 1
    assert f"1 of 4 rows were too long, and {over} of their tokens are cut off" in notes[0]


def test_answers_are_found_in_windows_of_a_long_text(desk):
    c, told = C.QuestionAnswering(answer_start=None, doc_stride=7, max_answer_tokens=5), []
    model = learner(c, C.TokenHead(out=2))
    records = [{"question": "who sat ?", "context": " ".join(sentences(4, seed, 12)) + " Ada Lovelace wrote .",
                "answer": ["Lovelace"] if seed % 3 else []} for seed in range(8)]  # fmt: skip
    found = evaluate(model, put(desk / "a.jsonl", records), each=told.append)
    task = tasks.build_task(c, model.tokenizer, model.c, rows=RowPadding(LENGTH))
    windows = [[task.answers(model, task.collate([window], torch.Generator()))["loss"][0]
                for window in task.windows(record, model.tokenizer)] for record in records]  # fmt: skip

    assert max(map(len, windows)) > 2
    assert found.scores == pytest.approx(task.squad(windows, records))
    best = [max(some, key=lambda each: each.score) for some in windows]
    assert [row["said"] for row in told] == [record["context"][each.start : each.stop]
                                             for record, each in zip(records, best, strict=True)]  # fmt: skip
    assert [row["expected"] for row in told] == [record["answer"] for record in records]


# ---------------------------------------------------------------- which rows


@pytest.mark.parametrize("count, limit", [(10, 3), (7, 7), (3, 9), (1000, 1), (97, 31)])
def test_a_limit_takes_rows_from_everywhere_alike(count, limit):
    rows = [ScoredRow(data.Record({}, str(place)), {}) for place in range(count)]
    found = [int(row.record.where) for row in sample_evenly(lambda: iter(rows), limit)]
    gaps = {after - before for before, after in zip(found[:-1], found[1:], strict=True)}

    assert len(found) == min(count, limit) and max(gaps, default=1) - min(gaps, default=1) <= 1


RECIPE = """
[data]
source = "all.jsonl"
validation = 0.3
text_column = "text"
[task]
kind = "classification"
classes = ["bad", "good"]
[model]
preset = "gpt2"
[train]
context = 61
steps = 1
"""


def saved_run(desk, model, recipe=RECIPE):
    (desk / "run").mkdir()
    model.save(desk / "run" / "checkpoints" / "step-000001")
    (desk / "run" / "config.toml").write_text(recipe)
    return desk / "run"


def test_a_run_is_asked_the_rows_that_it_kept_back_and_no_other(desk):
    model, records = learner(TWO, C.PoolingHead(pooling="cls", out=2)), reviews(60)
    run = saved_run(desk, model)
    put(desk / "all.jsonl", [*records, *records[:9]])
    task = tasks.build_task(TWO, model.tokenizer, model.c, rows=RowPadding(LENGTH))
    given = C.Data(source="all.jsonl", validation=0.3)
    _, kept = data.prepare_examples(given, lambda record: task.examples(record, model.tokenizer), "a test")
    told = [[], []]
    for path, some in zip((run, run / "checkpoints" / "step-000001"), told, strict=True):
        evaluate(path, each=some.append)
    ids = [task.example({"text": row["asked"]["text"], "label": "bad"}, model.tokenizer)["ids"] for row in told[0]]

    assert told[0] == told[1] and 0 < len(ids) < 60
    assert ids == [example["ids"] for example in kept]


def test_data_are_read_as_those_of_training_unless_said_otherwise(desk):
    """A run on a file without a header knows the columns of others like it; one that names its own is read by them."""
    model = learner(
        C.Classification(input="words", label="sort", classes=("bad", "good")), C.PoolingHead(pooling="cls", out=2)
    )
    run = saved_run(desk, model, RECIPE.replace('text_column = "text"', 'column_names = ["sort", "id", "words"]'))
    (desk / "test.tsv").write_text("good\t1\tthe cat sat\nbad\t2\ta dog\n")
    plain = evaluate(run, "test.tsv")
    lines = [{"sort": "good", "words": "the cat sat"}, {"sort": "bad", "words": "a dog"}]
    named = evaluate(run, put(desk / "b.jsonl", lines))
    other = evaluate(run, put(desk / "c.jsonl", [{"stars": each["sort"], "review": each["words"]} for each in lines]),
                     ["task.label=stars", "task.input=review"])  # fmt: skip

    assert plain.loss == named.loss == other.loss and plain.rows == 2


def test_bad_records_stop_or_are_passed_over_and_counted(desk):
    model, notes = learner(TWO, C.PoolingHead(pooling="cls", out=2)), []
    path = put(desk / "a.jsonl", [*reviews(3), {"text": "why?", "label": "so so"}])
    found = evaluate(model, path, ["data.on_bad_record=skip"], notice=notes.append)

    assert found.rows == 3 and len(notes) == 1 and "1 bad record was skipped" in notes[0]
    with pytest.raises(DataError, match=r"a\.jsonl:4: label 'so so' in column 'label' is none of the 2 classes"):
        evaluate(model, path)


def test_many_portions_are_one_exam(desk, monkeypatch):
    model, path = learner(TWO, C.PoolingHead(pooling="cls", out=2)), put(desk / "a.jsonl", reviews(41))
    whole, parts, done = [], [], []
    first = evaluate(model, path, each=whole.append)
    monkeypatch.setattr("regard.evaluation.scoring.PORTION", 7)
    second = evaluate(model, path, each=parts.append, progress=done.append)

    assert whole == parts and first.scores == second.scores and first.loss == pytest.approx(second.loss)
    assert done == sorted(done) and done[-1] == 41


def test_a_model_in_training_stays_in_training(desk):
    model = learner(TWO, C.PoolingHead(pooling="cls", out=2)).train()
    evaluate(model, put(desk / "a.jsonl", reviews(3)))

    assert all(module.training for module in model.modules()) and torch.is_grad_enabled()


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe", "wordpiece", "unigram"])
def test_packed_documents_have_the_bytes_of_their_texts_but_for_the_first_token(kind):
    known, documents = builders.tokenizer(kind), ["naïve cafés in 1992", "The owl said why!", "cafés"]
    rows = [known.encode(document) for document in documents]
    ids = [id for row in rows for id in row]
    labels = [id for row in rows for id in [*row[1:], -100]]
    sizes = ByteCounter(known)
    batch = {"ids": torch.tensor([ids, ids]), "labels": torch.tensor([labels, labels])}
    assert list(sizes.of([batch])) == [batch]

    def size(row):
        return len(known.decode(row).encode())

    assert sizes.total == 2 * sum(size(row) - size(row[:1]) for row in rows)


# ---------------------------------------------------------------- mistakes


def test_classes_without_names_are_numbers(desk):
    model = learner(TWO, C.PoolingHead(pooling="cls", out=2))
    model.task = None
    path = put(desk / "a.jsonl", [{"text": "the cat", "label": 1}, {"text": "a dog", "label": "0"}])

    assert evaluate(model, path, ["task.kind=classification"]).rows == 2
    says = "task.kind: the model does not say what its head, 'pooling', was trained for"
    with pytest.raises(ConfigError, match=says):
        evaluate(model, path)


MISTAKES = {
    "no data": (None, [], {}, "model: not of a run"),
    "nothing to ask": ("a.jsonl", [], {"limit": 0}, "limit: 0 leaves nothing"),
    "not a translator": (
        "a.jsonl",
        [],
        {"num_beams": 3},
        "num-beams: for translations only, and the task is",
    ),
    "another source": ("a.jsonl", ["data.source=b.jsonl"], {}, "data.source: what is evaluated is the FILE"),
    "no such setting": ("a.jsonl", ["task.lable=x"], {}, "task.lable: no such setting; did you mean 'label'"),
    "no such table": ("a.jsonl", ["train.steps=3"], {}, "train: no such setting"),
    "an idle setting": (
        "a.jsonl",
        ["data.column_names=['a', 'b']"],
        {},
        "data.column_names: it is for files that do not name",
    ),
    "another head": (
        "a.jsonl",
        ["task.kind=token_classification"],
        {},
        "model.head.kind: 'pooling', and task 'token_classification' needs token",
    ),
}


@pytest.mark.parametrize("source, overrides, settings, sentence", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_what_was_set(desk, source, overrides, settings, sentence):
    put(desk / "a.jsonl", reviews(3))
    with pytest.raises(ConfigError) as problem:
        evaluate(learner(TWO, C.PoolingHead(pooling="cls", out=2)), source, overrides, **settings)

    assert str(problem.value).startswith(sentence)


def test_a_wrong_column_is_told_with_those_that_are_there(desk):
    model, path = learner(TWO, C.PoolingHead(pooling="cls", out=2)), put(desk / "a.jsonl", reviews(3))
    with pytest.raises(DataError, match=r"a\.jsonl:1: no column 'txt'; did you mean 'text'"):
        evaluate(model, path, ["task.input=txt"])


def test_nothing_but_bad_records_is_nothing_to_ask(desk):
    model = learner(TWO, C.PoolingHead(pooling="cls", out=2))
    with pytest.raises(DataError, match=r"a\.jsonl: no records to ask"):
        evaluate(model, put(desk / "a.jsonl", [{"text": "a"}]), ["data.on_bad_record=skip"])


def test_no_warning_is_silent(desk):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = put(desk / "a.jsonl", [{"text": "a " * 90, "label": "bad"}])
        evaluate(learner(TWO, C.PoolingHead(pooling="cls", out=2)), path)

    assert "1 of 1 rows were too long" in str(caught[0].message)
