"""Causal tracing: noise where it belongs, restored activations as by hand, means over samples, and refusals."""

import math

import pytest
import torch
from lens.pairs import pair, writer
from lens.planted_circuit import ANSWER, CLEAN, OTHER, planted_model
from torch.testing import assert_close

from regard import lens
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.lens.attention_maps import record_trunk_inputs
from regard.lens.patching.causal_tracing import embedding_noise, subject_positions
from regard.lens.patching.logit_metrics import bind_metric, run_metric
from regard.lens.patching.patched_runs import record_activations
from regard.lens.prompt import read_prompt

METRIC = lens.logit_difference(1, 2)
NOISE = lens.EmbeddingNoise(2.0, samples=3, seed=5)
SINGLE = ["decoder", "windowed decoder", "encoder", "grouped", "shared", "translator", "t5", "layerwise", "relative",
          "shaw", "vit", "stages", "pixels", "captioner"]  # fmt: skip


def single(name, dtype=torch.float64):
    """A model and the first row of its prompt."""
    model, prompt, _ = pair(name, dtype)
    return model, read_prompt(model, prompt.first[:1], **{key: x[:1] for key, x in prompt.given.items()})


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_restored_place_is_what_two_edits_by_hand_restore_sample_by_sample(name, layer):
    model, prompt = single(name)
    trace = lens.causal_trace(model, prompt, subject=[1, 2], metric=METRIC, noise=NOISE, parts=("trunk.mlp",))
    added = embedding_noise(model, prompt, [1, 2], NOISE)
    address, bound = f"trunk.{layer}.mlp.out", bind_metric(model, prompt, METRIC)
    clean = record_activations(model, prompt, address)[address]
    noised, restored = [], []
    for each in added:
        with torch.no_grad(), looking(model, "trunk.embed", edit=lambda _, x, each=each: x + each):
            noised.append(run_metric(model, prompt, bound))
            with looking(model, address, queries=slice(2, 3), edit=lambda _, x: clean[:, 2:3]):
                restored.append(run_metric(model, prompt, bound))
    restored = torch.cat(restored)

    assert trace.corrupted == pytest.approx(float(torch.cat(noised).mean()), abs=1e-12)
    assert_close(trace.grid("mlp").raw[layer, 2], restored.mean(), atol=1e-12, rtol=0)
    assert_close(trace.error("mlp")[layer, 2], restored.std() / math.sqrt(3), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["translator", "t5", "layerwise", "captioner"])
def test_noise_on_the_source_is_restored_on_both_sides(name):
    model, prompt = single(name)
    noise = lens.EmbeddingNoise(2.0, samples=2, trunk="encoder")
    trace = lens.causal_trace(model, prompt, subject=[1], metric=METRIC, noise=noise, parts=("residual",))

    assert trace.clean != trace.corrupted
    assert_close(trace.effect("encoder.residual")[0, 1], torch.tensor(1.0).double(), atol=1e-10, rtol=0)
    assert float(trace.change("residual")[0].abs().max()) < 1e-12  # nothing of the noise is in the decoder's input


