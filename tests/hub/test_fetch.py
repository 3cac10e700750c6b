"""Ids of the hub: a cache laid out as `huggingface_hub` does, its own errors, and never the network."""

import hashlib
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from hub.builders import gpt2, model, words
from hub.test_bad_folders import shards
from huggingface_hub import constants, errors

import regard
from regard.config.errors import DataError
from regard.hub import locate, read_folder, write_folder
from regard.hub.locate import download_model, parse_repo_id

SHA, OTHER = "8d" * 20, "3c" * 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(5)
    place = tmp_path_factory.mktemp("saved")
    write_folder.save_model(place / "one", model(gpt2()), words())
    (place / "one/MANIFEST.json").unlink()
    shards(place / "one", place / "many")
    return place


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def cached(cache, source, name="org/name", sha=SHA, revision="main"):
    """A folder as the hub's library keeps it: files by their digests, and links to them by their names."""
    of = cache / f"models--{name.replace('/', '--')}"
    for path in (path for path in source.rglob("*") if path.is_file()):
        blob, link = of / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(source)
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link = of / "snapshots" / sha / link
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (of / "refs").mkdir(exist_ok=True)
    (of / "refs" / revision).write_text(sha)
    return of / "snapshots" / sha


# ---------------------------------------------------------------- what is an id


@pytest.mark.parametrize("text, want", {
    "org/name": ("org/name", None), "org/name@v1.2": ("org/name", "v1.2"), "hf:gpt2": ("gpt2", None),
    "hf:org/name@refs/pr/3": ("org/name", "refs/pr/3"), "Org-1/Name_2.5B": ("Org-1/Name_2.5B", None),
    "gpt2": None, "./org/name": None, "/org/name": None, "~/org/name": None, "../org/name": None, "a/b/c": None,
    "here/name": None,
}.items())  # fmt: skip
def test_what_looks_like_a_place_on_the_disk_is_no_id(text, want, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()

    assert parse_repo_id(text) == want


def test_a_folder_that_is_there_goes_before_the_hub(saved, cache):
    cached(cache, saved / "many", sha=OTHER)
    shutil.copytree(saved / "one", cache.parent / "org/name")

    assert read_folder.read_model_folder("org/name").path.resolve() == cache.parent / "org/name"


@pytest.mark.parametrize("text", ["hf:", "hf:a/b/c", "hf:../x", "hf:a b", "hf:/etc/passwd"])
def test_an_id_that_can_be_none_is_refused(text, cache):
    with pytest.raises(DataError, match="not the id of a model"):
        read_folder.read_model_folder(text)


def test_a_bare_name_says_how_the_hub_would_be_asked(cache):
    with pytest.raises(DataError, match="no such folder.* hf:gpt2 for a model of the hub"):
        regard.load("gpt2")


# ---------------------------------------------------------------- what is in the cache


@pytest.mark.parametrize("kind", ["one", "many"])
@pytest.mark.parametrize("text", ["org/name", "hf:org/name", "org/name@main", f"org/name@{SHA}"])
def test_a_model_in_the_cache_is_opened_through_its_links_without_a_network(text, kind, saved, cache):
    cached(cache, saved / kind)
    made = regard.load(text, device="cpu")

    assert made.tokenizer is not None and made.source_folder.path == cache / f"models--org--name/snapshots/{SHA}"
    assert all(torch.equal(x, made.state_dict()[key])
               for key, x in regard.load(saved / "one", device="cpu").state_dict().items())  # fmt: skip


def test_each_revision_is_a_folder_of_its_own(saved, cache):
    cached(cache, saved / "one")
    cached(cache, saved / "many", sha=OTHER, revision="v2")

    assert (
        read_folder.read_model_folder("org/name@v2").path.name == OTHER
        and read_folder.read_model_folder("org/name").path.name == SHA
    )


def test_a_link_out_of_the_cache_is_not_followed(saved, cache):
    at = cached(cache, saved / "one")
    (at / "model.safetensors").unlink()
    (at / "model.safetensors").symlink_to(saved / "one/model.safetensors")

    with pytest.raises(DataError, match="a link that leads out of the folder"):
        read_folder.read_model_folder("org/name")


@pytest.mark.slow
def test_the_usual_variables_are_heeded(saved, tmp_path):
    cached(tmp_path / "home/hub", saved / "one")
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1",
           "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}  # fmt: skip
    env.pop("HF_HUB_CACHE", None)
    words = [sys.executable, "-m", "regard", "generate"]
    told = [
        subprocess.run(
            [*words, name, "w4 w5", "--max-new-tokens", "3"], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        for name in ("org/name", "org/other")
    ]

    assert [each.returncode for each in told] == [0, 3]
    assert told[1].stderr.startswith("regard: org/other: not in the cache") and "HF_HUB_OFFLINE" in told[1].stderr


# ---------------------------------------------------------------- what is fetched


class Hub:
    """A hub of one repository, in the place of the network; what was fetched of it is written down."""

    def __init__(self, cache, source, monkeypatch, extra=()):
        self.files, self.fetched = [*extra, *(str(path.relative_to(source)) for path in source.rglob("*.*"))], []
        self.cache, self.source = cache, source
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", self.info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.one)

    def info(self, name, revision=None):
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])

    def snapshot(self, name, revision=None, allow_patterns=None):
        kept = huggingface_hub.utils.filter_repo_objects(self.files, allow_patterns=allow_patterns)
        self.fetched = sorted(kept)
        return str(cached(self.cache, self.source, name))

    def one(self, name, file, revision=None):
        return str(self.source / file)


