"""regard chat and generate --interactive: a person at a terminal, a script in a pipe."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
from chat import chat_model

from regard.chat.conversation import Conversation
from regard.chat.formats import ContinuationFormat, TemplateFormat, find_chat_template
from regard.inference.load import load_model

GREEDY = ("--max-new-tokens", 7, "--temperature", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return chat_model.folder(tmp_path_factory.mktemp("chat") / "tiny", length=99_999)


@pytest.fixture
def other(place):
    """The same conversation, in Python."""
    model = load_model(place, device="cpu")
    return Conversation(model, TemplateFormat(model, find_chat_template(model)), max_new_tokens=7, temperature=0.0)


def said(conversation, message):
    return "".join(conversation.send(message))


# ---------------------------------------------------------------- a script in a pipe


def test_a_line_is_a_message_and_stdout_has_the_answers_alone(say, desk, place, other):
    told = say("chat", place, *GREEDY, stdin=b"Hello\n\nWho are you?\n")

    assert told.code == 0 and told.out == "".join(said(other, each) + "\n" for each in ("Hello", "Who are you?"))


def test_json_has_an_object_for_each_answer(say, desk, place, other):
    told = say("chat", place, *GREEDY, "--json", stdin=b"Hello\nWho?\n/settings\n")
    first, second, settings = map(json.loads, told.out.splitlines())

    assert first["role"] == "assistant" and first["content"] == said(other, "Hello")
    assert second["content"] == said(other, "Who?") and second["kept"] > 0
    assert {"tokens", "reason", "seed", "seconds", "read"} <= second.keys()
    assert settings["settings"]["temperature"] == 0.0


def test_a_backslash_joins_a_line_to_the_next(say, desk, place, other):
    told = say("chat", place, *GREEDY, stdin=b"Hello\\\nyou\\\n\n")

    assert told.out == said(other, "Hello\nyou\n") + "\n"


def test_two_slashes_begin_a_message_with_one(say, desk, place, other):
    assert say("chat", place, *GREEDY, stdin=b"//help\n").out == said(other, "/help") + "\n"


def test_settings_change_while_talking(say, desk, place, other):
    told = say("chat", place, *GREEDY, stdin=b"Hello\n/set max-new-tokens 3\n/set top-k 5\nHello\n/set new\n")
    said(other, "Hello")
    other.set({"max_new_tokens": 3})

    assert told.out.splitlines()[-1] == said(other, "Hello")
    assert [line for line in told.err.splitlines() if not line.startswith("regard")] == [
        "max_new_tokens 3", "top_k 5", "max_new_tokens 200"]  # fmt: skip


def test_the_system_message_comes_from_the_option_and_from_the_talk(say, desk, place, other):
    told = say("chat", place, *GREEDY, "--system", "be brief", stdin=b"Hello\n/system be long\nHello\n")
    other.set_system("be brief")
    first = said(other, "Hello")
    other.set_system("be long")

    assert told.out == f"{first}\n{said(other, 'Hello')}\n"


def test_a_conversation_is_kept_and_goes_on(say, desk, place):
    say("chat", place, *GREEDY, "--system", "be brief", stdin=b"Hello\n/seed 3\n/save talk.json\n")
    kept = json.loads((desk / "talk.json").read_text())
    told = say("chat", place, stdin=b"/load talk.json\n/undo\n/save talk.json\n")

    assert [each["role"] for each in kept["messages"]] == ["system", "user", "assistant"]
    assert kept["settings"] == {"max_new_tokens": 7, "temperature": 0} and kept["seed"] == 3
    assert told.code == 0
    assert json.loads((desk / "talk.json").read_text()) == kept | {"messages": kept["messages"][:1]}


def test_again_undo_and_clear(say, desk, place):
    lines = b"/set logit_bias 36=-inf\nHello\n/again\n/undo\nWho?\n/clear\n/save talk.json\n"
    told = say("chat", place, "--temperature", 3, "--seed", 1, "--max-new-tokens", 9, stdin=lines)

    assert told.code == 0 and len(set(told.out.splitlines())) == 3
    assert "removed: Hello" in told.err
    assert json.loads((desk / "talk.json").read_text())["messages"] == []


def test_quit_leaves_what_comes_after_it_unread(say, desk, place):
    assert say("chat", place, stdin=b"/quit\n\xff\n").code == 0


def test_help_names_every_command(say, desk, place):
    told = say("chat", place, stdin=b"/help\n")

    for name in ("set", "settings", "seed", "system", "undo", "again", "clear", "save", "load", "help", "quit"):
        assert re.search(rf"^/{name}\b", told.err, re.MULTILINE), name


def test_a_template_of_your_own_is_used(say, desk, place, other):
    (desk / "mine.jinja").write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")
    plain = Conversation(other.model, ContinuationFormat(other.model), max_new_tokens=7, temperature=0.0)

    assert say("chat", place, *GREEDY, "--template", "mine.jinja", stdin=b"Hello\n").out == said(plain, "Hello!") + "\n"


@pytest.mark.parametrize("lines, code, parts", [
    (b"/sett\n", 2, ["no command '/sett'", "did you mean '/set'?", "/help"]),
    (b"/etc/passwd is a file\n", 2, ["no command '/etc/passwd'", "//"]),
    (b"/set\n", 2, ["/set temperature 0.5"]),
    (b"/set temperature nan\n", 2, ["temperature", "nan"]),
    (b"/set temperture 1\n", 2, ["did you mean 'temperature'?"]),
    (b"/set temperture\n", 2, ["did you mean 'temperature'?"]),
    (b"/seed -3\n", 2, ["seed"]),
    (b"/undo\n", 2, ["the conversation is empty"]),
    (b"/again\n", 2, ["the conversation is empty"]),
    (b"/clear all\n", 2, ["/clear", "takes no argument", "all"]),
    (b"/save\n", 2, ["/save talk.json"]),
    (b"/save no/where.json\n", 3, ["no/where.json", "no such file or folder"]),
    (b"/save recipe.toml\n", 3, ["recipe.toml", "no conversation"]),
    (b"/load nowhere.json\n", 3, ["nowhere.json", "no such file"]),
    (b"/load recipe.toml\n", 3, ["recipe.toml", "no conversation"]),
    (b"/load odd.json\n", 3, ["odd.json", "messages", "in turn"]),
    (b"\xff\n", 3, ["standard input: line 1 is not UTF-8"]),
    ("Ünter\n".encode(), 3, ["Ü"]),
], ids=str)  # fmt: skip
def test_a_mistake_of_a_script_is_one_sentence_and_ends_it(say, desk, place, lines, code, parts):
    (desk / "odd.json").write_text('{"messages": [{"role": "assistant", "content": "a"}]}')
    before = sorted(os.listdir(desk))
    told = say("chat", place, stdin=lines + b"Hello\n")

    assert (told.code, told.out, told.err.count("\n")) == (code, "", 1)
    assert all(part in told.err for part in parts), told.err
    assert sorted(os.listdir(desk)) == before


def test_who_has_no_template_is_told_what_to_do(say, checkpoint):
    told = say("chat", checkpoint, stdin=b"Hello\n")

    assert (told.code, told.out, told.err.count("\n")) == (3, "", 1)
    assert "no chat template" in told.err and f"regard generate {checkpoint} --interactive" in told.err
    assert "--template FILE" in told.err


@pytest.mark.parametrize("words, code, parts", [
    (["--temperature", "nan"], 2, ["--temperature", "nan"]),
    (["--template", "nowhere.jinja"], 3, ["nowhere.jinja"]),
    (["--template", "bad.jinja"], 3, ["bad.jinja", "chat template"]),
], ids=str)  # fmt: skip
def test_a_mistake_in_an_option_is_one_sentence(say, desk, place, words, code, parts):
    (desk / "bad.jinja").write_text("{% for %}")
    told = say("chat", place, *words, stdin=b"Hello\n")

    assert (told.code, told.out, told.err.count("\n")) == (code, "", 1)
    assert all(part in told.err for part in parts), told.err


def test_an_answer_that_was_cut_is_noted_once(say, desk, place):
    told = say("chat", place, "--max-new-tokens", 3, "--min-new-tokens", 3, stdin=b"Hello\nHello\n")

    assert told.err.count("\n") == 1 and "/set max_new_tokens 6" in told.err


# ---------------------------------------------------------------- a growing text


def test_a_text_grows_by_what_is_typed_and_what_is_made(say, checkpoint):
    told = say(
        "generate", checkpoint, "the cat", "--interactive", "--max-new-tokens", 2, "--seed", 3, stdin=b" sat\n\n"
    )
    model, whole = load_model(checkpoint), ""
    for turn, typed in enumerate(("the cat", " sat", "")):
        whole += typed
        made = model.generate(whole, max_new_tokens=2, seed=3 + turn)
        whole += made
        line, told.out = told.out[: len(made) + 1], told.out[len(made) + 1 :]

        assert line == made + "\n"
    assert told.code == 0 and told.out == ""


@pytest.mark.parametrize("words, part", [
    (["-"], "PROMPT"), (["--file", "-"], "--file"), (["a", "--count", 2], "--count"),
], ids=str)  # fmt: skip
def test_what_cannot_go_with_a_growing_text_is_refused(say, checkpoint, words, part):
    told = say("generate", checkpoint, *words, "--interactive", stdin=b"a\n")

    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert part in told.err and "--interactive" in told.err


# ---------------------------------------------------------------- a person at a terminal

CONTROL_C, CONTROL_D = b"\x03", b"\x04"
# Where readline waits for a line. A model may write "> " itself, but no escapes: those are filtered.
PROMPT = r"\x1b\[\?2004h[^\n]*> "
LAUNCH = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever ignores Ctrl-C hands that down
os.execv(sys.executable, sys.argv[1:])
"""


