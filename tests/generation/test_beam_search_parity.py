"""With the same weights, the texts and scores of `transformers`' own beam search: models in fp64, so few ties."""

import pytest
import torch
from generation.builders import both
from parity import families
from parity.families import B, N, S, V, ids, keep
from torch import nn
from transformers import GenerationConfig

from regard.config.generation import BeamSearchParams
from regard.generation.beam_search import BeamHypothesis, beam_search
from regard.generation.limits import GenerationLimits
from regard.inference.model import Model

NEW, START, WITHIN = 13, 5, 1e-5
LAST = {
    "gpt2": ("transformer.ln_f.weight", "trunk.final_norm.weight"),
    "t5": ("decoder.final_layer_norm.weight", "trunk.final_norm.weight"),
    "marian": ("model.decoder.layers.1.final_layer_norm.weight", "trunk.blocks.1.mlp_norm.weight"),
}
EVERY = pytest.mark.parametrize("name", LAST)


@pytest.fixture(autouse=True)
def far(monkeypatch):
    monkeypatch.setattr(families, "LENGTH", N + NEW)  # places for all of it


def turned(name: str) -> tuple[nn.Module, Model]:
    return both(name, LAST[name], -2.0)


def question(name: str) -> tuple[dict, list[list[int]], dict]:
    """Two texts of different lengths, padded: in their words, then our prompts and sources."""
    words, real = ids(N), keep(N, "left")
    if name == "gpt2":
        texts = [row[there].tolist() for row, there in zip(words, real, strict=True)]
        return dict(inputs=words, attention_mask=real.long()), texts, {}
    source, there = ids(S), keep(S, "right")
    prompt = torch.tensor([[START, 9, 11]] * B)
    theirs = dict(inputs=source, attention_mask=there.long(), decoder_input_ids=prompt)
    return theirs, prompt.tolist(), dict(source=source, source_real=there)


class Asked:
    """One question to both models: `compare` holds every text and every score of ours to theirs."""

    def __init__(self, name: str, padded: bool = True) -> None:
        self.theirs, self.ours = turned(name)
        self.asked, self.texts, self.sources = question(name)
        if not padded and name == "gpt2":  # their processors take padding for words that were said
            self.texts, self.asked = self.asked["inputs"].tolist(), dict(inputs=self.asked["inputs"])

    def found(self, c: BeamSearchParams, ends: tuple[int, ...], known: int | None) -> list[list[BeamHypothesis]]:
        return beam_search(
            self.ours, self.texts, c, GenerationLimits(ends=frozenset(ends), known=known), **self.sources
        )

    def ends(self, place: int = 3) -> tuple[int, ...]:
        """Tokens that do come, and not at once: those at one place of the likeliest texts."""
        free = self.found(BeamSearchParams(max_new_tokens=NEW, num_beams=4, num_return_sequences=4), (), None)
        return tuple(sorted({one.ids[place] for row in free for one in row}))

    def compare(
        self, c: BeamSearchParams, ends: tuple[int, ...] = (), known: int | None = None
    ) -> list[list[BeamHypothesis]]:
        self.theirs.generation_config = GenerationConfig(
            max_new_tokens=c.max_new_tokens, min_new_tokens=c.min_new_tokens or None, num_beams=c.num_beams,
            num_return_sequences=c.num_return_sequences, length_penalty=c.length_penalty,
            early_stopping=c.early_stopping, eos_token_id=list(ends) or None,
            suppress_tokens=None if known is None else list(range(known, V)), pad_token_id=0,
            decoder_start_token_id=START, do_sample=False, return_dict_in_generate=True, output_scores=True,
            repetition_penalty=c.repetition_penalty, no_repeat_ngram_size=c.no_repeat_ngram_size or 0,
            sequence_bias=[[[each.token_id], each.bias] for each in c.logit_bias] or None,
        )  # fmt: skip
        said, found = self.theirs.generate(**self.asked), self.found(c, ends, known)
        lengths = (said.beam_indices >= 0).sum(1).tolist()
        prompt, flat = said.sequences.shape[1] - max(lengths), [one for row in found for one in row]
        rows = [row[prompt : prompt + length] for row, length in zip(said.sequences.tolist(), lengths, strict=True)]

        assert [list(one.ids) for one in flat] == rows
        scores = torch.tensor([one.score for one in flat])
        torch.testing.assert_close(scores, said.sequences_scores, atol=WITHIN, rtol=0, check_dtype=False)
        return found


