"""Slash commands of regard chat: lines that begin with a slash, each a small function.

A message that begins with a slash is written with two.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard import config
from regard.cli.generate import parse_setting
from regard.cli.output import check_surrogates, print_json
from regard.config.aliases import generation_aliases
from regard.config.errors import did_you_mean
from regard.files.atomic import open_output_file

SHORT = 60  # characters of a message preview


class LeaveChat(Exception):
    """Raised to leave the conversation."""


class ChatCommands:
    """Commands of a conversation. Each returns a sentence, or parts of a reply."""

    def __init__(self, conversation: Any, json: bool = False) -> None:
        self.conversation, self.json = conversation, json

    def __call__(self, line: str) -> str | Iterator[str]:
        """Execute a line: its first word is the command, the rest its argument."""
        name, _, rest = line.removeprefix("/").partition(" ")
        if name not in COMMANDS:
            raise config.ConfigError(
                f"no command {'/' + name!r}{did_you_mean('/' + name, ['/' + each for each in COMMANDS])} /help lists "
                "them, and // begins a message with a slash"
            )
        usage, _, work = COMMANDS[name]
        if rest.strip() and not usage:
            raise config.ConfigError(f"/{name}: it takes no argument, got {rest.strip()!r}")
        return work(self, rest.strip())

    # ---------------------------------------------------------------- settings

    def set(self, rest: str) -> str:
        name, _, word = rest.partition(" ")
        if not name:
            raise config.ConfigError("/set: expected a name and a value, as in /set temperature 0.5")
        name, word = name.replace("-", "_"), check_surrogates(word.strip(), name)
        name = generation_aliases().get(name, name)
        value = parse_setting(name, word) if word and word != "none" else None
        several = isinstance(value, str) and isinstance(getattr(config.SamplingParams, name, None), tuple)
        self.conversation.set({name: [value] if several else value})
        return f"{name} {self.format_setting(name)}"

    def format_setting(self, name: str) -> str:
        value = self.settings()[name]
        return "none" if value in (None, ()) else json.dumps(value, ensure_ascii=False)

    def settings(self) -> dict[str, Any]:
        return asdict(self.conversation.sampling([]))

    def list(self, rest: str) -> str:
        told, talk = self.settings(), self.conversation
        if self.json:
            print_json({"settings": told, "system": talk.system})
            return ""
        wide = max(map(len, told))
        rows = [f"{name:<{wide}}  {self.format_setting(name)}" for name in told]
        return "\n".join([*rows, *([] if talk.system is None else [f"{'system':<{wide}}  {talk.system}"])])

    def seed(self, rest: str) -> str:
        if rest:
            return self.set(f"seed {rest}")
        answer = self.conversation.answer
        last = "" if answer is None else f"; the last answer had {answer.seed}"
        return f"seed {self.format_setting('seed')}{last}"

    def system(self, rest: str) -> str:
        self.conversation.set_system(check_surrogates(rest, "/system"))
        return f"system {text_preview(rest)}" if rest else "there is no system message now"

    # ---------------------------------------------------------------- history

    def undo(self, rest: str) -> str:
        question, _ = self.conversation.undo()
        return f"removed: {text_preview(question)}"

    def regenerate(self, rest: str) -> Iterator[str]:
        pieces: Iterator[str] = self.conversation.regenerate()
        return pieces

    def clear(self, rest: str) -> str:
        self.conversation.clear()
        return "conversation cleared; settings and system message stay"

    def save(self, rest: str) -> str:
        place = parse_path(rest, "/save")
        if place.exists():
            read_saved(place)  # overwrite only a saved conversation
        write_saved(place, json.dumps(self.conversation.table(), ensure_ascii=False, indent=1) + "\n")
        return f"saved to {place}"

    def load(self, rest: str) -> str:
        place = parse_path(rest, "/load")
        try:
            self.conversation.restore(read_saved(place))
        except (config.ConfigError, config.DataError) as problem:
            told = str(problem) if str(problem).startswith(str(place)) else f"{place}: {problem}"
            raise config.DataError(told) from None
        count = len(self.conversation.exchanges)
        return f"loaded {count} exchange{'' if count == 1 else 's'} from {place}"

    # ---------------------------------------------------------------- help

    def help(self, rest: str) -> str:
        rows = [(f"/{name} {usage}".rstrip(), about) for name, (usage, about, _) in COMMANDS.items()]
        rows += [("LINE \\", "a backslash at the end of a line: the message continues on the next"),
                 ("//...", "a message that begins with a slash"),
                 ("Ctrl-C", "stops an answer; twice at the prompt, or Ctrl-D, leaves")]  # fmt: skip
        wide = max(len(usage) for usage, _ in rows)
        return "\n".join(f"{usage:<{wide}}  {about}" for usage, about in rows)

    def quit(self, rest: str) -> str:
        raise LeaveChat


COMMANDS: dict[str, tuple[str, str, Callable[[ChatCommands, str], str | Iterator[str]]]] = {
    "set": ("NAME VALUE", "change a setting, as in /set temperature 0.5; without a value, the "
                          "default", ChatCommands.set),
    "settings": ("", "show the sampling settings", ChatCommands.list),
    "seed": ("NUMBER", "the same seed gives the same answers; alone, show it", ChatCommands.seed),
    "system": ("TEXT", "the system message; alone, none", ChatCommands.system),
    "undo": ("", "remove the last exchange", ChatCommands.undo),
    "again": ("", "another answer to the last message", ChatCommands.regenerate),
    "clear": ("", "clear the conversation, keep the settings", ChatCommands.clear),
    "save": ("FILE", "save messages, settings and seed as JSON", ChatCommands.save),
    "load": ("FILE", "continue a saved conversation", ChatCommands.load),
    "help": ("", "this", ChatCommands.help),
    "quit": ("", "leave", ChatCommands.quit),
}  # fmt: skip


def text_preview(text: str) -> str:
    """The start of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT else line[: SHORT - 1] + "…"


def parse_path(rest: str, command: str) -> Path:
    if not rest:
        raise config.ConfigError(f"{command}: expected a file, as in {command} talk.json")
    return Path(check_surrogates(rest, command)).expanduser()


def read_saved(place: Path) -> Any:
    """The JSON of a saved conversation."""
    if place.exists() and not place.is_file():  # reading a pipe would block
        raise config.DataError(f"{place}: not a file; name one that /save wrote, or a new one")
    try:
        table = json.loads(place.read_bytes())
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict) or "messages" not in table:
        raise config.DataError(f"{place}: it has no conversation; name one that /save wrote, or a new file")
    return table


def write_saved(place: Path, text: str) -> None:
    """Write atomically, readable only by the owner: the previous file stays until the new one is complete."""
    try:
        with open_output_file(place) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text.encode())
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(place)) from None
