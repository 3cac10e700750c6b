"""The table of mistakes: each is one sentence on stderr with what is wrong, where, and what to do; nothing on stdout.

A row: what is typed, the exit code, and words that the sentence must have: the path or the setting, and the remedy.
"""

import json
import os
import shutil

import pytest

USAGE, DATA, FAILED = 2, 3, 1


# ---------------------------------------------------------------- things to make mistakes with


@pytest.fixture
def shop(desk, checkpoint):
    """A desk with everything on it that can be mistaken for something else."""
    (desk / "empty.txt").write_text("")
    (desk / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (desk / "latin.txt").write_bytes("über\nnaïve\n".encode("latin1") * 9)
    (desk / "short.txt").write_text("abcdefgh")
    (desk / "folder").mkdir()
    (desk / "full").mkdir()
    (desk / "full" / "letter.txt").write_text("mine")
    (desk / "old" / "checkpoints").mkdir(parents=True)
    (desk / "old" / "config.toml").write_text((desk / "recipe.toml").read_text())
    (desk / "old" / "run.json").write_text('{"measured": {}}')
    shutil.copytree(desk / "old", desk / "done")
    (desk / "done" / "checkpoints" / "step-000003").mkdir()
    (desk / "torn.toml").write_text("[model\ndim = 3")
    (desk / "latin.toml").write_bytes("# über\n[model]\n".encode("latin1"))
    (desk / "bad.json").write_text("{")
    (desk / "encoder.toml").write_text((desk / "recipe.toml").read_text().replace("gpt2", "bert-base"))
    (desk / "pair.toml").write_text((desk / "recipe.toml").read_text().replace("gpt2", "transformer-base"))
    for name, made in FILES.items():
        (desk / name).write_bytes(made if isinstance(made, bytes) else made.encode())
    os.truncate(desk / "endless.jsonl", (1 << 26) + 1)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"é": 30, "è": 31}
    (desk / "larger.json").write_text(json.dumps(tokenizer))
    for name, damage in DAMAGES.items():
        shutil.copytree(checkpoint, desk / name)
        damage(desk / name)
        if name in UNSEALED:
            (desk / name / "MANIFEST.json").unlink()
    return desk


def lines(**columns):
    """Nine records, each column the same in all of them, or a list of what it is in turn."""
    said = {name: value if isinstance(value, list) else [value] for name, value in columns.items()}
    return "".join(
        json.dumps({name: values[row % len(values)] for name, values in said.items()}) + "\n" for row in range(9)
    )


FILES = {
    "labelled.jsonl": lines(text=["a cat", "a dog"], label=["cat", "dog"]),
    "one.jsonl": lines(text="a cat", label="cat"),
    "unlabelled.jsonl": lines(text=["a cat", "a dog"], label=["cat", None]),
    "listed.jsonl": lines(text=["a cat", "a dog"], label=[["cat"], "dog"]),
    "nan.jsonl": lines(text="a cat", label=float("nan")),
    "null.jsonl": lines(text=[None], label=["cat", "dog"]),
    "tags.jsonl": lines(words="a cat sat", labels="O B"),
    "asked.jsonl": lines(question="who sat?", context="the cat sat", answer="dog"),
    "mixed.jsonl": b'{"text": "a"}\n{"text": "na\xefve"}\n',
    "ragged.csv": "text,label\na,b,c\n",
    "quote.csv": 'text,label\n"a,b\nc,d\n',
    "header.csv": "text,label\n",
    "blank.jsonl": "\n\n",
    "list.jsonl": "[1]\n",
    "endless.jsonl": "",
    "a.en": "a cat\na dog\n",
    "a.fr": "un chat\n",
    "torn.txt.gz": b"\x1f\x8bno more",
    "torn.parquet": b"PAR1",
    "wide.vec": "the 0.1 0.2 0.3\n",
    "other.vec": "xyzzy" + 12 * " 0.5" + "\n",
    "nan.vec": "t" + 12 * " nan" + "\n",
}


def cut(path):
    path.write_bytes(path.read_bytes()[:-99])


