"""The core's Transformer with the verbs that need other rooms: generate, stream, translate, save, and many more."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from torch import Tensor

import regard.efficient  # kernels, front ends and heads enter themselves in the core's tables
import regard.heads
import regard.inputs
import regard.native.steps
import regard.recurrent  # noqa: F401
from regard import config, lora
from regard.core import model as core
from regard.generate.asked import is_search, one_text, sampling, searching, start_once
from regard.generate.beam import Found, search
from regard.generate.choosing import Rule
from regard.generate.hf_inputs import CalledLikeHF
from regard.generate.layout import Packable
from regard.generate.limits import Limits, barred
from regard.generate.manner import PLAIN, Manner
from regard.generate.session import Session
from regard.generate.speculate import AHEAD, Speculation, ahead
from regard.generate.speech import Completion, Speech, ranked
from regard.generate.spelling import Spelt
from regard.generate.towers import Towers
from regard.inputs.resolution import extend

if TYPE_CHECKING:  # files and tokenizers are loaded with the first model that needs them
    from regard.generate.align import Alignment
    from regard.generate.explain import Drawn, Searched
    from regard.generate.fill import Guess
    from regard.generate.likelihood import Likelihood
    from regard.generate.spans import Span
    from regard.generate.tags import Tagged
    from regard.hub.folder import Folder
    from regard.text import Tokenizer


class Transformer(Spelt, CalledLikeHF, Packable, core.Transformer):
    """A model that can be asked: with its tokenizer, if it has one, and the length it was trained on.

    An encoder-decoder may say its target in other tokens than it reads, those of `target_tokenizer`; a target begins
    with the id `begin`, or as training lays it out if that is None.
    """

    def __init__(self, c: config.Transformer) -> None:
        super().__init__(c)
        self.target_tokenizer: Tokenizer | None = None
        self.begin: int | None = None
        self.context: int | None = None
        self.task: config.Task | None = None  # what it was trained to be asked
        self.origin: Folder | None = None  # where it was read
        self.manner: Manner = PLAIN  # how it wants to speak, unless it is asked otherwise

    def extend(self, *lengths: int) -> None:
        """Stretch learned positions to other lengths, in the tables and in the config."""
        extend(self, *lengths)

    @overload
    def generate(self, prompt: str, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Tensor, **settings: Any) -> Tensor: ...

    def generate(self, prompt: str | list[str] | Tensor, **settings: Any) -> str | list[str] | Tensor:
        """What comes after the prompt. Strings in, strings out; ids in, ids out: (N,) or (B, N) to (new,) or (B, new).

        The settings are those of `config.Sampling`: new, temperature, top_k, stop, seed, ...; a `bias` is {id or text:
        number}. With `beams` the likeliest text is searched for, and they are those of `config.Search`: new, beams,
        best, length_penalty, ... An encoder-decoder also takes `source` ids (B, S) and `source_real`.
        With a `draft` model, or with `lookup` in the text so far, `guess` tokens are guessed ahead: the same, sooner.
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

    def embeddings(self, things: Sequence[Any], *, raw: bool = False) -> Tensor:  # (B, D)
        """One vector for each text, or for each picture where the model sees; in length 1 unless the folder says
        otherwise or they are wanted `raw`."""
        from regard.generate.embed import embeddings

        return embeddings(self, things, raw=raw)

    def fill(self, text: str, best: int = 5) -> "list[list[Guess]]":
        """The likeliest words for each [MASK] in a text, with their probabilities."""
        from regard.generate.fill import fill

        found: list[list[Guess]] = fill(self, [text], best)[0]
        return found

    def answer(self, question: str, context: str) -> "Span":
        """The part of the context that answers a question; empty where there is none."""
        from regard.generate.spans import answers

        found: Span = answers(self, [(question, context)])[0]
        return found

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Any]:
        """For each text, or pair, the probability of every class by name, the likeliest first; or a number."""
        from regard.generate.classes import judgements

        return judgements(self, texts, pairs)

    def likelihoods(self, texts: Sequence[str]) -> "list[Likelihood]":
        """How likely each text is: the log-probability of every token after those before it, their sum, perplexity."""
        from regard.generate.likelihood import likelihoods

        return likelihoods(self, texts)

    def choose_label(self, prompt: str, labels: Sequence[str], **settings: Any) -> dict[str, float]:
        """The probability of each label to come next among them, the likeliest first; compared `per` label, token or
        character, and weighed against a `neutral` prompt if there is one."""
        from regard.generate.likelihood import labelled

        return labelled(self, [prompt], labels, **settings)[0]

    def tag(self, text: str) -> "list[Tagged]":
        """Every word of a text with its label."""
        from regard.generate.tags import tags

        found: list[Tagged] = tags(self, [text])[0]
        return found

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
        """Weights, config and tokenizer as a folder, in the form of `transformers` where the family has one.

        Adapters that the model wears are merged there, and stay what they are here.
        """
        from regard.generate.quick import refuse_held
        from regard.hub import folder

        refuse_held(self, "saved")
        with lora.merged(self):
            folder.write(Path(path), self, self.tokenizer, self.context, target=self.target_tokenizer, begin=self.begin,
                         task=self.task, origin=self.origin)  # fmt: skip

    def adapt(self, adapter: str | Path | config.LoRA) -> Self:
        """Put low-rank adapters on: those in a folder (`peft`'s, or a run's), or fresh ones. They alone learn then."""
        from regard.hub import adapting

        if isinstance(adapter, config.LoRA):
            lora.adapt(self, adapter)
        else:
            adapting.wear(self, adapting.read(adapter))
        return self

    def merge(self) -> Self:
        """Make the adapters part of the weights: the same answers, and an ordinary model."""
        lora.merge(self)
        return self

    def save_adapter(self, path: str | Path) -> None:
        """The adapters alone, and what learned whole beside them, as a folder that `peft` reads."""
        from regard.hub import adapters

        adapters.write(path, adapters.gathered(self, None if self.origin is None else str(self.origin.path)))

    def explain_generation(self, prompt: str, **settings: Any) -> "Drawn | Searched":
        """The text that `generate` makes of the same settings, with how it came about: the candidates of each step and
        what the filters did to them, or with `beams` the tree of all beginnings."""
        from regard.generate.explain import explain

        return explain(self, prompt, **settings)

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
            before = tokenizer.before if self.task is None else []  # who was trained here was told no start
            return tokenizer, [self.begun(start_once(before, tokenizer.encode(prompt))) for prompt in prompts]
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
            new = self.listened(self.session(texts, **{"stop": ()} | settings))
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
        c = searching(self.usual(texts, self.manner.found, settings.get("new")) | settings, self.speaks)
        return search(self, texts, c, self.limits, **sources)

    def session(self, texts: list[list[int]], **settings: Any) -> Session:
        """A session in ids: for those who want to see or to change every step."""
        given = {name: settings.pop(name) for name in ("source", "source_real", *AHEAD) if name in settings}
        c = sampling(self.usual(texts) | settings, self.speaks)
        kind = Speculation if ahead(given) else Session
        return kind(self, texts, c, self.limits, **given, rules=self.rules(c, len(texts)))

    def resume(self, path: str | Path) -> Session:
        """A session that was saved, to go on with the same ids."""
        from regard.generate.keeping import load

        return load(self, path)

    def rules(self, c: config.Sampling, rows: int) -> list[Rule | None]:
        """What each row may say, where the settings ask for a form."""
        if c.regex is None and c.schema is None:
            return []
        from regard.generate.rules import rule_of

        if self.speaks is None:
            raise config.ConfigError("regex: this model has no tokenizer to say what its tokens spell; set "
                                     "model.tokenizer")  # fmt: skip
        never = barred(self, self.limits)
        ends = frozenset(id for id in self.limits.ends if id < len(never) and not never[id])
        rule = rule_of(c, self.speaks, len(never), ends)
        return [None if rule is None else rule.copy() for _ in range(rows)]

    def usual(
        self, texts: list[list[int]], told: dict[str, Any] | None = None, new: int | None = None
    ) -> dict[str, Any]:  # fmt: skip
        """How the next token is chosen, or a text searched for, unless said: as the folder has it.

        Who asks for fewer `new` tokens than the folder's shortest text gets a short one.
        """
        self.manner.warn()
        longest = max(map(len, texts), default=0)
        most, least = new or self.manner.new(longest), self.manner.shortest(longest)
        least = least if most is None else min(least, most - 1)
        told = self.manner.drawn if told is None else told
        return {**told, **({} if most is None else {"new": most}), **({"shortest": least} if least else {})}

    @property
    def limits(self) -> Limits:
        ends = frozenset(id for id in (self.role("end"), self.c.embed.end) if id is not None) | self.manner.ends
        known, manner = None if self.speaks is None else len(self.speaks), self.manner
        return Limits(context=self.context, known=known, ends=ends, never=manner.never, begin=manner.unfit,
                      first=manner.first, last=manner.last)  # fmt: skip

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
