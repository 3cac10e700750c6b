"""regard evaluate: the loss that torch computes from the model's own logits, said in several units; and every score."""

import json
import math
import random
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import config, tasks, text
from regard.inference.load import load_model
from regard.inference.model import build_model

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "why", "not", "good", "bad"]


def surprise(model, ids):
    """Nats of every token but the first, each seen with what stands before it in its block of the context."""
    total = 0.0
    for start in range(0, len(ids) - 1, model.context):
        block = torch.tensor(ids[start : start + model.context + 1])
        total += float(cross_entropy(model(block[None, :-1])[0], block[1:], reduction="sum").detach())
    return total


# ---------------------------------------------------------------- texts


def test_the_loss_is_torch_s_own_over_the_whole_text(say, checkpoint, desk):
    words = (desk / "text.txt").read_text()
    told = json.loads(say("evaluate", checkpoint, "text.txt", "--json").out)
    model = load_model(checkpoint)
    loss = surprise(model, model.tokenizer.encode(words)) / (len(words) - 1)

    assert (told["data"], told["task"]) == ("text.txt", "next_token")
    assert told["tokens"] == told["bytes"] == len(words) - 1
    assert told["loss"] == pytest.approx(loss, rel=1e-5)
    assert told["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert told["bits_per_token"] == told["bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-5)


def test_bits_per_byte_count_the_bytes_of_utf8(say, desk):
    letters = "aé日🙂 "
    model = build_model(config.Transformer(embed=config.TextEmbedding(vocab=len(letters)), trunk=config.Trunk(
        dim=12, depth=1, mask="causal", attention=config.Attention(heads=3))))  # fmt: skip
    model.tokenizer, model.context = text.train_tokenizer(config.CharTokenizer(byte_fallback=False), [letters]), 5
    model.save(desk / "far")
    (desk / "far.txt").write_text("aé日🙂 🙂日éa 日")
    told = json.loads(say("evaluate", "far", "far.txt", "--json").out)

    assert told["tokens"] == 10 and told["bytes"] == len("é日🙂 🙂日éa 日".encode())
    assert told["bits_per_byte"] * told["bytes"] == pytest.approx(told["bits_per_token"] * told["tokens"])


def test_a_run_and_its_checkpoints_know_their_validation_text(say, checkpoint, desk):
    words = (desk / "text.txt").read_text()
    (desk / "run" / "checkpoints").mkdir(parents=True)
    shutil.move(checkpoint, desk / "run" / "checkpoints" / "step-000003")
    shutil.copy(desk / "recipe.toml", desk / "run" / "config.toml")
    (desk / "last.txt").write_text(words[int(0.75 * len(words)) :])
    told = [say("evaluate", *typed, "--json") for typed in (["run"], ["run/checkpoints/step-000003"])]
    losses = [json.loads(each.out)["loss"] for each in told]
    model = load_model("run")
    model.context = 7  # of the recipe
    loss = surprise(model, model.tokenizer.encode((desk / "last.txt").read_text()))

    assert losses[0] == losses[1] == pytest.approx(loss / (len((desk / "last.txt").read_text()) - 1), rel=1e-5)


def test_a_limit_reads_the_first_tokens_of_a_text(say, checkpoint, desk):
    (desk / "short.txt").write_text((desk / "text.txt").read_text()[:35])
    some, short = (json.loads(say("evaluate", checkpoint, *words, "--json").out)
                   for words in (["text.txt", "--limit", 34], ["short.txt"]))  # fmt: skip

    assert some | {"data": 0} == short | {"data": 0} and some["tokens"] == 34


def test_records_hold_texts_in_the_column_that_is_named(say, checkpoint, desk):
    (desk / "a.jsonl").write_text(json.dumps({"story": "the cat sat on the mat."}) + "\n")
    (desk / "a.txt").write_text("the cat sat on the mat.")
    told = [json.loads(say("evaluate", checkpoint, *words, "--json").out)["loss"] for words in (
        ["a.jsonl", "task.input=story"], ["a.jsonl", "data.text_column=story"], ["a.txt"])]  # fmt: skip

    assert told[0] == told[1] == told[2]


def test_people_read_rows(say, checkpoint):
    told = say("evaluate", checkpoint, "text.txt")
    words = [line.split()[0] for line in told.out.splitlines()]

    assert words == ["data", "task", "loss", "perplexity", "bits", "tokens"]
    assert told.err == ""


# ---------------------------------------------------------------- records


