"""What decoders have in common: the heads they are fine-tuned with, and how far back each layer looks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from regard import config
from regard.core.masks import And, Causal, Window, mask
from regard.hub.families.theirs import Theirs, bare, count

DEEPEST = 4096  # layers; what each of them sees is said one by one


# ---------------------------------------------------------------- heads


def vocabulary(theirs: Theirs, tied: bool) -> config.Head:
    """What comes next; `tied` unless they say something else."""
    return config.Vocabulary(tied=theirs.flag("tie_word_embeddings", tied))


def label(theirs: Theirs) -> config.Head:
    """A class for the whole text, by its last token: the only one that has seen all the others."""
    return config.Pooled(place="last", out=count(theirs), bias=False)


def tags(theirs: Theirs) -> config.Head:
    return config.Each(out=count(theirs))


def span(theirs: Theirs) -> config.Head:
    """How well an answer begins and ends at each token."""
    return config.Each(out=2)


LABEL, TAGS, SPAN = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
OTHERS = {LABEL: label, TAGS: tags, SPAN: span}


def classes(
    name: str, tied: bool, *others: str, speaks: str = "ForCausalLM"
) -> dict[str, Callable[[Theirs], config.Head]]:
    """Their classes of a decoder and the head of each: the one that `speaks`, the body, and these others."""
    heads: dict[str, Callable[[Theirs], config.Head]] = {speaks: partial(vocabulary, tied=tied), "Model": bare}
    return {f"{name}{kind}": head for kind, head in (heads | {each: OTHERS[each] for each in others}).items()}


def words(theirs: Theirs, head: config.Head) -> config.Embed:
    """The front end. Who asks for the last token must know padding, even where nobody says which tokens are real."""
    vocab, pad = theirs.whole("vocab_size"), theirs.get("pad_token_id")
    known = isinstance(head, config.Pooled) and type(pad) is int and 0 <= pad < vocab
    return config.Embed(vocab=vocab, pad=pad if known else None)


def is_tied(c: config.Transformer) -> bool:
    return isinstance(c.head, config.Vocabulary) and c.head.tied


# ---------------------------------------------------------------- windows


def looks(window: int | None) -> str:
    """The mask of a layer that sees `window` tokens, itself among them; all before it where that is None."""
    return "causal" if window is None else f"causal & window({window - 1})"


def windows(trunk: config.Trunk) -> list[int | None]:
    """How many tokens each layer sees; a mask that is no such window is said as none, which is heard as another."""
    seen = [window_of(text) for text in trunk.masks]
    return [seen[layer % len(seen)] for layer in range(trunk.depth)]


def window_of(text: str) -> int | None:
    match mask(text):
        case And(terms=(Causal(), Window(radius=radius))):
            return int(radius) + 1
    return None


def layer_count(theirs: Theirs, key: str) -> int:
    depth = theirs.whole(key)
    if depth > DEEPEST:
        raise theirs.wrong(key, f"whose layers see different things has at most {DEEPEST:,} of them")
    return depth


def expected(theirs: Theirs, key: str, found: Any, known: Sequence[str], depth: int) -> list[str]:
    """A list with one of the known words for each layer."""
    words = found if isinstance(found, list) else []
    if strange := [str(each)[:40] for each in words if each not in known]:
        raise theirs.wrong(key, f"{strange[0]!r} is not known; expected {' or '.join(known)}")
    if len(words) != depth:
        raise theirs.wrong(key, f"expected {' or '.join(known)} for each of {depth} layers")
    return words
