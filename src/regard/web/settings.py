"""Server settings: host, port, API keys, and limits on sizes, times and numbers."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import get_args

from regard import config


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Server settings: the address, the API keys, and the limits. Sizes are in bytes, times in seconds.

    Each model generates `slots` texts at a time, each with up to `max_context` tokens, while `max_queue` others wait. A
    request has at most `texts` texts, a response at most `most` tokens. A client that neither sends nor reads for
    `patience` is disconnected; `drain` is the time that requests get to end when the server stops. Over the limit of
    `connections` those that have been idle for longest are closed.

    A `body` of JSON is parsed in one call, which holds the GIL: some 20 ms for each MiB.

    `specials`: text of clients is encoded as plain text, "<|im_end|>" included ("plain"), or its special tokens are
    parsed ("parse", for trusted clients); chat messages are always plain.
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
            raise config.ConfigError("keys: one of them is not valid in a header; use ASCII letters, digits and "
                                     "punctuation, without spaces")  # fmt: skip
        if not self.keys and not self.is_local:
            raise config.ConfigError(f"host: {self.host} can be reached from other machines, and there is no key; give "
                                     "one (REGARD_API_KEY or --api-key-file), or stay at 127.0.0.1")  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether the server listens on a loopback address only."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback name or address, as in a socket or a URL: localhost, 127.0.0.1, [::1]."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
