"""Published families: what `transformers` saved opens here with equal answers, gradients and text, and goes back."""

import json

import pytest
import torch
import transformers as hf
from hub import decoder_cases, encoder_cases, encoder_decoder_cases, image_cases
from hub.published import answers, begun, pair, question, quiet, sides, slopes, stored
from parity.tolerance import GRADIENT, OUTPUT

import regard
from regard import config
from regard.lens.ablation import ablate

CASES = {**encoder_cases.CASES, **decoder_cases.CASES, **encoder_decoder_cases.CASES, **image_cases.CASES}
EVERY = pytest.mark.parametrize("name", CASES)


def off(ours, theirs) -> float:
    """The largest difference of two lists of tensors."""
    assert [x.shape for x in ours] == [x.shape for x in theirs]
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@EVERY
def test_answers_are_equal_with_and_without_padding(name, tmp_path):
    of = pair(CASES[name], tmp_path / "theirs")
    for padding in ("none", *sides(of)):
        theirs, ours = answers(of, question(of, padding))

        assert min(x.std() for x in theirs) > 1e-3
        assert off(ours, theirs) <= OUTPUT, padding
        assert all(a.argmax(-1).equal(b.argmax(-1)) for a, b in zip(ours, theirs, strict=True))


@EVERY
def test_gradients_of_every_weight_are_equal(name, tmp_path):
    of = pair(CASES[name], tmp_path / "theirs", torch.float64)
    for padding in ("none", "right") if sides(of) else ("none",):
        of.theirs.zero_grad()
        of.ours.zero_grad()
        theirs, ours = answers(of, question(of, padding, torch.float64))
        weigh = [torch.randn_like(x) for x in theirs]
        for told in (theirs, ours):
            sum((x * w).sum() for x, w in zip(told, weigh, strict=True)).backward()
        want, got = slopes(of, tmp_path / "slopes")

        assert len(want) > 5 and want.keys() <= got.keys()
        for each, slope in want.items():
            assert (got[each] - slope).abs().max() <= GRADIENT * max(1.0, slope.abs().max().item()), each


@EVERY
def test_saved_again_every_tensor_is_the_same_to_the_byte_and_the_config_says_the_same(name, tmp_path):
    of = pair(CASES[name], tmp_path / "theirs")
    want = stored(of.theirs, tmp_path / "again")
    of.ours.save(tmp_path / "ours")
    got = regard.hub.weights.load_tensors_lazy(tmp_path / "ours" / "model.safetensors")
    said = json.loads((tmp_path / "ours" / "config.json").read_text())

    assert got.keys() == want.keys()
    assert all(torch.equal(*(x[each].flatten().view(torch.uint8) for x in (got, want))) for each in want)
    said.pop("regard")
    assert said == json.loads((tmp_path / "theirs" / "config.json").read_text())


@EVERY
def test_in_our_own_words_transformers_opens_it_with_equal_answers(name, tmp_path):
    """Without the folder that it came from, config.json is made from our config alone; its class may be a twin."""
    of = pair(CASES[name], tmp_path / "theirs")
    asked = question(of)
    want, _ = answers(of, asked)
    of.ours.source_folder = None
    of.ours.task = (
        config.QuestionAnswering() if of.architecture.endswith("ForQuestionAnswering") else None
    )  # tags have its head
    of.ours.save(tmp_path / "ours")
    with quiet():
        more = {} if pooled(of.theirs) else {"add_pooling_layer": False}
        again, report = class_in(tmp_path / "ours").from_pretrained(tmp_path / "ours", output_loading_info=True, **more)
    of.theirs = again.eval()
    got, _ = answers(of, asked)

    assert not any(report.values()), report
    assert off(got, want) <= OUTPUT


def pooled(theirs) -> bool:
    """Whether a body has the layer that makes one vector of the whole; who has no such layer at all lacks nothing."""
    return getattr(theirs, "pooler", True) is not None


def class_in(folder):
    return getattr(hf, json.loads((folder / "config.json").read_text())["architectures"][0])


@EVERY
def test_what_is_inside_can_be_looked_at_and_taken_out(name, tmp_path):
    of = pair(CASES[name], tmp_path / "theirs")
    asked = question(of)
    with regard.looking(of.ours, "*.attn.pattern") as seen, torch.no_grad():
        plain = of.ours(*asked.ours, **asked.named)
    last = [where for where in of.ours.addresses() if where.endswith("attn.pattern")][-1]
    with ablate(of.ours, {last.removesuffix(".pattern"): [0]}), torch.no_grad():
        poorer = of.ours(*asked.ours, **asked.named)

    assert torch.allclose(seen[last].sum(-1), torch.ones(()), atol=1e-5)
    assert not torch.equal(*(x[0] if isinstance(x, tuple) else x for x in (plain, poorer)))


# ---------------------------------------------------------------- what comes next


def speaks(name) -> bool:
    return name in decoder_cases.SPEAK | encoder_decoder_cases.SPEAK | image_cases.SPEAK


@pytest.mark.parametrize("name", [name for name in CASES if speaks(name)])
def test_sixty_four_greedy_tokens_are_those_of_transformers(name, tmp_path):
    """In fp64 on both sides: in fp32 a near-tie may fall either way."""
    of = pair(CASES[name], tmp_path / "theirs", torch.float64)
    asked = begun(of, torch.float64)
    first = getattr(of.theirs.config, "decoder_start_token_id", None)
    of.theirs.generation_config = hf.GenerationConfig(  # no end token: all of them are compared
        max_new_tokens=64,
        do_sample=False,
        use_cache=True,
        pad_token_id=of.theirs.config.pad_token_id or 0,
        decoder_start_token_id=first,
    )
    told = {key: x for key, x in asked.theirs.items() if key != "position_ids"}
    with quiet():
        want = hf.GenerationMixin.generate(of.theirs, **told)[:, -64:]  # without what Whisper does around it
    got = greedy(of.ours, asked, 64)

    assert got.tolist() == want.tolist()


@torch.no_grad()
def greedy(model, asked, count):
    """The likeliest ids, one after the other through a cache."""
    ids, named = asked.ours[0], asked.named
    cache = model.cache(len(ids), ids.shape[1] + count)
    new = [model(ids, cache=cache, **named)[:, -1:].argmax(-1)]
    while len(new) < count:
        new.append(model(new[-1], cache=cache)[:, -1:].argmax(-1))
    return torch.cat(new, 1)
