"""Tuned lens: an affine map for each place of the residual stream, fitted so that the head can read it (Belrose 2023).

    x ─► x + A x + b ─► final norm ─► head          A and b of this place; all else is the model's own

A and b are zero at first, which is the logit lens. They are fitted to lower the KL divergence of the model's own answer
from the decoded one, with the model's weights as they are. The last block's output is what the head reads in any case:
its map is the identity and is never trained. A low divergence says that a linear reader could tell the answer there. It
does not say that the later blocks use what this reader uses.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, DataError, unwritable_error
from regard.files.atomic import atomic_path
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import (
    Place,
    Recording,
    Unembedding,
    find_head,
    find_trunk,
    logit_count,
    recording,
    residual_places,
)
from regard.lens.stream.predictions import log_probabilities, model_log_probs, position_slices, real_positions

FORMAT, HEADER = 1, "tuned_lens"
SAMPLE = 4096  # numbers of each weight by which a head is known again
AffineMap = tuple[Tensor, Tensor]  # A (D, D) and b (D,)


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Maps for the places of one model; `model` says which model, `kl` how the fit went (steps, places), in bits."""

    places: tuple[str, ...]
    weight: Tensor  # (places, D, D)
    bias: Tensor  # (places, D)
    model: dict[str, Any]
    kl: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def translate(self, place: str, x: Tensor) -> Tensor:
        """Vectors of a place (B, N, D) as the final norm and the head can read them."""
        if place in ("final", self.model.get("last", f"{self.model['depth'] - 1}.mlp")):
            return x
        if place not in self.places:
            raise ConfigError(f"lens: it was fitted for {', '.join(self.places)}, and not for {place}; fit it with the "
                              "same setting of halves as it is used with")  # fmt: skip
        row = self.places.index(place)
        return apply_map(x, (self.weight[row].to(x.device), self.bias[row].to(x.device)))

    def check(self, model: Any) -> None:
        """Refuses a model other than the one that the lens was fitted for."""
        here = model_identity(model)
        for name, value in self.model.items():
            if here[name] != value:
                raise ConfigError(f"lens: it was fitted for a model with {name} {value}, and here it is {here[name]}; "
                                  "fit one for this model with tune_lens")  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the maps as safetensors, whole or not at all; the metadata says in JSON for which model they are."""
        from regard.hub.weights import save_tensors  # here, since it brings the tables of all families

        header = json.dumps({"format": FORMAT, "places": self.places, "model": self.model})
        try:
            with atomic_path(Path(path)) as aside:
                save_tensors(aside, {"weight": self.weight, "bias": self.bias, "kl": self.kl}, {HEADER: header})
        except OSError as problem:
            raise unwritable_error(path, problem) from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The maps in a file. Whether they are for a model is compared when they are used on it."""
        from regard.hub.weight_reader import read_metadata
        from regard.hub.weights import load_tensors_lazy

        tensors = load_tensors_lazy(path)
        places, model = parse_header(Path(path), read_metadata(Path(path)).get(HEADER, ""))
        wide = model["dim"]
        shapes = {"weight": (len(places), wide, wide), "bias": (len(places), wide)}
        if any(name not in tensors or tensors[name].shape != shape for name, shape in shapes.items()):
            raise DataError(f"{path}: not a whole tuned lens (its maps are not those that its header names); fit it "
                            "again")  # fmt: skip
        return cls(places, tensors["weight"], tensors["bias"], model, tensors.get("kl", torch.zeros(0, len(places))))


