"""Steering vectors: a direction from pairs of texts, added to the residual stream while a model runs.

    v = mean over pairs of (h(first) - h(second))        at one address, after the last token or over all of them
    h' = h + strength · v                                 at that address, for every token that is read or generated

Activation addition (Turner et al. 2023) with the mean difference of several pairs (Rimsky et al. 2024). That a vector
changes what a model says does not show that the model itself uses that direction, nor that the direction is only about
what the pairs differ in.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.core.hooks import HEADED, looking
from regard.lens.activation_stream import BatchTokens, Text, find_addresses, stream_activations
from regard.lens.attention_maps import unwrap_model
from regard.lens.prompt import read_prompt
from regard.lens.result import LensResult, Picture, Table

Position = int | Literal["mean"]


@dataclass(frozen=True, eq=False)
class SteeringVector(LensResult):
    """A direction at an address. `differences` has one row for each pair; none where it was read from a file."""

    address: str
    vector: Tensor  # (D,)
    differences: Tensor | None = None  # (pairs, D)
    scale: float | None = None  # the mean length of the activations that it was made from

    @property
    def norm(self) -> float:
        return float(self.vector.norm())

    @property
    def agreement(self) -> Tensor | None:  # (pairs,)
        """The cosine of each pair's difference to the vector: near 1 where the pairs differ in the same way."""
        if self.differences is None:
            return None
        return F.cosine_similarity(self.differences, self.vector[None], dim=-1)

    def save(self, path: str | Path) -> None:
        """One tensor as safetensors, named by its address."""
        from regard.hub.weights import save_tensors  # here, since it brings the tables of all families

        save_tensors(path, {self.address: self.vector})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        from regard.hub.weights import load_tensors_lazy

        found = load_tensors_lazy(path)
        if len(found) != 1 or next(iter(found.values())).dim() != 1:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in list(found.items())[:3]) or "nothing"
            raise DataError(f"{path}: expected a steering vector, one tensor (D,) named by its address; found {shapes}")
        [(address, vector)] = found.items()
        return cls(address, vector.float())

    def table(self) -> Table:
        rows = () if self.agreement is None or self.differences is None else tuple(
            (number, float(difference.norm()), float(cosine))
            for number, (difference, cosine) in enumerate(zip(self.differences, self.agreement, strict=True), 1)
        )  # fmt: skip
        size = "" if self.scale is None else f", {self.norm / self.scale:.0%} of an activation there"
        return Table(f"In which direction do the pairs differ at {self.address}?",
                     ("pair", "length", "cosine to the vector"), rows,
                     f"Length {self.norm:.4g}{size}. A direction that pairs share need not be the one that the model "
                     "uses.")  # fmt: skip

    def picture(self) -> Picture | None:
        if self.agreement is None:
            return None
        names = [str(number) for number in range(1, len(self.agreement) + 1)]
        return Picture("bars", "Do the pairs differ in the same direction?", self.agreement[None], ["cosine"], names,
                       "cosine of a pair's difference to the vector", center=0.0)  # fmt: skip


def steering_vector(
    model: Any, pairs: Sequence[tuple[Text, Text]], *, address: str, position: Position = -1
) -> SteeringVector:
    """The steering vector of pairs of texts: the mean difference of their activations at an address.

    `position` is the token whose vectors are compared, counted among the real ones, the last unless said; "mean"
    averages over all of them. The texts of a pair are strings, ids of one row, or Prompts.
    """
    address = check_address(model, address)
    prompts = [read_prompt(model, text) for pair in pairs for text in check_pair(pair)]  # read whole, not in windows
    if not prompts or any(len(prompt.first) != 1 for prompt in prompts):
        raise DataError("pairs: expected at least one pair of texts, each one row of ids")
    found: dict[int, Tensor] = {}

    def keep(address: str, x: Tensor, tokens: BatchTokens) -> None:
        for row, text in enumerate(tokens.text.tolist()):
            found[text] = pick_vector(x[row][tokens.real[row].to(x.device)].float().cpu(), position, text)

    count = stream_activations(model, prompts, [address], keep)
    first, second = (torch.stack([found[i] for i in range(start, count, 2)]) for start in (0, 1))
    differences = first - second
    scale = float(torch.cat([first, second]).norm(dim=-1).mean())
    return SteeringVector(address, differences.mean(0), differences, scale)


def check_address(model: Any, address: str) -> str:
    """One address at which every token has one vector."""
    found = find_addresses(model, address)
    if len(found) != 1 or found[0].rpartition(".")[2] in (*HEADED, "logits"):
        several = f" ({len(found)} of them)" if len(found) > 1 else ""
        raise ConfigError(f"address {address!r}{several}: a vector is added at one place with one vector for each "
                          "token, such as trunk.0.residual or trunk.0.mlp.out")  # fmt: skip
    return found[0]


def check_pair(pair: Any) -> tuple[Text, Text]:
    if isinstance(pair, str) or len(pair) != 2:
        raise DataError(f"pairs: {pair!r:.60} is no pair; give (text with it, text without it)")
    return pair[0], pair[1]


def pick_vector(x: Tensor, position: Position, text: int) -> Tensor:  # (N, D) -> (D,)
    if position == "mean":
        return x.mean(0)
    if not -len(x) <= position < len(x):
        raise ConfigError(f"position {position}: text {text % 2 + 1} of pair {text // 2 + 1} has {len(x)} tokens")
    return x[position]


@contextmanager
def steering(model: Any, vector: SteeringVector, strength: float = 1.0) -> Iterator[None]:
    """Steering: add strength · vector at its address, for every token that the model reads or generates meanwhile.

        with lens.steering(model, vector, 4.0):
            model.generate("I think that")

    Holds for all that calls this model within the `with`, other threads included: hooks belong to the model. What is
    in a KV cache stays as it was computed, before and after. At strength 0 nothing is hooked.
    """
    model = unwrap_model(model)
    address = check_address(model, vector.address)
    if not torch.isfinite(torch.tensor(strength)) or not bool(vector.vector.isfinite().all()):
        raise ConfigError(f"strength {strength} · vector: expected finite numbers")
    shift = vector.vector * strength
    if not bool(shift.any()):
        yield
        return

    def add(address: str, x: Tensor) -> Tensor:
        if x.shape[-1] != len(shift):
            raise ConfigError(f"{address}: the vector has {len(shift)} numbers, and there the model has "
                              f"{x.shape[-1]}; it is of another model")  # fmt: skip
        return x + shift.to(x.device, x.dtype)

    with looking(model, address, edit=add):
        yield
