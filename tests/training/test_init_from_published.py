"""Fine-tuning begins with a folder of `transformers`, and what was trained is a folder of `transformers` again."""

import json

import pytest
import torch
import transformers as hf
from hub.published import quiet
from parity.tolerance import OUTPUT, assert_near, randomise

import regard
from regard import zoo
from regard.text.tokenizer import Tokenizer

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "was"]
SIZES = dict(vocab_size=len(WORDS), hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=60,
             max_position_embeddings=50)  # fmt: skip
DISTILLED = dict(vocab_size=len(WORDS), dim=36, n_layers=2, n_heads=4, hidden_dim=60, max_position_embeddings=50)
SOURCES = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SIZES)),
    "bert words and pairs": lambda: hf.BertForPreTraining(hf.BertConfig(**SIZES)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**SIZES, pad_token_id=0)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(**DISTILLED)),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**SIZES, embedding_size=20)),
    "electra": lambda: hf.ElectraForPreTraining(hf.ElectraConfig(**SIZES, embedding_size=20)),
}
TEXTS = [(f"the {who} was {what}", who, what) for who in ("cat", "dog", "film", "owl", "mat", "jug", "king", "bee")
         for what in ("good", "bad")] * 2  # fmt: skip
ROWS = {
    "classify": [dict(text=text, label=what) for text, _, what in TEXTS],
    "pairs": [dict(text=text, other=f"it was {what}", label=what) for text, _, what in TEXTS],
    "regress": [dict(text=text, label=len(what) / 2) for text, _, what in TEXTS],
    "tag": [dict(words=text.split(), labels=["O", "WHO", "O", "HOW"]) for text, _, _ in TEXTS],
    "answer": [dict(question="the what", context=text, answer=who, start=4) for text, who, _ in TEXTS],
}
CHANGES = (
    "train.steps=2", "train.epochs=none", "train.batch_size=4", "train.context=40", "train.compile=false",
    "train.device=cpu", "train.eval_every=none", "train.keep_best=false", "train.schedule.warmup=1",
    "train.optimizer.lr=0.01", "data.validation=0",
)  # fmt: skip


def published(name, folder):
    """A folder as somebody else's library writes it, with a tokenizer."""
    torch.manual_seed(3)
    theirs = SOURCES[name]()
    randomise(theirs)
    with quiet():
        theirs.eval().save_pretrained(folder)
        hf.BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(folder)
    return theirs


def begun(kind, folder, tmp_path, *changes):
    """A run of a packaged recipe that begins with the folder."""
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS[kind])))
    said = [f"data.source={tmp_path / 'rows.jsonl'}", f"train.init_from={folder}", *CHANGES, *changes]
    if kind == "pairs":
        kind, said = "classify", [*said, "task.input_pair=other"]
    notes = []
    run = regard.Run.from_recipe(zoo.read_recipe(f"finetune-{kind}", said), notice=notes.append)
    return run, next(note for note in notes if note.startswith("from "))


CLASSES = {
    "classify": "BertForSequenceClassification", "pairs": "BertForSequenceClassification",
    "regress": "BertForSequenceClassification", "tag": "BertForTokenClassification",
    "answer": "BertForQuestionAnswering",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.spec("S092")
@pytest.mark.parametrize("kind", CLASSES)
def test_bert_is_fine_tuned_and_opened_by_transformers(kind, tmp_path):
    theirs = published("bert", tmp_path / "theirs")
    run, told = begun(kind, tmp_path / "theirs", tmp_path)
    before = run.model.trunk.blocks[1].mlp.up.weight.clone()
    losses = [float(step.loss) for step in regard.train(run)]
    run.save(tmp_path / "tuned")
    with quiet():
        again = getattr(hf, CLASSES[kind]).from_pretrained(tmp_path / "tuned").eval()
    ids = torch.arange(5, 16)[None]
    ours = regard.load(tmp_path / "tuned", device="cpu")

    assert torch.equal(before, theirs.encoder.layer[1].intermediate.dense.weight)
    assert "new: head.out" in told and ("head.pooling.dense" in told) == (kind in ("tag", "answer"))
    assert len(losses) == 2 and not torch.equal(before, run.model.trunk.blocks[1].mlp.up.weight)
    answer = again(ids)
    want = torch.stack([answer.start_logits, answer.end_logits], -1) if kind == "answer" else answer.logits
    assert_near(ours(ids), want, OUTPUT)


HEADS = {
    "bert words and pairs": ("BertForSequenceClassification", ()),
    "roberta": ("RobertaForSequenceClassification", ()),
    "distilbert": ("DistilBertForSequenceClassification", ("model.head.activation=relu",)),
    "albert": ("AlbertForSequenceClassification", ()),
    "electra": ("ElectraForSequenceClassification", ("model.head.activation=gelu",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_its_relatives_are_fine_tuned_too(name, tmp_path):
    published(name, tmp_path / "theirs")
    architecture, changes = HEADS[name]
    run, _ = begun("classify", tmp_path / "theirs", tmp_path, *changes)
    assert len(list(regard.train(run))) == 2
    run.save(tmp_path / "tuned")
    said = json.loads((tmp_path / "tuned" / "config.json").read_text())
    with quiet():
        again = getattr(hf, architecture).from_pretrained(tmp_path / "tuned").eval()
    ids = torch.arange(5, 16)[None]

    assert said["architectures"] == [architecture] and said["id2label"] == {"0": "bad", "1": "good"}
    assert_near(regard.load(tmp_path / "tuned", device="cpu")(ids), again(ids).logits)


@pytest.mark.slow
def test_the_words_are_those_of_the_folder(tmp_path):
    published("bert", tmp_path / "theirs")
    run, _ = begun("classify", tmp_path / "theirs", tmp_path)
    with quiet():
        tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "theirs")

    assert run.tokenizer.text() == Tokenizer.load(tmp_path / "theirs").text()
    assert run.tokenizer.encode("the cat was bad") == tokenizer("the cat was bad", add_special_tokens=False).input_ids