def lengths(found: list[list[BeamHypothesis]]) -> list[int]:
    return [len(one.ids) for row in found for one in row]


@pytest.mark.spec("S108")
@EVERY
@pytest.mark.parametrize("beams", [2, 3, 7])
def test_the_best_text_is_theirs_whatever_the_number_of_beams(name, beams):
    one = Asked(name)
    one.compare(BeamSearchParams(max_new_tokens=NEW, num_beams=beams), one.ends()[:1])


@pytest.mark.spec("S108")
@EVERY
@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 2.0])
def test_every_penalty_and_every_way_to_stop_gives_their_four_best(name, penalty, early):
    one = Asked(name)
    found = one.compare(
        BeamSearchParams(
            max_new_tokens=NEW, num_beams=4, num_return_sequences=4, length_penalty=penalty, early_stopping=early
        ),
        one.ends(),
    )

    assert (min(lengths(found)) < NEW) == (penalty < 2 or early != "never")  # who never stops finds the longest


@EVERY
def test_texts_without_an_end_are_theirs(name):
    found = Asked(name).compare(BeamSearchParams(max_new_tokens=NEW, num_beams=3, num_return_sequences=3))

    assert set(lengths(found)) == {NEW}


@pytest.mark.spec("S110")
@EVERY
def test_an_end_that_must_wait_comes_as_late_as_theirs(name):
    one, c = Asked(name), dict(max_new_tokens=NEW, num_beams=3, num_return_sequences=3, length_penalty=0.0)
    soon, late = (
        one.compare(BeamSearchParams(**c), one.ends()),
        one.compare(BeamSearchParams(**c, min_new_tokens=7), one.ends()),
    )

    assert min(lengths(soon)) <= 7 < min(lengths(late))


@EVERY
def test_tokens_that_are_never_said_leave_the_scores_of_the_others_as_they_are(name):
    one = Asked(name)
    found = one.compare(BeamSearchParams(max_new_tokens=NEW, num_beams=3, num_return_sequences=3), one.ends(), known=29)

    assert max(max(each.ids) for row in found for each in row) < 29


PRICES = {  # and what is the same without
    "no run of two twice": (dict(no_repeat_ngram_size=2, repetition_penalty=0.5), dict(repetition_penalty=0.5)),
    "no token twice": (dict(no_repeat_ngram_size=1), {}),
    "repetition": (dict(repetition_penalty=1.6), {}),
    "encouraged": (dict(repetition_penalty=0.7), {}),
    "bias": (dict(logit_bias={3: 3.0, 11: -4.0, 20: 1.5}), {}),
    "all of them": (dict(no_repeat_ngram_size=3, repetition_penalty=1.2, logit_bias={3: 3.0, 11: -4.0}), {}),
}


@pytest.mark.spec("S108")
@EVERY
@pytest.mark.parametrize("price, free", PRICES.values(), ids=PRICES)
def test_prices_and_bans_within_the_search_are_theirs(name, price, free):
    one, c = Asked(name, padded=False), dict(max_new_tokens=NEW, num_beams=4, num_return_sequences=4, min_new_tokens=8)
    found = one.compare(BeamSearchParams(**c, **price), one.ends()[:1])

    assert found != one.found(BeamSearchParams(**c, **free), one.ends()[:1], None)  # it makes a difference
