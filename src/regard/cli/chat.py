"""regard chat: a conversation with a chat model, from a terminal or from a pipe.

                a terminal                            a pipe
    input       a prompt, with history and editing    a message a line
    an error    is reported, and the chat continues   ends it, with its exit code
    Ctrl-C      stops the reply, then the prompt      ends it, with 130

Replies go to stdout, everything else to stderr.
"""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.chat_commands import ChatCommands, LeaveChat
from regard.cli.errors import error_and_code, print_stderr
from regard.cli.generate import OPTION_HELP, check_generator, check_options, parse_setting, read_prompt
from regard.cli.output import (
    CheckpointArgument,
    Dtype,
    WeightsOption,
    add_config_options,
    check_surrogates,
    dim,
    escape_control,
    import_torch,
    print_json,
    read_text_argument,
)
from regard.cli.translate import stdin_lines


@add_config_options(config.SamplingParams, OPTION_HELP)
def chat(
    checkpoint: CheckpointArgument,
    *,
    system: Annotated[str, typer.Option(metavar="TEXT", help="The system message.")] = "",
    template: Annotated[
        str | None, typer.Option(metavar="FILE", help="A chat template (Jinja), where the folder has none or another.")
    ] = None,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each answer, for scripts.")] = False,
    **settings: Any,
) -> None:
    """Chat with a model; /help lists the commands."""
    given = {name: parse_setting(name, word) for name, word in settings.items() if word is not None}
    check_options(given, count=1, explain=False, interactive=True)
    written = None if template is None else read_text_argument(template)
    told = check_surrogates(system, "--system")
    import_torch()
    from regard.chat.conversation import Conversation
    from regard.chat.formats import TemplateFormat
    from regard.inference.load import load_for_inference

    model = load_for_inference(checkpoint, dtype=dtype, weights=weights)
    check_generator(model, checkpoint)
    form = TemplateFormat(model, choose_template(model, checkpoint, template, written))
    run_conversation(Conversation(model, form, system=told, **given), checkpoint, json)


def choose_template(model: Any, name: str, file: str | None, written: str | None) -> Any:
    """The given template, or the folder's."""
    from regard.chat.formats import find_chat_template
    from regard.text.chat_template import ChatTemplate

    if written is not None:
        try:
            return ChatTemplate.of(
                {**({} if model.tokenizer is None else model.tokenizer.card), "chat_template": written}
            )
        except config.DataError as problem:
            raise config.DataError(f"{file}: {problem}") from None
    if (found := find_chat_template(model)) is None:
        raise config.DataError(f"{name}: it has no chat template, so it was not trained for chat; continue a text "
                               f"with `regard generate {name} --interactive`, or give --template FILE")  # fmt: skip
    return found


def continue_text(
    name: str, prompt: str | None, file: str | None, count: int, json: bool, given: dict[str, Any], weights: str,
    dtype: str, specials: Any,
) -> None:  # fmt: skip
    """regard generate --interactive: user and model write a text in turns; the prompt is the first turn."""
    for place, taken in (("PROMPT", prompt == "-"), ("--file", file == "-"), ("--count", count != 1)):
        if taken:
            why = "there is one text" if place == "--count" else "standard input is for typed messages"
            raise config.ConfigError(f"{place}: with --interactive {why}; leave it out")
    first = read_prompt(prompt, file)
    import_torch()
    from regard.chat.conversation import Conversation
    from regard.chat.formats import ContinuationFormat
    from regard.inference.load import load_for_inference

    model = load_for_inference(name, dtype=dtype, weights=weights, specials=specials)
    check_generator(model, name)
    run_conversation(Conversation(model, ContinuationFormat(model), **given), name, json, first)


def run_conversation(conversation: Any, name: str, json: bool, first: str = "") -> None:
    if sys.stdin is not None and sys.stdin.isatty():
        print_stderr(f"{name}; /help lists the commands, Ctrl-D leaves")
    ChatLoop(conversation, json).run(first)


PROMPT, MORE = "> ", ". "


