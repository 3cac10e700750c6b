"""Nothing that others wrote commands the terminal it is shown on: by whichever way it gets there."""

import io
import json
import os
import pty
import subprocess
import sys
import warnings

import pytest
import torch
import transformers as hf
from hub.text_folders import bert, bytelevel, saved
from safetensors.torch import save_file

from regard import config
from regard.cli import main
from regard.config.terminal_escapes import CONTROLS, TerminalFilter, escape_controls, filter_terminal
from regard.training.progress import ProgressDisplay

# erase the screen, set the title, C1's red, begin the line again, right to left, delete, backspace
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\rregard: all is well\u202ecod\u2066\x7f\x08"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf8"

    def isatty(self):
        return True


@pytest.fixture
def typed(monkeypatch):
    """Give a command on a terminal: its exit code, and all that came to the screen."""

    def typed(*words, stdin=""):
        out, err = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = main([str(word) for word in words])
        assert (sys.stdout, sys.stderr) == (out, err)  # the screen is taken off again
        return code, out.getvalue(), err.getvalue()

    monkeypatch.setenv("NO_COLOR", "1")
    return typed


def assert_harmless(shown):
    """It is told, and nothing in it is a command."""
    assert "owned" in shown and not CONTROLS.search(shown)
    assert not any(line.startswith("regard: all is well") for line in shown.splitlines())


# ---------------------------------------------------------------- paths on which it gets there


def test_names_of_tensors(typed, tmp_path):
    _, _, place = bert("Model", tmp_path / "m")
    save_file({EVIL: torch.zeros(1)}, place / "model.safetensors")
    code, _, err = typed("embed", place, "a")

    assert code == 3
    assert_harmless(err)


def test_names_of_shards(typed, tmp_path):
    _, _, place = bert("Model", tmp_path / "m")
    (place / "model.safetensors").unlink()
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": EVIL}}))
    code, _, err = typed("embed", place, "a")

    assert code == 3
    assert_harmless(err)


def test_values_in_a_config(typed, tmp_path):
    _, _, place = bert("Model", tmp_path / "m")
    said = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(said | {"hidden_act": EVIL}, ensure_ascii=False))
    code, _, err = typed("embed", place, "a")

    assert code == 3
    assert "owned" in err and not CONTROLS.search(err)


def test_messages_of_a_template(typed, tmp_path):
    words = bytelevel("")
    sizes = dict(n_embd=36, n_layer=1, n_head=4, n_positions=80, bos_token_id=0, eos_token_id=2)
    place = saved(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(words), **sizes)), words, tmp_path / "m")
    (place / "chat_template.jinja").write_text("{{ raise_exception(" + json.dumps(EVIL) + ") }}")
    code, out, err = typed("chat", place, stdin="hello\n")

    assert code == 3
    assert_harmless(out + err)


def test_names_of_files(typed, tmp_path):
    source = f"data.source={json.dumps(str(tmp_path / EVIL))}"
    code, _, err = typed("train", "shakespeare-nano", source, "--out", tmp_path / "run")

    assert code in (2, 3)
    assert_harmless(err)


def test_columns_of_records(typed, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({EVIL: "a", "label": n}) + "\n" for n in range(9)))
    code, _, err = typed("train", "bilstm", f"data.source={tmp_path / 'a.jsonl'}", "--out", tmp_path / "run")

    assert code in (2, 3)
    assert_harmless(err)


@pytest.mark.parametrize("words", [
    ("train", EVIL), (EVIL,), ("models", f"--{EVIL}"), ("train", "shakespeare", f"{EVIL}=1"),
], ids=["recipe", "verb", "option", "setting"])  # fmt: skip
def test_words_of_a_command(words, typed):
    code, _, err = typed(*words)

    assert code == 2
    assert_harmless(err)


@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["table", "json"])
def test_names_of_classes_on_stdout(json_too, typed, tmp_path):
    names = {"id2label": {0: EVIL, 1: "b"}, "label2id": {EVIL: 0, "b": 1}}
    _, _, place = bert("ForSequenceClassification", tmp_path / "m", **names)
    code, out, _ = typed("classify", place, "a cat", "--top-k", "2", *json_too)

    assert code == 0 and "owned" in out and not CONTROLS.search(out)


def test_warnings(typed, tmp_path, monkeypatch):
    def recipes():
        warnings.warn(EVIL, stacklevel=2)
        raise config.DataError("and that is all")

    monkeypatch.setattr("regard.zoo.packaged_recipes", recipes)
    code, _, err = typed("models")

    assert code == 3
    assert_harmless(err)


def test_a_traceback_on_request(typed, monkeypatch):
    def recipes():
        raise RuntimeError(EVIL)

    monkeypatch.setattr("regard.zoo.packaged_recipes", recipes)
    monkeypatch.setenv("REGARD_DEBUG", "1")
    code, _, err = typed("models")

    assert code == 1 and "Traceback" in err
    assert_harmless(err)


def test_lines_of_training(monkeypatch):
    class Run:
        seconds = progress = 0.0
        step = 0

    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "dumb")
    ProgressDisplay(Run()).say(f"note: {EVIL}")

    assert_harmless(err.getvalue())


def test_a_log_file_is_spared_too(capsys):
    assert main(["train", EVIL]) == 2
    assert_harmless(capsys.readouterr().err)


# ---------------------------------------------------------------- what still works


def test_letters_lines_and_tabs_stay_as_they_are():
    text = "a\tb\nż ü 漢 🙂 \u200f\u05d0"

    assert escape_controls(text) == text and escape_controls("\x1b\x9b\x7f") == "^[\ufffd^?"


@pytest.mark.parametrize("text", ["\r\x1b[2m3 of 7\x1b[0m", "\r        \r", "\n\n\x1b[A\x1b[A", "plain\n", "\r 10%|█"])
def test_progress_may_begin_its_line_again(text):
    err = Terminal()
    TerminalFilter(err, moves=True).write(text)

    assert err.getvalue() == text
    assert "\x1b" not in TerminalFilter(io.StringIO()).escape(text) and "\r" not in TerminalFilter(
        io.StringIO()
    ).escape(text)


@pytest.mark.parametrize("text", [
    "a\rb", "\ra\x1b[2Jb", "\x1b[2m\x1b[2J\x1b[0m", "\x1b[8mhidden", "\x1b[A\x1b[Aforged",
])  # fmt: skip
def test_and_nothing_more(text):
    shown = TerminalFilter(io.StringIO(), moves=True).escape(text)

    assert shown != text and "\x1b" not in shown.replace("\x1b[2m", "").replace("\x1b[0m", "")


def test_what_goes_to_a_file_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with filter_terminal():
        print(EVIL)
        assert sys.stdout.getvalue() == EVIL + "\n"


@pytest.mark.slow
def test_on_a_real_terminal(tmp_path):
    near, far = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "regard", "train", EVIL], stdin=far, stdout=far,
                               stderr=far, close_fds=True)  # fmt: skip
    os.close(far)
    shown = b""
    while True:
        try:
            part = os.read(near, 4096)
        except OSError:  # Linux says so where the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(near)

    assert process.wait(60) == 2
    assert_harmless(shown.decode().replace("\r\n", "\n"))
