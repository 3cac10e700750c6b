"""Where words go and how processes end: results on stdout, talk on stderr, an exit code that means something."""

import errno
import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch

import regard
from regard import config
from regard.cli.errors import error_and_code


def command(*words, **more):
    return subprocess.Popen([sys.executable, "-m", "regard", *map(str, words)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)  # fmt: skip


@pytest.fixture
def breaks(monkeypatch):
    """Let `regard models` meet a problem in the middle of its work."""

    def breaks(problem):
        def recipes():
            raise problem

        monkeypatch.setattr("regard.zoo.packaged_recipes", recipes)

    return breaks


# ---------------------------------------------------------------- pipes, disks, signals: real processes


def test_a_reader_that_has_had_enough_is_no_failure():
    process = command("schema")
    process.stdout.read(10)
    process.stdout.close()  # as head does; the rest does not fit into the pipe, or meets nobody at the last flush

    assert (process.wait(timeout=60), process.stderr.read()) == (0, "")
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_under_stdout_is_told():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "regard", "schema"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "no space left" in done.stderr and "make room" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_bug(closed):
    words = f"{sys.executable} -m regard tokenize decode nowhere 1 {closed}"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60)

    assert done.returncode == 3 and done.stdout == "" and "bug" not in done.stderr


def test_ctrl_c_is_one_line_and_130(desk):
    """The process waits for its standard input when the signal comes."""
    process = command("tokenize", "decode", "nowhere", "-", stdin=subprocess.PIPE)
    wait_until_it_reads(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, "", "regard: interrupted\n")


# Begins as the command does; Ctrl-C comes when the module of that name is asked for, or when its import is over.
EARLY = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Finder())
from regard.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("module", [
    "regard.cli.app", "typer", "typer.main", "regard.config", "regard.cli.train", "regard.config.reader", "enum",
    pytest.param("torch.nn", marks=pytest.mark.slow), pytest.param("regard.inference.load", marks=pytest.mark.slow),
])  # fmt: skip
def test_ctrl_c_while_modules_are_imported_is_130_and_no_traceback(module):
    words = [sys.executable, "-c", EARLY, module, "generate", "nowhere", "a"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert done.returncode == 130 and done.stdout == "" and done.stderr in ("", "regard: interrupted\n")


def test_until_ctrl_c_is_quiet_nothing_is_imported_that_takes_time():
    """Python itself, before a line of ours, prints a traceback: what we can do is not to prolong that."""
    asked = "import sys; before = set(sys.modules); import regard.cli; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) <= {"regard", "regard.cli"}


def wait_until_it_reads(pid):
    """Until the kernel says that it waits for a pipe, which is when Python has long been up."""
    place = f"/proc/{pid}/wchan"
    if not os.path.exists(place):
        pytest.skip("this system does not say what a process waits for")
    for _ in range(10**6):
        with open(place) as file:
            if "pipe" in file.read():
                return
    pytest.fail("the process never came to read its input")


# ---------------------------------------------------------------- problems nobody foresaw, and those of the system


def test_ctrl_c_inside_a_verb_is_one_line(say, breaks):
    breaks(KeyboardInterrupt())

    assert say("models") == type(say("models"))(130, "", "regard: interrupted\n")


def test_a_bug_is_one_sentence_and_its_traceback_a_file(say, breaks, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    breaks(ZeroDivisionError("so it\nhappened"))
    told = say("models")
    (file,) = tmp_path.iterdir()

    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert "bug" in told.err and "report" in told.err and str(file) in told.err
    assert "Traceback" in file.read_text() and "ZeroDivisionError: so it" in file.read_text()


def test_a_bug_shows_its_traceback_on_request(say, breaks, monkeypatch):
    monkeypatch.setenv("REGARD_DEBUG", "1")
    breaks(ZeroDivisionError("so it happened"))
    told = say("models")

    assert told.code == 1 and told.out == ""
    assert "Traceback" in told.err and told.err.splitlines()[-1].startswith("regard: this is a bug")


def test_a_bug_on_a_full_disk_is_still_told(say, breaks, monkeypatch):
    def full(**how):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    breaks(ZeroDivisionError())

    assert "REGARD_DEBUG=1" in say("models").err


def test_warnings_of_the_library_are_lines_without_code(say, monkeypatch):
    def recipes():
        warnings.warn("the text is short", stacklevel=2)
        return {}

    monkeypatch.setattr("regard.zoo.packaged_recipes", recipes)
    told = say("models", "--json")

    assert told.code == 0 and told.err == "regard: note: the text is short\n"


class OutOfMemoryError(RuntimeError):
    """As torch's own, which is told by its name."""


@pytest.mark.parametrize("problem, code, parts", [
    (config.ConfigError("a.b: wrong; mend it"), 2, ["a.b: wrong; mend it"]),
    (config.DataError("x: torn; make it again"), 3, ["x: torn; make it again"]),
    (config.RunError("x: stopped; resume it"), 1, ["x: stopped; resume it"]),
    (FileNotFoundError(errno.ENOENT, "No such file", "a/b.txt"), 3, ["a/b.txt", "no such file", "check"]),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/b.txt"), 3, ["a/b.txt", "file", "check"]),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "a/b"), 3, ["a/b", "folder", "name a file"]),
    (FileExistsError(errno.EEXIST, "File exists", "a/b"), 3, ["a/b", "exists", "another place"]),
    (PermissionError(errno.EACCES, "Permission denied", "a/b.txt"), 1, ["a/b.txt", "permission", "another place"]),
    (OSError(errno.EROFS, "Read-only file system", "a/b.txt"), 1, ["a/b.txt", "only be read", "another place"]),
    (OSError(errno.ENOSPC, "No space left on device", "a/b.txt"), 1, ["a/b.txt", "no space left", "make room"]),
    (OSError(errno.ENOSPC, "No space left on device"), 1, ["no space left", "make room"]),
    (OSError(errno.EDQUOT, "Quota exceeded", b"a/b.txt"), 1, ["a/b.txt", "share", "make room"]),
    (OSError(errno.EIO, "Input/output error", "a/b.txt"), 1, ["a/b.txt: input/output error"]),
    (MemoryError(), 1, ["out of memory", "train.batch_size"]),
    (OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), 1, ["out of memory", "train.batch_size"]),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 1,
     ["train.batch_size"]),
    (KeyboardInterrupt(), 130, ["interrupted"]),
], ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else "")  # fmt: skip
def test_a_problem_has_a_sentence_and_a_code(problem, code, parts):
    told, given = error_and_code(problem)

    assert given == code and all(part in told for part in parts) and "\n" not in told


def test_what_a_part_of_a_model_refuses_is_the_setting_s_mistake_not_a_bug(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = regard.build(regard.preset("lab", dim=32, vocab=9, kernel="varlen"))
    with pytest.raises(ValueError) as refused:
        model(torch.arange(5)[None])
    told, code = error_and_code(refused.value)

    assert code == 2 and "varlen" in told
    assert error_and_code(ValueError("from anywhere else"))[1] == 1


def test_a_line_of_talk_stays_one_line(say):
    told = say("train", "no\nsuch\nrecipe")

    assert told.code == 2 and told.err.count("\n") == 1
