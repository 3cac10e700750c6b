"""Pipelines of `transformers` on folders that we wrote give the numbers that we give: a test for every head we save.

Each model is saved twice: as it was read, which keeps the words of its config.json, and as if it had been made here,
which makes all of them anew. There are no pipelines for answers to questions and for texts from texts (transformers 5
has dropped them): there the classes that they were made of are asked.
"""

import json

import pytest
import torch
import transformers as hf
from hub import image_cases
from hub.test_image_models import PROCESSORS, photo
from hub.text_folders import TEXTS, bert, bytelevel, saved
from tokenizers import processors

import regard
from regard import config, text
from regard.inference.classification import Classifier
from regard.tasks.task import add_task_tokens
from regard.text.post_processor import without_post_processor

NEAR = dict(abs=1e-5, rel=1e-4)
LABELS = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
TAGS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
       "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2}}  # fmt: skip
WIDE = dict(n_embd=36, n_layer=2, n_head=4, n_positions=80, pad_token_id=1, bos_token_id=0, eos_token_id=2)
BART = dict(d_model=36, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=3,
            encoder_ffn_dim=60, decoder_ffn_dim=44, max_position_embeddings=90, pad_token_id=1, bos_token_id=0,
            eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)  # fmt: skip
BOTH = pytest.mark.parametrize("ours", [False, True], ids=["as it was read", "as if made here"])


def again(folder, ours, task=None):
    """The model of a folder, written by us and opened again, and where; in `ours` no word of the old folder is left."""
    model = regard.load(folder, device="cpu")
    if ours:
        model.source_folder, model.task = None, task
    model.save(folder.with_name("again"))
    return regard.load(folder.with_name("again"), device="cpu"), str(folder.with_name("again"))


def pipeline(task, place, **more):
    return hf.pipeline(task, model=place, device="cpu", **more)


def assert_same_classes(model, place):
    found = pipeline("text-classification", place)
    for one in TEXTS:
        said = {each["label"]: each["score"] for each in found(one, top_k=None)}
        assert model.classify([one]) == [pytest.approx(said, **NEAR)]


# ---------------------------------------------------------------- a text as a whole


@BOTH
@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart"])
def test_one_of_several_classes(kind, ours, tmp_path):
    words, task = (
        bytelevel("" if kind == "gpt2" else "<s> $A </s>"),
        config.Classification(classes=("bad", "so-so", "good")),
    )
    if kind == "bert":
        bert("ForSequenceClassification", tmp_path / "m", **LABELS)
    elif kind == "gpt2":
        c = hf.GPT2Config(vocab_size=len(words), **WIDE, **LABELS)
        saved(hf.GPT2ForSequenceClassification(c), words, tmp_path / "m")
    else:
        c = hf.BartConfig(vocab_size=len(words), **BART, **LABELS)
        saved(hf.BartForSequenceClassification(c), words, tmp_path / "m")
    task = task if kind == "bert" else None  # the others are read as their tokenizers say, without the name of a task
    model, place = again(tmp_path / "m", ours, task)
    if task is None and ours:
        assert set(model.classify(["a"])[0]) == {"LABEL_0", "LABEL_1", "LABEL_2"}
    assert_same_classes(model, place)


def test_several_classes_at_a_time(tmp_path):
    bert("ForSequenceClassification", tmp_path / "m", problem_type="multi_label_classification", **LABELS)
    model, place = again(tmp_path / "m", ours=False)
    assert_same_classes(model, place)
    assert abs(sum(model.classify(["a cat"])[0].values()) - 1) > 0.01


@BOTH
@pytest.mark.parametrize("task", [config.Regression(), None], ids=["trained here", "untold"])
def test_a_number_is_told_as_it_is_and_not_squeezed_into_a_share(task, ours, tmp_path):
    bert("ForSequenceClassification", tmp_path / "m", problem_type="regression", num_labels=1)
    model, place = again(tmp_path / "m", ours, task)
    said = [each["score"] for each in pipeline("text-classification", place)(TEXTS)]

    assert model.classify(TEXTS) == pytest.approx(said, **NEAR)
    assert json.loads((tmp_path / "again/config.json").read_text())["problem_type"] == "regression"