class ChatLoop:
    """The input loop of a conversation, from a terminal or a pipe."""

    def __init__(self, conversation: Any, json: bool = False) -> None:
        self.conversation, self.json, self.asked = conversation, json, ChatCommands(conversation, json)
        self.person = sys.stdin is not None and sys.stdin.isatty()
        self.noted: set[str] = set()

    def run(self, first: str = "") -> None:
        """Run until the end of input, or until the user leaves; `first` is sent at once."""
        with suppress(LeaveChat):
            if first:
                self.take_turn(first)
            for message in read_messages(self.person):
                self.take_turn(message)

    def take_turn(self, message: str) -> None:
        """Process one message or command; an error ends a script, and is reported to a user."""
        try:
            self.handle_message(message)
        except KeyboardInterrupt:
            if not self.person:
                raise
            print(file=sys.stderr)
        except (config.ConfigError, config.DataError, config.RunError, OSError) as problem:
            if not self.person or isinstance(problem, BrokenPipeError):
                raise
            print_stderr(error_and_code(problem)[0])

    def handle_message(self, message: str) -> None:
        if message.startswith("/") and not message.startswith("//"):
            told = self.asked(message)
            if not isinstance(told, str):
                return self.answer(told)
            return print(dim(told), file=sys.stderr, flush=True) if told else None
        message = message[1:] if message.startswith("//") else message
        if message.strip() or self.conversation.form.slides:  # text continuation accepts an empty turn
            self.answer(self.conversation.send(check_surrogates(message, "message")))

    def answer(self, pieces: Iterator[str]) -> None:
        """Print a reply while it is generated; notes follow when it is complete."""
        self.conversation.answer = None
        with self.stoppable():
            with warnings.catch_warnings(record=True) as notes, self.breakable():
                for piece in pieces:
                    if not self.json:
                        print(escape_control(piece), end="", flush=True)
            self.close()
        for note in notes:
            self.note(str(note.message))

    def close(self) -> None:
        """End a reply: with a newline, or as a JSON object on one line."""
        made = self.conversation.answer
        if made is None:
            return print_stderr("the reply is empty; the message is not kept")
        if self.json:
            told = asdict(made)
            print_json({"role": "assistant", "content": told.pop("text"), **told})
        else:
            print(flush=True)
        sys.stdout.flush()
        if made.reason == "length" and not self.conversation.form.slides:
            self.note(f"length: the answer was cut after {made.tokens} tokens; /set max_new_tokens {2 * made.tokens} "
                      "allows a longer one, where the window has room")  # fmt: skip

    def note(self, line: str) -> None:
        """Show each kind of note once."""
        kind = line.partition(":")[0]
        if kind not in self.noted:
            self.noted.add(kind)
            print_stderr(f"note: {line}")

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """A second Ctrl-C, or one before the first token, aborts a reply; its text so far stays."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.person:
                raise

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Ctrl-C stops a reply after the current token; before the first token, or a second time, at once."""
        if not self.person:
            yield
            return

        def on_interrupt(number: int, frame: Any) -> None:
            if not self.conversation.stop():
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- input


def read_messages(person: bool) -> Iterator[str]:
    """Messages as they arrive."""
    if person:
        yield from KeyboardInput()
    elif sys.stdin is not None:
        lines = (line for _, line in stdin_lines())
        for line in lines:
            yield join_continued(line, lambda: next(lines, None))


def join_continued(line: str, more: Callable[[], str | None]) -> str:
    """A message: a line, and following lines while each ends with a backslash."""
    while line.endswith("\\") and (rest := more()) is not None:
        line = f"{line[:-1]}\n{rest}"
    return line


class KeyboardInput:
    """Messages typed by a user: Ctrl-D leaves, and so does Ctrl-C twice at the prompt."""

    def __init__(self) -> None:
        with suppress(ImportError):  # without readline there is no history
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
        print(file=sys.stderr)  # the shell prompt starts on a new line

    def message(self) -> str | None:
        try:
            message = join_continued(self.line(PROMPT), lambda: self.line(MORE))
        except UnicodeDecodeError:
            print_stderr("message: the input is not UTF-8; type it again")
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if self.pressed:
                raise EOFError from None
            self.pressed = True
            print_stderr("Ctrl-C again, or Ctrl-D, leaves")
            return None
        self.pressed = False
        return message

    def line(self, prompt: str) -> str:
        """One line, edited where both ends are a terminal; otherwise the prompt goes to stderr, apart from the
        replies."""
        if sys.stdout.isatty():
            return input(prompt)
        print(prompt, end="", file=sys.stderr, flush=True)
        if not (line := sys.stdin.readline()):
            raise EOFError
        return line.removesuffix("\n")
