"""Thousands of changed files: none of them crashes, hangs or fills the memory, and none shows a traceback."""

import json
import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest
import torch
from faults.trials import count
from hub import decoder_cases, encoder_cases, encoder_decoder_cases, image_cases
from hub.builders import gpt2, llama, model, nobodys, words
from parity.tolerance import randomise
from text.test_post_processor import roberta, t5
from text.test_published_tokenizers import byte_pieces, marian, merged, proto, unigrams, write
from text.test_tokenizer_files import bert as wordpieces
from text.test_tokenizer_files import llama as pieces

from regard import config as C
from regard.hub import write_folder
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

PATIENCE = 60.0  # seconds without a word: a machine may be busy, so what a file took is told in its own time
TEXT = "First Citizen: Before we proceed any further, hear me speak. Unhappy dogs, 12 of them!\n" * 3
MODELS = {**encoder_cases.CASES, **decoder_cases.CASES, **encoder_decoder_cases.CASES, **image_cases.CASES}
# One of each family that is written another way.
CHOSEN = ("bert words and pairs, relu", "roberta", "distilbert", "gpt2 untied, relu", "llama tied, biases", "t5",
          "bart", "marian", "whisper", "vit", "clip")  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Whole folders, of which each kind of mutant is made."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("mutants")
    for name, c in (("gpt2", gpt2()), ("llama", llama()), ("own", nobodys())):
        write_folder.save_model(place / "headers" / name, model(c))
        (place / "headers" / name / "MANIFEST.json").unlink()
    for name in CHOSEN:
        theirs = MODELS[name]()
        randomise(theirs)
        theirs.save_pretrained(place / "configs" / name.replace(" ", "_").replace(",", ""))
    shutil.copytree(place / "headers/own", place / "configs/own")
    vocabularies(place / "tokenizers")
    old_files(place / "pieces")
    return place


def vocabularies(place: Path) -> None:
    kinds = (
        C.CharTokenizer(),
        C.WordTokenizer(vocab=310),
        C.SubwordTokenizer(kind="bpe", vocab=310),
        C.SubwordTokenizer(kind="wordpiece", vocab=540),
        C.SubwordTokenizer(kind="unigram", vocab=330),
    )
    for number, setting in enumerate(kinds):
        train_tokenizer(setting, [TEXT]).save(place / str(number))
    for make in (wordpieces, pieces, roberta, t5):
        Tokenizer(make()).save(place / make.__name__)
    words().save(place / "words")


def old_files(place: Path) -> None:
    place.mkdir()
    write(place / "t5", spiece__model=proto(unigrams(["<pad>", "</s>", "<unk>"]), unknown=2),
          config__json={"model_type": "t5"})  # fmt: skip
    write(place / "llama", tokenizer__model=proto(byte_pieces(), kind=2, fallback=1),
          config__json={"model_type": "llama"})  # fmt: skip
    vocabulary, merges = merged("", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    write(place / "bart", vocab__json=vocabulary, merges__txt="\n".join(map(" ".join, merges)),
          config__json={"model_type": "bart"})  # fmt: skip
    marian(place / "marian")


def mutants(kind: str, place: Path, many: int, script: str = "mutated_files.py") -> list[dict]:
    """What came of each; a process that died or fell silent is a fault of the one it was at, and another goes on."""
    told: list[dict] = []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1",
           "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
    while len(told) < many and sum(each["what"] == "fault" for each in told) < 20:
        words = [sys.executable, Path(__file__).with_name(script), kind, place, str(len(told)), str(many)]
        pipe = subprocess.PIPE
        with TemporaryFile() as errors, subprocess.Popen(words, stdout=pipe, stderr=errors, env=env) as worker:
            told += [json.loads(line) for line in lines(worker)]
            silent = worker.poll() is None and len(told) < many
            if silent:
                worker.kill()
            code = worker.wait()
            errors.seek(0)
            said = errors.read()[-2000:].decode()
            if len(told) < many or code or "panicked" in said:
                why = f"silent for {PATIENCE} s" if silent else f"ended with {code}: {said}"
                told.append({"number": len(told), "what": "fault", "told": why, "seconds": 0.0, "memory": 0})
    return told


def lines(worker: subprocess.Popen) -> Iterator[bytes]:
    """What a process says, line by line, until it ends or says nothing for too long."""
    held = b""
    while select.select([worker.stdout], [], [], PATIENCE)[0] and (some := os.read(worker.stdout.fileno(), 1 << 16)):
        *whole, held = (held + some).split(b"\n")
        yield from whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["headers", "configs", "tokenizers", "pieces"])
def test_a_changed_file_opens_or_is_refused_in_a_sentence(kind, place, figures):
    many = count(10_000, 400) if kind != "pieces" else count(4_000, 200)
    told = mutants(kind, place, many)
    faults = [each for each in told if each["what"] == "fault"]
    came = Counter(each["what"] for each in told)

    assert not faults, json.dumps(faults[:5], indent=1).replace("\\n", "\n")
    assert came["refused"] > many / 10 and came["opened"] > many / 200, came
    slow = max(told, key=lambda each: each["seconds"])
    assert slow["seconds"] < 2, slow
    grown = max(each["memory"] for each in told) - told[min(50, len(told) - 1)]["memory"]
    assert grown < 500_000, f"{grown} kB more than after fifty"
    figures(**{kind: many}, opened=came["opened"], refused=came["refused"], slowest_ms=round(1000 * slow["seconds"]))
