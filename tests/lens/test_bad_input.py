"""What is not there is refused in a sentence by every function that takes it: addresses, layers, tokens, positions."""

import inspect
from functools import cache

import pytest
import torch
from lens.pairs import writer

from regard import lens
from regard.config.errors import ConfigError, DataError

TEXT, OTHER, LONGER = "the cat sat on the mat", "the dog sat on the log", "the cat sat on the mat and the log"
METRIC = lens.logit_difference(4, 5)


@cache
def model():
    """A decoder of one block and two heads with a tokenizer of its own."""
    torch.manual_seed(0)
    return writer().eval()


def run_ablated(heads):
    with lens.ablate(model(), heads):
        model()(model().encode_inputs(TEXT)["ids"])


def run_steered(address):
    with lens.steering(model(), lens.SteeringVector(address, torch.ones(8))):
        model()(model().encode_inputs(TEXT)["ids"])


def probed(**settings):
    return lens.fit_probe(model(), [TEXT, OTHER] * 5, ["a", "b"] * 5, folds=2, **settings)


def probed_everywhere(**settings):
    return lens.fit_probes(model(), [TEXT, OTHER] * 5, ["a", "b"] * 5, folds=2, **settings)


PATCHING = {"patch_activations": lens.patch_activations, "attribute_patches": lens.attribute_patches,
            "patch_paths": lens.patch_paths}  # fmt: skip

# Of each kind of thing: the parameters that take it, what is wrong, and how each function is given it.
ADDRESSES = ("where", "address", "addresses", "earlier", "heads", "vector", "receivers")
AT_ADDRESS = {
    "ablate": lambda bad: run_ablated({bad: [0]}),
    "prune_heads": lambda bad: lens.prune_heads(model(), {bad: [0]}),
    "ov_matrix": lambda bad: lens.ov_matrix(model(), bad, 0),
    "qk_matrix": lambda bad: lens.qk_matrix(model(), bad, 0),
    "copying_score": lambda bad: lens.copying_score(model(), bad, 0),
    "ov_words": lambda bad: lens.ov_words(model(), bad, 0, 5),
    "composition_scores": lambda bad: lens.composition_scores(model(), "trunk.0.attn", bad),
    "decompose_scores": lambda bad: lens.decompose_scores(model(), TEXT, bad),
    "find_top_examples": lambda bad: lens.find_top_examples(model(), [TEXT], where=bad),
    "fit_probe": lambda bad: probed(address=bad),
    "fit_probes": lambda bad: probed_everywhere(addresses=[bad]),
    "steering_vector": lambda bad: lens.steering_vector(model(), [(TEXT, OTHER)], address=bad),
    "steering": run_steered,
    "patch_paths": lambda bad: lens.patch_paths(model(), TEXT, OTHER, metric=METRIC, receivers=[bad]),
}
HEADS = {
    "ablate": lambda head: run_ablated({"trunk.0.attn": [head]}),
    "prune_heads": lambda head: lens.prune_heads(model(), {"trunk.0.attn": [head]}),
    "ov_matrix": lambda head: lens.ov_matrix(model(), "trunk.0.attn", head),
    "qk_matrix": lambda head: lens.qk_matrix(model(), "trunk.0.attn", head),
    "copying_score": lambda head: lens.copying_score(model(), "trunk.0.attn", head),
    "ov_words": lambda head: lens.ov_words(model(), "trunk.0.attn", head, 5),
    "neuron_words": lambda layer: lens.neuron_words(model(), layer, 0),
}
TOKENS = ("token", "target", "watch", "word", "metric")
OF_TOKEN = {
    "attribute_logit": lambda bad: lens.attribute_logit(model(), TEXT, 5, against=bad),
    "attribute_inputs": lambda bad: lens.attribute_inputs(model(), TEXT, target=bad),
    "compare_explanations": lambda bad: lens.compare_explanations(model(), [TEXT], target=bad),
    "logit_lens": lambda bad: lens.logit_lens(model(), TEXT, watch=[bad]),
    "ov_words": lambda bad: lens.ov_words(model(), "trunk.0.attn", 0, bad),
    "search_neurons": lambda bad: lens.search_neurons(model(), bad),
    "causal_trace": lambda bad: lens.causal_trace(model(), TEXT, subject="cat", metric=lens.probability(bad)),
    "compare_contexts": lambda bad: lens.compare_contexts(model(), TEXT, OTHER, bad),
    "context_similarity": lambda bad: lens.context_similarity(model(), [TEXT, OTHER], bad),
    **{name: lambda bad, call=call: call(model(), TEXT, OTHER, metric=lens.logit_difference(bad, 5))
       for name, call in PATCHING.items()},
}  # fmt: skip
POSITIONS = {
    "attribute_logit": lambda at: lens.attribute_logit(model(), TEXT, position=at),
    "attribute_inputs": lambda at: lens.attribute_inputs(model(), TEXT, position=at),
    "compare_explanations": lambda at: lens.compare_explanations(model(), [TEXT], position=at),
    "fit_probe": lambda at: probed(address="trunk.0.residual", position=at),
    "fit_probes": lambda at: probed_everywhere(position=at),
    "steering_vector": lambda at: lens.steering_vector(model(), [(TEXT, OTHER)], address="trunk.0.residual",
                                                       position=at),
}  # fmt: skip
PROMPTS = ("prompt", "prompts", "texts", "first", "clean", "pairs", "batches", "ids", "inputs")
OF_PROMPT = {
    "attention_patterns": lambda bad: lens.attention_patterns(model(), bad),
    "attention_views": lambda bad: lens.attention_views(model(), bad),
    "summarize_heads": lambda bad: lens.summarize_heads(model(), bad),
    "attribute_inputs": lambda bad: lens.attribute_inputs(model(), bad),
    "attribute_logit": lambda bad: lens.attribute_logit(model(), bad),
    "causal_trace": lambda bad: lens.causal_trace(model(), bad, subject=[0], metric=METRIC),
    "census": lambda bad: lens.census(model(), [bad]),
    "compare_contexts": lambda bad: lens.compare_contexts(model(), TEXT, bad, "the"),
    "compare_explanations": lambda bad: lens.compare_explanations(model(), [bad]),
    "context_similarity": lambda bad: lens.context_similarity(model(), [TEXT, bad], "cat"),
    "decompose_scores": lambda bad: lens.decompose_scores(model(), bad),
    "find_top_examples": lambda bad: lens.find_top_examples(model(), [bad]),
    "fit_probe": lambda bad: lens.fit_probe(model(), [TEXT, bad] * 5, ["a", "b"] * 5, address="trunk.0.residual"),
    "fit_probes": lambda bad: lens.fit_probes(model(), [TEXT, bad] * 5, ["a", "b"] * 5),
    "jacobian_norms": lambda bad: lens.jacobian_norms(model(), bad),
    "logit_lens": lambda bad: lens.logit_lens(model(), bad),
    "read_prompt": lambda bad: lens.read_prompt(model(), bad),
    "receptive_field": lambda bad: lens.receptive_field(model(), bad),
    "scan": lambda bad: lens.scan(model(), bad),
    "steering_vector": lambda bad: lens.steering_vector(model(), [(TEXT, bad)], address="trunk.0.residual"),
    "tune_lens": lambda bad: lens.tune_lens(model(), [bad], steps=1),
    **{name: lambda bad, call=call: call(model(), TEXT, bad, metric=METRIC) for name, call in PATCHING.items()},
}