@pytest.mark.parametrize(
    "task", [config.Regression(), config.Classification(classes=("no", "yes"))], ids=lambda c: c.kind
)
@pytest.mark.parametrize(
    "words", [config.SubwordTokenizer(vocab=300), config.CharTokenizer(byte_fallback=False)], ids=lambda c: c.kind
)
@pytest.mark.parametrize("base", ["bert-base", "gpt2"])
def test_what_training_puts_around_a_text_the_pipeline_puts_there_too(base, words, task, tmp_path):
    plain = text.train_tokenizer(words, TEXTS * 9)
    tokenizer = add_task_tokens(task, plain)
    head = config.PoolingHead(dense=base != "gpt2", pooling="cls" if base != "gpt2" else "last",
                         out=1 if task.kind == "regression" else 2, bias=base != "gpt2")  # fmt: skip
    model = regard.build(regard.preset(base, dim=12, depth=1, heads=3, vocab=len(tokenizer), head=head)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    model.tokenizer, model.task, model.context = tokenizer, task, 80
    model.save(tmp_path / "m")
    found = pipeline("text-classification", str(tmp_path / "m"))
    pairs = [{"text": one, "text_pair": "a cat"} for one in TEXTS]
    for asked, said in ((TEXTS, model.classify(TEXTS)), (pairs, model.classify(TEXTS, ["a cat"] * len(TEXTS)))):
        for one, ours in zip(asked, said, strict=True):
            theirs = {each["label"]: each["score"] for each in found(one, top_k=None)}
            assert theirs == pytest.approx(ours if task.kind == "classification" else {"LABEL_0": ours}, **NEAR)
    assert (
        without_post_processor(tokenizer) == add_task_tokens(config.NextToken(), plain).text()
    )  # and data is kept by that name


@BOTH
def test_classes_that_are_only_named_when_asked(ours, tmp_path):
    bert("ForSequenceClassification", tmp_path / "m", **NLI)
    model, place = again(tmp_path / "m", ours, config.Classification(input_pair="pair", classes=tuple(NLI["label2id"])))
    said = pipeline("zero-shot-classification", place)(TEXTS[0], ["big", "old"], multi_label=True)
    found = model.classify([TEXTS[0]] * 2, [f"This example is {name}." for name in said["labels"]])

    for share, each in zip(said["scores"], found, strict=True):
        assert each["entailment"] / (each["entailment"] + each["contradiction"]) == pytest.approx(share, **NEAR)


# ---------------------------------------------------------------- tokens


@BOTH
def test_a_label_for_every_word(ours, tmp_path):
    bert("ForTokenClassification", tmp_path / "m", **TAGS)
    model, place = again(tmp_path / "m", ours, config.TokenClassification(classes=("O", "B-PER", "I-PER")))
    found = pipeline("token-classification", place)
    for one in TEXTS:
        said = {each["start"]: each for each in found(one, ignore_labels=[])}
        for word in model.tag(one):
            there = said[word.start]
            assert (word.label, word.score) == (there["entity"], pytest.approx(float(there["score"]), **NEAR))


@BOTH
def test_missing_words(ours, tmp_path):
    bert("ForMaskedLM", tmp_path / "m")
    model, place = again(tmp_path / "m", ours, config.MaskedLM())
    said = pipeline("fill-mask", place)("The [MASK] sat.", top_k=5)
    [found] = model.fill_mask("The [MASK] sat.", top_k=5)

    assert [guess.id for guess in found] == [each["token"] for each in said]
    assert [guess.probability for guess in found] == pytest.approx([each["score"] for each in said], **NEAR)


@BOTH
def test_where_an_answer_stands(ours, tmp_path):
    """Its first and its last token, by the class itself: there is no pipeline for it any more."""
    bert("ForQuestionAnswering", tmp_path / "m")
    model, place = again(tmp_path / "m", ours, config.QuestionAnswering())
    words, theirs = hf.AutoTokenizer.from_pretrained(place), hf.AutoModelForQuestionAnswering.from_pretrained(place)
    asked = words("who is it?", "Ada Lovelace wrote to a man.", return_tensors="pt")
    with torch.no_grad():
        said, ours = theirs.eval()(**asked), model(asked["input_ids"], segment=asked["token_type_ids"])

    assert torch.allclose(ours, torch.stack([said.start_logits, said.end_logits], -1), atol=1e-4)
    assert model.answer_question("who is it?", "Ada Lovelace wrote to a man.").text in "Ada Lovelace wrote to a man."


@BOTH
def test_vectors_of_tokens(ours, tmp_path):
    bert("Model", tmp_path / "m")
    model, place = again(tmp_path / "m", ours)
    found = pipeline("feature-extraction", place)
    for one in TEXTS:
        said = torch.tensor(found(one))
        with torch.no_grad():
            mine = model(found.tokenizer(one, return_tensors="pt")["input_ids"])
        assert torch.allclose(mine[0] if isinstance(mine, tuple) else mine, said, atol=1e-4)


# ---------------------------------------------------------------- texts that are written


@BOTH
def test_a_text_goes_on(ours, tmp_path):
    words = bytelevel("")
    saved(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(words), **WIDE)), words, tmp_path / "m")
    model, place = again(tmp_path / "m", ours)
    found = pipeline("text-generation", place)
    for one in TEXTS[:3]:
        [said] = found(one, max_new_tokens=9, do_sample=False, return_full_text=False)
        assert model.generate(one, max_new_tokens=9, temperature=0) == said["generated_text"]


