"""Every function of the lens on every shape of model: it runs, or says in a sentence why it does not."""

import inspect
import json
from functools import lru_cache

import pytest
from lens.shape_calls import CALLS, LIKE_OTHERS, NAMES, make_case
from sizes import FULL

from regard import lens
from regard.config.errors import ConfigError, DataError
from regard.lens.result import LensResult

SHOWN = NAMES if FULL else tuple(name for name in NAMES if name not in LIKE_OTHERS)
case = lru_cache(make_case)  # no call changes its model

NO_HEADS = {"recurrent", "recurrent layers", "state space", "no mixer"}
NO_WEIGHTS = NO_HEADS | {"a kernel without weights"}
NO_TRUNK = {"towers", "recurrent"}
NO_LOGITS = {"no head", "series, channel by channel"}
NO_IDS = {"vit", "stages", "convolutions", "series, channel by channel", "spectrograms", "sound at several rates",
          "film", "graph"}  # fmt: skip
TAGS = {"graph of tags, distances", "every node answers"}
PAIRS = {"translator", "t5", "layerwise", "captioner"}
CLASSES = NO_IDS | TAGS | {"towers", "one vector", "no head", "chunks"}
TRANSFORMED = {"encoder", "shared", "both heads of BERT"}  # a dense layer before the words
ABSOLUTE = {"decoder", "attention only", "encoder", "translator", "vit", "pixels"}

REFUSED = {
    **dict.fromkeys(("ablate", "prunable_heads"), NO_HEADS),
    **dict.fromkeys(("attention_patterns", "attention_views", "summarize_heads"), NO_WEIGHTS),
    "census": NO_WEIGHTS | {"towers", "series, channel by channel", "chunks"},
    **dict.fromkeys(("fit_probe", "fit_probes", "steering", "steering_vector"), NO_TRUNK),
    "find_top_examples": NO_TRUNK | {"attention only"},
    **dict.fromkeys(("attribute_patches", "causal_trace", "logit_lens", "patch_activations", "scan", "tune_lens"),
                    NO_TRUNK | NO_LOGITS),
    "attribute_inputs": NO_LOGITS | {"towers"},
    "attribute_logit": NO_TRUNK | NO_LOGITS | {"no residual stream"},
    **dict.fromkeys(("neuron_words", "search_neurons"), NO_TRUNK | NO_LOGITS | {"attention only"}),
    "patch_paths": NO_TRUNK | NO_LOGITS | {"encoder", "two streams", "no residual stream"},
    "compare_explanations": NO_WEIGHTS | NO_LOGITS | {"towers"},
    **dict.fromkeys(("ov_matrix", "qk_matrix"), NO_HEADS | {"no residual stream"}),
    "composition_scores": NO_HEADS | {"no residual stream", "two streams"},
    **dict.fromkeys(("copying_score", "ov_words"),
                    NO_HEADS | CLASSES | TRANSFORMED | {"no residual stream", "picture and text"}),
    "decompose_scores": set(NAMES) - ABSOLUTE,
    "find_induction_circuit": NO_WEIGHTS | CLASSES | PAIRS | TRANSFORMED | {"pixels", "picture and text"},
    "prune_heads": NO_HEADS | {"grouped", "shared", "other heads in every layer", "graph of tags, distances"},
    "token_vectors": NO_IDS | TAGS | {"towers"},
    **dict.fromkeys(("compare_contexts", "context_similarity"),
                    NO_IDS | NO_TRUNK | {"captioner", "picture and text", "chunks"}),
    **dict.fromkeys(("jacobian_norms", "receptive_field"),
                    NO_IDS | TAGS | PAIRS | {"pixels", "towers", "picture and text"}),
}  # fmt: skip


def test_every_public_function_that_takes_a_model_is_called_here():
    functions = {name: found for name in lens.__all__ if inspect.isfunction(found := getattr(lens, name))}
    reading = {name for name, found in functions.items() if "model" in inspect.signature(found).parameters}

    assert set(CALLS) == reading, "write a call in lens/shape_calls.py"
    assert set(REFUSED) <= reading


@pytest.mark.parametrize("name", CALLS)
def test_a_function_runs_on_every_shape_or_says_in_a_sentence_why_not(name):
    refused = {}
    for shape in SHOWN:
        try:
            show(CALLS[name](case(shape)))
        except (ConfigError, DataError) as problem:
            refused[shape] = str(problem)

    assert set(refused) == REFUSED.get(name, set()) & set(SHOWN)
    for why in refused.values():
        assert "\n" not in why and 30 < len(why) < 400 and not why.endswith((" ", ":", ";"))


def show(found):
    """Whatever a user does with a result: print it, save it, draw it."""
    if isinstance(found, LensResult):
        assert str(found)
        json.dumps(found.to_json(), allow_nan=False)
        found.picture()
