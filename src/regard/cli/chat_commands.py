"""What can be asked of a conversation besides an answer: lines that begin with a slash, each a small function.

Whoever wants a message that begins with one writes two.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard import config
from regard.cli.ask import typed
from regard.cli.output import as_json, spoken
from regard.config.names import did_you_mean

SHORT = 60  # letters of a message that is only named


class Leave(Exception):
    """The conversation is over."""


class Asked:
    """A conversation, with what one who talks can ask of it. Each gives back a sentence, or pieces of an answer."""

    def __init__(self, conversation: Any, json: bool = False) -> None:
        self.conversation, self.json = conversation, json

    def __call__(self, line: str) -> str | Iterator[str]:
        """Do what a line says: its first word is the name of a command, and all after it belongs to that."""
        name, _, rest = line.removeprefix("/").partition(" ")
        if name not in COMMANDS:
            raise config.ConfigError(
                f"no command {'/' + name!r}{did_you_mean('/' + name, ['/' + each for each in COMMANDS])} /help shows "
                "what there is, and // begins a message with a slash"
            )
        usage, _, work = COMMANDS[name]
        if rest.strip() and not usage:
            raise config.ConfigError(f"/{name}: it takes nothing, got {rest.strip()!r}")
        return work(self, rest.strip())

    # ---------------------------------------------------------------- settings

    def set(self, rest: str) -> str:
        name, _, word = rest.partition(" ")
        if not name:
            raise config.ConfigError("/set: expected a name and a value, as in /set temperature 0.5")
        name, word = name.replace("-", "_"), spoken(word.strip(), name)
        value = typed(name, word) if word and word != "none" else None
        several = isinstance(value, str) and isinstance(getattr(config.Sampling, name, None), tuple)
        self.conversation.set({name: [value] if several else value})
        return f"{name} {self.shown(name)}"

    def shown(self, name: str) -> str:
        value = self.settings()[name]
        return "none" if value in (None, ()) else json.dumps(value, ensure_ascii=False)

    def settings(self) -> dict[str, Any]:
        return asdict(self.conversation.sampling([]))

    def list(self, rest: str) -> str:
        told, talk = self.settings(), self.conversation
        if self.json:
            as_json({"settings": told, "system": talk.system})
            return ""
        wide = max(map(len, told))
        rows = [f"{name:<{wide}}  {self.shown(name)}" for name in told]
        return "\n".join([*rows, *([] if talk.system is None else [f"{'system':<{wide}}  {talk.system}"])])

    def seed(self, rest: str) -> str:
        if rest:
            return self.set(f"seed {rest}")
        answer = self.conversation.answer
        last = "" if answer is None else f"; the last answer had {answer.seed}"
        return f"seed {self.shown('seed')}{last}"

    def system(self, rest: str) -> str:
        self.conversation.instruct(spoken(rest, "/system"))
        return f"system {named(rest)}" if rest else "there is no system message now"

    # ---------------------------------------------------------------- what was said

    def undo(self, rest: str) -> str:
        question, _ = self.conversation.undo()
        return f"taken back: {named(question)}"

    def again(self, rest: str) -> Iterator[str]:
        pieces: Iterator[str] = self.conversation.again()
        return pieces

    def clear(self, rest: str) -> str:
        self.conversation.clear()
        return "begun anew; settings and system message stay"

    def save(self, rest: str) -> str:
        place = path_in(rest, "/save")
        if place.exists():
            read(place)  # what is no conversation is not overwritten
        write(place, json.dumps(self.conversation.table(), ensure_ascii=False, indent=1) + "\n")
        return f"saved to {place}"

    def load(self, rest: str) -> str:
        place = path_in(rest, "/load")
        try:
            self.conversation.restore(read(place))
        except (config.ConfigError, config.DataError) as problem:
            told = str(problem) if str(problem).startswith(str(place)) else f"{place}: {problem}"
            raise config.DataError(told) from None
        count = len(self.conversation.exchanges)
        return f"loaded {count} exchange{'' if count == 1 else 's'} from {place}"

    # ---------------------------------------------------------------- the rest

    def help(self, rest: str) -> str:
        rows = [(f"/{name} {usage}".rstrip(), about) for name, (usage, about, _) in COMMANDS.items()]
        rows += [("LINE \\", "a backslash at the end of a line: the message goes on in the next"),
                 ("//...", "a message that begins with a slash"),
                 ("Ctrl-C", "stops an answer; twice at the prompt, or Ctrl-D, leaves")]  # fmt: skip
        wide = max(len(usage) for usage, _ in rows)
        return "\n".join(f"{usage:<{wide}}  {about}" for usage, about in rows)

    def quit(self, rest: str) -> str:
        raise Leave


COMMANDS: dict[str, tuple[str, str, Callable[[Asked, str], str | Iterator[str]]]] = {
    "set": ("NAME VALUE", "change a setting, as in /set temperature 0.5; without a value, as usual again", Asked.set),
    "settings": ("", "show how tokens are chosen", Asked.list),
    "seed": ("NUMBER", "the same seed gives the same answers; alone, show it", Asked.seed),
    "system": ("TEXT", "what the model is told before all else; alone, nothing", Asked.system),
    "undo": ("", "take the last exchange back", Asked.undo),
    "again": ("", "another answer to the last message", Asked.again),
    "clear": ("", "begin anew, with these settings", Asked.clear),
    "save": ("FILE", "keep messages, settings and seed as JSON", Asked.save),
    "load": ("FILE", "go on from there", Asked.load),
    "help": ("", "this", Asked.help),
    "quit": ("", "leave", Asked.quit),
}  # fmt: skip


def named(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT else line[: SHORT - 1] + "…"


def path_in(rest: str, command: str) -> Path:
    if not rest:
        raise config.ConfigError(f"{command}: expected a file, as in {command} talk.json")
    return Path(spoken(rest, command)).expanduser()


def read(place: Path) -> Any:
    """The JSON table in a file that holds a conversation."""
    if place.exists() and not place.is_file():  # a pipe would be waited for
        raise config.DataError(f"{place}: not a file; name one that /save wrote, or a new one")
    try:
        table = json.loads(place.read_bytes())
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict) or "messages" not in table:
        raise config.DataError(f"{place}: it holds no conversation; name one that /save wrote, or a new file")
    return table


def write(place: Path, text: str) -> None:
    """All of it or nothing: what stood there before stays until the new is whole."""
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        with os.fdopen(handle, "w", encoding="utf8") as file:
            file.write(text)
        os.replace(name, place)
    except OSError as problem:
        if name is not None:
            os.unlink(name)
        raise OSError(problem.errno, problem.strerror, str(place)) from None
