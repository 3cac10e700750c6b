"""A folder is whole or not there, whenever the writer dies; and a manifest finds every flipped byte."""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hub.builders import gpt2, llama, model, nobodys, words

from regard.config.errors import DataError, RunError
from regard.files import atomic, manifest
from regard.hub import read_folder, weights, write_folder

CALLS = 60  # more than a save makes


class Dead(BaseException):
    """The writer was killed here."""


class Killer:
    """Stands before the calls that change the disk and strikes at one of them: once, or at all that follow too."""

    def __init__(self, monkeypatch, strike: int, once: bool, problem: type[BaseException]) -> None:
        self.count, self.strike, self.once, self.problem = 0, strike, once, problem
        for place, name in ((os, "replace"), (os, "fsync"), (os, "mkdir"), (shutil, "rmtree")):
            monkeypatch.setattr(place, name, self.before(getattr(place, name)))

    def before(self, call):
        def struck(*args, **how):
            self.count += 1
            if self.count == self.strike or (self.count > self.strike and not self.once):
                raise self.problem(28, "No space left on device")
            return call(*args, **how)

        return struck


def hidden(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if path.name.startswith(".")]


def holds(path: Path, *models) -> bool:
    """Whether a folder is whole and one of the models is in it."""
    stored = weights.load_tensors_lazy(path / "model.safetensors")
    return manifest.verify_manifest(path) == "" and any(
        all(torch.equal(tensor, stored[name]) for name, tensor in each.state_dict().items() if name in stored)
        for each in models
    )


def struck_saves(monkeypatch, tmp_path, once, problem):
    """A save over a save, struck at each call in turn; yields the place, old and new, and whether the save failed."""
    old, new = model(nobodys()), model(nobodys())
    for strike in range(1, CALLS):
        place = tmp_path / str(strike) / "out"
        write_folder.save_model(place, old)
        with monkeypatch.context() as patch:
            killer = Killer(patch, strike, once, problem)
            try:
                write_folder.save_model(place, new)
                failed = False
            except (Dead, RunError):
                failed = True
        yield place, old, new, failed
        if killer.count < strike:
            return
    raise AssertionError("the save was never done")


@pytest.mark.slow
def test_a_failed_call_leaves_the_old_folder_or_the_new_one_whole_and_nothing_else(monkeypatch, tmp_path):
    failures = 0
    for place, old, new, failed in struck_saves(monkeypatch, tmp_path, True, OSError):
        failures += failed
        assert holds(place, old, new)
        assert holds(place, new) or failed
        atomic.recover_folders(place.parent)
        assert hidden(place.parent) == []
    assert failures > 10


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_folder_or_the_new_one_for_the_next_reader(monkeypatch, tmp_path):
    failures = 0
    for place, old, new, failed in struck_saves(monkeypatch, tmp_path, False, Dead):
        failures += failed
        assert holds(read_folder.read_model_folder(place).path, old, new)
        atomic.recover_folders(place.parent)
        assert hidden(place.parent) == [] and holds(place, old, new)
    assert failures > 10


@pytest.mark.slow
def test_a_killed_writer_leaves_what_the_next_writer_can_replace(monkeypatch, tmp_path):
    last = model(nobodys())
    for place, *_ in struck_saves(monkeypatch, tmp_path, False, Dead):
        write_folder.save_model(place, last)

        assert holds(place, last)


def test_a_first_save_that_dies_leaves_nothing_at_its_place(monkeypatch, tmp_path):
    for strike in range(1, CALLS):
        place = tmp_path / str(strike) / "out"
        place.parent.mkdir()
        with monkeypatch.context() as patch:
            killer = Killer(patch, strike, False, Dead)
            with suppress(Dead):
                write_folder.save_model(place, model(nobodys()))
        atomic.recover_folders(place.parent)
        assert hidden(place.parent) == [] and (not place.exists() or manifest.verify_manifest(place) == "")
        if killer.count < strike:
            return
    raise AssertionError("the save was never done")


