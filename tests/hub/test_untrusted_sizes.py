"""Small files of models that promise much, and names that lead elsewhere: refused in a moment, by a sentence."""

import json
import os
import struct
import time
from types import SimpleNamespace

import pytest
import torch
from faults.big_files import text
from hub.builders import gpt2, model, words

import regard
from regard import config
from regard.config.errors import DataError
from regard.generation import params
from regard.hub import gguf_file, image_preprocessor, write_folder
from regard.hub.families.hf_config import HFConfig
from regard.inference import classification
from regard.text.chat_template import ChatTemplate
from regard.text.tokenizer import Tokenizer


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    write_folder.save_model(tmp_path / "model", model(gpt2()), words())
    (tmp_path / "model/MANIFEST.json").unlink()
    return tmp_path / "model"


# ---------------------------------------------------------------- GGUF


def header(path, facts: bytes, count: int, tensors: bytes = b"", many: int = 0, rest: int = 0):
    raw = b"GGUF" + struct.pack("<IQQ", 3, many, count) + facts + tensors
    path.write_bytes(raw + bytes(-len(raw) % 32 + rest))
    return path


@pytest.mark.parametrize("facts", [
    text("a") + struct.pack("<IIQ", 9, 7, 20_000_000) + bytes(20_000_000),
    text("a") + struct.pack("<IIQ", 9, 8, 6_000_000) + bytes(48_000_000),
], ids=["truths", "empty texts"])  # fmt: skip
def test_a_list_that_takes_forty_times_its_bytes_is_refused_before_it_is_made(facts, tmp_path):
    began = time.process_time()
    with pytest.raises(DataError, match="in memory by its header.*REGARD_MAX_BYTES"):
        gguf_file.open_gguf(header(tmp_path / "a.gguf", facts, 1))

    assert time.process_time() - began < 1


def test_tensors_that_stand_at_one_place_are_refused(tmp_path):
    pytest.importorskip("gguf")
    one = struct.pack("<I", 1) + struct.pack("<Q", 1000) + struct.pack("<IQ", 0, 0)  # 1,000 numbers in fp32 from 0 on
    tensors = b"".join(text(f"blk.{n}.attn_norm.weight") + one for n in range(50))
    with pytest.raises(DataError, match="its tensors share bytes or names"):
        gguf_file.open_gguf(header(tmp_path / "a.gguf", b"", 0, tensors, 50, 4000))


def test_a_pipe_that_is_called_a_model_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.gguf")
    with pytest.raises(DataError, match="a.gguf: not a regular file; name a GGUF file"):
        regard.load(tmp_path / "a.gguf")


# ---------------------------------------------------------------- what stands beside


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                                  "generation_config.json"])  # fmt: skip
def test_a_link_out_of_the_folder_is_not_followed(name, saved, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"chat_template": "{{ 1 }}"}')
    (saved / name).unlink(missing_ok=True)
    (saved / name).symlink_to(secret)
    with pytest.raises(DataError, match=f"{name}: a link that leads out of the folder"):
        if name == "generation_config.json":
            params.read_generation_config(saved, {})
        else:
            Tokenizer.load(saved)
            ChatTemplate.load(saved)


def test_links_into_the_cache_of_the_hub_are_followed(saved, tmp_path):
    home = tmp_path / "models--a--b"
    (home / "blobs").mkdir(parents=True)
    (home / "snapshots/1").mkdir(parents=True)
    for file in saved.iterdir():
        os.replace(file, home / "blobs" / file.name)
        (home / "snapshots/1" / file.name).symlink_to(home / "blobs" / file.name)
    (home / "blobs/t").write_text("{{ 1 }}")
    (home / "snapshots/1/chat_template.jinja").symlink_to(home / "blobs/t")

    assert len(Tokenizer.load(home / "snapshots/1")) > 1 and ChatTemplate.load(home / "snapshots/1").render([]) == "1"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "tokenizer_config.json",
                                  "MANIFEST.json"])  # fmt: skip
def test_a_pipe_in_a_folder_is_not_waited_for(name, saved):
    (saved / name).unlink(missing_ok=True)
    os.mkfifo(saved / name)
    try:
        regard.load(saved)  # without a tokenizer, or a manifest, where that is none
    except DataError as problem:
        assert "\n" not in str(problem)


def test_a_pipe_that_a_manifest_vouches_for_is_not_waited_for(tmp_path):
    write_folder.save_model(tmp_path / "a", model(gpt2()), words())
    manifest = json.loads((tmp_path / "a/MANIFEST.json").read_text())
    manifest["files"]["tokenizer.json"]["size"] = 0
    (tmp_path / "a/MANIFEST.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    (tmp_path / "a/tokenizer.json").unlink()
    os.mkfifo(tmp_path / "a/tokenizer.json")
    with pytest.raises(DataError, match="not a regular file"):
        regard.load(tmp_path / "a")


def test_a_number_of_four_hundred_digits_is_a_sentence():
    theirs = HFConfig({"a": 10**400, "b": [1, 10**400], "c": list(range(10**6))})
    for ask in (lambda: theirs.get_float("a"), lambda: theirs.numbers("b"), lambda: theirs.get_float("c")):
        with pytest.raises(DataError, match="config.json: . is .*expected") as caught:
            ask()
        assert len(str(caught.value)) < 200


def test_beams_that_a_folder_asks_for_are_bounded(tmp_path):
    (tmp_path / params.NAME).write_text('{"num_beams": 1000000000}')
    with pytest.raises(DataError, match="num_beams is 1000000000; expected at most 1024"):
        params.read_generation_config(tmp_path, {})


@pytest.mark.alone
def test_two_hundred_thousand_labels_take_a_moment():
    many = 200_000
    said = {"id2label": {str(n): f"class {n // 2}" for n in range(many)}}
    c = config.Transformer(
        embed=config.PatchEmbedding(image_size=8, patch_size=4),
        trunk=config.Trunk(dim=8, depth=1),
        head=config.PoolingHead(out=many),
    )
    began = time.process_time()
    asked = image_preprocessor.classification_task(c, said)
    named = classification.label_names(SimpleNamespace(task=None, source_folder=SimpleNamespace(said=said)), many)

    assert asked.classes[:3] == named[:3] == ("class 0 (0)", "class 0 (1)", "class 1 (2)")
    assert time.process_time() - began < 5  # more than two minutes where each was compared with each