class Terminal:
    """A real one, and `regard` in it."""

    def __init__(self, *words, **environment):
        self.hand, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        command = [sys.executable, "-c", LAUNCH, sys.executable, "-m", "regard", *map(str, words)]
        clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        clean |= {"TERM": "xterm", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, start_new_session=True,
                                        env=clean | environment)  # fmt: skip
        os.close(side)
        self.seen = ""

    def until(self, pattern, seconds=60):
        """What is shown up to where this is found; the rest waits."""
        while (found := re.search(pattern, self.seen)) is None:
            if not select.select([self.hand], [], [], seconds)[0]:
                raise AssertionError(f"{pattern!r} was never shown, but {self.seen[-500:]!r}")
            self.seen += self.read()
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown

    def read(self):
        try:
            new = os.read(self.hand, 1 << 16)
        except OSError:  # so Linux says that nobody is there any more
            new = b""
        if not new:
            raise AssertionError(f"it ended, after {self.seen[-500:]!r}")
        return new.decode(errors="replace")

    def type(self, keys):
        # At a person's pace: a signal that arrives after readline has looked for one, and before it waits for keys, is
        # seen at the next key only (CPython's readline_until_enter_or_signal).
        time.sleep(0.2)
        os.write(self.hand, keys)

    def end(self):
        """The exit code, whatever is still shown."""
        with pytest.raises(AssertionError, match="it ended"):
            self.until(r"(?!)")
        os.close(self.hand)
        return self.process.wait(timeout=60)


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_program(place, desk):
    terminal = Terminal("chat", place, "--max-new-tokens", 50_000, "--min-new-tokens", 50_000)
    assert "/help" in terminal.until(PROMPT)
    terminal.type(b"Hello\r")
    terminal.until(r"Hello[^\n]*\r\n")
    terminal.until(r"(?s).{60}")  # the answer is shown while it is made
    terminal.type(CONTROL_C)
    terminal.until(PROMPT)
    terminal.type(b"/set max_new_tokens 5\r")
    terminal.until(r"max_new_tokens 5")
    terminal.until(PROMPT)
    terminal.type(b"/set min_new_tokens 0\r")
    terminal.until(r"min_new_tokens 0")
    terminal.until(PROMPT)
    terminal.type(b"/save talk.json\r")
    terminal.until("saved to")
    terminal.until(PROMPT)
    terminal.type(b"Who?\r")
    terminal.until(r"Who\?")
    terminal.until(PROMPT)
    terminal.type(CONTROL_D)

    assert terminal.end() == 0
    [asked, told] = json.loads((desk / "talk.json").read_text())["messages"]
    assert asked["content"] == "Hello" and 10 < len(told["content"]) < 50_000


