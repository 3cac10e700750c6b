"""The core's Transformer with the verbs that need other rooms: load, build, generate, stream, translate, save."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.heads
import regard.inputs
import regard.recurrent  # noqa: F401
from regard import config
from regard.core import model as core
from regard.generate.asked import is_search, one_text, sampling, searching
from regard.generate.beam import Found, search
from regard.generate.limits import Limits
from regard.generate.session import Session
from regard.generate.speech import Completion, Speech, ranked
from regard.generate.towers import Towers
from regard.inputs.resolution import image_of, resize
from regard.zoo.models import packaged

if TYPE_CHECKING:  # files and tokenizers are loaded with the first model that needs them
    from regard.generate.align import Alignment
    from regard.text import Tokenizer


class Transformer(core.Transformer):
    """A model that can be asked: with its tokenizer, if it has one, and the length it was trained on.

    An encoder-decoder may say its target in other tokens than it reads, those of `target_tokenizer`; a target begins
    with the id `begin`, or as training lays it out if that is None.
    """

    def __init__(self, c: config.Transformer) -> None:
        super().__init__(c)
        self.tokenizer: Tokenizer | None = None
        self.target_tokenizer: Tokenizer | None = None
        self.begin: int | None = None
        self.context: int | None = None
        self.task: config.Task | None = None  # what it was trained to be asked

    def extend(self, *lengths: int) -> None:
        """Stretch learned places to other lengths; those of patches behind a first token are a picture, not a line."""
        embed, learned = self.c.embed, isinstance(self.c.trunk.position, config.Learned)
        if learned and len(lengths) == 1 and isinstance(embed, config.Patches) and embed.cls:
            return resize(self, image_of(embed, lengths[0]))
        return super().extend(*lengths)

    @overload
    def generate(self, prompt: str, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Tensor, **settings: Any) -> Tensor: ...

    def generate(self, prompt: str | list[str] | Tensor, **settings: Any) -> str | list[str] | Tensor:
        """What comes after the prompt. Strings in, strings out; ids in, ids out: (N,) or (B, N) to (new,) or (B, new).

        The settings are those of `config.Sampling`: new, temperature, top_k, top_p, min_p, repetition, stop, seed.
        With `beams` the likeliest text is searched for, and they are those of `config.Search`: new, shortest, beams,
        best, length_penalty, early_stopping. An encoder-decoder also takes `source` ids (B, S) and `source_real`.
        Rows of ids that end early are filled up with the token that ended them.
        """
        one_text(settings, "generate", "complete")
        if isinstance(prompt, Tensor):
            return self.continued(prompt, settings)
        told = self.complete(prompt, **settings)
        return [one.text for one in told] if isinstance(told, list) else told.text

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The same text piece by piece, as it becomes certain: no half characters, nothing of a stop string."""
        if is_search(settings):
            raise config.ConfigError("beams: which text is the best is known only at its end, so there is nothing to "
                                     "stream; use generate or complete")  # fmt: skip
        speech = self.speech([prompt], settings)
        return (text for _, text in speech)

    @overload
    def complete(self, prompt: str, **settings: Any) -> Completion: ...
    @overload
    def complete(self, prompt: list[str], **settings: Any) -> list[Completion]: ...

    def complete(self, prompt: str | list[str], **settings: Any) -> Completion | list[Completion]:
        """The text with what is to be known about it: its tokens, why it ended, the seed, the time it took.

        With `beams` also its score, and with `best` the others that were found.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if is_search(settings):
            told = self.searched(prompts, settings)
        else:
            speech = self.speech(prompts, settings)
            for _ in speech:
                pass
            told = speech.completions
        return told[0] if isinstance(prompt, str) else told

    @overload
    def translate(self, text: str, *, new: int | None = None, **settings: Any) -> str: ...
    @overload
    def translate(self, text: list[str], *, new: int | None = None, **settings: Any) -> list[str]: ...

    def translate(self, text: str | list[str], *, new: int | None = None, **settings: Any) -> str | list[str]:
        """What an encoder-decoder makes of a text, by beam search with the settings of `config.Search`.

        A translation has at most `new` tokens; by itself twice as many as the source, and a few.
        """
        one_text(settings, "translate", "translations")
        told = self.translations([text] if isinstance(text, str) else text, new=new, **settings)
        return told[0].text if isinstance(text, str) else [one.text for one in told]

    def translations(self, texts: list[str], *, new: int | None = None, **settings: Any) -> list[Completion]:
        """The same with what is to be known: tokens, score, why each ended; `best` of them, the others in `others`."""
        from regard.generate.translate import Translator

        return Translator(self)(texts, settings, new)

    def caption(self, pictures: Sequence[Any], **settings: Any) -> list[str]:
        """The text that goes with each picture, by beam search; or drawn, where there is a temperature."""
        from regard.generate.mixtures import caption

        return caption(self, pictures, **settings)

    def paint(self, texts: Sequence[str], **settings: Any) -> Tensor:
        """A picture for each text, bytes (B, C, rows, columns)."""
        from regard.generate.mixtures import paint

        return paint(self, texts, **settings)

    def align(self, source: str, target: str | Sequence[int] | None = None, layer: int | None = None) -> "Alignment":
        """Where the decoder looks in the source while it tells each token of the target.

        The target is a text, or the ids that were told; by itself the model's own translation. `layer` is one of the
        decoder's, by itself the last but one; its heads are averaged.
        """
        from regard.generate.align import align

        return align(self, source, target, layer)

    def save(self, path: str | Path) -> None:
        """Weights, config and tokenizer as a folder, in the form of `transformers` where the family has one."""
        from regard.hub import folder

        folder.write(Path(path), self, self.tokenizer, self.context, target=self.target_tokenizer, begin=self.begin,
                     task=self.task)  # fmt: skip

    # ---------------------------------------------------------------- from prompts to sessions

    def speech(self, prompts: list[str], settings: dict[str, Any]) -> Speech:
        tokenizer, texts = self.encoded(prompts)
        return Speech(self.session(texts, **settings), tokenizer, prompts)

    def searched(self, prompts: list[str], settings: dict[str, Any]) -> list[Completion]:
        began = time.perf_counter()
        tokenizer, texts = self.encoded(prompts)
        found = self.search(texts, **settings)
        seconds, ends = time.perf_counter() - began, self.limits.ends
        rows = zip(prompts, texts, found, strict=True)
        return [ranked(prompt, text, each, tokenizer, ends, seconds) for prompt, text, each in rows]

    def encoded(self, prompts: list[str]) -> tuple["Tokenizer", list[list[int]]]:
        """Prompts in ids, and the tokenizer of what comes after them."""
        if (tokenizer := self.speaks) is None:
            raise config.DataError("prompt: this model has no tokenizer; set model.tokenizer, or give a tensor of ids")
        try:
            return tokenizer, [self.begun(tokenizer.encode(prompt)) for prompt in prompts]
        except config.DataError as problem:
            where = "" if str(problem).startswith("prompt") else "prompt: "
            raise config.DataError(f"{where}{problem}") from None

    def continued(self, prompt: Tensor, settings: dict[str, Any]) -> Tensor:
        rows = torch.atleast_2d(prompt)
        if rows.dim() != 2 or not len(rows) or prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise config.DataError(f"prompt: expected ids (N,) or (B, N), got {prompt.dtype} {tuple(prompt.shape)}")
        texts = [self.begun(row) for row in rows.tolist()]
        if is_search(settings):
            new = [list(found[0].ids) for found in self.search(texts, **settings)]
        else:
            new = self.listened(self.session(texts, **settings))
        longest = max(map(len, new))
        full = [row + row[-1:] * (longest - len(row)) for row in new]
        made = torch.tensor(full, dtype=torch.long, device=prompt.device)
        return made[0] if prompt.dim() == 1 else made

    def listened(self, session: Session) -> list[list[int]]:
        """All that a session says, in ids."""
        if session.c.stop:
            raise config.ConfigError("stop: strings stop texts; give the prompt as text, or let an end token stop it")
        new: list[list[int]] = [[] for _ in session.texts]
        for ids in session:
            for row, id in zip(new, ids, strict=True):
                row += [] if id is None else [id]
        return new

    def search(self, texts: list[list[int]], **settings: Any) -> list[list[Found]]:
        """The best continuations of each text in ids, by beam search, with their scores."""
        sources = {name: settings.pop(name) for name in ("source", "source_real") if name in settings}
        texts = [[id for id in text if id != self.c.embed.pad] for text in texts]
        return search(self, texts, searching(settings), self.limits, **sources)

    def session(self, texts: list[list[int]], **settings: Any) -> Session:
        """A session in ids: for those who want to see or to change every step."""
        sources = {name: settings.pop(name) for name in ("source", "source_real") if name in settings}
        return Session(self, texts, sampling(settings), self.limits, **sources)

    @property
    def limits(self) -> Limits:
        ends = frozenset(id for id in (self.role("end"), self.c.embed.end) if id is not None)
        known = None if self.speaks is None else len(self.speaks)
        return Limits(context=self.context, known=known, ends=ends)

    def begun(self, ids: list[int]) -> list[int]:
        """Nothing at all begins as texts do: after the start token, or after the end of another text."""
        first = next((id for id in (self.role("start"), self.role("end")) if id is not None), None)
        if not ids and first is None:
            raise config.DataError("prompt: it is empty, and the tokenizer has no start or end token to begin from; "
                                   "give it something to continue, if only a line break")  # fmt: skip
        return ids if ids or first is None else [first]

    def role(self, name: str) -> int | None:
        return None if self.speaks is None else self.speaks.roles.get(name)

    @property
    def speaks(self) -> "Tokenizer | None":
        """The tokenizer of what the model says."""
        return self.tokenizer if self.target_tokenizer is None else self.target_tokenizer


@overload
def build(c: config.Transformer) -> Transformer: ...
@overload
def build(c: config.Towers) -> Towers: ...


def build(c: config.Transformer | config.Towers) -> Transformer | Towers:
    """A fresh model."""
    if isinstance(c, config.Towers):
        return Towers(c)
    if not isinstance(c, config.Transformer):
        raise TypeError(f"build takes a config, got {c!r}; regard.preset('gpt2') is one")
    return Transformer(c)


def load(path: str | Path, device: str = "auto") -> Any:
    """The model in a run, a checkpoint or a Hugging Face folder, with its tokenizer, ready to be asked.

    Models that come with the package have names: "en-fr" translates.
    """
    from regard.hub import folder
    from regard.text import Tokenizer

    where, found = place(device), folder.read(packaged(path) or Path(path))
    model = build(found.config)
    folder.fill(model, found)
    model.context, model.begin, model.task = found.context, found.begin, found.task
    model.tokenizer = None if found.tokenizer_path is None else Tokenizer.load(found.tokenizer_path)
    model.target_tokenizer = None if found.target_path is None else Tokenizer.load(found.target_path)
    return model.to(where).eval()


def place(device: str) -> torch.device:
    """The device that a name means; "auto" is the fastest there is."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = next(name for name, is_there in there.items() if is_there)
    kind = device.partition(":")[0]
    if kind not in there:
        raise config.ConfigError(f"device: no {device!r}; there are auto, {', '.join(there)}")
    if not there[kind]:
        raise config.ConfigError(f"device: {device!r} is not available here; choose auto or cpu")
    return torch.device(device)
