"""Somebody's adapters, put on a model: what `peft` saved, or what was saved here.

Every tensor has its place or nothing is put on. What the base lacks comes with the adapter: a head for another task is
the adapter's own, or made by the class that its task has in the family.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import config, lora
from regard.config import DataError
from regard.config.names import did_you_mean
from regard.core.layers import Fused
from regard.hub import names
from regard.hub.adapters import OURS, PREFIX, SETTINGS, TENSORS, Adapter, spoken
from regard.hub.families import Kin
from regard.hub.families.theirs import Theirs, table_in
from regard.hub.folder import kept
from regard.hub.manifest import NAME, verify
from regard.hub.places import own
from regard.hub.reading import finite
from regard.hub.reheaded import headed, look, rows_of
from regard.hub.weights import Found, few, tensors_from

LOW = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
# What says nothing about the answers of an adapter that is there, or is asked for elsewhere.
KNOWN = {
    "peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping",
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "lora_dropout", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "fan_in_fan_out", "bias",
    "init_lora_weights", "loftq_config", "eva_config", "runtime_config", "megatron_core", "qalora_group_size",
}  # fmt: skip
# Beginnings that leave the base as it is; others change it, and the adapter is for what they leave.
BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


# ---------------------------------------------------------------- files


def read(path: str | Path) -> Adapter:
    """What a folder says: an adapter's own, a checkpoint of a run that trained one, or the run itself."""
    folder = found(Path(path))
    if (folder / NAME).is_file() and (wrong := verify(folder)):
        raise DataError(f"{wrong}; use another copy, or remove {NAME} to trust the folder as it is")
    said = table_in(own(folder, SETTINGS))
    check(Theirs(said, str(folder / SETTINGS)))
    pickles = [each.name for each in folder.iterdir() if each.suffix in (".bin", ".pt")]
    if not (folder / TENSORS).is_file() and pickles:
        raise DataError(f"{folder}: {few(pickles)} may run code when it is opened, so it is not; if you trust it, load "
                        "it with peft and save it again")  # fmt: skip
    if not (folder / TENSORS).is_file():
        raise DataError(f"{folder}: there is no {TENSORS}; fetch or write the folder again")
    tensors = tensors_from(own(folder, TENSORS, None))
    if strange := [name for name, tensor in tensors.items() if not finite(tensor)]:
        raise DataError(f"{folder / TENSORS}: {strange[0]} holds numbers that are not finite; fetch or write it again")
    return Adapter(said, tensors, ours_in(folder), folder)


def found(path: Path) -> Path:
    if path.is_file():
        raise DataError(f"{path}: a file; name the folder it is in")
    if not path.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.glob("*") if each.is_dir()))
        raise DataError(f"{path}: no such folder{near} name one with {SETTINGS}, or a run that trained adapters")
    ways = [path, path / "adapter"]
    if not any((way / SETTINGS).is_file() for way in ways) and (path / "checkpoints").is_dir():
        ways = [kept(path) / "adapter"]
    for way in ways:
        if (way / SETTINGS).is_file():
            return way
    there = few([each.name for each in path.iterdir()]) or "nothing"
    raise DataError(f"{path}: holds {there}; expected {SETTINGS} and {TENSORS}, or a run that trained adapters")