CASES = [
    *((name, call, bad) for name, call in AT_ADDRESS.items() for bad in ("trunk.9.attn", "nothing", "")),
    *((name, call, bad) for name, call in HEADS.items() for bad in (9,)),
    *((name, call, bad) for name, call in OF_TOKEN.items() for bad in ("zebra quagga", "", 10**6)),
    *((name, call, bad) for name, call in POSITIONS.items() for bad in (99, -99)),
    *((name, call, bad) for name, call in OF_PROMPT.items()
      for bad in ([], [1, 10**6], [1, -2], [[1, 2], [3, 4]], ["a"], torch.randn(1, 5), None)),
    *((name, call, LONGER) for name, call in OF_PROMPT.items() if name in PATCHING),
]  # fmt: skip


def taking(*parameters):
    """The public functions of a model with one of these parameters; the texts of an induction circuit are a number."""
    found = {name: inspect.signature(each).parameters for name in lens.__all__
             if inspect.isfunction(each := getattr(lens, name)) and name != "find_induction_circuit"}  # fmt: skip
    return {name for name, known in found.items() if "model" in known and not known.keys().isdisjoint(parameters)}


@pytest.mark.parametrize(
    ("parameters", "calls"),
    [(ADDRESSES, AT_ADDRESS), (("head", "layer", "heads"), HEADS), (TOKENS, OF_TOKEN), (("position",), POSITIONS),
     (("clean",), PATCHING), (PROMPTS, OF_PROMPT)],
    ids=["address", "head", "token", "position", "lengths", "prompt"],
)  # fmt: skip
def test_every_function_that_takes_such_a_thing_is_given_a_wrong_one(parameters, calls):
    assert set(calls) == taking(*parameters)


@pytest.mark.parametrize("name", sorted({name for name, *_ in CASES}))
def test_what_is_not_there_is_refused_in_a_sentence(name):
    for call, bad in [(call, bad) for each, call, bad in CASES if each == name]:
        with pytest.raises((ConfigError, DataError)) as refused:
            call(bad)
        why = str(refused.value)
        assert "\n" not in why and 20 < len(why) < 400 and not why.endswith((" ", ":", ";")), why
        assert not isinstance(bad, str | int) or bad == LONGER or str(bad) in why, why


@pytest.mark.parametrize("given", [None, "en-fr"])
def test_what_is_no_model_is_refused(given):
    with pytest.raises(ConfigError, match="^model: expected a model, got .*; regard.load opens one$"):
        lens.logit_lens(given, TEXT)


def test_targets_beyond_the_vocabulary_and_parts_that_are_none_are_refused():
    ids = lens.read_prompt(model(), TEXT)
    with pytest.raises(ConfigError, match="1000000 is outside of the 277 outputs"):
        lens.patch_activations(model(), ids, ids, metric=lens.target_loss([10**6] * 6))
    for call, none in ((lens.patch_activations, "parts"), (lens.attribute_patches, "parts"),
                       (lens.patch_paths, "receivers")):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{none}: there are none"):
            call(model(), ids, ids, metric=METRIC, **{none: []})
    with pytest.raises(ConfigError, match="^patterns: there are none"):
        lens.attention_rollout([])
    with pytest.raises(ConfigError, match="give at least one of each"):
        lens.repeated_ids(torch.arange(5), 0)
    with pytest.raises(ConfigError, match="top_k: 0"):
        lens.neuron_words(model(), 0, 0, top_k=0)