def small(c, head, out, desk, **more):
    """A model that has learnt nothing of what it will be asked, as a folder."""
    torch.manual_seed(3)
    known = tasks.add_task_tokens(
        c, text.train_tokenizer(config.WordTokenizer(vocab=60, byte_fallback=False), [" ".join(WORDS), *WORDS])
    )
    said = dict(dim=12, depth=1, attention=config.Attention(heads=3), dropout=config.NO_DROPOUT)
    trunks = {"trunk": config.Trunk(**said)}
    if c.kind == "translation":
        trunks = {"trunk": config.Trunk(**said, mask="causal", cross="last"),
                  "encoder": config.Encoder(trunk=config.Trunk(**said))}  # fmt: skip
    model = build_model(config.Transformer(embed=config.TextEmbedding(vocab=len(known)), head=head, **trunks))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    model.tokenizer, model.context, model.task = known, 31, c
    model.save(desk / out)


@pytest.fixture
def judge(desk):
    small(config.Classification(classes=("bad", "good")), config.PoolingHead(pooling="mean", out=2), "judge", desk)
    luck = random.Random(0)
    rows = [(luck.choice(["bad", "good"]), " ".join(luck.choices(WORDS, k=luck.randint(1, 9)))) for _ in range(19)]
    (desk / "a.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{words}\n" for label, words in rows))
    return rows


@pytest.fixture
def translator(desk):
    small(config.Translation(source="en", target="fr"), config.LMHead(tied=False), "translator", desk)
    (desk / "b.en").write_text("the cat\na mat\nthe cat\nwhy not\n")
    (desk / "b.fr").write_text("sat on\nbad\nnot on\nGood cat.\n")


def test_what_was_said_is_written_a_row_a_line_and_its_score_is_the_score(say, judge, desk):
    told = json.loads(say("evaluate", "judge", "a.tsv", "--out", "said.jsonl", "--json").out)
    lines = [json.loads(line) for line in (desk / "said.jsonl").read_text().splitlines()]
    right = [line["said"] == line["expected"] for line in lines]

    assert [(line["expected"], line["asked"]["text"], line["where"]) for line in lines] == [
        (label, words, f"a.tsv:{place}") for place, (label, words) in enumerate(judge, 2)]  # fmt: skip
    assert told["accuracy"] == pytest.approx(sum(right) / 19) and told["rows"] == 19
    assert sum(told["confusion"][name][name] for name in ("bad", "good")) == sum(right)
    assert sum(count for row in told["confusion"].values() for count in row.values()) == 19


def test_people_read_scores(say, judge):
    told = say("evaluate", "judge", "a.tsv")

    assert [line.split()[0] for line in told.out.splitlines()] == [
        "data", "task", "loss", "accuracy", "f1", "matthews", "rows"]  # fmt: skip
    assert told.err == ""


def test_columns_can_be_named_and_a_file_with_an_equals_sign_is_a_file(say, judge, desk):
    lines = [json.dumps({"stars": label, "review": words}) + "\n" for label, words in judge]
    (desk / "c=1.jsonl").write_text("".join(lines))
    plain, named = (json.loads(say("evaluate", "judge", *words, "--json").out) for words in (
        ["a.tsv"], ["c=1.jsonl", "task.label=stars", "task.input=review"]))  # fmt: skip

    assert plain | {"data": 0} == named | {"data": 0}


def test_standard_input_is_read_once_and_asked_in_part(say, judge, desk):
    lines = "".join(json.dumps({"label": label, "text": words}) + "\n" for label, words in judge).encode()
    told = json.loads(say("evaluate", "--limit", 5, "--json", "judge", "--", "-.jsonl", stdin=lines).out)

    assert told["rows"] == 5 and told["data"] == "standard input.jsonl"


def test_translations_come_with_bleu_chrf_and_their_signatures(say, translator, desk):
    words = ["evaluate", "translator", "b.en + b.fr", "data.column_names=['en', 'fr']", "--num-beams", 3,
             "--lowercase", "--by-group"]  # fmt: skip
    told, shown = json.loads(say(*words, "--json", "--out", "said.jsonl").out), say(*words)
    model = load_model("translator")
    lines = [json.loads(line) for line in (desk / "said.jsonl").read_text().splitlines()]

    assert [line["said"] for line in lines] == [model.translate(line["asked"]["en"], num_beams=3) for line in lines]
    assert [line["expected"] for line in lines] == (desk / "b.fr").read_text().splitlines()
    assert told["rows"] == 4 and {"bleu", "chrf", "grouped_bleu", "grouped_chrf"} <= told.keys()
    assert "case:lc" in told["signatures"]["bleu"] and "nrefs:var" in told["signatures"]["grouped_chrf"]
    bleu = next(line for line in shown.out.splitlines() if line.startswith("bleu"))
    assert bleu.split() == ["bleu", f"{told['bleu']:.2f}", told["signatures"]["bleu"]]
    assert shown.err == ""