def base_of(path: str | Path) -> str | None:
    """The model that an adapter is for, where a folder holds an adapter and no model."""
    folder = Path(path)
    if not (folder / SETTINGS).is_file() or (folder / "config.json").is_file():
        return None
    base = table_in(own(folder, SETTINGS)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise DataError(f"{folder}: an adapter that names no model; load the model, with adapter={str(folder)!r}")
    return base


def ours_in(folder: Path) -> dict[str, Any]:
    """What we wrote beside the two files, if we did."""
    return table_in(own(folder, OURS)) if (folder / OURS).is_file() else {}


def check(theirs: Theirs) -> None:
    """Refuse what would mean something else than s·B A."""
    if theirs.get("peft_type") != "LORA":
        raise theirs.wrong("peft_type", "adapters here can only be LORA")
    theirs.only("bias", "none")
    if theirs.get("use_dora"):
        raise theirs.wrong("use_dora", "DoRA also learns the lengths of weights, which adapters here do not; merge it "
                           "with peft, and load the merged model")  # fmt: skip
    begins = theirs.get("init_lora_weights", True)
    if begins not in BEGINNINGS:
        raise theirs.wrong("init_lora_weights", "it changes the base as well; convert it with peft to a plain one "
                           "(path_initial_model_for_weight_conversion)")  # fmt: skip
    strange = [key for key, value in theirs.said.items() if value and key not in KNOWN]
    if strange:
        raise theirs.wrong(strange[0], "it may change answers in a way that is not known here; merge the adapter with "
                           "peft, and load the merged model")  # fmt: skip


# ---------------------------------------------------------------- on a model


class Place(NamedTuple):
    """A map of ours, one of its parts or all of it, and what it will wear."""

    path: str
    part: str
    a: Tensor
    b: Tensor
    scale: float


def wear(model: Any, adapter: Adapter) -> Any:
    """The model with an adapter put on, whole or not at all; from then on it alone may learn, with what came whole."""
    if isinstance(model.c, config.Towers):
        raise config.ConfigError(f"{adapter.path}: it is for one model, and towers are several; merge it with peft")
    if lora.worn(model):
        raise config.ConfigError(f"{adapter.path}: the model wears adapters already; model.merge() makes them part of "
                                 "it, and room for others")  # fmt: skip
    before = model.c, model.head, model.task, model.origin
    try:
        put_on(model, adapter)
    except ValueError as problem:
        model.c, model.head, model.task, model.origin = before
        raise problem if isinstance(problem, DataError) else DataError(f"{adapter.path}: {problem}") from None
    return model


def put_on(model: Any, adapter: Adapter) -> None:
    lows, others, base = sorted_out(adapter)
    given = [*(f"{name}.weight" for name in lows), *others, *base]
    known, lacking = headed(model, adapter, given)
    table = spelling(given, known, model.c, adapter)
    places = [placed(model, name, table[f"{name}.weight"], low, adapter) for name, low in lows.items()]
    mine = names.tensors(model)
    for name, tensor in base.items():
        ours = mine[table[name].ours]
        if not torch.equal(fitting(table[name], tensor, mine, adapter).to(ours), ours):
            raise DataError(f"{adapter.path}: the model that it was trained on has another {name}; load that one")
    whole = untied(model, mine, known, {table[name]: tensor for name, tensor in others.items()}, adapter)
    if missing := sorted(lacking - whole.keys()):
        raise DataError(f"{adapter.path}: it is for another head, and neither it nor the model has {few(missing)}; "
                        "load the model that it was trained on")  # fmt: skip
    with torch.no_grad():
        for name, tensor in whole.items():
            mine[name].copy_(tensor)
        for path, part, a, b, scale in places:
            module = model.get_submodule(path)
            low = lora.Low(module.weight, len(b), len(a), scale, drop(adapter))
            low.a.copy_(a)
            low.b.copy_(b)
            lora.put(module, part, low)
    weights = dict(model.named_parameters(remove_duplicate=False))
    lora.learn(model, {plain for name in whole if (plain := re.sub(r"/[^.]+", "", name)) in weights})


def sorted_out(
    adapter: Adapter,
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor], dict[str, Tensor]]:
    """The pairs A and B by their map, the tensors that came whole, and those of the base that peft may add."""
    halves: dict[str, dict[str, Tensor]] = {}
    others, base = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in adapter.tensors.items():
        plain = name.removeprefix(PREFIX)
        if low := LOW.fullmatch(plain):
            halves.setdefault(low[1], {})[low[2]] = tensor
        elif "lora_" in plain:
            raise DataError(f"{adapter.path}: {name} is no A or B of a map; adapters of tables and convolutions are "
                            "not known here; merge it with peft, and load the merged model")  # fmt: skip
        elif ".base_layer." in plain:
            base[plain.replace(".base_layer.", ".")] = tensor
        else:
            others[plain] = tensor
    for name, pair in halves.items():
        a, b = pair.get("A"), pair.get("B")
        if a is None or b is None or a.dim() != 2 or b.dim() != 2 or len(a) != b.shape[1] or not len(a):
            sides = " and ".join(f"{side} {tuple(x.shape)}" for side, x in pair.items())
            raise DataError(f"{adapter.path}: {name} has {sides}; expected A (r, in) and B (out, r)")
    if not halves:
        raise DataError(f"{adapter.path}: there is no adapter in {TENSORS}; fetch or write it again")
    return {name: (pair["A"], pair["B"]) for name, pair in halves.items()}, others, base


def spelling(given: list[str], known: Kin | None, c: config.Model, adapter: Adapter) -> dict[str, Found]:
    """Each of their names in the table."""
    rows, family = rows_of(known, c), known.family if known else None
    table = {name: found for name in given if (found := look(name, rows, family)) is not None}
    if strange := [name for name in given if name not in table]:
        title = known.family.title if known else "regard"
        raise DataError(f"{adapter.path}: {names.ten(strange)}: {title} has no such part in this model; load the model "
                        "that the adapter was trained on")  # fmt: skip
    return table