def test_only_the_subject_is_noised_by_that_many_deviations_and_a_seed_says_how():
    model, prompt = single("decoder")
    with record_trunk_inputs(model) as notes:
        record_activations(model, prompt, "trunk.final")
    deviation = notes["trunk"].tokens.x.std()
    noise = embedding_noise(model, prompt, [3, 5], lens.EmbeddingNoise(3.0, samples=500))
    spread = noise.std((0, 2))

    assert_close(spread[[3, 5]], (3 * deviation).expand(2), rtol=0.05, atol=0)
    assert float(spread[[0, 1, 2, 4, 6, 7, 8, 9, 10]].abs().max()) == 0
    first, same, other = (embedding_noise(model, prompt, [3], lens.EmbeddingNoise(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_without_noise_there_is_nothing_to_restore():
    model, prompt = single("grouped")
    trace = lens.causal_trace(model, prompt, subject=[4], metric=METRIC, noise=0.0)

    assert all(float(trace.change(part).abs().max()) < 1e-12 for part in ("residual", "attn", "mlp"))
    assert all(float(trace.error(part).abs().max()) < 1e-12 for part in ("residual", "attn", "mlp"))


@pytest.mark.spec("S154")
def test_the_embedding_of_the_subject_restores_everything_and_what_is_before_it_nothing():
    model, prompt = single("decoder")
    trace = lens.causal_trace(model, prompt, subject=[4], metric=METRIC, noise=NOISE)

    assert float(trace.effect("residual")[0, 4]) == pytest.approx(1, abs=1e-12)
    assert float(trace.error("residual")[0, 4]) == pytest.approx(0, abs=1e-12)
    assert all(float(trace.change(part)[:, :4].abs().max()) < 1e-12 for part in ("residual", "attn", "mlp"))


def test_a_window_restores_its_neighbours_too():
    model, prompt = single("shared")  # three layers
    narrow, wide, all_layers = (
        lens.causal_trace(model, prompt, subject=[4], metric=METRIC, noise=NOISE, window=window,
                          parts=("attn", "residual"))
        for window in (1, 3, 9)
    )  # fmt: skip
    clean = record_activations(model, prompt, "trunk.0.attn.out", "trunk.1.attn.out")
    added, bound, by_hand = embedding_noise(model, prompt, [4], NOISE), bind_metric(model, prompt, METRIC), []
    for each in added:
        with (
            torch.no_grad(),
            looking(model, "trunk.embed", edit=lambda _, x, each=each: x + each),
            looking(model, *clean, queries=slice(10, 11), edit=lambda address, x: clean[address][:, 10:11]),
        ):
            by_hand.append(run_metric(model, prompt, bound))

    assert_close(wide.grid("attn").raw[0, 10], torch.cat(by_hand).mean(), atol=1e-12, rtol=0)
    assert_close(wide.grid("residual").raw, narrow.grid("residual").raw, atol=1e-12, rtol=0)
    rows = all_layers.grid("attn").raw
    assert_close(rows[1], rows[0], atol=1e-12, rtol=0)
    assert_close(rows[2], rows[0], atol=1e-12, rtol=0)
    assert_close(wide.grid("attn").raw[1], rows[1], atol=1e-12, rtol=0)


def test_noise_on_the_answer_of_a_planted_circuit_is_restored_where_it_copies():
    trace = lens.causal_trace(planted_model(), CLEAN, subject=[2], metric=lens.logit_difference(ANSWER, OTHER),
                              noise=lens.EmbeddingNoise(5.0, samples=7))  # fmt: skip
    best = trace.effect("residual").argmax(1).tolist()

    assert trace.corrupted < trace.clean
    assert best[0] == 2 and best[-2:] == [4, 4]
    assert float(trace.effect("attn")[1, 4]) == pytest.approx(float(trace.effect("attn").max()))


def test_a_subject_is_found_in_the_text_by_its_tokens():
    model = writer()
    prompt = read_prompt(model, "the cat sat on the log")
    ids = prompt.ids[0].tolist()
    found = subject_positions(model, prompt, "cat sat")

    assert "cat sat" in model.tokenizer.decode([ids[i] for i in found])
    assert "cat sat" not in model.tokenizer.decode([ids[i] for i in found[1:]])
    trace = lens.causal_trace(model, "the cat sat on the log", subject="cat sat", metric=METRIC, noise=NOISE)
    assert trace.subject == tuple(found) and trace.table().columns[-1] == "error"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"subject": "dog"}, "'dog' stands 0 times in"),
        ({"subject": "the"}, "'the' stands 2 times in .*; name a part that stands there once"),
        ({"subject": [99]}, r"positions \[99\] of \d+; give some of 0 to"),
        ({"subject": []}, "subject: positions"),
        ({"noise": -1.0}, "scale -1 and 10 samples"),
        ({"noise": lens.EmbeddingNoise(trunk="encoder")}, "this model has no 'encoder'; it has trunk"),
        ({"window": 0}, "window: 0 layers"),
    ],
)
def test_a_mistake_is_refused_in_a_sentence(settings, words):
    with pytest.raises((ConfigError, DataError), match=words):
        lens.causal_trace(writer(), "the cat sat on the log", **{"subject": "cat", "metric": METRIC} | settings)


def test_a_batch_of_prompts_and_a_text_without_a_tokenizer_are_refused():
    model, clean, _ = pair("decoder")
    with pytest.raises(DataError, match="reads one prompt, got a batch of 3"):
        lens.causal_trace(model, clean, subject=[1], metric=METRIC)
    with pytest.raises(ConfigError, match="cannot be found without a tokenizer"):
        lens.causal_trace(model, clean.first[:1], subject="cat", metric=METRIC)
