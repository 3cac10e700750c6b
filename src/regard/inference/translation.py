"""Translation of texts: laid out as training lays them out, searched in batches of like length, and spelt.

    The cat sat.  ──►  The cat sat . </s>  ── encoder ──┐
                       <s> ── beam search ── decoder ◄──┘ ──►  Le chat s'est assis . </s>  ──►  Le chat s'est assis.

What a text becomes does not depend on the texts beside it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from regard import config
from regard.config.search import Search
from regard.generate.asked import searching
from regard.generate.beam import search
from regard.generate.limits import reach, window
from regard.generate.speech import Completion, ranked
from regard.tasks.task import build
from regard.tasks.translate import Translate

if TYPE_CHECKING:
    from regard.generate.model import Transformer

BEAMS = 4
TIMES, MORE = 2, 20  # a translation has at most twice the tokens of its source, and twenty: who says more is lost
AT_ONCE = 4096  # tokens of sources, once for each beam, in a batch


class Translator:
    """An encoder-decoder with its tokenizers, and the objective that knows which special tokens stand where."""

    def __init__(self, model: "Transformer") -> None:
        if model.c.encoder is None:
            raise config.ConfigError("this model has no encoder to read a text with; one that goes on from a text "
                                     "is for generate")  # fmt: skip
        if model.tokenizer is None or model.speaks is None:
            raise config.DataError("this model has no tokenizer to read a text with; set model.tokenizer, or put a "
                                   "tokenizer.json beside it")  # fmt: skip
        task = build(config.Translate(), model.tokenizer, target=model.target_tokenizer)
        assert isinstance(task, Translate)
        self.model, self.reads, self.speaks, self.task = model, model.tokenizer, model.speaks, task
        self.vocab = (model.c.encoder.embed or model.c.embed).vocab
        self.longest = reach(model.c.encoder.trunk, model.limits)

    def __call__(
        self, texts: Sequence[str], settings: dict[str, Any], new: int | None = None,
        names: Sequence[str] | None = None, refuse: Callable[[int, config.DataError], object] | None = None,
        cut: Callable[[int], object] | None = None, *, check: Callable[[], None] | None = None,
    ) -> list[Any]:  # fmt: skip
        """The best translation of each text, the others in it: Completions. `names` are what errors call the texts.

        A text that cannot be read raises, or is None where `refuse` is told of it; one that is too long is cut where
        `cut` is told of it. `check` is called at each step of the search, and ends it if it raises.
        """
        c = searching(self.usual(settings, new) | settings | ({} if new is None else {"new": new}), self.speaks)
        names = names or (["text"] if len(texts) == 1 else [f"text {place}" for place in range(1, len(texts) + 1)])
        sources: dict[int, list[int]] = {}
        for place, (text, name) in enumerate(zip(texts, names, strict=True)):
            try:
                sources[place] = self.source(text, name, None if cut is None else partial(cut, place))
            except config.DataError as problem:
                if refuse is None:
                    raise
                refuse(place, problem)
        known, told = list(sources), dict[int, Completion]()
        for some in batches([len(source) for source in sources.values()], c.beams):
            rows = [known[at] for at in some]
            made = self.batch([texts[row] for row in rows], [sources[row] for row in rows], c, new, check)
            told |= zip(rows, made, strict=True)
        return [told.get(row) for row in range(len(texts))]

    def usual(self, settings: dict[str, Any], new: int | None) -> dict[str, Any]:
        """What is searched for unless said: as the folder has it."""
        manner = self.model.manner
        manner.warn()
        usual = {"beams": BEAMS} | manner.found
        if (least := manner.shortest(1)) and "shortest" not in settings:
            usual["shortest"] = least if new is None else min(least, new - 1)
        if settings.get("best", 1) > usual["beams"]:
            usual["beams"] = settings["best"]
        return usual

    def source(self, text: str, name: str = "text", cut: Callable[[], object] | None = None) -> list[int]:
        """A text in ids, with what stands around a source; `cut` is told if not all of it fits."""
        ids = self.ids(text, name)
        whole = [*self.task.opening, *ids, *self.task.closing]
        if cut is not None and self.longest is not None and (over := len(whole) - self.longest) > 0:
            cut()
            whole = [*self.task.opening, *ids[:-over], *self.task.closing]
        if self.longest is not None and len(whole) > self.longest:
            room = self.longest - (len(whole) - len(ids))
            raise config.DataError(f"{name}: {len(ids)} tokens are more than the {room} that this model reads at once; "
                                   "give it in shorter pieces, a sentence at a time")  # fmt: skip
        if (largest := max(whole)) >= self.vocab:
            raise config.DataError(f"{name}: id {largest} is outside the model's vocabulary of {self.vocab}; use the "
                                   "tokenizer of its training")  # fmt: skip
        return whole

    def ids(self, text: str, name: str, target: bool = False) -> list[int]:
        try:
            ids = (self.speaks if target else self.reads).encode(text)
        except config.DataError as problem:
            raise config.DataError(f"{name}: {problem}") from None
        if not ids or not text.strip():
            raise config.DataError(f"{name}: {text!r} is empty; give it some words")
        return ids

    @property
    def begin(self) -> int:
        """The id that a target begins with."""
        known = (self.model.begin, self.model.manner.begin, self.task.target.begin())
        begin = next(id for id in known if id is not None)
        if begin < 0:
            raise config.DataError("target_tokenizer: it has no start, pad or end token for a target to begin with; "
                                   "use the tokenizer of the model's training")  # fmt: skip
        return begin

    def most(self, length: int, c: Search) -> int:
        """Tokens that the translation of a source of this length may have."""
        usual = self.model.manner.new(1) or TIMES * length + MORE
        wanted, room = max(usual, c.shortest + 1), window(self.model, self.model.limits)
        return wanted if room is None else min(wanted, room)

    def batch(
        self, texts: list[str], sources: list[list[int]], c: Search, new: int | None,
        check: Callable[[], None] | None = None,
    ) -> list[Completion]:  # fmt: skip
        began, device = time.perf_counter(), next(self.model.parameters()).device
        longest = max(map(len, sources))
        ids = torch.tensor([source + [0] * (longest - len(source)) for source in sources], device=device)
        real = torch.tensor([[place < len(source) for place in range(longest)] for source in sources], device=device)
        most = [self.most(len(source), c) if new is None else new for source in sources]
        limits = self.model.limits
        found = search(self.model, [[self.begin]] * len(texts), c, limits, new=most, source=ids, source_real=real,
                       look=None if check is None else lambda grown: check())  # fmt: skip
        seconds = time.perf_counter() - began
        return [ranked(text, [self.begin], each, self.speaks, limits.ends, seconds)
                for text, each in zip(texts, found, strict=True)]  # fmt: skip


def batches(lengths: list[int], beams: int, most: int | None = None) -> Iterator[list[int]]:
    """The places of like lengths together, the shortest first, as many as are not too much at once."""
    group, most = list[int](), most or AT_ONCE
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * beams * lengths[place] > most:
            yield group
            group = []
        group.append(place)
    if group:
        yield group