def placed(model: Any, name: str, found: Found, low: tuple[Tensor, Tensor], adapter: Adapter) -> Place:
    """Where the change of one of their maps belongs."""
    path, _, part = found.ours.removesuffix(".weight").partition("/")
    module = dict(model.named_modules()).get(path)
    sizes = module.sizes if isinstance(module, Fused) else {}
    if not isinstance(module, nn.Linear) or type(module) not in lora.ADAPTED or (part and part not in sizes):
        raise DataError(f"{adapter.path}: {name} is no map of this model that an adapter could change; load the model "
                        "that it was trained on")  # fmt: skip
    if lora.tied(model, path):
        raise DataError(f"{adapter.path}: {name} shares its weight with another part of this model, and a change would "
                        "be of both; untie the model first (tie_word_embeddings)")  # fmt: skip
    part = part if len(sizes) > 1 and part else lora.WHOLE
    shape = len(module.weight[lora.rows(module, part)]), module.in_features
    if (len(low[1]), low[0].shape[1]) != shape:
        raise DataError(f"{adapter.path}: {name} changes a map of {len(low[1])} x {low[0].shape[1]}, and here it is "
                        f"{shape[0]} x {shape[1]}; load the model that it was trained on")  # fmt: skip
    return Place(path, part, *low, scale(name, len(low[0]), adapter))


def scale(name: str, rank: int, adapter: Adapter) -> float:
    """alpha/r, or alpha/sqrt(r); alpha is the map's own where a pattern names it."""
    theirs = Theirs(adapter.settings, str(adapter.path / SETTINGS))
    alpha, patterns = theirs.number("lora_alpha", 8), theirs.inside("alpha_pattern")
    for key in patterns.said:
        ending = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if re.search(r"[\\*+?()\[\]{}|^$]", ending):  # a pattern out of a file is never run: it may take for ever
            raise patterns.wrong(key, "expected the name of a map, or its end")
        if name == ending or (name.endswith(f".{ending}") and not key.startswith("^")):
            alpha = patterns.number(key)
            break
    return alpha / (math.sqrt(rank) if theirs.flag("use_rslora", False) else rank)


def drop(adapter: Adapter) -> float:
    theirs = Theirs(adapter.settings, str(adapter.path / SETTINGS))
    rate = theirs.number("lora_dropout", 0.0)
    if not 0 <= rate < 1:
        raise theirs.wrong("lora_dropout", "expected a number from 0 up to 1")
    return rate


def untied(
    model: Any, mine: Mapping[str, Tensor], known: Kin | None, given: Mapping[Found, Tensor], adapter: Adapter
) -> dict[str, Tensor]:
    """What came whole, by our names; what is one weight here must have come as one, under each of its names."""
    whole, called = dict[str, Tensor](), {found.theirs for found in given}
    table = spoken(model, rows_of(known, model.c)) if given else {}
    for found, tensor in given.items():
        tensor = fitting(found, tensor, mine, adapter)
        before = whole.setdefault(found.ours, tensor)
        whole |= {other: tensor for other in mine if mine[other] is mine[found.ours]}
        missing = [their for their, (_, piece) in table.items()
                   if mine[piece] is mine[found.ours] and their not in called]  # fmt: skip
        if missing or not torch.equal(before, tensor):
            other = missing[0] if missing else "another part"
            raise DataError(f"{adapter.path}: {found.theirs} and {other} are one weight in this model, and two in the "
                            "adapter; untie the model first (tie_word_embeddings)")  # fmt: skip
    return whole


def fitting(found: Found, tensor: Tensor, mine: Mapping[str, Tensor], adapter: Adapter) -> Tensor:
    """A tensor as ours are, if there is a place of its shape."""
    if found.ours not in mine:
        raise DataError(f"{adapter.path}: {found.theirs}: this model has no such part; load the model that the adapter "
                        "was trained on")  # fmt: skip
    place = mine[found.ours]
    theirs = tuple(found.row.convert(place, back=True).shape)
    if tuple(tensor.shape) != theirs or not tensor.is_floating_point():
        raise DataError(f"{adapter.path}: {found.theirs} is {tuple(tensor.shape)}, and {theirs} in this model; load "
                        "the model that the adapter was trained on")  # fmt: skip
    return found.row.convert(tensor)
