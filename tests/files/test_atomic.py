"""Every file that somebody may read is replaced whole, is on the disk before it is, and by one module."""

import ast
import fcntl
import os
import stat
from pathlib import Path

import pytest
import torch
from generation.builders import model, prompts, session

import regard
from regard.cli.chat_commands import write_saved
from regard.cli.embed import write_vectors
from regard.cli.forecast import write_forecast
from regard.files import atomic
from rooms import parse

SOURCES = Path(regard.__file__).parent


def renames(tree: ast.AST) -> list[int]:
    """Lines that rename: os.replace and its kin, and `Path.replace`, which unlike `str.replace` has one argument."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    owned = {("os", "replace"), ("os", "rename"), ("os", "renames"), ("os", "link"), ("shutil", "move")}
    found = [
        node.lineno
        for node in calls
        if (getattr(node.func.value, "id", ""), node.func.attr) in owned
        or node.func.attr == "rename"
        or (node.func.attr == "replace" and len(node.args) == 1 and not node.keywords)
    ]
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil")]
    return found + [node.lineno for node in named for each in node.names if each.name in {name for _, name in owned}]


def test_one_module_alone_renames_files():
    found = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if renames(parse(path))}

    assert found == {"files/atomic.py"}


def saved_session(path: Path) -> None:
    session(model(), prompts(5), max_new_tokens=3).save(path)


WRITERS = {
    "a session": ("session", saved_session),
    "vectors for safetensors": ("v.safetensors", lambda path: write_vectors(path, torch.ones(2, 3))),
    "vectors for numpy": ("v.npy", lambda path: write_vectors(path, torch.ones(2, 3))),
    "a chat": ("talk.json", lambda path: write_saved(path, "{}")),
    "a forecast": ("f.csv", lambda path: write_forecast(path, "1,2")),
    "a page": ("page.html", lambda path: atomic.write_text(path, "<p>")),
    "a folder": ("folder/file", lambda path: written_folder(path.parent)),
}


def written_folder(path: Path) -> None:
    with atomic.replace_folder(path) as new:
        (new / "file").write_text("new")


class PowerCut(BaseException):
    """The machine is off before the bytes are on the disk."""


def cut(number):
    raise PowerCut


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_not_on_the_disk_yet_replaces_nothing(writer, tmp_path, monkeypatch):
    name, write = WRITERS[writer]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", cut)
        with pytest.raises(PowerCut):
            write(path)
    assert path.read_text() == "old"

    write(path)
    assert path.read_bytes() != b"old"
    assert [each.name for each in tmp_path.iterdir()] == [Path(name).parts[0]]


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "a folder"])
def test_each_writer_sweeps_what_a_dead_one_left(writer, tmp_path):
    name, write = WRITERS[writer]
    (tmp_path / ".other.0a1b2c3d.regard-new").mkdir()
    (tmp_path / ".other.0a1b2c3d.regard-new/.tmpHaLf").write_text("torn")
    write(tmp_path / name)

    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_file_by_safetensors_is_locked_while_it_is_written(tmp_path):
    """safetensors puts another file in the place of the one that it writes: a lock on a file would be gone."""
    with atomic.atomic_path(tmp_path / "v.safetensors") as aside:
        write_vectors(aside, torch.ones(2, 3))
        lock = os.open(aside.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
        atomic.recover_folders(tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["v.safetensors"]


def test_an_error_names_the_file_that_was_meant(tmp_path):
    (tmp_path / "v.npy").mkdir()

    with pytest.raises(OSError) as error:
        atomic.write_file(tmp_path / "v.npy", [b"bytes"])
    assert error.value.filename == str(tmp_path / "v.npy") and [*tmp_path.iterdir()] == [tmp_path / "v.npy"]


def test_a_saved_chat_is_for_its_owner_alone(tmp_path):
    write_saved(tmp_path / "talk.json", "{}")

    assert stat.S_IMODE((tmp_path / "talk.json").stat().st_mode) == 0o600


def test_a_link_that_a_user_names_stays_a_link_and_a_device_a_device(tmp_path):
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_forecast(tmp_path / "link.csv", "1,2")
    write_forecast(Path(os.devnull), "1,2")

    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").read_text() == "1,2"
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_link_is_replaced_in_one_go(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        atomic.replace_link(tmp_path / "best", Path(name))

        assert os.readlink(tmp_path / "best") == name
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best", "one", "two"]
