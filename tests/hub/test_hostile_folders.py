"""Folders made to harm: refused in one sentence with exit code 3, soon, in little memory, and nothing is touched."""

import json
import os
import resource
import shutil
import struct
import time

import pytest
import torch
from hub.builders import gpt2, llama, model, nobodys, words
from hub.test_bad_folders import edit, retensor, shards

import regard
from regard.cli import main
from regard.hub import write_folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders as somebody else would have written them, and a model elsewhere that is none of theirs."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("saved")
    for name, c in (("gpt2", gpt2()), ("llama", llama()), ("own", nobodys()), ("elsewhere", gpt2())):
        write_folder.save_model(place / name, model(c), words())
        (place / name / "MANIFEST.json").unlink()
        if name != "own":
            edit(place / name / "config.json", lambda said: said.pop("regard"))
    shards(place / "gpt2", place / "shards")
    return place


def header(path, change):
    """Change the header of a file of tensors, and none of its numbers."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8 : 8 + size])
    change(table)
    text = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def linked(path, to):
    path.unlink(missing_ok=True)
    path.symlink_to(to)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def config(at, **changes):
    edit(at / "config.json", lambda said: said.update(changes))


def ours(at, change):
    edit(at / "config.json", lambda said: change(said["regard"]["config"]))


FILE, INDEX, BIAS = "model.safetensors", "model.safetensors.index.json", "transformer.ln_f.bias"
HARM = {
    "an index that leads out": (
        "shards", lambda at: edit(at / INDEX, lambda i: i["weight_map"].update(x=f"../elsewhere/{FILE}")),
        ["index.json", "../elsewhere", "a file of this folder"],
    ),
    "an index of numbers": (
        "shards", lambda at: edit(at / INDEX, lambda i: i["weight_map"].update(x=7, y=["/etc/passwd"])),
        ["index.json", "a file of this folder", "['/etc/passwd']"],
    ),
    "an index with an absolute path": (
        "shards", lambda at: edit(at / INDEX, lambda i: i["weight_map"].update(x="/etc/passwd")),
        ["index.json", "/etc/passwd"],
    ),
    "a shard that is a link out": (
        "shards", lambda at: linked(at / "a.safetensors", at.parent / "elsewhere" / FILE), ["a.safetensors", "out of"],
    ),
    "weights that are a link to a secret": (
        "gpt2", lambda at: linked(at / FILE, "/etc/passwd"), [FILE, "out of the folder", "/etc/passwd"],
    ),
    "weights that are a device": ("gpt2", lambda at: linked(at / FILE, "/dev/zero"), ["no model.safetensors"]),
    "weights that are a pipe": ("gpt2", lambda at: pipe(at / FILE), ["no model.safetensors"]),
    "weights that are a link to themselves": ("gpt2", lambda at: linked(at / FILE, at / FILE), ["gpt2"]),
    "settings that are a link out": (
        "gpt2", lambda at: linked(at / "config.json", at.parent / "elsewhere/config.json"), ["config.json", "out of"],
    ),
    "settings that are a pipe": ("gpt2", lambda at: pipe(at / "config.json"), ["expected config.json"]),
    "words that are a link out": (
        "gpt2", lambda at: linked(at / "tokenizer.json", at.parent / "elsewhere/tokenizer.json"),
        ["tokenizer.json", "out of"],
    ),
    "code to run": (
        "gpt2", lambda at: config(at, model_type="mpt", auto_map={"AutoModel": "evil.Evil"}),
        ["auto_map", "never", "gpt2", "llama"],
    ),
    "2^62 numbers in the header": (
        "gpt2", lambda at: header(at / FILE, lambda h: h[BIAS].update(shape=[1 << 31, 1 << 31])), [FILE, "not whole"],
    ),
    "2^64 numbers in the header": (
        "gpt2", lambda at: header(at / FILE, lambda h: h[BIAS].update(shape=[1 << 32, 1 << 32])), [FILE, "not whole"],
    ),
    "a header longer than the file": (
        "gpt2", lambda at: (at / FILE).write_bytes(struct.pack("<Q", 1 << 62) + b"{}"), [FILE, "not whole"],
    ),
    "tensors that overlap": (
        "gpt2", lambda at: header(at / FILE, lambda h: h[BIAS].update(data_offsets=[0, 144])), [FILE, "not whole"],
    ),
    "cut in the middle": (
        "gpt2", lambda at: (at / FILE).write_bytes((at / FILE).read_bytes()[:9999]), [FILE, "not whole"],
    ),
    "a number that is none": (
        "gpt2", lambda at: retensor(at / FILE, lambda t: t[BIAS].fill_(torch.nan)), [BIAS, "not finite"],
    ),
    "a billion layers": ("gpt2", lambda at: config(at, n_layer=10**9), ["n_layer", "1e+09", "10,000"]),
    "a billion layers of another family": (
        "llama", lambda at: config(at, num_hidden_layers=10**9), ["num_hidden_layers", "1e+09"],
    ),
    "ten thousand layers": ("gpt2", lambda at: config(at, n_layer=10_000), ["10,000 layers", "tensors"]),
    "a billion layers of ours": (
        "own", lambda at: ours(at, lambda c: c["trunk"].update(depth=10**9)), ["trunk.depth", "1e+09"],
    ),
    "a billion words": ("gpt2", lambda at: config(at, vocab_size=2**31 - 1), ["vocab", "2,147,483,647", "108"]),
    "more words than numbers": ("gpt2", lambda at: config(at, vocab_size=2**62), ["vocab_size", "whole number"]),
    "some words more": ("gpt2", lambda at: config(at, vocab_size=1_000_003), ["wte", "(53, 36)", "(1000003, 36)"]),
    "vectors as wide as the world": (
        "gpt2", lambda at: config(at, n_embd=2**30, n_head=2**30, n_inner=2**30), ["dim", "1,073,741,824"],
    ),
    "as many places as there are atoms": ("gpt2", lambda at: config(at, n_positions=2**31 - 1), ["wpe", "2147483647"]),
    "as many heads as channels and more": ("llama", lambda at: config(at, num_attention_heads=2**31 - 1), ["heads"]),
    "settings of a gigabyte": ("gpt2", lambda at: os.truncate(at / "config.json", 1 << 30), ["1,073,741,824 bytes"]),
    "settings that are nothing but brackets": (
        "gpt2", lambda at: (at / "config.json").write_text('{"a":' * 10**5), ["config.json", "deep"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARM)
def test_a_folder_made_to_harm_is_refused_in_one_sentence(name, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("REGARD_DEBUG", raising=False)
    at = shutil.copytree(saved, tmp_path / "at", symlinks=True) / HARM[name][0]
    HARM[name][1](at)
    before, memory = seen(at.parent), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()  # other processes may be busy
    code = main(["generate", str(at), "w4 w5", "--max-new-tokens", "2"])
    seconds, said = time.process_time() - start, capsys.readouterr()

    assert code == 3 and not said.out
    assert said.err.count("\n") == 1 and "bug in regard" not in said.err and str(tmp_path) in said.err, said.err
    assert all(word in said.err for word in HARM[name][2]), said.err
    assert seconds < 2 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000
    assert seen(at.parent) == before


def seen(place):
    """All that can be seen of a folder without opening anything."""
    stats = {path: path.lstat() for path in sorted(place.rglob("*"))}
    return {path: (stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def test_none_of_them_is_refused_before_it_is_harmed(saved):
    for name in ("gpt2", "llama", "own", "shards"):
        assert main(["generate", str(saved / name), "w4 w5", "--max-new-tokens", "2"]) == 0


def test_links_inside_a_folder_are_followed(saved, tmp_path):
    at = shutil.copytree(saved / "gpt2", tmp_path / "gpt2")
    (at / FILE).rename(at / "weights")
    (at / FILE).symlink_to("weights")
    (tmp_path / "link").symlink_to(at)

    assert main(["generate", str(tmp_path / "link"), "w4 w5", "--max-new-tokens", "2"]) == 0


def test_a_model_that_is_saved_again_takes_no_secret_along(saved, tmp_path):
    at = shutil.copytree(saved / "gpt2", tmp_path / "gpt2")
    linked(at / "vocab.txt", "/etc/passwd")
    (at / "merges.txt").write_text("its own")
    regard.load(at, device="cpu").save(tmp_path / "again")

    assert not (tmp_path / "again/vocab.txt").exists() and (tmp_path / "again/merges.txt").read_text() == "its own"