def parse_header(path: Path, text: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The places and the model that a file's metadata names."""
    try:
        header = json.loads(text)
        places, model = tuple(map(str, header["places"])), header["model"]
        known = {"dim": int(model["dim"]), "depth": int(model["depth"]), "logits": int(model["logits"]),
                 "unembedding": str(model["unembedding"])}  # fmt: skip
        known |= {"last": str(model["last"])} if "last" in model else {}  # which an earlier file did not say
        found = header["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: not a tuned lens; expected a file that TunedLens.save wrote") from None
    if found != FORMAT:
        raise DataError(f"{path}: a tuned lens of format {found!r:.20}; this version reads {FORMAT}")
    return places, known


def model_identity(model: Any) -> dict[str, Any]:
    """What a tuned lens must share with a model: width, depth, number of logits, a hash of final norm and head, and
    the name of its last place.

    The hash is of evenly spaced weights as bfloat16, so it is the same for a model that is loaded in another precision.
    """
    digest, trunk = hashlib.sha256(), find_trunk(model)
    for part in (trunk.final_norm, find_head(model)):
        for weight in () if part is None else part.parameters():
            spaced = weight.detach().flatten()[:: max(1, weight.numel() // SAMPLE)].to(torch.bfloat16).cpu()
            digest.update(bytes(spaced.view(torch.uint8).tolist()))
    size = {"dim": trunk.c.dim, "depth": trunk.c.depth, "logits": logit_count(model)}
    return {**size, "unembedding": digest.hexdigest()[:16], "last": residual_places(model, halves=False)[-1].name}


def apply_map(x: Tensor, affine: AffineMap) -> Tensor:
    """x + A x + b, in the wider precision of the two, returned in that of x."""
    kind = torch.promote_types(x.dtype, affine[0].dtype)
    weight, bias = (each.to(kind) for each in affine)
    return (x.to(kind) + F.linear(x.to(kind), weight, bias)).to(x.dtype)


# ---------------------------------------------------------------- the fit


def tune_lens(
    model: Any, batches: Iterable[Any], *, steps: int = 250, lr: float = 1e-3, halves: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> TunedLens:  # fmt: skip
    """Fit a tuned lens (Belrose et al. 2023) to what the model itself answers; no labels are needed.

    `batches` are texts, ids (N,) or (B, N), images, or what `read_prompt` returns, one for each step; a list is read
    again from its start, an iterator until it ends. Adam with a rate that falls to zero in a line. Nothing is drawn at
    random: the same batches give the same lens. `progress` is called with the steps done and the steps in all.
    """
    check_fit_settings(batches, steps, lr)
    model, places = unwrap_model(model), residual_places(model, halves)[:-1]
    identity, maps, history = model_identity(model), build_maps(model, places), list[Tensor]()
    optimizer = torch.optim.Adam([weight for affine in maps for weight in affine], lr=lr)
    for step, prompt in zip(range(steps), read_batches(model, batches), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / steps)
        with recording(model, prompt, *(place.address for place in places)) as run:
            optimizer.zero_grad()
            history.append(add_gradients(Unembedding(model, run.tokens), run, places, maps))
        optimizer.step()
        if progress is not None:
            progress(step + 1, steps)
    if steps and not history:
        raise DataError("batches: there was none; give texts or ids for the lens to be fitted to")
    weight, bias = (torch.stack([affine[part].detach() for affine in maps]) for part in (0, 1))
    kl = torch.stack(history) if history else torch.zeros(0, len(places))
    return TunedLens(tuple(place.name for place in places), weight, bias, identity, kl)


def check_fit_settings(batches: Iterable[Any], steps: int, lr: float) -> None:
    if isinstance(batches, str | Prompt) or not hasattr(batches, "__iter__"):
        raise ConfigError(f"batches: {type(batches).__name__} is one prompt; give a list or an iterator of them")
    if steps < 0 or not lr > 0:
        raise ConfigError(f"steps: {steps} and lr {lr:g} fit nothing; steps are 0 or more, and lr is above 0")


def build_maps(model: Any, places: list[Place]) -> list[AffineMap]:
    """A and b of each place, zero: the logit lens."""
    like = next(model.parameters())
    kind, wide = torch.float64 if like.dtype == torch.float64 else torch.float32, find_trunk(model).c.dim
    new = {"dtype": kind, "device": like.device, "requires_grad": True}
    return [(torch.zeros(wide, wide, **new), torch.zeros(wide, **new)) for _ in places]


def read_batches(model: Any, batches: Iterable[Any]) -> Iterator[Prompt]:
    """Prompts, from the start again where they end; an iterator has no start to go back to, and is read once."""
    while True:
        prompts = (read_prompt(model, batch) for batch in batches)
        first = next(prompts, None)
        if first is None:
            return
        yield first
        yield from prompts


def add_gradients(decode: Unembedding, run: Recording, places: list[Place], maps: list[AffineMap]) -> Tensor:
    """The KL divergence at each place in bits (P,); its gradients are added to the maps', one place at a time."""
    goal, real = model_log_probs(run), real_positions(decode)
    divergences = goal.new_zeros(len(places))
    for at, (place, affine) in enumerate(zip(places, maps, strict=True)):
        x = run.seen[place.address].detach()
        for part in position_slices(decode):
            with torch.enable_grad():
                here = log_probabilities(decode(apply_map(x[:, part], affine)))
                each = F.kl_div(here, goal[:, part], reduction="none", log_target=True).sum(-1)
                loss = each[real[:, part]].sum() / real.sum()
            loss.backward(inputs=list(affine))  # and to no weight of the model
            divergences[at] += loss.detach() / log(2)
    return divergences.cpu()