def test_packaged_sets_and_toys_are_data_as_any_other(say, translator, desk):
    toy = json.loads(say("evaluate", "translator", "toy:copy(3, 5)", "task.source=source", "task.target=target",
                         "--json").out)  # fmt: skip
    packaged = json.loads(
        say("evaluate", "translator", "tatoeba-en-fr:test", "--limit", 3, "--num-beams", 1, "--json").out
    )

    assert toy["rows"] == 5 and packaged["rows"] == 3


LEARNING = """
[data]
validation = 0.3
[tokenizer]
kind = "word"
vocab = 300
[model]
dim = 12
heads = 3
[train]
steps = 2
batch_size = 5
context = 31
compile = false
device = "cpu"
"""
KINDS = {
    "classification": ["data.source=a.tsv", "model.head.kind=pooling", "model.head.pooling=mean"],
    "next_token": ["data.source=a.tsv", "model.preset=gpt2", "model.depth=1", "model.dropout=0.0", "train.pack=true"],
    "translation": ["data.source=b.tsv", "model.preset=transformer-base", "model.depth=1", "task.label_smoothing=0.0"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_as_good_as_its_log_says(say, judge, desk, kind):
    (desk / "b.tsv").write_text("source\ttarget\n" + "".join(f"{words}\t{words[::-1]}\n" for _, words in judge))
    (desk / "learning.toml").write_text(LEARNING)
    trained = say("train", "learning.toml", f"task.kind={kind}", *KINDS[kind], "--out", "run", "--quiet")
    assert trained.code == 0, trained.err
    last = [json.loads(line) for line in (desk / "run" / "log.jsonl").read_text().splitlines()][-1]
    told = json.loads(say("evaluate", "run", "--json").out)

    assert told["loss"] == pytest.approx(last["eval_loss"], rel=1e-5) and told["data"].startswith("0.3 of ")
    assert kind != "classification" or told["accuracy"] == pytest.approx(last["accuracy"])


# ---------------------------------------------------------------- mistakes


def test_a_model_that_sees_the_answer_is_not_asked(say, desk):
    model = build_model(config.Transformer(embed=config.TextEmbedding(vocab=256), trunk=config.Trunk(
        dim=12, depth=1, mask="full", attention=config.Attention(heads=3))))  # fmt: skip
    model.tokenizer, model.context = text.train_tokenizer(config.ByteTokenizer(), []), 7
    model.save(desk / "seer")
    told = say("evaluate", "seer", "text.txt", "task.kind=next_token")

    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1) and "autoregressive" in told.err


def test_a_run_that_kept_no_text_says_so(say, desk):
    (desk / "run").mkdir()
    (desk / "run" / "config.toml").write_text("[data]\nvalidation = 0.0")
    told = say("evaluate", "run")

    assert told.code == 2 and "data.validation" in told.err and "FILE" in told.err


MISTAKES = {
    "a label that training had not": (["judge", "odd.tsv"], 3, "odd.tsv:3: label 'so so' in column 'label' is none"),
    "a column that is not there": (["judge", "a.tsv", "task.input=txt"], 3, "a.tsv:2: no column 'txt'; did you mean"),
    "beams for a judge": (["judge", "a.tsv", "--num-beams", 3], 2, "num-beams: for translations only"),
    "no beams": (["translator", "b.en + b.fr", "--num-beams", 0], 2, "--num-beams: 0 is less than 1"),
    "no such words": (
        ["translator", "b.en + b.fr", "--bleu-tokenize", "14a"],
        2,
        "--bleu-tokenize: no '14a'; did you mean",
    ),
    "settings without a file": (["judge", "task.input=a"], 2, "judge: not of a run"),
    "no such file": (["judge", "nowhere.tsv"], 3, "nowhere.tsv: no such file"),
    "rows of a text": (["model", "text.txt", "--out", "x.jsonl"], 2, "a text has no separate rows to report"),
    "an out that is a folder": (["judge", "a.tsv", "--out", "judge"], 3, "judge: this is a folder"),
    "an out in no folder": (["judge", "a.tsv", "--out", "no/where.jsonl"], 3, "no/where.jsonl: there is no such"),
    "nothing to ask": (["judge", "a.tsv", "--limit", 0], 2, "limit: 0 leaves nothing"),
}


@pytest.mark.parametrize("words, code, sentence", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_and_an_exit_code(say, desk, judge, translator, checkpoint, words, code, sentence):
    (desk / "odd.tsv").write_text("label\ttext\ngood\tthe cat\nso so\ta mat\n")
    told = say("evaluate", *words)

    assert (told.code, told.out) == (code, "")
    assert told.err.startswith(f"regard: {sentence}") and told.err.count("\n") == 1


def test_what_was_written_before_stays_where_an_exam_fails(say, desk, judge):
    (desk / "said.jsonl").write_text("kept\n")
    say("evaluate", "judge", "a.tsv", "task.input=txt", "--out", "said.jsonl")

    assert (desk / "said.jsonl").read_text() == "kept\n" and not list(desk.glob(".*part*"))
