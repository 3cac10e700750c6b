"""How long a sequence is: what the positions know, or the tokens that an image becomes."""

from regard import config
from regard.measure.ghost import Config

# front ends that make as many tokens of every image
SIZED = (config.Patches, config.Stages, config.Pixels, config.Convolutions)
USUAL = 512  # tokens, where a model knows no longest


def longest(c: Config) -> int:
    """The most tokens that the positions know, or that rotary ones were trained for; for images, all of them."""
    if isinstance(c, config.Towers):
        read = [tower for tower in c.towers if isinstance(tower.embed, config.Embed)]
        return min(longest(tower) for tower in read or c.towers)
    if not isinstance(c.embed, config.Embed):
        return getattr(c.embed, "count", None) or USUAL
    return min(known(trunk.position) or USUAL for trunk in reading(c))


def limit(c: Config) -> int | None:
    """The tokens beyond which the model has no positions; None where there is no such place."""
    if isinstance(c, config.Towers):
        found = [limit(tower) for tower in c.towers if isinstance(tower.embed, config.Embed)]
    else:
        found = [known(trunk.position) for trunk in reading(c) if not isinstance(trunk.position, config.Rotary)]
    return min((length for length in found if length is not None), default=None)


def trunks(c: config.Transformer) -> list[config.Trunk | config.Recurrent]:
    """The trunk, and the encoder's if there is one."""
    return [c.trunk] if c.encoder is None else [c.trunk, c.encoder.trunk]


def reading(c: config.Transformer) -> list[config.Trunk | config.Recurrent]:
    """Those that read a text: an encoder may see something else, which has its own length."""
    own = None if c.encoder is None else c.encoder.embed
    return trunks(c) if own is None or isinstance(own, config.Embed) else [c.trunk]


def known(position: config.Position) -> int | None:
    length = getattr(position, "length", None)
    return length if isinstance(length, int) else None


def unit(c: Config) -> str:
    """What the arithmetic is counted by: a token of text, a whole image, or a pair for towers."""
    if isinstance(c, config.Towers):
        return "pair"
    return "image" if isinstance(c.embed, config.Patches | config.Stages | config.Convolutions) else "token"


def checked(c: Config, context: int | None) -> int:
    """The length asked for, if the model can read it; its longest where none is."""
    most = longest(c)
    if context is None:
        return most
    if isinstance(c, config.Transformer) and isinstance(c.embed, SIZED) and context != most:
        raise config.ConfigError(f"context: {context}, but an image is always {most} tokens here; leave it out")
    known = limit(c)
    if known is not None and context > known:
        raise config.ConfigError(f"context: {context} is more than the {known} places that the positions know; "
                                 "choose fewer, or set a longer trunk.position.length")  # fmt: skip
    return context
