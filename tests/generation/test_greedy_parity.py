"""With the same weights, the ids of `transformers`' own generate: in fp64, since in fp32 near-ties fall either way."""

import pytest
import torch
from generation.builders import both, written
from parity import families
from parity.families import N, S, ids, keep
from torch import Tensor, nn
from transformers import GenerationConfig

from regard.inference.model import Model

NEW = 64
LAST = {"gpt2": "transformer.ln_f.weight", "llama": "model.norm.weight", "t5": "decoder.final_layer_norm.weight"}
WRITING = pytest.mark.parametrize("name", ["gpt2", "llama"])


@pytest.fixture(autouse=True)
def far(monkeypatch):
    monkeypatch.setattr(families, "LENGTH", N + NEW)  # places for all of it


def turned(name: str) -> tuple[nn.Module, Model]:
    return both(name, (LAST[name], "trunk.final_norm.weight"), -1.0)


def generated(theirs: nn.Module, prompt: Tensor, **how) -> list[list[int]]:
    settings = dict(max_new_tokens=NEW, do_sample=False, pad_token_id=0, decoder_start_token_id=5)
    tensors = {name: value for name, value in how.items() if isinstance(value, Tensor)}
    theirs.generation_config = GenerationConfig(**settings | {name: how[name] for name in how.keys() - tensors.keys()})
    return theirs.generate(prompt, **tensors)[:, -NEW:].tolist()


@pytest.mark.spec("S104")
@WRITING
def test_sixty_four_greedy_ids_are_equal_with_padding_on_the_left(name):
    theirs, ours = turned(name)
    prompt, real = ids(N), keep(N, "left")
    texts = [row[there].tolist() for row, there in zip(prompt, real, strict=True)]
    said = written(ours, texts, max_new_tokens=NEW)

    assert said == generated(theirs, prompt, attention_mask=real.long())
    assert all(len(set(row)) > 5 for row in said)


@WRITING
def test_sixty_four_ids_with_a_price_on_repetition_are_equal(name):
    theirs, ours = turned(name)
    prompt = ids(N)
    said = ours.generate(prompt, max_new_tokens=NEW, temperature=0, repetition_penalty=1.3)

    assert said.tolist() == generated(theirs, prompt, repetition_penalty=1.3)


CHANGED = {
    "no run twice": (dict(no_repeat_ngram_size=3), dict(no_repeat_ngram_size=3)),
    "bias": (dict(logit_bias={3: 2.0, 7: -3.0}), dict(sequence_bias=[[[3], 2.0], [[7], -3.0]])),
    "together": (dict(no_repeat_ngram_size=2, repetition_penalty=1.2, logit_bias={3: 2.0}),
                 dict(no_repeat_ngram_size=2, repetition_penalty=1.2, sequence_bias=[[[3], 2.0]])),
}  # fmt: skip


@pytest.mark.spec("S104")
@WRITING
@pytest.mark.parametrize("ours_, theirs_", CHANGED.values(), ids=CHANGED)
def test_sixty_four_greedy_ids_are_equal_whatever_is_forbidden_or_nudged(name, ours_, theirs_):
    theirs, ours = turned(name)
    prompt = ids(N)
    said = ours.generate(prompt, max_new_tokens=NEW, temperature=0, **ours_)

    assert said.tolist() == generated(theirs, prompt, **theirs_)
    assert said.tolist() != ours.generate(prompt, max_new_tokens=NEW, temperature=0).tolist()


@pytest.mark.spec("S110")
@WRITING
def test_the_same_token_ends_the_text(name):
    theirs, ours = turned(name)
    prompt = ids(N)[:1]
    free = ours.generate(prompt, max_new_tokens=NEW, temperature=0)[0].tolist()
    end = next(id for id in free[3:] if id not in free[:3])
    (said,) = written(ours, prompt.tolist(), max_new_tokens=NEW, ends=frozenset({end}))
    theirs.generation_config = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=end)

    assert said == theirs.generate(prompt)[0, N:].tolist()
    assert said[-1] == end and 3 < len(said) < NEW


def test_a_translation_of_sixty_four_ids_is_equal():
    theirs, ours = turned("t5")
    source, real, prompt = ids(S), keep(S, "right"), torch.full((2, 1), 5)
    said = ours.generate(prompt, max_new_tokens=NEW, temperature=0, source=source, source_real=real)

    assert said.tolist() == generated(theirs, source, attention_mask=real.long(), decoder_input_ids=prompt)
