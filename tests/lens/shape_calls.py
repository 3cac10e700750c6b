"""Every shape of model with something that it reads, and one call of every public function of the lens."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from lens.small_models import SHAPES
from measure.small_models import SHAPES as MEASURED
from measure.small_models import config, reads
from torch import Tensor

from regard import config as C
from regard import lens
from regard.inference.model import Model

TOKENS = 7
MEASURED_TOO = ("both heads of BERT", "one vector", "no head", "a window in chunks", "other heads in every layer",
                "convolutions", "series, channel by channel", "spectrograms", "sound at several rates", "film", "graph",
                "graph of tags, distances", "every node answers", "picture and text", "chunks")  # fmt: skip
OTHERS = {
    "recurrent": replace(config(), trunk=C.RecurrentStack(dim=12, depth=2)),
    "recurrent layers": config(mixer=C.RecurrentMixer()),
    "state space": config(mixer=C.StateSpaceMixer()),
    "no mixer": config(mixer=C.NoMixer()),
    "two streams": config(kind="reversible"),
    "no residual stream": config(residual=False),
    "a kernel without weights": config(attention=C.Attention(heads=3, kernel="linear")),
}
NAMES = (*SHAPES, *MEASURED_TOO, *OTHERS)
LIKE_OTHERS = ("windowed decoder", "relative", "both heads of BERT", "one vector", "a window in chunks",
               "sound at several rates", "film", "graph of tags, distances")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """A model and one row of what it reads: its inputs by place, and the rest by name."""

    model: Any
    inputs: tuple[Tensor, ...]
    given: dict[str, Tensor]

    @cached_property
    def prompt(self) -> lens.Prompt:
        return lens.read_prompt(self.model, self.inputs[0], **self.given)

    @property
    def word(self) -> int:
        """The first id of the text whose words are looked at; of an image just a number."""
        return int(self.given.get("source", self.inputs[0]).flatten()[0])

    @cached_property
    def other(self) -> lens.Prompt:
        """Another of the same length: the same tokens the other way round, and noise on what is no token."""
        first = self.inputs[0]
        return replace(self.prompt, first=first + 0.1 if first.is_floating_point() else first.flip(-1))

    @cached_property
    def where(self) -> list[str]:
        """Its attentions, those of its trunk first; of a model without any those that it might have had."""
        found = [name.removesuffix(".result") for name in self.model.addresses() if name.endswith(".result")]
        found.sort(key=lambda name: (not name.startswith("trunk"), name.endswith("cross")))
        return found if len(found) > 1 else ["trunk.0.attn", "trunk.1.attn"]

    def loss(self, model: Any) -> float:
        with torch.no_grad():
            out = model(*self.inputs, **self.given)
        return float((out[0] if isinstance(out, tuple) else out).square().mean())


def make_case(name: str) -> Case:
    """A small model with random weights, and one row."""
    torch.manual_seed(0)
    if name in SHAPES:
        shape = SHAPES[name]
        model, first = shape.model(), shape.reads()
        return Case(model, tuple(x[:1] for x in first), {key: x[:1] for key, x in shape.named.items()})
    c = OTHERS[name] if name in OTHERS else MEASURED[name]
    given = reads(c.embed, 1, 3 * TOKENS if name == "chunks" else TOKENS)  # three chunks
    return Case(Model(c).eval(), (given.pop("ids"),), given)


METRIC = lens.logit_difference(0, 1)


def ablated(case: Case) -> float:
    with lens.ablate(case.model, {case.where[0]: [0]}):
        return case.loss(case.model)


def steered(case: Case) -> float:
    width = case.model.c.trunk.dim if hasattr(case.model.c, "trunk") else 12
    with lens.steering(case.model, lens.SteeringVector("trunk.0.residual", torch.ones(width))):
        return case.loss(case.model)


CALLS: dict[str, Callable[[Case], Any]] = {
    "ablate": ablated,
    "ablate_all": lambda case: lens.ablate_all(case.model, case.loss),
    "attention_patterns": lambda case: lens.attention_patterns(case.model, *case.inputs, **case.given),
    "attention_views": lambda case: lens.attention_views(case.model, *case.inputs, **case.given),
    "attribute_inputs": lambda case: lens.attribute_inputs(case.model, case.prompt, max_steps=14),
    "attribute_logit": lambda case: lens.attribute_logit(case.model, case.prompt),
    "attribute_patches": lambda case: lens.attribute_patches(case.model, case.prompt, case.other, metric=METRIC),
    "causal_trace": lambda case: lens.causal_trace(case.model, case.prompt, subject=[0], metric=METRIC,
                                                   noise=lens.EmbeddingNoise(samples=2), parts=("residual",)),
    "census": lambda case: lens.census(case.model, [case.prompt]),
    "compare_contexts": lambda case: lens.compare_contexts(case.model, case.prompt, case.other,
                                                           case.word, index=0),
    "compare_explanations": lambda case: lens.compare_explanations(case.model, [case.prompt], max_steps=14),
    "composition_scores": lambda case: lens.composition_scores(case.model, case.where[0], case.where[1]),
    "context_similarity": lambda case: lens.context_similarity(case.model, [case.prompt, case.other],
                                                               case.word, index=[0, 0]),
    "copying_score": lambda case: lens.copying_score(case.model, case.where[0], 0),
    "decompose_scores": lambda case: lens.decompose_scores(case.model, case.prompt, case.where[0]),
    "find_induction_circuit": lambda case: lens.find_induction_circuit(case.model, length=8, texts=2),
    "find_top_examples": lambda case: lens.find_top_examples(case.model, [case.prompt], top_k=2),
    "fit_probe": lambda case: lens.fit_probe(case.model, [case.prompt, case.other] * 5, ["a", "b"] * 5,
                                             address="trunk.0.residual", folds=2),
    "fit_probes": lambda case: lens.fit_probes(case.model, [case.prompt, case.other] * 5, ["a", "b"] * 5, folds=2),
    "jacobian_norms": lambda case: lens.jacobian_norms(case.model, case.inputs[0], probes=2),
    "logit_lens": lambda case: lens.logit_lens(case.model, case.prompt),
    "neuron_words": lambda case: lens.neuron_words(case.model, 0, 0),
    "ov_matrix": lambda case: lens.ov_matrix(case.model, case.where[0], 0),
    "ov_words": lambda case: lens.ov_words(case.model, case.where[0], 0, 3),
    "patch_activations": lambda case: lens.patch_activations(case.model, case.prompt, case.other, metric=METRIC),
    "patch_paths": lambda case: lens.patch_paths(case.model, case.prompt, case.other, metric=METRIC),
    "prunable_heads": lambda case: lens.prunable_heads(case.model, [lens.AblationRow(case.where[0], 0, 1.0, 1.0)]),
    "prune_heads": lambda case: lens.prune_heads(copy.deepcopy(case.model), {case.where[0]: [0]}),
    "qk_matrix": lambda case: lens.qk_matrix(case.model, case.where[0], 0),
    "read_prompt": lambda case: lens.read_prompt(case.model, case.inputs[0], **case.given),
    "receptive_field": lambda case: lens.receptive_field(case.model, case.inputs[0]),
    "scan": lambda case: lens.scan(case.model, case.prompt),
    "search_neurons": lambda case: lens.search_neurons(case.model, 3),
    "steering": steered,
    "steering_vector": lambda case: lens.steering_vector(case.model, [(case.prompt, case.other)],
                                                         address="trunk.0.residual"),
    "summarize_heads": lambda case: lens.summarize_heads(case.model, *case.inputs, **case.given),
    "token_vectors": lambda case: lens.token_vectors(case.model),
    "tune_lens": lambda case: lens.tune_lens(case.model, [case.prompt], steps=1),
    "why_not_watchable": lambda case: lens.why_not_watchable(case.model),
}  # fmt: skip
