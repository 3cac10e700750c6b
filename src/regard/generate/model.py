"""The core's Transformer with the verbs that need other rooms: load, build, generate, stream, save."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.heads
import regard.inputs  # noqa: F401
from regard import config
from regard.core import model as core
from regard.generate.limits import Limits
from regard.generate.session import Session
from regard.generate.speech import Completion, Speech
from regard.heads import Towers

if TYPE_CHECKING:  # files and tokenizers are loaded with the first model that needs them
    from regard.text import Tokenizer


class Transformer(core.Transformer):
    """A model that can be asked: with its tokenizer, if it has one, and the length it was trained on."""

    def __init__(self, c: config.Transformer) -> None:
        super().__init__(c)
        self.tokenizer: Tokenizer | None = None
        self.context: int | None = None

    @overload
    def generate(self, prompt: str, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Tensor, **settings: Any) -> Tensor: ...

    def generate(self, prompt: str | list[str] | Tensor, **settings: Any) -> str | list[str] | Tensor:
        """What comes after the prompt. Strings in, strings out; ids in, ids out: (N,) or (B, N) to (new,) or (B, new).

        The settings are those of `config.Sampling`: new, temperature, top_k, top_p, min_p, repetition, stop, seed.
        An encoder-decoder also takes `source` ids (B, S) and `source_real`. Rows of ids that end early are filled up
        with the token that ended them.
        """
        if isinstance(prompt, Tensor):
            return self.continued(prompt, settings)
        told = self.complete(prompt, **settings)
        return [one.text for one in told] if isinstance(told, list) else told.text

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The same text piece by piece, as it becomes certain: no half characters, nothing of a stop string."""
        speech = self.speech([prompt], settings)
        return (text for _, text in speech)

    @overload
    def complete(self, prompt: str, **settings: Any) -> Completion: ...
    @overload
    def complete(self, prompt: list[str], **settings: Any) -> list[Completion]: ...

    def complete(self, prompt: str | list[str], **settings: Any) -> Completion | list[Completion]:
        """The text with what is to be known about it: its tokens, why it ended, the seed, the time it took."""
        speech = self.speech([prompt] if isinstance(prompt, str) else prompt, settings)
        for _ in speech:
            pass
        return speech.completions[0] if isinstance(prompt, str) else speech.completions

    def save(self, path: str | Path) -> None:
        """Weights, config and tokenizer as a folder, in the form of `transformers` where the family has one."""
        from regard.hub import folder

        folder.write(Path(path), self, tokenizer=self.tokenizer, context=self.context)

    # ---------------------------------------------------------------- from prompts to sessions

    def speech(self, prompts: list[str], settings: dict[str, Any]) -> Speech:
        if self.tokenizer is None:
            raise config.DataError("prompt: this model has no tokenizer; set model.tokenizer, or give a tensor of ids")
        try:
            texts = [self.begun(self.tokenizer.encode(prompt)) for prompt in prompts]
        except config.DataError as problem:
            where = "" if str(problem).startswith("prompt") else "prompt: "
            raise config.DataError(f"{where}{problem}") from None
        return Speech(self.session(texts, **settings), self.tokenizer, prompts)

    def continued(self, prompt: Tensor, settings: dict[str, Any]) -> Tensor:
        rows = torch.atleast_2d(prompt)
        if rows.dim() != 2 or not len(rows) or prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise config.DataError(f"prompt: expected ids (N,) or (B, N), got {prompt.dtype} {tuple(prompt.shape)}")
        session = self.session([self.begun(row) for row in rows.tolist()], **settings)
        if session.c.stop:
            raise config.ConfigError("stop: strings stop texts; give the prompt as text, or let an end token stop it")
        new: list[list[int]] = [[] for _ in rows]
        for ids in session:
            for row, id in zip(new, ids, strict=True):
                row.append(row[-1] if id is None else id)
        made = torch.tensor(new, dtype=torch.long, device=prompt.device)
        return made[0] if prompt.dim() == 1 else made

    def session(self, texts: list[list[int]], **settings: Any) -> Session:
        """A session in ids: for those who want to see or to change every step."""
        sources = {name: settings.pop(name) for name in ("source", "source_real") if name in settings}
        return Session(self, texts, sampling(settings), self.limits, **sources)

    @property
    def limits(self) -> Limits:
        ends = frozenset(id for id in (self.role("end"), self.c.embed.end) if id is not None)
        known = None if self.tokenizer is None else len(self.tokenizer)
        return Limits(context=self.context, known=known, ends=ends)

    def begun(self, ids: list[int]) -> list[int]:
        """Nothing at all begins as texts do: after the start token, or after the end of another text."""
        first = next((id for id in (self.role("start"), self.role("end")) if id is not None), None)
        if not ids and first is None:
            raise config.DataError("prompt: it is empty, and the tokenizer has no start or end token to begin from; "
                                   "give it something to continue, if only a line break")  # fmt: skip
        return ids if ids or first is None else [first]

    def role(self, name: str) -> int | None:
        return None if self.tokenizer is None else self.tokenizer.roles.get(name)


def sampling(settings: dict[str, Any]) -> config.Sampling:
    """Settings by name; one stop string may stand for a list of one."""
    stop = settings.get("stop", ())
    return config.make(config.Sampling, settings | {"stop": (stop,) if isinstance(stop, str) else stop})


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


def load(path: str | Path, device: str = "auto") -> Transformer:
    """The model in a run, a checkpoint or a Hugging Face folder, with its tokenizer, ready to be asked."""
    from regard.hub import folder
    from regard.text import Tokenizer

    where, found = place(device), folder.read(Path(path))
    model = build(found.config)
    folder.fill(model, found)
    model.context = found.context
    model.tokenizer = None if found.tokenizer_path is None else Tokenizer.load(found.tokenizer_path)
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
