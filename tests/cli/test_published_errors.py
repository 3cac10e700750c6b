"""The table of mistakes with published models: each is one sentence on stderr, with its exit code; nothing is written.

A row: what is typed, the exit code, and words that the sentence must have.
"""

import pytest
from cli.published_folders import stocked


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return stocked(tmp_path_factory.mktemp("shelf"))


@pytest.fixture
def there(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    return shelf


USAGE, DATA = 2, 3
MISTAKES = {
    "no texts": (["embed", "body"], USAGE, "TEXT: there is none --file"),
    "texts and a file": (["embed", "body", "a", "--file", "texts.txt"], USAGE, "TEXT --file texts.txt one of the two"),
    "an empty text": (["embed", "body", "a", " "], DATA, "TEXT 2: ' ' empty"),
    "skipping without a file": (["embed", "body", "a", "--skip"], USAGE, "--skip: --file"),
    "a type that there is not": (["embed", "body", "a", "--dtype", "int4"], USAGE, "dtype: 'int4' auto, fp32"),
    "an empty file": (["embed", "body", "--file", "empty.txt"], DATA, "empty.txt empty"),
    "a file that is missing": (["embed", "body", "--file", "nothere.txt"], DATA, "nothere.txt no such file"),
    "records that are missing": (["tag", "tags", "--file", "nothere.jsonl"], DATA, "nothere.jsonl no such file"),
    "another column": (["fill", "words", "--file", "asked.jsonl"], DATA, "asked.jsonl:1 'text' question, context"),
    "a file in latin1": (["embed", "body", "--file", "latin.txt"], DATA, "latin.txt line 1 UTF-8 iconv"),
    "a folder that is missing": (["embed", "nothere", "a"], DATA, "nothere"),
    "no tokenizer": (["embed", "silent", "a"], DATA, "silent: tokenizer.json"),
    "no tokenizer to fill with": (["fill", "silent", "a [MASK]"], USAGE, "silent: head.kind ForMaskedLM"),
    "an unknown form": (["embed", "body", "a", "--out", "v.csv"], USAGE, "--out v.csv .npy .safetensors"),
    "a form in no folder": (["embed", "body", "a", "--out", "no/v.npy"], DATA, "--out no/v.npy folder"),
    "a picture that is missing": (["embed", "clip", "nothere.png"], DATA, "nothere.png no such file"),
    "no mask": (["fill", "words", "a cat"], DATA, "TEXT: no mask [MASK]"),
    "no mask token": (["fill", "maskless", "a [MASK]"], DATA, "maskless: no mask token"),
    "a decoder asked to fill": (["fill", "gpt2", "a [MASK]"], USAGE, "gpt2: causal generate"),
    "a pair asked to fill": (["fill", "t5", "a [MASK]"], USAGE, "t5: translate"),
    "towers asked to fill": (["fill", "clip", "a [MASK]"], USAGE, "clip: head.kind 'pooling'"),
    "the best of none": (["fill", "words", "a [MASK]", "--top-k", 0], USAGE, "--top-k: 0"),
    "no context": (["answer", "spans", "who?"], USAGE, "--context"),
    "a context that is missing": (["answer", "spans", "who?", "--context", "nothere.txt"], DATA, "nothere.txt no such"),
    "an empty context": (["answer", "spans", "who?", "--context", "empty.txt"], DATA, "--context empty.txt empty"),
    "no question": (["answer", "spans", "--context", "context.txt"], USAGE, "QUESTION: none"),
    "an empty question": (["answer", "spans", " ", "--context", "context.txt"], DATA, "QUESTION empty"),
    "both from one pipe": (["answer", "spans", "-", "--context", "-"], USAGE, "--context - standard input"),
    "no spans": (["answer", "words", "who?", "--context", "context.txt"], USAGE, "words: ForQuestionAnswering"),
    "no tags": (["tag", "classes", "a cat"], USAGE, "classes: no label for every word ForTokenClassification"),
    "tags asked for a class": (["classify", "tags", "a cat"], USAGE, "tags: has no classification head"),
    "words asked for a class": (["classify", "words", "a cat"], USAGE, "words: has no classification head"),
    "no class of an empty text": (["classify", "classes", " "], DATA, "' ' text"),
    "a missing file of texts": (["classify", "classes", "--file", "nothere.txt"], DATA, "nothere.txt no such file"),
    "an encoder asked to write": (["generate", "words", "a"], USAGE, "words: regard fill words"),
    "a body asked to write": (["generate", "body", "a"], USAGE, "body: regard embed body"),
    "classes asked to write": (["generate", "classes", "a"], USAGE, "classes: regard classify classes"),
    "tags asked to write": (["generate", "tags", "a"], USAGE, "tags: regard tag tags"),
    "spans asked to write": (["generate", "spans", "a"], USAGE, "spans: regard answer spans"),
    "towers asked to write": (["generate", "clip", "a"], USAGE, "clip: regard embed clip"),
    "a pair asked to go on": (["generate", "t5", "a"], USAGE, "t5: regard translate"),
    "an encoder asked to translate": (["translate", "a", "--model", "words"], USAGE, "words: no encoder"),
    "no new token": (["translate", "a", "--model", "t5", "--max-new-tokens", 0], USAGE, "--max-new-tokens: 0 is less"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(say, there, name):
    words, code, parts = MISTAKES[name]
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    said = say(*words)

    assert (said.code, said.out) == (code, ""), said.err
    assert said.err.startswith("regard: ") and said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err and "bug" not in said.err
    assert [part for part in parts.split() if part not in said.err] == [], said.err
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before
