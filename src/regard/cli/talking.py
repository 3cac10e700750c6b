"""The loop of a conversation: lines in, answers out, from a terminal or from a pipe.

                a terminal                            a pipe
    input       a prompt, with history and editing    a message a line
    a mistake   is told, and the talk goes on         ends it, with its exit code
    Ctrl-C      stops the answer, then the prompt     ends it, with 130

Answers go to stdout, all other talk to stderr.
"""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from regard import config
from regard.cli.mistakes import sentence, talk
from regard.cli.output import as_json, faint, spoken, visible
from regard.cli.slash import Asked, Leave
from regard.cli.translate import incoming

PROMPT, MORE = "> ", ". "


class Talk:
    """Somebody and a conversation."""

    def __init__(self, conversation: Any, json: bool = False) -> None:
        self.conversation, self.json, self.asked = conversation, json, Asked(conversation, json)
        self.person = sys.stdin is not None and sys.stdin.isatty()
        self.noted: set[str] = set()

    def run(self, first: str = "") -> None:
        """Until nothing more comes, or somebody leaves; `first` is said at once."""
        with suppress(Leave):
            if first:
                self.turn(first)
            for message in messages(self.person):
                self.turn(message)

    def turn(self, message: str) -> None:
        """One message or command; what goes wrong ends a script, and a person is told."""
        try:
            self.do(message)
        except KeyboardInterrupt:
            if not self.person:
                raise
            print(file=sys.stderr)
        except (config.ConfigError, config.DataError, config.RunError, OSError) as problem:
            if not self.person or isinstance(problem, BrokenPipeError):
                raise
            talk(sentence(problem)[0])

    def do(self, message: str) -> None:
        if message.startswith("/") and not message.startswith("//"):
            told = self.asked(message)
            if not isinstance(told, str):
                return self.answer(told)
            return print(faint(told), file=sys.stderr, flush=True) if told else None
        message = message[1:] if message.startswith("//") else message
        if message.strip() or self.conversation.form.slides:  # a growing text may go on by itself
            self.answer(self.conversation.say(spoken(message, "message")))

    def answer(self, pieces: Iterator[str]) -> None:
        """Show an answer while it is made; notes wait until it is whole."""
        self.conversation.answer = None
        with self.stoppable():
            with warnings.catch_warnings(record=True) as notes, self.breakable():
                for piece in pieces:
                    if not self.json:
                        print(visible(piece), end="", flush=True)
            self.close()
        for note in notes:
            self.note(str(note.message))

    def close(self) -> None:
        """What stands after an answer: it ends its line, or is an object on one."""
        made = self.conversation.answer
        if made is None:
            return talk("nothing was said, and the message is forgotten")
        if self.json:
            told = asdict(made)
            as_json({"role": "assistant", "content": told.pop("text"), **told})
        else:
            print(flush=True)
        sys.stdout.flush()
        if made.reason == "length" and not self.conversation.form.slides:
            self.note(f"length: the answer was cut after {made.tokens} tokens; /set new {2 * made.tokens} lets it say "
                      "more, where the window has room")  # fmt: skip

    def note(self, line: str) -> None:
        """Each kind of note once."""
        kind = line.partition(":")[0]
        if kind not in self.noted:
            self.noted.add(kind)
            talk(f"note: {line}")

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """A second Ctrl-C, or one before the first token, ends an answer where it is; what there is of it stays."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.person:
                raise

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Ctrl-C ends an answer with the token under way; before there is one, or a second time, at once."""
        if not self.person:
            yield
            return

        def pressed(number: int, frame: Any) -> None:
            if not self.conversation.stop():
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- where messages come from


def messages(person: bool) -> Iterator[str]:
    """Messages as they come, each as soon as it is there."""
    if person:
        yield from Keyboard()
    elif sys.stdin is not None:
        lines = (line for _, line in incoming())
        for line in lines:
            yield joined(line, lambda: next(lines, None))


def joined(line: str, more: Callable[[], str | None]) -> str:
    """A message: a line, and the next one while a backslash ends it."""
    while line.endswith("\\") and (rest := more()) is not None:
        line = f"{line[:-1]}\n{rest}"
    return line


class Keyboard:
    """Messages that somebody types: Ctrl-D leaves, and so does Ctrl-C at the prompt, twice."""

    def __init__(self) -> None:
        with suppress(ImportError):  # where it is missing, there is no history
            import readline

            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")  # a paste of many lines is one message
        self.pressed = False

    def __iter__(self) -> Iterator[str]:
        with suppress(EOFError):
            while True:
                message = self.message()
                if message is not None:
                    yield message
        print(file=sys.stderr)  # the shell begins a line of its own

    def message(self) -> str | None:
        try:
            message = joined(self.line(PROMPT), lambda: self.line(MORE))
        except UnicodeDecodeError:
            talk("message: what was typed is not UTF-8; type it again")
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if self.pressed:
                raise EOFError from None
            self.pressed = True
            talk("Ctrl-C again, or Ctrl-D, leaves")
            return None
        self.pressed = False
        return message

    def line(self, prompt: str) -> str:
        """One line, edited where both ends are a terminal; elsewhere the prompt is talk and not part of the answers."""
        if sys.stdout.isatty():
            return input(prompt)
        print(prompt, end="", file=sys.stderr, flush=True)
        if not (line := sys.stdin.readline()):
            raise EOFError
        return line.removesuffix("\n")
