"""What a text is: the probabilities of the pipelines of `transformers`, for texts and for pairs."""

import pytest
import torch
import transformers as hf
from hub.text_folders import TEXTS, bert, bytelevel, saved
from torch.testing import assert_close

import regard
from regard import config, text
from regard.data.batching import seeded_generator
from regard.data.records import Record
from regard.inference.classification import Classifier
from regard.tasks.collate import RowPadding
from regard.tasks.task import add_task_tokens, build_task

LABELS = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
PAIRS = ["it was good", "Paris?", "a cat", "the old man", "who"]


def theirs(model, tokenizer, texts, **how):
    """Class by class, of every text."""
    found = hf.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")(texts, top_k=None, **how)
    return [{each["label"]: each["score"] for each in row} for row in found]


@pytest.mark.parametrize("problem", [None, "single_label_classification", "multi_label_classification"])
def test_every_class_is_as_likely_as_the_pipeline_says(problem, tmp_path):
    model, tokenizer, folder = bert("ForSequenceClassification", tmp_path / "m", problem_type=problem, **LABELS)
    got = regard.load(folder, device="cpu").classify(TEXTS)
    for mine, want in zip(got, theirs(model, tokenizer, TEXTS), strict=True):
        assert mine == pytest.approx(want, abs=1e-5)
        assert list(mine.values()) == sorted(mine.values(), reverse=True)
    alone = [sum(mine.values()) for mine in got]
    assert (max(abs(total - 1) for total in alone) < 1e-5) == (problem != "multi_label_classification")


def test_pairs_are_read_together(tmp_path):
    model, tokenizer, folder = bert("ForSequenceClassification", tmp_path / "m", **LABELS)
    asked = [{"text": text, "text_pair": other} for text, other in zip(TEXTS, PAIRS, strict=True)]
    got = regard.load(folder, device="cpu").classify(TEXTS, PAIRS)

    assert got == [pytest.approx(want, abs=1e-5) for want in theirs(model, tokenizer, asked)]
    assert got != regard.load(folder, device="cpu").classify(TEXTS)


@pytest.mark.parametrize("problem", [None, "regression"])
def test_one_answer_alone_is_a_number(problem, tmp_path):
    model, tokenizer, folder = bert("ForSequenceClassification", tmp_path / "m", problem_type=problem, num_labels=1)
    with torch.no_grad():
        want = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits[:, 0]

    assert_close(torch.tensor(regard.load(folder, device="cpu").classify(TEXTS)), want, rtol=0, atol=1e-5)


def test_a_decoder_is_asked_without_anything_around_its_texts(tmp_path):
    torch.manual_seed(2)
    tokenizer = bytelevel("")
    model = hf.GPT2ForSequenceClassification(hf.GPT2Config(
        vocab_size=len(tokenizer), n_embd=36, n_layer=2, n_head=4, n_positions=80, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, **LABELS))  # fmt: skip
    folder = saved(model, tokenizer, tmp_path / "gpt2")
    want = [theirs(model, tokenizer, [text])[0] for text in TEXTS]

    assert regard.load(folder, device="cpu").classify(TEXTS) == [pytest.approx(each, abs=1e-5) for each in want]


def test_an_encoder_decoder_reads_the_text_once_more(tmp_path):
    torch.manual_seed(2)
    tokenizer = bytelevel()
    model = hf.BartForSequenceClassification(hf.BartConfig(
        vocab_size=len(tokenizer), d_model=36, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=3, encoder_ffn_dim=60, decoder_ffn_dim=44, max_position_embeddings=90, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, **LABELS))  # fmt: skip
    folder = saved(model, tokenizer, tmp_path / "bart")
    want = [theirs(model, tokenizer, [text])[0] for text in TEXTS]

    assert regard.load(folder, device="cpu").classify(TEXTS) == [pytest.approx(each, abs=1e-5) for each in want]


def test_labels_that_nobody_named_have_numbers_and_none_is_there_twice(tmp_path):
    twice = {"id2label": {0: "x", 1: "x", 2: "y"}, "label2id": {"x": 1, "y": 2}}
    _, _, folder = bert("ForSequenceClassification", tmp_path / "m", **twice)
    _, _, plain = bert("ForSequenceClassification", tmp_path / "p", num_labels=4)

    assert set(regard.load(folder, device="cpu").classify(["a"])[0]) == {"x (0)", "x (1)", "y"}
    assert set(regard.load(plain, device="cpu").classify(["a"])[0]) == {f"LABEL_{n}" for n in range(4)}


@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForTokenClassification", "Model"])
def test_who_tells_no_classes_is_refused(kind, tmp_path):
    _, _, folder = bert(kind, tmp_path / "m")

    with pytest.raises(config.ConfigError, match="has no classification head"):
        regard.load(folder, device="cpu").classify(["a cat"])


def test_what_is_too_long_is_cut_as_the_pipeline_cuts_it_and_told_once(tmp_path):
    model, tokenizer, folder = bert("ForSequenceClassification", tmp_path / "m", **LABELS)
    texts = ["the cat sat. " * 30, "a cat", "who is it? " * 40]
    with pytest.warns(UserWarning, match="2 texts have more than the 37 tokens") as told:
        got = regard.load(folder, device="cpu").classify(texts)

    assert len(told) == 1
    assert got == [pytest.approx(want, abs=1e-5) for want in theirs(model, tokenizer, texts, truncation=True)]


# ---------------------------------------------------------------- runs of our own


@pytest.fixture
def own():
    """A model of pairs as training makes it, and its objective; 15 tokens at once."""
    c = config.Classification(input_pair="other", classes=("no", "yes"))
    tokenizer = add_task_tokens(
        c, text.train_tokenizer(config.CharTokenizer(byte_fallback=False), ["abcdefghijklmnopqrstuvwxyz ?"])
    )
    model = regard.build(regard.preset("bert-base", dim=12, depth=1, heads=3, vocab=len(tokenizer),
                                       head=config.PoolingHead(dense=True, out=2))).eval()  # fmt: skip
    model.tokenizer, model.task, model.context = tokenizer, c, 15
    return model, build_task(c, tokenizer, model.c, rows=RowPadding(15))


LONG = [("a cat", "who?"), ("a very long text indeed", "yes"), ("no", "another very long one"), ("x" * 30, "y" * 30)]


@pytest.mark.filterwarnings("ignore:3 texts have more than the 15 tokens")
def test_a_run_of_our_own_is_asked_as_its_training_asked_it_also_where_texts_are_cut(own):
    model, task = own
    rows = [task.example(Record({"text": a, "other": b, "label": "no"}, ""), model.tokenizer) for a, b in LONG]
    batch = task.collate(rows, seeded_generator(0))
    with torch.no_grad():
        want = model(batch["ids"], real=batch.get("real"), segment=batch["segment"]).softmax(-1)
    got = model.classify([a for a, _ in LONG], [b for _, b in LONG])

    assert_close(torch.tensor([[each["no"], each["yes"]] for each in got]), want, rtol=0, atol=1e-5)


def test_a_run_on_pairs_is_given_both_with_a_tab_between(own):
    model, _ = own
    [want] = model.classify(["a cat"], ["who?"])

    [found] = Classifier(model)(["a cat\twho?"], top=2)
    assert found == {"of": "a cat\twho?", "classes": pytest.approx(want, abs=1e-6)}
    with pytest.raises(config.DataError, match="trained on pairs of texts; give both, with a tab between"):
        list(Classifier(model)(["a cat"]))
