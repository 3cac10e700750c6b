"""Server settings: host, port, keys, and limits of everything."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import get_args

from regard import config


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where to listen, the keys that open the door, and the limits; the sizes are in bytes, the times in seconds.

    Of each model `slots` texts are written at a time, each with room for `max_context` tokens, while `max_queue` others
    wait. One request asks about at most `texts` texts, an answer has at most `most` tokens. A client that
    sends or reads so slowly that nothing moves for `patience` is disconnected; `drain` is the time that texts are given
    to end when the server stops. Of more than so many `connections` those that have been idle for longest are closed.

    A `body` of JSON is parsed in one call, during which nothing else runs: some 20 ms for each MiB.

    `specials`: what clients write is text, in which "<|im_end|>" is spelt like anything else ("plain"), or its special
    tokens are parsed ("parse", for clients that are trusted); messages of a chat are always plain.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = field(default=(), repr=False)
    slots: int = 8
    max_context: int | None = None
    max_queue: int = 64
    body: int = 1 << 20
    header: int = 16 << 10
    texts: int = 128
    connections: int = 1024
    most: int = 4096
    patience: float = 30.0
    drain: float = 10.0
    specials: config.Specials = "plain"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise config.ConfigError(f"port: {self.port} is not between 0 and 65535; 0 picks a free one")
        for name in ("slots", "max_queue", "body", "header", "texts", "connections", "most"):
            if (value := getattr(self, name)) < 1:
                raise config.ConfigError(f"{name}: {value} is less than 1")
        if self.max_context is not None and self.max_context < 1:
            raise config.ConfigError(f"max_context: {self.max_context} is less than 1")
        if self.specials not in get_args(config.Specials):
            raise config.ConfigError(f"specials: no {self.specials!r}; there are plain and parse")
        if not all(key.isascii() and key.isprintable() and key and " " not in key for key in self.keys):
            raise config.ConfigError("keys: one of them cannot stand in a header; use letters, digits and marks of "
                                     "ASCII, without spaces")  # fmt: skip
        if not self.keys and not self.is_local:
            raise config.ConfigError(f"host: {self.host} can be reached from other machines, and there is no key; give "
                                     "one (REGARD_API_KEY or --api-key-file), or stay at 127.0.0.1")  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach us."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """A name or an address of this machine itself, as a socket or a URL has it: localhost, 127.0.0.1, [::1]."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
