"""What heads are called: 3.1 is the second of the fourth layer; with an encoder beside it, also whose it is."""

ORDER = ("encoder", "decoder", "across")
PLACES = {"encoder.attn": "encoder", "trunk.attn": "decoder", "trunk.cross": "across"}


def place(where: str) -> str:
    """Whose attention it is: trunk.3.cross is the decoder's look across."""
    trunk, _, side = where.rsplit(".", 2)
    return PLACES.get(f"{trunk}.{side}", trunk)


def called(where: str, head: int, several: bool) -> str:
    name = f"{where.rsplit('.', 2)[1]}.{head}"
    return f"{place(where)} {name}" if several else name
