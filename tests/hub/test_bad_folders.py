"""What is not a model in a folder is refused in one sentence: what was found, where, and what to do."""

import json
import shutil

import pytest
import torch
from hub.builders import gpt2, model, nobodys, words

from regard.config.errors import DataError
from regard.core.model import Transformer
from regard.hub import read_folder, weights, write_folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run with one checkpoint, a folder of GPT-2's family, one of no family, and one in shards."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("saved")
    write_folder.save_model(place / "run/checkpoints/step-000007", model(gpt2()))
    write_folder.save_model(place / "gpt2", model(gpt2()), words())
    write_folder.save_model(place / "own", model(nobodys()))
    for name in ("gpt2", "own"):
        (place / name / "MANIFEST.json").unlink()  # as a folder from elsewhere: nothing but its contents speaks
    shards(place / "gpt2", place / "shards")
    write_folder.save_model(place / "sealed", model(nobodys()))
    return place


def shards(source, place):
    shutil.copytree(source, place)
    tensors = weights.load_tensors_lazy(place / "model.safetensors")
    parts = {"a.safetensors": sorted(tensors)[::2], "b.safetensors": sorted(tensors)[1::2]}
    for file, names in parts.items():
        weights.save_tensors(place / file, {name: tensors[name].clone() for name in names})
    weight_map = {name: file for file, names in parts.items() for name in names}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (place / "model.safetensors").unlink()


def opened(path):
    found = read_folder.read_model_folder(path)
    made = Transformer(found.config)
    read_folder.load_weights(made, found)
    return made


def edit(path, change):
    """Change a JSON file."""
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def retensor(path, change):
    tensors = {name: tensor.clone() for name, tensor in weights.load_tensors_lazy(path).items()}
    change(tensors)
    weights.save_tensors(path, tensors)


def cut(path, count):
    path.write_bytes(path.read_bytes()[:count])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


