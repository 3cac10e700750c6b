"""With a cache the ids are those without one: for any position, mask, kernel, batch, padding, beam and window.

Configurations are drawn at random, models are in fp64. The other side is the same model behind `Rereading`, which keeps
no keys and values: it reads the whole text again for every token, each text alone and without padding.
"""

import random
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from faults.trials import count
from generation.builders import POSITIONS, S, V, lively, trunk
from torch import Tensor

from regard import config as C
from regard.core.cache import KVCache
from regard.generation import session as room
from regard.generation.beam_search import BeamHypothesis, BeamSearch, beam_search
from regard.generation.limits import GenerationLimits, barred_tokens, ring_length
from regard.generation.logits_process import row_generators
from regard.generation.session import DecodeSession
from regard.inference.model import Model

LONG, FEW = 256, (9, 17, 26)
MASKS = ("causal", "causal & window(3)", "causal & window(11)", "causal & (window(2) | global_tokens(2))",
         "causal & (window(2) | strided(4))", "prefix(3)", ("causal", "causal & window(4)"),
         ("causal & window(2)", "causal & window(6)"))  # fmt: skip
UNBIASED = ("none", "sinusoidal", "learned", "onehot", "rotary")
SUMS = ("linear", "performer")


class Texts:
    """In place of keys and values: the ids themselves."""

    def __init__(self, batch: int) -> None:
        self.ids, self.real = torch.zeros(batch, 400, dtype=torch.long), torch.zeros(batch, 400, dtype=torch.bool)

    def tables(self) -> list[Tensor]:
        return [self.ids, self.real]


class Rereading:
    """A model that has no cache: whoever gives it one token more makes it read everything again."""

    hooks = ("somebody",)  # who looks on is given all logits, not the last alone

    def __init__(self, model: Model) -> None:
        self.model, self.given = model, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def cache(self, batch: int, capacity: int) -> KVCache:
        made = KVCache([Texts(batch)], batch, capacity, False, torch.empty(0))
        made.first = self.model.cache(1, 4).first
        return made

    def __call__(self, ids: Tensor, *, cache: KVCache, real: Tensor | None = None, source: Tensor | None = None,
                 source_real: Tensor | None = None) -> Tensor:  # fmt: skip
        [texts], begin, end = cache.entries, cache.used, cache.used + ids.shape[1]
        texts.ids[:, begin:end], texts.real[:, begin:end] = ids, True if real is None else real
        cache.used, cache.fresh = end, False
        self.given = self.given if source is None else {"source": source}
        return self.model(texts.ids[:, :end], real=texts.real[:, :end], **self.given)[:, begin:]


@dataclass(frozen=True)
class Trial:
    """One configuration: a model, prompts, and how they go on."""

    model: C.Transformer
    texts: list[list[int]]
    settings: dict[str, Any]
    limits: GenerationLimits
    piece: int

    @property
    def beams(self) -> bool:
        return "num_beams" in self.settings


def drawn(seed: int) -> Trial:
    dice = random.Random(seed)
    kind, mask = dice.choice(list(POSITIONS)), dice.choice(MASKS)
    kernels = ["auto", "reference", "fused", *(SUMS if mask == "causal" and kind in UNBIASED else ())]
    heads = C.Attention(heads=3, head_dim=4, kv_heads=dice.choice([None, 3, 1]), kernel=dice.choice(kernels))
    shape = dict(position=POSITIONS[kind], mask=mask, attention=heads, depth=dice.choice([1, 2, 3]),
                 norm_placement=dice.choice(["pre", "post"]), share_layers=dice.random() < 0.2,
                 embed_dim=12 if kind == "onehot" else None)  # fmt: skip
    translates = mask != "prefix(3)" and heads.kernel not in SUMS and dice.random() < 0.2
    if translates:
        shape["cross"] = "last"
    encoder = C.Encoder(trunk=trunk(mask="full")) if translates and kind != "onehot" else None
    if encoder is None:
        shape.pop("cross", None)
    model = C.Transformer(
        embed=C.TextEmbedding(vocab=V), trunk=trunk(**shape), encoder=encoder, head=C.LMHead(tied=False)
    )
    new = LONG if seed % 10 == 0 else dice.choice(FEW)
    lengths = [dice.randint(3, 15) for _ in range(dice.choice([1, 2, 3, 4] if new < LONG else [2]))]
    texts = [[dice.randrange(V) for _ in range(length)] for length in lengths]
    ends = frozenset(dice.sample(range(V), dice.choice([0, 0, 1, 2])))
    beams = dice.random() < 0.35
    slides = not beams and mask != "prefix(3)" and dice.random() < 0.25
    settings = searching(dice, new) if beams else choosing(dice, new)
    return Trial(model, texts, settings, GenerationLimits(ends=ends, context=dice.choice([16, 21]) if slides else None),
                 dice.choice([3, 5, 512]))  # fmt: skip


