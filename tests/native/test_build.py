"""What is loaded as a library is what was compiled here, whatever others put in its place."""

import os
import shutil
import stat
import subprocess

import pytest

from regard.files import content_cache
from regard.native import library

COMPILER = shutil.which("gcc") or shutil.which("clang")
PLANTED = "int halves(void) { return 77; } int side(void) { return 77; }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own; a test compiles quickly, as what is compiled is not timed."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "COMPILER_FLAGS", ("-O0", *library.COMPILER_FLAGS[1:]))
    return tmp_path / "cache" / "native"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The name and the content of a library that was built here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(library, "COMPILER_FLAGS", ("-O0", *library.COMPILER_FLAGS[1:]))
        library.open_built_library(COMPILER)
        [path] = (content_cache.cache_dir(None) / "native").iterdir()
        return path.name, path.read_bytes()


@pytest.fixture
def planted(tmp_path):
    """A library of somebody else's."""
    (tmp_path / "planted.c").write_text(PLANTED)
    path = tmp_path / "planted.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", path, tmp_path / "planted.c"], check=True)
    return path


def libraries(folder):
    return sorted(each.name for each in folder.iterdir())


def compiled(monkeypatch):
    """How often the compiler is asked for a library."""
    calls, real = [], library.compile_into
    monkeypatch.setattr(library, "compile_into", lambda *given: calls.append(given) or real(*given))
    return calls


def test_the_library_is_built_once_and_named_by_its_content(folder, monkeypatch):
    calls = compiled(monkeypatch)
    first, again = library.open_built_library(COMPILER), library.open_built_library(COMPILER)
    [name] = libraries(folder)

    assert first.side() == again.side() and len(calls) == 1
    assert name.endswith(f"-{library.hashlib.sha256((folder / name).read_bytes()).hexdigest()}.so")
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["truncated", "empty", "one byte", "another library", "writable", "pipe", "link"])
def test_a_library_that_is_not_as_it_was_built_is_built_again(damage, folder, whole, planted, monkeypatch):
    name, content = whole
    folder.mkdir(mode=0o700, parents=True)
    path = folder / name
    match damage:
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.touch()
        case "one byte":
            path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        case "another library":
            shutil.copyfile(planted, path)
        case "writable":
            path.write_bytes(content)
        case "pipe":
            os.mkfifo(path)
        case "link":
            (folder.parent / "elsewhere.so").write_bytes(content)  # even to the very same content
            path.symlink_to(folder.parent / "elsewhere.so")
    if damage not in ("pipe", "link"):
        path.chmod(0o777 if damage == "writable" else 0o700)
    calls = compiled(monkeypatch)

    assert library.open_built_library(COMPILER).side() != 77 and len(calls) == 1
    assert libraries(folder) == [name]
    assert stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == content


def test_whoever_may_rename_the_folder_cannot_have_his_library_loaded(folder, planted, monkeypatch):
    """The parent is open to all, and at the worst moments another folder stands at the name of ours."""
    folder.parent.mkdir()
    folder.parent.chmod(0o777)
    real_run, real_open, away = subprocess.run, library.open_verified, folder.with_name("moved")

    def swap():
        """Ours is moved away, and a link to a folder with libraries of all our names is put there."""
        theirs = folder.with_name("theirs")
        theirs.mkdir(exist_ok=True)
        if not folder.is_symlink():
            folder.rename(away)
            folder.symlink_to(theirs)
        for each in away.iterdir():
            if each.is_dir():
                (theirs / each.name).mkdir(exist_ok=True)
                shutil.copyfile(planted, theirs / each.name / "panels.so")
            else:
                shutil.copyfile(planted, theirs / each.name)

    def swapped(real):
        def between(*given, **more):
            swap()
            found = real(*given, **more)
            swap()
            return found

        return between

    def back():
        folder.unlink()
        away.rename(folder)

    with monkeypatch.context() as patch:
        patch.setattr(library.subprocess, "run", swapped(real_run))
        assert library.open_built_library(COMPILER).side() != 77  # while it is built
    back()
    monkeypatch.setattr(library, "open_verified", swapped(real_open))
    assert library.open_built_library(COMPILER).side() != 77  # while it is found


@pytest.mark.parametrize("trap", ["open to all", "a link"])
def test_a_folder_that_others_may_write_to_is_left_alone(trap, folder, planted, monkeypatch):
    folder.parent.mkdir()
    if trap == "a link":
        folder.with_name("theirs").mkdir(mode=0o700)
        folder.symlink_to(folder.with_name("theirs"))
    else:
        folder.mkdir()
        folder.chmod(0o777)
    monkeypatch.setattr(library, "LOADED", [])

    with pytest.warns(UserWarning, match="torch does the work"):
        assert library.load_library() is None
    assert libraries(folder) == []