DAMAGES = {
    "cut": lambda folder: cut(folder / "model.safetensors"),
    "bare": lambda folder: (folder / "config.json").unlink(),
    "light": lambda folder: (folder / "model.safetensors").unlink(),
    "silent": lambda folder: (folder / "tokenizer.json").unlink(),
    "garbled": lambda folder: cut(folder / "config.json"),
    "babble": lambda folder: cut(folder / "tokenizer.json"),
    "foreign": lambda folder: (folder / "config.json").write_text('{"model_type": "mamba"}'),
    "unsealed": lambda folder: cut(folder / "model.safetensors"),
}
UNSEALED = ("garbled", "foreign", "unsealed")  # without a MANIFEST.json, as other people's folders are

# What some rows begin with, up to the file.
CLASSES = "train encoder.toml task.kind=classification model.head.pooling=mean data.source"
NUMBERS = "train encoder.toml task.kind=regression model.head.pooling=mean data.source"
TAGS = "train encoder.toml task.kind=token_classification model.head.kind=token data.source"
ANSWERS = "train encoder.toml task.kind=question_answering model.head.kind=token train.context=32 data.source"

MISTAKES = {
    # -------- verbs, arguments, options
    "an unknown verb": ("trian recipe.toml", USAGE, "'trian' 'train' --help"),
    "an unknown verb of tokenize": ("tokenize encod model", USAGE, "'encod' 'encode' --help"),
    "no verb for tokenize": ("tokenize", USAGE, "verb encode --help"),
    "no recipe": ("train", USAGE, "RECIPE train --help"),
    "an unknown option": ("generate model a --temprature 1", USAGE, "--temprature '--temperature'"),
    "a setting as an option": ("train recipe.toml --train.steps=5", USAGE, "--train.steps train.steps=value"),
    "an option without its value": ("generate model a --max-new-tokens", USAGE, "--max-new-tokens --help"),
    "a word for a number": ("generate model a --max-new-tokens many", USAGE, "--max-new-tokens whole number 'many'"),
    "a count of none": ("generate model a --count 0", USAGE, "--count 1"),
    "temperature below zero": ("generate model a --temperature -1", USAGE, "--temperature -1 less than 0"),
    "more than all probability": ("generate model a --top-p 2", USAGE, "--top-p 2 between 0 and 1"),
    "the best of none": ("generate model a --top-k 0", USAGE, "--top-k less than 1"),
    "an impossible seed": ("generate model a --seed -5", USAGE, "--seed less than 0"),
    "repetition of zero": ("generate model a --repetition-penalty 0", USAGE, "--repetition-penalty more than zero"),
    "an empty stop": (["generate", "model", "a", "--stop", ""], USAGE, "--stop empty remove"),
    "two prompts": ("generate model a --file text.txt", USAGE, "--file text.txt PROMPT keep one"),
    # -------- recipes and settings
    "a recipe that does not exist": ("train nowhere.toml", USAGE, "nowhere.toml no such recipe packaged"),
    "a setting where the recipe should be": ("train train.steps=3", USAGE, "train.steps=3 recipe before"),
    "a recipe that is no TOML": ("train torn.toml", USAGE, "torn.toml not valid TOML line 1"),
    "a recipe that is not UTF-8": ("train latin.toml", USAGE, "latin.toml line 1 UTF-8 save"),
    "a folder as a recipe": ("train folder", USAGE, "folder TOML file"),
    "a misspelt table": ("train recipe.toml modell.dim=3", USAGE, "modell did you mean 'model'"),
    "a misspelt setting": ("train recipe.toml train.stpes=3", USAGE, "train.stpes did you mean 'steps'"),
    "a misspelt setting of the model": ("train recipe.toml model.trunk.dimm=3", USAGE, "model.trunk.dimm 'dim'"),
    "a misspelt short word of the model": ("train recipe.toml model.dimm=3", USAGE, "model.dimm 'dim'"),
    "a word where a number belongs": ("train recipe.toml model.dim=wide", USAGE, "dim whole number 'wide'"),
    "half a layer": ("train recipe.toml model.depth=2.5", USAGE, "depth whole number 2.5"),
    "an unknown mask": ("train recipe.toml model.mask=casual", USAGE, "model.trunk.mask 'casual' 'causal'"),
    "an unknown kernel": ("train recipe.toml model.kernel=fusd", USAGE, "kernel 'fusd' 'fused'"),
    "an unknown preset": ("train recipe.toml model.preset=gpt3", USAGE, "model.preset 'gpt3' 'gpt2'"),
    "an unknown optimizer": ("train recipe.toml train.optimizer.kind=adam", USAGE, "train.optimizer.kind 'adamw'"),
    "an unknown schedule": ("train recipe.toml train.schedule.kind=cosin", USAGE, "train.schedule.kind 'cosine'"),
    "an unknown tokenizer": ("train recipe.toml tokenizer.kind=bep", USAGE, "tokenizer.kind 'bep' 'bpe'"),
    "an unknown precision": ("train recipe.toml train.precision=fp16", USAGE, "precision 'fp16' fp32"),
    "a setting of another kind": ("train recipe.toml tokenizer.vocab=99", USAGE, "tokenizer.vocab 'word' remove"),
    "heads that do not fit": ("train recipe.toml model.heads=5", USAGE, "heads 5 12"),
    "no end in sight": ("train recipe.toml train.steps=none", USAGE, "train.steps minutes"),
    "an override without a value": ("train recipe.toml train.steps", USAGE, "'train.steps' setting=value"),
    "an override with spaces": ("train recipe.toml train.steps = 3", USAGE, "'train.steps' setting=value"),
    "a seed below zero": ("train recipe.toml train.seed=-1", USAGE, "train.seed -1 less than 0"),
    "dropout of two": ("train recipe.toml model.dropout=2", USAGE, "model.trunk.dropout 2"),
    # -------- places to write
    "a run where a run is": ("train recipe.toml --out done", USAGE, "--out done `regard resume done` another"),
    "a run where one ended unsaved": ("train recipe.toml --out old", USAGE, "--out old remove another"),
    "a run where letters are": ("train recipe.toml --out full", USAGE, "--out full not empty another"),
    "a run where a file is": ("train recipe.toml --out text.txt", USAGE, "--out text.txt choose"),
    "a run below a file": ("train recipe.toml --out text.txt/run", USAGE, "--out text.txt/run choose"),
    "a run where nothing can be": ("train recipe.toml --out /proc/regard/run", USAGE, "/proc/regard/run choose"),
    "a tokenizer below a file": ("tokenize train char text.txt --out text.txt/x", DATA, "text.txt/x file check"),
    # -------- texts
    "a text that does not exist": ("train recipe.toml data.source=nowhere.txt", DATA, "nowhere.txt no such"),
    "an empty text": ("train recipe.toml data.source=empty.txt", DATA, "empty.txt empty"),
    "a binary file": ("train recipe.toml data.source=binary.txt", DATA, "binary.txt"),
    "a text that is not UTF-8": ("train recipe.toml data.source=latin.txt", DATA, "latin.txt UTF-8"),
    "a folder without texts": ("train recipe.toml data.source=folder", DATA, "folder .txt"),
    "a text shorter than the context": ("train recipe.toml data.source=short.txt", DATA, "short.txt train.context"),
    "an empty standard input": ("train recipe.toml data.source=-", DATA, "standard input empty"),
    "learning letters from nothing": ("tokenize train bpe nowhere.txt --out x", DATA, "nowhere.txt no such"),
    "a pattern that nothing matches": ("train recipe.toml data.source=*.none", DATA, "*.none no file matches"),
    "a text in two encodings": ("train recipe.toml data.source=mixed.jsonl", DATA, "mixed.jsonl:2 UTF-8 0xEF iconv"),
    "a line without end": ("train recipe.toml data.source=endless.jsonl", DATA, "endless.jsonl:1 64 MiB break"),
    "a torn packed text": ("train recipe.toml data.source=torn.txt.gz", DATA, "torn.txt.gz gzip again"),
    "a torn table": ("train recipe.toml data.source=torn.parquet", DATA, "torn.parquet Parquet again"),
    # -------- records
    "records without a line": ("train recipe.toml data.source=blank.jsonl", DATA, "blank.jsonl no text name"),
    "a header alone": ("train recipe.toml data.source=header.csv", DATA, "header.csv no text name"),
    "a row with too much": ("train recipe.toml data.source=ragged.csv", DATA, "ragged.csv:2 3 fields 2 text, label"),
    "a quote that stays open": ("train recipe.toml data.source=quote.csv", DATA, "quote.csv:2 quotes closed"),
    "a list where an object belongs": ("train recipe.toml data.source=list.jsonl", DATA, "list.jsonl:1 object"),
    "a text in another column": (
        "train recipe.toml data.source=labelled.jsonl data.text_column=body",
        DATA,
        "labelled.jsonl:1 'body' text, data.text_column",
    ),  # fmt: skip
    "columns of a file that has names": ('train recipe.toml data.column_names=["a"]', USAGE, "data.column_names leave"),
    "files of two lengths": (
        ["train", "pair.toml", "task.kind=translation", "data.source=a.en + a.fr"],
        DATA,
        "a.en + a.fr 2 1 same length",
    ),  # fmt: skip
    "two files in one word": (
        ["train", "pair.toml", "task.kind=translation", "data.source=a.en+a.fr"],
        DATA,
        "a.en+a.fr space both sides",
    ),  # fmt: skip
    "half of two files": (
        ["train", "pair.toml", "task.kind=translation", "data.source=a.en + b.fr"],
        DATA,
        "b.fr no such file name",
    ),  # fmt: skip
    "a translation of one column": (
        "train pair.toml task.kind=translation data.source=text.txt",
        DATA,
        "text.txt:1 'source' text task",
    ),  # fmt: skip
    "a label that nobody gave": (f"{CLASSES}=unlabelled.jsonl", DATA, "unlabelled.jsonl:2 'label' None word"),
    "a list of labels": (f"{CLASSES}=listed.jsonl", DATA, "listed.jsonl:1 'label' ['cat'] word"),
    "a label in another column": (
        f"{CLASSES}=labelled.jsonl task.label=lable",
        DATA,
        "labelled.jsonl:1 'lable' 'label' task",
    ),  # fmt: skip
    "one class alone": (f"{CLASSES}=one.jsonl", DATA, "one.jsonl:9 'label' 1 class 'cat' two task"),
    "a text that is none": (f"{CLASSES}=null.jsonl", DATA, "null.jsonl:1 'text' None data.on_bad_record=skip"),
    "a label that is no number": (f"{NUMBERS}=nan.jsonl", DATA, "nan.jsonl:1 'label' nan finite number"),
    "a class where a number belongs": (f"{NUMBERS}=labelled.jsonl", DATA, "labelled.jsonl:1 'label' 'cat' number"),
    "more words than tags": (
        f'{TAGS}=tags.jsonl task.classes=["O","B"]',
        DATA,
        "tags.jsonl:1 3 'words' 2 'labels' each word",
    ),  # fmt: skip
    "an answer that is not there": (
        f"{ANSWERS}=asked.jsonl task.answer_start=none",
        DATA,
        "asked.jsonl:1 'dog' 'context' correct",
    ),  # fmt: skip
    "an answer without its place": (f"{ANSWERS}=asked.jsonl", DATA, "asked.jsonl:1 'start' task.answer_start=none"),
    "documents of one line each": (
        "train encoder.toml task.kind=masked_lm task.next_sentence=true model.head.kind=pretraining data.validation=0",
        DATA,
        "text.txt two sentences lines data.blank_line_ends_document=true",
    ),  # fmt: skip
    # -------- what is asked, and of whom
    "words from a head of classes": (
        "train encoder.toml task.kind=masked_lm model.head.kind=pooling",
        USAGE,
        "model.head.kind 'pooling' 'masked_lm' model.head.kind=lm",
    ),  # fmt: skip
    "a translator with one trunk": (
        ["train", "recipe.toml", "task.kind=translation", "data.source=a.en + a.en"],
        USAGE,
        "model.encoder encoder-decoder",
    ),  # fmt: skip
    "packing what is asked row by row": (
        f"{CLASSES}=labelled.jsonl train.pack=true",
        USAGE,
        "train.pack 'classification' train.batch_tokens",
    ),  # fmt: skip
    "a batch smaller than a row": (
        f"{CLASSES}=labelled.jsonl train.batch_tokens=3 data.validation=0",
        DATA,
        "labelled.jsonl 8 3 train.batch_tokens=8 train.context",
    ),  # fmt: skip
    "a tokenizer larger than the model": (
        'train recipe.toml tokenizer={kind="file",path="larger.json"} model.vocab=30',
        USAGE,
        "model.embed.vocab 30 32 larger",
    ),  # fmt: skip
    "no such tokenizer": ('train recipe.toml tokenizer={kind="file",path="nowhere"}', DATA, "nowhere tokenizer.json"),
    # -------- weights from elsewhere
    "beginning with nothing": ("train recipe.toml --init-from nowhere", DATA, "train.init_from nowhere no such folder"),
    "beginning with an empty folder": (
        "train recipe.toml --init-from folder",
        DATA,
        "train.init_from folder config.json",
    ),  # fmt: skip
    "beginning with a torn model": ("train recipe.toml --init-from cut", DATA, "cut/model.safetensors"),
    "weights of another shape": (
        'train recipe.toml --init-from model text={kind="char"} model.dim=24',
        DATA,
        "model do not fit (12,) (24,) leave",
    ),  # fmt: skip
    "the words of another tokenizer": (
        'train recipe.toml --init-from model tokenizer={kind="file",path="larger.json"}',
        USAGE,
        "tokenizer 'file' model leave path",
    ),  # fmt: skip
    "vectors of another width": (
        "train recipe.toml train.word_vectors=wide.vec",
        DATA,
        "wide.vec 3 12 model.trunk.embed_dim=3",
    ),
    "vectors of other words": (
        "train recipe.toml train.word_vectors=other.vec",
        DATA,
        "other.vec none of the name vectors",
    ),
    "vectors that are no numbers": (
        "train recipe.toml train.word_vectors=nan.vec",
        DATA,
        "nan.vec 't' not finite remove",
    ),  # fmt: skip
    "vectors from nowhere": ("train recipe.toml train.word_vectors=nowhere.vec", DATA, "nowhere.vec no such file"),
    "freezing what is not there": (
        'train recipe.toml train.freeze=["trunc"]',
        USAGE,
        "train.freeze 'trunc' 'trunk' embed",
    ),  # fmt: skip
    "freezing everything": ('train recipe.toml train.freeze=["*"]', USAGE, "train.freeze none leave"),
    # -------- runs and checkpoints
    "a checkpoint that does not exist": ("generate nowhere a", DATA, "nowhere no such folder checkpoint"),
    "a checkpoint that is nearly named": ("generate modle a", DATA, "modle 'model'"),
    "a file as a checkpoint": ("generate text.txt a", DATA, "text.txt folder"),
    "an empty folder as a checkpoint": ("generate folder a", DATA, "folder config.json"),
    "a checkpoint without its config": ("generate bare a", DATA, "bare config.json"),
    "a checkpoint without its weights": ("generate light a", DATA, "light model.safetensors"),
    "a checkpoint without its tokenizer": ("generate silent a", DATA, "tokenizer"),
    "a checkpoint cut short": ("generate cut a", DATA, "cut/model.safetensors"),
    "somebody's checkpoint cut short": ("generate unsealed a", DATA, "unsealed/model.safetensors"),
    "a config cut short": ("generate garbled a", DATA, "garbled/config.json JSON"),
    "a tokenizer cut short": ("generate babble a", DATA, "babble/tokenizer.json"),
    "a model of a strange family": ("generate foreign a", DATA, "foreign/config.json mamba gpt2"),
    "a run without a checkpoint": ("generate old a", DATA, "old checkpoint"),
    "resuming nothing": ("resume nowhere", DATA, "nowhere no such run regard train"),
    "resuming what is no run": ("resume model", DATA, "model config.toml regard train"),
    "resuming what never was saved": ("resume old", DATA, "old checkpoint"),
    "resuming with another model": ("resume old model.dim=3", USAGE, "model.dim train.steps regard train --out"),
    "evaluating nothing": ("evaluate nowhere", DATA, "nowhere no such folder"),
    "a report of nothing": ("report nowhere", DATA, "nowhere no such run regard train"),
    "explaining nothing": ("explain nowhere", USAGE, "nowhere no such recipe"),
    "explaining an empty folder": ("explain folder", DATA, "folder config.json"),
    "changing what was trained": ("explain model model.dim=3", USAGE, "model.dim=3 model checkpoint leave"),
    "an unknown model": ("models gpt3", USAGE, "gpt3 'gpt2'"),
    "evaluating without a text of its own": ("evaluate model", USAGE, "model FILE"),
    "evaluating an empty text": ("evaluate model empty.txt", DATA, "empty.txt empty"),
    "evaluating a text in strange letters": ("evaluate model latin.txt", DATA, "latin.txt UTF-8"),
    # -------- prompts, tokens, ids
    "a letter that the model does not know": ("generate model Über", DATA, "'Ü'"),
    "no prompt at all": ("generate model", DATA, "prompt empty"),
    "a prompt that is not UTF-8": (["generate", "model", "\udcff"], DATA, "PROMPT UTF-8 file"),
    "a prompt from a file that is not UTF-8": ("generate model --file latin.txt", DATA, "latin.txt line 1 UTF-8"),
    "a prompt from nowhere": ("generate model --file nowhere.txt", DATA, "nowhere.txt no such file check"),
    "a tokenizer that does not exist": ("tokenize encode nowhere a", DATA, "nowhere tokenizer.json"),
    "a tokenizer that is no JSON": ("tokenize encode bad.json a", DATA, "bad.json tokenizer.json"),
    "letters without an id": ("tokenize encode model Ü", DATA, "'Ü'"),
    "an id that is no number": ("tokenize decode model 1 two", USAGE, "'two' whole number"),
    "an id below zero": ("tokenize decode model -- -1", USAGE, "'-1' whole number"),
    "an id beyond the vocabulary": ("tokenize decode model 99", DATA, "99 model 29"),
    "an unknown kind of tokenizer": ("tokenize train bep text.txt --out x", USAGE, "KIND 'bep' 'bpe'"),
    "a vocabulary too small": ("tokenize train bpe text.txt --vocab-size 3 --out x", USAGE, "--vocab-size 3 300"),
    "a vocabulary for letters": (
        "tokenize train char text.txt --vocab-size 9 --out x",
        USAGE,
        "--vocab-size 'char' remove",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(say, shop, name):
    typed, code, parts = MISTAKES[name]
    told = say(*(typed.split() if isinstance(typed, str) else typed))

    assert (told.code, told.out) == (code, ""), told.err
    assert told.err.startswith("regard: ") and told.err.count("\n") == 1, told.err
    assert "Traceback" not in told.err and "bug" not in told.err
    assert [part for part in parts.split() if part not in told.err] == [], told.err


def test_a_value_error_inside_the_core_is_a_bug_and_no_mistake_of_the_user(say, shop, monkeypatch):
    def broken(self, x):
        raise ValueError("broken")

    monkeypatch.setattr("regard.core.layers.Norm.forward", broken)
    monkeypatch.setenv("TMPDIR", str(shop))
    told = say("generate", "model", "the cat", "--max-new-tokens", "2")

    assert told.code == FAILED and "this is a bug in regard (ValueError: broken)" in told.err, told.err


@pytest.mark.parametrize("typed", ["generate model the", "generate model the --prompt-lookup 3", "estimate model"])
def test_a_value_error_while_a_cache_is_made_is_a_bug_too(say, shop, monkeypatch, typed):
    """A model that has no cache says so in a ConfigError, which these ask for; another error is nobody's answer."""

    def broken(self, batch, capacity, like):
        raise ValueError("broken")

    monkeypatch.setattr("regard.core.model.Trunk.entries", broken)
    monkeypatch.setenv("TMPDIR", str(shop))
    told = say(*typed.split())

    assert told.code == FAILED and "this is a bug in regard (ValueError: broken)" in told.err, told.err


def test_the_table_is_long_enough():
    assert len(MISTAKES) >= 40


def test_a_refused_run_leaves_nothing_behind(say, shop):
    before = sorted(shop.rglob("*"))
    for typed in ("train recipe.toml model.dim=wide --out new", "train recipe.toml --out full", "resume model"):
        assert say(*typed.split()).code

    assert sorted(shop.rglob("*")) == before