def searching(dice: random.Random, new: int) -> dict[str, Any]:
    beams = dice.choice([1, 2, 3, 5] if new < LONG else [2])
    return dict(max_new_tokens=new, num_beams=beams, num_return_sequences=beams,
                length_penalty=dice.choice([0.0, 0.7, 1.0]),
                early_stopping=dice.choice([True, False, "never"]), repetition_penalty=dice.choice([1.0, 1.0, 1.3]),
                no_repeat_ngram_size=dice.choice([None, None, 2]), min_new_tokens=dice.choice([0, 4]))  # fmt: skip


def choosing(dice: random.Random, new: int) -> dict[str, Any]:
    return dict(max_new_tokens=new, temperature=dice.choice([0.0, 1.0, 1.6]), top_k=dice.choice([None, 7]),
                top_p=dice.choice([None, 0.9]), typical_p=dice.choice([None, 0.8]),
                repetition_penalty=dice.choice([1.0, 1.0, 1.3]), frequency_penalty=dice.choice([0.0, 0.5]),
                no_repeat_ngram_size=dice.choice([None, None, 3]), min_new_tokens=dice.choice([0, 4]),
                seed=dice.randrange(99))  # fmt: skip


def sources(trial: Trial, rows: slice) -> dict[str, Tensor]:
    ids = torch.arange(len(trial.texts) * S).view(-1, S) * 7 % V
    return {} if trial.model.encoder is None else {"source": ids[rows]}


def said(model: Any, trial: Trial, row: int | None = None) -> list[Any]:
    """What all rows say together, or one alone."""
    rows = slice(None) if row is None else slice(row, row + 1)
    texts, given = trial.texts[rows], sources(trial, rows)
    if trial.beams and row is None:
        return beam_search(model, texts, C.BeamSearchParams(**trial.settings), trial.limits, **given)
    if trial.beams:
        return [searched(model.model, trial, texts[0], given)]
    session = DecodeSession(model, texts, C.SamplingParams(**trial.settings), trial.limits, **given)
    session.sampler.generators = row_generators(session.seed, len(trial.texts))[rows]
    every = list(session)
    return [[step[place] for step in every if step[place] is not None] for place in range(len(texts))]


@torch.no_grad()
def searched(model: Model, trial: Trial, text: list[int], given: dict[str, Tensor]) -> list[BeamHypothesis]:
    """A search whose beams are read again from their first token on, at every step."""
    c, prompt = C.BeamSearchParams(**trial.settings), torch.tensor([text])
    beams = BeamSearch(c, torch.tensor([c.max_new_tokens]), barred_tokens(model, trial.limits), trial.limits, [text])
    logits = model(prompt, **given)[:, -1]
    while beams.step(logits):
        whole = torch.cat([prompt.expand(c.num_beams, -1), beams.said[0, :, : beams.made]], 1)
        logits = model(whole, **{name: table.expand(c.num_beams, -1) for name, table in given.items()})[:, -1]
    return beams.hypotheses()[0]


@pytest.mark.slow
@pytest.mark.spec("S112")
@pytest.mark.parametrize("seed", range(count(500, 25)))
def test_ids_with_a_cache_are_those_without_one_whatever_the_model_and_however_it_goes_on(seed, monkeypatch):
    torch.manual_seed(seed)
    trial = drawn(seed)
    one = lively(trial.model)
    monkeypatch.setattr(room, "SMALLEST", 8)  # so that small texts outgrow their cache
    with warnings.catch_warnings(action="ignore"):  # sliding is said
        with monkeypatch.context() as patch:
            patch.setattr(room, "PREFILL_CHUNK", trial.piece)
            together = said(one, trial)
        endless = replace(trial, limits=replace(trial.limits, context=None))  # behind a window nothing slides
        other = endless if ring_length(one, trial.limits) else trial
        alone = [said(Rereading(one), other, row)[0] for row in range(len(trial.texts))]

    assert told(together) == told(alone), trial


def told(rows: list[Any]) -> list[Any]:
    """Ids alone: the last digits of scores may differ."""
    return [[one.ids if isinstance(one, BeamHypothesis) else one for one in row] for row in rows]