@BOTH
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_one_text_becomes_another(kind, ours, tmp_path):
    """By the class itself: there is no pipeline for it any more."""
    words = bytelevel() if kind == "bart" else bytelevel("$A </s>", "$A </s> $B </s>")
    if kind == "bart":
        theirs = hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=len(words), **BART))
    else:
        theirs = hf.T5ForConditionalGeneration(hf.T5Config(
            vocab_size=len(words), d_model=36, d_kv=9, num_heads=4, d_ff=60, num_layers=2, decoder_start_token_id=1,
            pad_token_id=1, eos_token_id=2))  # fmt: skip
    saved(theirs, words, tmp_path / "m")
    model, place = again(tmp_path / "m", ours)
    words, theirs = hf.AutoTokenizer.from_pretrained(place), hf.AutoModelForSeq2SeqLM.from_pretrained(place)
    for one in TEXTS[:3]:
        said = theirs.generate(**words(one, return_tensors="pt"), max_new_tokens=9, do_sample=False, num_beams=1)
        assert model.translate(one, max_new_tokens=9, num_beams=1) == words.decode(said[0], skip_special_tokens=True)


# ---------------------------------------------------------------- images


@BOTH
@pytest.mark.parametrize("case", ["vit", "deit", "swin"])
def test_which_class_an_image_is(case, ours, tmp_path):
    make, processor = PROCESSORS[case]
    names = ["crane", "dog", "cow", "cat", "bus", "owl", "a, b"]
    theirs = make(id2label=dict(enumerate(names)), label2id={name: place for place, name in enumerate(names)})
    saved(theirs, None, tmp_path / "m")
    processor.save_pretrained(tmp_path / "m")
    model, place = again(tmp_path / "m", ours, config.Classification(input="image", classes=tuple(names)))
    size = json.loads((tmp_path / "again/preprocessor_config.json").read_text())["size"]
    edge = size.get("height") or size["shortest_edge"]
    photo(edge, edge).save(tmp_path / "a.png")  # of the right size: theirs and ours round otherwise when they resize
    said = pipeline("image-classification", place)(str(tmp_path / "a.png"), top_k=7)
    [found] = Classifier(model)([str(tmp_path / "a.png")], top=7)

    assert found["classes"] == pytest.approx({each["label"]: each["score"] for each in said}, abs=2e-3)


@BOTH
def test_vectors_of_images(ours, tmp_path):
    saved(image_cases.CASES["vit body"](), None, tmp_path / "m")
    PROCESSORS["vit"][1].save_pretrained(tmp_path / "m")
    model, place = again(tmp_path / "m", ours)
    found = pipeline("image-feature-extraction", place)
    image = photo(model.c.embed.image_size, model.c.embed.image_size)
    with torch.no_grad():
        mine = model(found.image_processor(image, return_tensors="pt")["pixel_values"])

    assert torch.allclose(mine[0] if isinstance(mine, tuple) else mine, torch.tensor(found(image)), atol=1e-4)


@BOTH
def test_which_text_an_image_is(ours, tmp_path):
    words = bytelevel()
    theirs = image_cases.clip(dict(vocab_size=len(words), bos_token_id=0, eos_token_id=2, pad_token_id=1,
                                  max_position_embeddings=60))  # fmt: skip
    saved(theirs, words, tmp_path / "m")
    PROCESSORS["clip"][1].save_pretrained(tmp_path / "m")
    model, place = again(tmp_path / "m", ours)
    edge = model.c.towers[0].embed.image_size
    photo(edge, edge).save(tmp_path / "a.png")
    said = pipeline("zero-shot-image-classification", place)(
        str(tmp_path / "a.png"), candidate_labels=["a cat", "the old man", "who"], hypothesis_template="{}"
    )
    mine = model.match([tmp_path / "a.png"], [each["label"] for each in said])[0]

    assert mine.tolist() == pytest.approx([each["score"] for each in said], abs=2e-3)


def test_a_template_is_added_to_what_a_tokenizer_does_already_and_can_be_taken_off(tmp_path):
    published = bytelevel("")
    published.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    published.save_pretrained(tmp_path)
    plain = text.Tokenizer.load(tmp_path)
    made = add_task_tokens(config.Classification(), plain)
    made.save(tmp_path / "made")
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "made")

    for one in TEXTS:
        ids = plain.encode(one)
        assert made.encode(one) == ids and theirs(one)["input_ids"] == [
            plain.special_ids["cls"],
            *ids,
            plain.special_ids["sep"],
        ]
    assert without_post_processor(made) == plain.text() and add_task_tokens(config.Classification(), made) is made
