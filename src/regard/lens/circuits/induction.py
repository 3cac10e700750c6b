"""Induction circuit (Elhage et al. 2021, Olsson et al. 2022): two heads by which a model goes on as it did before.

    … A B … A ─► B     the previous-token head writes A into the token after it, B
                       the induction head looks from the second A for keys that hold an A, finds B and copies it

It is looked for where nothing else helps: random tokens, said twice. Weights and patterns name the two heads and how
they compose. Whether the model needs them is measured by its loss on the second half: without either head, and with
what the one writes patched for what it writes in another text, on the direct path into the other's keys alone.
The same path is patched into all heads of that layer at once: several of them may copy, and what one of them writes
beside that may cancel what another one writes, so that each matters alone and all together do not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from regard.config.errors import ConfigError
from regard.inputs.text import TextEmbedding
from regard.lens.ablation import ablate
from regard.lens.attention_maps import attention_views, evaluation_mode, unwrap_model
from regard.lens.circuits.attention_circuits import composition_scores
from regard.lens.circuits.repeated_text import first_half_targets, repeated_prompt, second_half_targets
from regard.lens.heads import LEAST, NAMED
from regard.lens.patching.logit_metrics import bind_metric, run_metric, target_loss
from regard.lens.patching.path_patching import check_plain_sums, patch_paths
from regard.lens.prompt import Prompt
from regard.lens.residual import find_head, find_trunk
from regard.lens.result import LensResult, Picture, Table, Value
from regard.lens.roles import ROLES, RoleScore, score_role
from regard.models.heads import LMHead

ASKED = [role for role in ROLES if role.name in ("previous", "induction")]
NOTHING = RoleScore(0.0, 0.0)  # of a head that does not see so far back


@dataclass(frozen=True)
class InductionHead:
    """One head: how much of its attention goes to the previous token, and to what followed the last copy of a token."""

    layer: int
    head: int
    previous: RoleScore
    induction: RoleScore

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"

    @property
    def where(self) -> str:
        return f"trunk.{self.layer}.attn"


@dataclass(frozen=True, eq=False)
class InductionCircuit(LensResult):
    """The two heads and what they are worth; losses are in nats a token. What cannot be measured is None, and why is in
    `left_out`."""

    heads: tuple[InductionHead, ...]
    previous: InductionHead
    induction: InductionHead
    composition: float | None  # of the two, K; and the mean of the other pairs of these two layers
    other_composition: float | None
    first_loss: float  # on the first half, where nothing can be copied
    loss: float  # on the second half
    ablated: dict[str, float]  # without a head of these two layers, by its name
    paths: dict[str, float]  # with the path into the induction head's k, q or v patched
    layer_paths: dict[str, float]  # with the path into that of every head of its layer patched
    ablation: str  # mean or zero
    left_out: tuple[str, ...] = ()

    @property
    def stands_out(self) -> bool:
        """Whether both heads go a quarter of the way from chance to always, as a head with a role does."""
        return min(self.previous.previous.lift, self.induction.induction.lift) >= NAMED

    @property
    def other_ablated(self) -> float | None:
        """The mean loss without one of the other heads of these two layers."""
        others = [loss for name, loss in self.ablated.items() if name not in (self.previous.name, self.induction.name)]
        return mean(others) if others else None

    def table(self) -> Table:
        first, second = self.previous, self.induction
        rows: list[tuple[Value, ...]] = [
            (f"previous-token score of {first.name}", first.previous.value,
             mean_or_none([each.previous.value for each in self.heads if each is not first])),
            (f"induction score of {second.name}", second.induction.value,
             mean_or_none([each.induction.value for each in self.heads if each is not second])),
            (f"K-composition of {first.name} and {second.name}", self.composition, self.other_composition),
            ("loss on the first half", self.first_loss, None),
            ("loss on the second half", self.loss, None),
            *((f"loss without {each.name}", self.ablated[each.name], self.other_ablated) for each in (first, second)),
            *((f"loss with the path {first.name} to {second.name}.{reads} patched", loss, None)
              for reads, loss in self.paths.items()),
            *((f"loss with the path {first.name} to {second.layer}.attn.{reads} patched", loss, None)
              for reads, loss in self.layer_paths.items()),
        ]  # fmt: skip
        return Table("Is there an induction circuit?", ("measure", "value", "others"), tuple(rows), self.note())

    def note(self) -> str:
        pair = f"{self.previous.name} and {self.induction.name}"
        found = (f"{pair} have the patterns of an induction circuit." if self.stands_out else
                 f"No two heads have the patterns of an induction circuit; {pair} come nearest.")  # fmt: skip
        how = f"Others are means over the other heads or pairs; heads are ablated by {self.ablation}."
        return " ".join([found, how, *self.left_out])

    def scores(self) -> Table:
        """Both scores of every head."""
        rows = tuple((each.name, each.previous.value, each.induction.value) for each in self.heads)
        return Table("Where does each head look in random tokens said twice?", ("head", "previous", "induction"), rows)

    def to_json(self) -> dict[str, Any]:
        names = {"previous": self.previous.name, "induction": self.induction.name, "stands_out": self.stands_out}
        return self.table().to_json() | names | {"heads": self.scores().to_json()["rows"]}

    def picture(self) -> Picture:
        names = {"whole": self.loss, **{f"without {each.name}": self.ablated[each.name]
                                        for each in (self.previous, self.induction)}}  # fmt: skip
        paths = ((self.induction.name, self.paths), (f"{self.induction.layer}.attn", self.layer_paths))
        names |= {f"{self.previous.name} to {where}.{reads}": loss for where, of in paths for reads, loss in of.items()}
        return Picture("bars", "What does the loss on what was said before depend on?",
                       torch.tensor([list(names.values())]), ["second half"], list(names), "nats a token")  # fmt: skip


def mean_or_none(values: list[float]) -> float | None:
    return mean(values) if values else None


def find_induction_circuit(  #: S155
    model: Any, *, length: int = 24, texts: int = 8, seed: int = 0, ablation: str = "mean",
    vocabulary: Tensor | None = None, progress: Callable[[int, int], object] | None = None,
) -> InductionCircuit:  # fmt: skip
    """Find the previous-token head and the induction head of a causal language model, and what it is without them.

    `texts` rows of `length` tokens are drawn from the `vocabulary` (all ids that are not special, unless said), and
    said twice. The induction head is the one with the highest score above the first layer, the previous-token head that
    with the highest score below it. `ablation` puts the mean over all tokens in a head's place, or zero. The loss is
    of the second half but for its first token, which nothing foretells.
    """
    model = check_causal_decoder(model)
    if length < LEAST or texts < 1:
        raise ConfigError(f"length {length}, texts {texts}: give a length from {LEAST} on, and at least one text")
    if ablation not in ("mean", "zero"):
        raise ConfigError(f"ablation: {ablation!r} is neither 'mean' nor 'zero'")
    clean, other = (repeated_prompt(model, length, texts, each, vocabulary) for each in (seed, seed + 1))
    heads = score_heads(model, clean)
    first, second = choose_pair(heads)
    composition, others, why = pair_composition(model, first, second)
    targets = second_half_targets(clean.ids, length)
    near = [each for each in heads if each.layer in (first.layer, second.layer)]
    ablated = {}
    for done, each in enumerate(near, 1):
        with ablate(model, {each.where: [each.head]}, mean=ablation == "mean"):
            ablated[each.name] = prompt_loss(model, clean, targets)
        if progress is not None:
            progress(done, len(near))
    paths, layer_paths, unpatched = patched_losses(model, clean, other, targets, first, second)
    return InductionCircuit(
        heads, first, second, composition, others, prompt_loss(model, clean, first_half_targets(clean.ids, length)),
        prompt_loss(model, clean, targets), ablated, paths, layer_paths, ablation, (*why, *unpatched),
    )  # fmt: skip


# ---------------------------------------------------------------- the model and its loss


def check_causal_decoder(model: Any) -> Any:
    """The model itself, if it predicts the next token of a text and has two layers of heads; or a sentence."""
    model = unwrap_model(model)
    trunk, why = find_trunk(model), ""
    if model.encoder is not None:
        why = "this model writes another text than it reads"
    elif type(model.embed) is not TextEmbedding:  # pixels are ids too
        why = "this model does not read a text"
    elif any(pair[False, False].ahead for pair in trunk.masks):
        why = "this model sees the tokens that come next"
    elif not isinstance(find_head(model), LMHead):
        why = "this model answers with classes"
    elif trunk.c.mixer.kind != "attention" or trunk.c.depth < 2:
        why = "this model has fewer than two layers of attention"
    if why:
        raise ConfigError(f"induction is looked for in a causal language model of two layers or more, and {why}")
    return model


def prompt_loss(model: Any, prompt: Prompt, targets: Tensor) -> float:
    with evaluation_mode(model):
        return float(run_metric(model, prompt, bind_metric(model, prompt, target_loss(targets))).mean())


# ---------------------------------------------------------------- the two heads


def score_heads(model: Any, prompt: Prompt) -> tuple[InductionHead, ...]:
    """Every head of the trunk with its two scores, in the order of the layers."""
    found = []
    for view in attention_views(model, prompt.first):
        if view.where.startswith("trunk."):
            layer, none = int(view.where.split(".")[1]), [NOTHING] * view.pattern.shape[1]
            pairs = zip(*(score_role(role, view) or none for role in ASKED), strict=True)
            found += [InductionHead(layer, head, *pair) for head, pair in enumerate(pairs)]
    return tuple(found)


def choose_pair(heads: tuple[InductionHead, ...]) -> tuple[InductionHead, InductionHead]:
    """The previous-token head and the induction head: the best above the first layer, and the best below that."""
    second = max((each for each in heads if each.layer > 0), key=lambda each: each.induction.value)
    first = max((each for each in heads if each.layer < second.layer), key=lambda each: each.previous.value)
    return first, second


def pair_composition(
    model: Any, first: InductionHead, second: InductionHead
) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Their K-composition, the mean of the other pairs of their layers, and why there is none."""
    try:
        scores = composition_scores(model, first.where, second.where, "K").scores
    except ConfigError as problem:  # heads that write into streams that the later ones do not read
        return None, None, (f"No composition: {problem}.",)
    own = float(scores[first.head, second.head])
    rest = scores.numel() - 1
    return own, (float(scores.sum()) - own) / rest if rest else None, ()


def patched_losses(
    model: Any, clean: Prompt, other: Prompt, targets: Tensor, first: InductionHead, second: InductionHead
) -> tuple[dict[str, float], dict[str, float], tuple[str, ...]]:
    """The loss on the second half with what the first head writes taken from another text, for the k, q or v of the
    second alone, and of all heads of its layer; and why there is none."""
    try:
        check_plain_sums(model)
    except ConfigError as problem:
        return {}, {}, (f"No {problem}.",)
    receivers = [f"{where}.{reads}" for where in (second.name, f"{second.layer}.attn") for reads in "kqv"]
    found = patch_paths(model, clean, other, metric=target_loss(targets), senders=[first.name], receivers=receivers,
                        direction="noise")  # fmt: skip
    losses = found.grids[0].raw[0].tolist()
    return dict(zip("kqv", losses[:3], strict=True)), dict(zip("kqv", losses[3:], strict=True)), ()