CLUTTER = (
    "pytorch_model.bin", "modeling_evil.py", "model.onnx", "onnx/model.safetensors", "consolidated.safetensors",
    "model.fp16.safetensors", "tf_model.h5", "1_Pooling/config.json", "2_Dense/pytorch_model.bin", "vocab.txt",
    "source.spm", "chat_template.jinja", "tokenizer.model", "flax_model.msgpack", "data/train.json", ".gitattributes",
    "LICENSE", "LICENSE.py/x",
)  # fmt: skip
SMALL = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json",
         "vocab.txt", "source.spm", "chat_template.jinja", "tokenizer.model", "README.md", "LICENSE"}  # fmt: skip


def test_only_one_form_of_the_weights_and_the_small_files_come_and_never_code(saved, cache, monkeypatch):
    hub = Hub(cache, saved / "one", monkeypatch, CLUTTER)
    regard.load("org/name", device="cpu")

    assert set(hub.fetched) == SMALL | {"model.safetensors"}


def test_shards_come_as_their_index_names_them(saved, cache, monkeypatch):
    hub = Hub(cache, saved / "many", monkeypatch, CLUTTER)
    regard.load("org/name", device="cpu")

    assert set(hub.fetched) == SMALL | {"a.safetensors", "b.safetensors", "model.safetensors.index.json"}


def test_what_is_there_only_as_a_pickle_is_not_fetched_and_how_to_convert_it_is_told(saved, cache, monkeypatch):
    hub = Hub(cache, saved / "one", monkeypatch, ["pytorch_model.bin"])
    hub.files = [file for file in hub.files if not file.endswith(".safetensors")]

    with pytest.raises(DataError, match=r"org/name: .*pytorch_model.bin, which may run code .*save_pretrained"):
        regard.load("org/name")
    assert not hub.fetched and not cache.exists()


# ---------------------------------------------------------------- what the hub answers


def answer(number):
    return SimpleNamespace(status_code=number, headers={}, request=None, text="", reason_phrase="")


REFUSALS = {
    "unknown": (errors.RepositoryNotFoundError("404", response=answer(404)), ["no such model", "no such folder"]),
    "gated": (errors.GatedRepoError("403", response=answer(403)), ["huggingface.co/org/name", "hf auth", "HF_TOKEN"]),
    "no revision": (errors.RevisionNotFoundError("404", response=answer(404)), ["no revision 'v9'", "tree/main"]),
    "down": (errors.HfHubHTTPError("503", response=answer(503)), ["not in the cache", "cannot be reached"]),
    "no network": (errors.HfHubHTTPError.__mro__[1]("no route"), ["not in the cache", "cannot be reached", "network"]),
    "broken off": (ConnectionResetError("reset"), ["not in the cache", "cannot be reached"]),
    "offline": (errors.OfflineModeIsEnabled("offline"), ["not in the cache", "HF_HUB_OFFLINE"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_the_hub_answers_is_one_sentence(name, cache, monkeypatch):
    problem, words = REFUSALS[name]

    def refuse(self, *args, **kwargs):
        raise problem

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", name == "offline")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(DataError) as error:
        download_model("org/name", "v9")

    message = str(error.value)
    assert message.startswith("org/name@v9: ") and "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", ["down", "no network", "broken off", "offline"])
def test_what_was_fetched_before_is_opened_while_the_hub_is_away(name, saved, cache, monkeypatch):
    cached(cache, saved / "one")

    def refuse(self, *args, **kwargs):
        raise REFUSALS[name][0]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    assert locate.locate_model("org/name").name == SHA


def test_a_download_that_breaks_off_is_one_sentence(saved, cache, monkeypatch):
    Hub(cache, saved / "one", monkeypatch)

    def broken(*args, **kwargs):
        raise errors.HfHubHTTPError("502", response=answer(502))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(DataError, match=r"org/name: the hub cannot be reached \(it answers 502\)"):
        regard.load("org/name")


def test_a_model_that_is_half_in_the_cache_says_what_it_lacks(saved, cache):
    at = cached(cache, saved / "one")
    (at / "model.safetensors").unlink()

    with pytest.raises(DataError, match="there is no model.safetensors; fetch"):
        regard.load("org/name")