@pytest.mark.slow
@pytest.mark.alone  # a person's pace
def test_at_the_prompt_ctrl_c_leaves_the_second_time(place, desk):
    terminal = Terminal("chat", place, NO_COLOR="1")
    terminal.until("> ")
    terminal.type(b"half a mess")
    terminal.until("half a mess")
    terminal.type(CONTROL_C)
    assert "Ctrl-C again" in terminal.until("leaves")
    terminal.until("> ")
    terminal.type(b"/sett\r")  # a mistake is told, and the talk goes on
    assert "did you mean '/set'?" in terminal.until("with a slash")
    terminal.until("> ")
    terminal.type(b"/settings\r")
    assert "\x1b[2m" not in terminal.until("temperature")
    terminal.until("> ")
    terminal.type(CONTROL_C)
    terminal.until("> ")
    terminal.type(CONTROL_C)

    assert terminal.end() == 0


@pytest.mark.slow
def test_pasted_lines_and_lines_after_a_backslash_are_one_message(place, desk):
    terminal = Terminal("chat", place, "--max-new-tokens", 3)
    terminal.until("> ")
    terminal.type(b"\x1b[200~one\ntwo\x1b[201~\r")
    terminal.until(r"two[^>]*\r\n[^\n]*\r\n[^\n]*> |note:[^>]*> ")
    terminal.type(b"three\\\r")
    terminal.until(r"\. ")
    terminal.type(b"four\r")
    terminal.until("four")
    terminal.until("> ")
    terminal.type(b"/save talk.json\r")
    assert "\x1b[2m" in terminal.until("saved to")
    terminal.until("> ")
    terminal.type(CONTROL_D)

    assert terminal.end() == 0
    asked = [each["content"] for each in json.loads((desk / "talk.json").read_text())["messages"][::2]]
    assert asked == ["one\ntwo", "three\nfour"]


def test_what_would_command_the_terminal_is_shown_and_not_obeyed(monkeypatch):
    from regard.cli.output import escape_control

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert escape_control("a\x1b[2Jb\n\t\x7f\x9b") == "a^[[2Jb\n\t^?\ufffd"
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert escape_control("a\x1b[2Jb") == "a\x1b[2Jb"