def test_a_writer_killed_by_the_system_leaves_a_folder_that_is_swept(tmp_path):
    (tmp_path / "out").mkdir()
    script = (
        "import os, signal, sys; from regard.files import atomic; from pathlib import Path\n"
        "with atomic.replace_folder(Path(sys.argv[1])) as new:\n"
        "    (new / 'half').write_text('written'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "out"], check=False)

    assert done.returncode == -signal.SIGKILL and len(hidden(tmp_path)) == 1
    atomic.recover_folders(tmp_path)
    assert hidden(tmp_path) == [] and list((tmp_path / "out").iterdir()) == []


def test_a_living_writer_is_not_swept_away(tmp_path):
    with atomic.replace_folder(tmp_path / "out") as new:
        atomic.recover_folders(tmp_path)
        (new / "file").write_text("still here")

    assert (tmp_path / "out/file").read_text() == "still here" and hidden(tmp_path) == []


def test_a_living_writer_between_two_renames_is_not_mended(tmp_path):
    new, old = tmp_path / ".out.00ff.regard-new", tmp_path / ".out.00ff.regard-old"
    new.mkdir()
    old.mkdir()
    lock = os.open(new, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    atomic.recover_folders(tmp_path)
    assert new.exists() and old.exists() and not (tmp_path / "out").exists()
    os.close(lock)  # and dies
    atomic.recover_folders(tmp_path)
    assert (tmp_path / "out").exists() and hidden(tmp_path) == []


def test_sweeping_leaves_other_peoples_hidden_folders_alone(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".out.new").mkdir()
    odd = ["..a.regard-old", "...regard-old", "....00ff.regard-old", ".a.regard-new"]
    for name in odd:
        (tmp_path / name).mkdir()
    atomic.recover_folders(tmp_path)
    atomic.restore_folder(tmp_path / "a")

    assert sorted(hidden(tmp_path)) == sorted([".git", ".out.new", *odd])
    atomic.recover_folders(tmp_path / "nowhere")


def test_an_interrupted_save_stays_interrupted_and_leaves_the_old_folder(tmp_path):
    old = model(nobodys())
    write_folder.save_model(tmp_path / "out", old)

    def more(place):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder.save_model(tmp_path / "out", model(nobodys()), more=more)
    assert holds(tmp_path / "out", old) and hidden(tmp_path) == []


def test_a_disk_without_room_is_one_sentence_and_leaves_the_old_folder(tmp_path):
    old = model(nobodys())
    write_folder.save_model(tmp_path / "out", old)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))  # no file may be larger
        with pytest.raises(RunError) as error:
            write_folder.save_model(tmp_path / "out", model(nobodys()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert str(tmp_path / "out") in str(error.value) and "space" in str(error.value) and "\n" not in str(error.value)
    assert holds(tmp_path / "out", old) and hidden(tmp_path) == []


def test_a_place_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(RunError, match="file/out: cannot be written.*choose another folder"):
        write_folder.save_model(tmp_path / "file/out", model(nobodys()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_one_sentence(tmp_path):
    tmp_path.chmod(0o555)

    with pytest.raises(RunError, match="cannot be written.*choose another folder"):
        write_folder.save_model(tmp_path / "out", model(nobodys()))


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ours = model(nobodys())
    for _ in range(2):
        write_folder.save_model(tmp_path / "link", ours)

    assert (tmp_path / "link").is_symlink() and holds(tmp_path / "real", ours)


def test_a_save_never_replaces_what_is_not_a_save(tmp_path):
    (tmp_path / "notes.txt").write_text("years of work")
    with pytest.raises(DataError, match="holds notes.txt.*choose another folder"):
        write_folder.save_model(tmp_path, model(nobodys()))

    write_folder.save_model(tmp_path / "out", model(nobodys()))
    (tmp_path / "out/notes.txt").write_text("years of work")
    with pytest.raises(DataError, match="holds notes.txt.*choose another folder"):
        write_folder.save_model(tmp_path / "out", model(nobodys()))
    (tmp_path / "out/MANIFEST.json").write_text("{")
    with pytest.raises(DataError, match="holds MANIFEST.json.*choose another folder"):
        write_folder.save_model(tmp_path / "out", model(nobodys()))
    with pytest.raises(DataError, match="a file exists there"):
        write_folder.save_model(tmp_path / "notes.txt", model(nobodys()))
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "out/notes.txt").read_text() == "years of work"


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="99 tokens, and embed.vocab is 53"):
        write_folder.save_model(tmp_path / "out", model(llama()), words(99))


# ---------------------------------------------------------------- the manifest


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved") / "out"

    def more(new):
        (new / "train").mkdir()
        (new / "train/state.json").write_text("{}")

    torch.manual_seed(0)
    return write_folder.save_model(place, model(gpt2()), words(), context=17, more=more)


def test_a_whole_folder_has_nothing_wrong(saved):
    assert manifest.verify_manifest(saved) == ""


def test_one_flipped_byte_is_found_in_each_file(saved, tmp_path):
    files = [path for path in saved.rglob("*") if path.is_file()]
    assert len(files) == 8
    for path in files:
        copy = shutil.copytree(saved, tmp_path / path.name)
        spoil = copy / path.relative_to(saved)
        data = bytearray(spoil.read_bytes())
        data[len(data) // 2] ^= 1
        spoil.write_bytes(data)

        assert path.name in manifest.verify_manifest(copy), path


def test_no_flipped_byte_of_the_manifest_goes_unseen(saved, tmp_path):
    copy = shutil.copytree(saved, tmp_path / "out")
    listed = copy / "MANIFEST.json"
    data = listed.read_bytes()
    for place in range(0, len(data) - 1, 5):  # the last is a line break that says nothing
        listed.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])

        assert manifest.verify_manifest(copy), data[place - 20 : place + 20]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "train/state.json", "MANIFEST.json"])
def test_a_missing_file_is_named(name, saved, tmp_path):
    copy = shutil.copytree(saved, tmp_path / "out")
    (copy / name).unlink()

    assert Path(name).name in manifest.verify_manifest(copy)


def test_a_manifest_names_no_file_outside_its_folder(saved, tmp_path):
    copy = shutil.copytree(saved, tmp_path / "out")
    table = json.loads((copy / "MANIFEST.json").read_text())
    for name in ("../secret", "/etc/passwd", "train/../../secret"):
        (copy / "MANIFEST.json").write_text(json.dumps(table | {"files": {name: {"size": 1, "sha256": ""}}}))

        assert "expected the size and sha256" in manifest.verify_manifest(copy)
