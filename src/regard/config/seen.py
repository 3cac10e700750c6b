"""What front ends that read no text have in common."""


class Seen:
    """What a front end that reads no text answers when asked for its ids."""

    @property
    def vocab(self) -> int:
        return 0

    @property
    def pad(self) -> int | None:
        return None

    @property
    def end(self) -> int | None:
        return None