MISTAKES = {
    "nothing there": (lambda at: at / "gpt3", ["gpt3", "no such folder", "did you mean 'gpt2'", "Hugging Face"]),
    "no parent either": (lambda at: at / "no/where", ["no/where", "no such folder"]),
    "a file": (lambda at: at / "gpt2/model.safetensors", ["model.safetensors", "a file", "folder"]),
    "an empty folder": (lambda at: (at / "new").mkdir() or at / "new", ["nothing", "config.json", "checkpoints"]),
    "another kind of folder": (lambda at: at / "run/checkpoints", ["step-000007", "config.json"]),
    "a run without checkpoints": (
        lambda at: shutil.rmtree(at / "run/checkpoints/step-000007") or at / "run",
        ["run/checkpoints", "no checkpoint yet", "train"],
    ),
    "a run of damaged checkpoints": (
        lambda at: cut(at / "run/checkpoints/step-000007/config.json", 99) or at / "run",
        ["all checkpoints are damaged", "step-000007/config.json", "99 bytes"],
    ),
    "no config": (lambda at: (at / "gpt2/config.json").unlink() or at / "gpt2", ["gpt2", "expected config.json"]),
    "broken JSON": (lambda at: cut(at / "gpt2/config.json", 50) or at / "gpt2", ["config.json", "not valid JSON"]),
    "deep JSON": (
        lambda at: (at / "gpt2/config.json").write_text("[" * 100_000) and at / "gpt2",
        ["config.json", "not valid JSON", "deep"],
    ),
    "bytes that are no text": (
        lambda at: (at / "gpt2/config.json").write_bytes(b"\xff\xfe\x00{") and at / "gpt2",
        ["config.json", "not valid JSON"],
    ),
    "a list": (lambda at: (at / "gpt2/config.json").write_text("[1]") and at / "gpt2", ["config.json", "table", "[1]"]),
    "unknown family": (
        lambda at: edit(at / "gpt2/config.json", lambda c: c.update(model_type="gpt")) or at / "gpt2",
        ["model_type", '"gpt"', "did you mean 'gpt2'", "llama", "regard"],
    ),
    "no family": (
        lambda at: edit(at / "gpt2/config.json", lambda c: c.pop("model_type")) or at / "gpt2",
        ["model_type", "missing", "gpt2", "llama", "and regard"],
    ),
    "a newer format": (
        lambda at: edit(at / "own/config.json", lambda c: c["regard"].update(format=3)) or at / "own",
        ["config.json", "format 3", "up to 2", "newer"],
    ),
    "no settings of ours": (
        lambda at: edit(at / "own/config.json", lambda c: c.pop("regard")) or at / "own",
        ["config.json", "expected 'regard'"],
    ),
    "a wrong setting of ours": (
        lambda at: edit(at / "own/config.json", lambda c: c["regard"]["config"]["trunk"].update(dimm=3)) or at / "own",
        ["config.json", "regard.config", "trunk.dimm", "did you mean 'dim'"],
    ),
    "a wrong setting of theirs": (
        lambda at: edit(at / "gpt2/config.json", lambda c: c.update(activation_function="mish")) or at / "gpt2",
        ["config.json", "activation_function", "mish", "relu"],
    ),
    "a pickle": (
        lambda at: (at / "gpt2/model.safetensors").rename(at / "gpt2/pytorch_model.bin") and at / "gpt2",
        ["pytorch_model.bin", "run code", "save_pretrained"],
    ),
    "no weights": (lambda at: (at / "gpt2/model.safetensors").unlink() or at / "gpt2", ["no model.safetensors"]),
    "empty weights": (lambda at: cut(at / "gpt2/model.safetensors", 0) or at / "gpt2", ["model.safetensors", "whole"]),
    "cut weights": (lambda at: cut(at / "gpt2/model.safetensors", -9) or at / "gpt2", ["model.safetensors", "whole"]),
    "cut weights of ours": (lambda at: cut(at / "own/model.safetensors", 99) or at / "own", ["whole", "again"]),
    "an extra tensor": (
        lambda at: retensor(at / "gpt2/model.safetensors", lambda t: t.update(x=torch.ones(1))) or at / "gpt2",
        ["gpt2", " x: ", "no row", "again"],
    ),
    "an extra tensor of ours": (
        lambda at: retensor(at / "own/model.safetensors", lambda t: t.update(x=torch.ones(1))) or at / "own",
        ["own", " x: ", "the config differs"],
    ),
    "a missing tensor": (
        lambda at: retensor(at / "gpt2/model.safetensors", lambda t: t.pop("transformer.ln_f.bias")) or at / "gpt2",
        ["nothing for trunk.final_norm.bias"],
    ),
    "a missing tensor of ours": (
        lambda at: retensor(at / "own/model.safetensors", lambda t: t.pop("trunk.final_norm.bias")) or at / "own",
        ["nothing for trunk.final_norm.bias"],
    ),
    "many missing tensors": (
        lambda at: retensor(at / "gpt2/model.safetensors", lambda t: t.clear()) or at / "gpt2",
        ["nothing for trunk.positions.0.tables.0, trunk.blocks.0", "more;"],
    ),
    "another shape": (
        lambda at: (
            retensor(at / "gpt2/model.safetensors", lambda t: t.update({"transformer.ln_f.bias": torch.ones(7)}))
            or at / "gpt2"
        ),
        ["transformer.ln_f.bias", "(7,)", "(36,)"],
    ),
    "quantised": (
        lambda at: (
            retensor(
                at / "gpt2/model.safetensors", lambda t: t.update({"transformer.ln_f.bias": torch.ones(36).char()})
            )
            or at / "gpt2"
        ),
        ["transformer.ln_f.bias", "int8", "quantised"],
    ),
    "a lost shard": (lambda at: (at / "shards/b.safetensors").unlink() or at / "shards", ["b.safetensors", "fetch"]),
    "a shard elsewhere": (
        lambda at: (
            edit(
                at / "shards/model.safetensors.index.json",
                lambda index: index["weight_map"].update(x="../gpt2/model.safetensors"),
            )
            or at / "shards"
        ),
        ["index.json", "../gpt2/model.safetensors"],
    ),
    "an index of nothing": (
        lambda at: (
            edit(at / "shards/model.safetensors.index.json", lambda index: index.pop("weight_map")) or at / "shards"
        ),
        ["index.json", "none"],
    ),
    "an index that names too much": (
        lambda at: (
            edit(at / "shards/model.safetensors.index.json", lambda i: i["weight_map"].update(x="a.safetensors"))
            or at / "shards"
        ),
        ["index.json", "names x", "no shard"],
    ),
    "a flipped byte": (
        lambda at: flip(at / "sealed/model.safetensors") or at / "sealed",
        ["model.safetensors", "sha256", "another checkpoint", "MANIFEST.json"],
    ),
    "an edited config": (
        lambda at: edit(at / "sealed/config.json", lambda c: c.update(dtype="float16")) or at / "sealed",
        ["config.json", "bytes", "remove MANIFEST.json"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_folder_is_refused_in_one_sentence_that_says_where_and_what_to_do(name, saved, tmp_path):
    spoil, words = MISTAKES[name]
    path = spoil(shutil.copytree(saved, tmp_path / "at"))

    with pytest.raises(DataError) as error:
        opened(path)
    message = str(error.value)
    assert message.startswith(str(tmp_path)) and "\n" not in message and len(message) < 600
    for word in words:
        assert word in message


@pytest.mark.parametrize("name", ["run", "gpt2", "own", "shards", "sealed"])
def test_each_of_them_opens_while_it_is_whole(name, saved):
    opened(saved / name)


def test_what_nobody_reads_may_be_edited(saved, tmp_path):
    copy = shutil.copytree(saved / "sealed", tmp_path / "sealed")
    (copy / "README.md").write_text("A better card.")

    opened(copy)


@pytest.mark.parametrize("data", [None, b"", b"short", b"\xff" * 99], ids=["none", "empty", "short", "noise"])
def test_a_file_that_holds_no_tensors_is_refused(data, tmp_path):
    path = tmp_path / "optim.safetensors"
    if data is not None:
        path.write_bytes(data)

    with pytest.raises(DataError, match="optim.safetensors"):
        weights.load_tensors_lazy(path)


def test_a_wrong_folder_leaves_the_model_as_it_was(saved, tmp_path):
    copy = shutil.copytree(saved / "own", tmp_path / "own")
    retensor(copy / "model.safetensors", lambda tensors: tensors.pop("trunk.final_norm.bias"))
    found = read_folder.read_model_folder(copy)
    made = Transformer(found.config)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}

    with pytest.raises(DataError):
        read_folder.load_weights(made, found)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())
