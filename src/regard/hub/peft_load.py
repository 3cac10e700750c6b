"""PEFT adapter loading: reads adapters that `peft` or this package saved, and attaches them to a model.

Every tensor must have a target, or nothing is attached. A head for another task comes from the adapter, or is built as
the family's class for that task has it.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import config
from regard.config.errors import DataError, did_you_mean, name_some
from regard.core.layers import FusedLinear
from regard.files.content_cache import read_json_object
from regard.files.manifest import MANIFEST_NAME, verify_manifest
from regard.hub import name_table
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import FamilyClass
from regard.hub.locate import default_checkpoint
from regard.hub.peft_heads import find_name_row, match_head, name_rows
from regard.hub.peft_save import (
    ADAPTER_CONFIG,
    ADAPTER_EXTRAS,
    ADAPTER_WEIGHTS,
    PEFT_PREFIX,
    PeftAdapter,
    hf_tensor_names,
)
from regard.hub.validate import own_file
from regard.hub.weight_reader import all_finite
from regard.hub.weights import MatchedName, load_tensors_lazy
from regard.models import lora

LOW = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
# Keys that do not change the output of a loaded adapter, or that are handled elsewhere.
KNOWN_PEFT_KEYS = {
    "peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping",
    "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "lora_dropout", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "fan_in_fan_out", "bias",
    "init_lora_weights", "loftq_config", "eva_config", "runtime_config", "megatron_core", "qalora_group_size",
}  # fmt: skip
# Initialisations that leave the base weights as they are; others change the base that the adapter belongs to.
BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


# ---------------------------------------------------------------- files


def read_adapter(path: str | Path) -> PeftAdapter:
    """Read an adapter: an adapter folder, a checkpoint of a run that trained one, or the run itself."""
    folder = find_adapter(Path(path))
    if (folder / MANIFEST_NAME).is_file() and (wrong := verify_manifest(folder)):
        raise DataError(f"{wrong}; use another copy, or remove {MANIFEST_NAME} to trust the folder as it is")
    said = read_json_object(own_file(folder, ADAPTER_CONFIG))
    check_peft_config(HFConfig(said, str(folder / ADAPTER_CONFIG)))
    pickles = sorted(each.name for each in folder.iterdir() if each.suffix in (".bin", ".pt"))
    if not (folder / ADAPTER_WEIGHTS).is_file() and pickles:
        raise DataError(f"{folder}: {name_some(pickles)} may run code when it is opened, so it is not; if you trust "
                        "it, load "
                        "it with peft and save it again")  # fmt: skip
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise DataError(f"{folder}: there is no {ADAPTER_WEIGHTS}; fetch or write the folder again")
    tensors = load_tensors_lazy(own_file(folder, ADAPTER_WEIGHTS, None))
    if strange := [name for name, tensor in tensors.items() if not all_finite(tensor)]:
        raise DataError(
            f"{folder / ADAPTER_WEIGHTS}: {strange[0]} holds numbers that are not finite; fetch or write it again"
        )
    return PeftAdapter(said, tensors, read_extras(folder), folder)


def find_adapter(path: Path) -> Path:
    if path.is_file():
        raise DataError(f"{path}: a file; name the folder it is in")
    if not path.is_dir():
        near = did_you_mean(path.name, (each.name for each in path.parent.glob("*") if each.is_dir()))
        raise DataError(f"{path}: no such folder{near} name one with {ADAPTER_CONFIG}, or a run that trained adapters")
    ways = [path, path / "adapter"]
    if not any((way / ADAPTER_CONFIG).is_file() for way in ways) and (path / "checkpoints").is_dir():
        ways = [default_checkpoint(path) / "adapter"]
    for way in ways:
        if (way / ADAPTER_CONFIG).is_file():
            return way
    there = name_some(sorted(each.name for each in path.iterdir())) or "nothing"
    raise DataError(
        f"{path}: holds {there}; expected {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}, or a run that trained adapters"
    )


def base_model_of(path: str | Path) -> str | None:
    """The base model of a folder that holds an adapter and no model."""
    folder = Path(path)
    if not (folder / ADAPTER_CONFIG).is_file() or (folder / "config.json").is_file():
        return None
    base = read_json_object(own_file(folder, ADAPTER_CONFIG)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise DataError(f"{folder}: an adapter that names no model; load the model, with adapter={str(folder)!r}")
    return base


def read_extras(folder: Path) -> dict[str, Any]:
    """Our own file beside the two of `peft`, if there is one."""
    return read_json_object(own_file(folder, ADAPTER_EXTRAS)) if (folder / ADAPTER_EXTRAS).is_file() else {}


def check_peft_config(hf: HFConfig) -> None:
    """Refuse settings that change the update s·B A."""
    if hf.get("peft_type") != "LORA":
        raise hf.error("peft_type", "adapters here can only be LORA")
    hf.require("bias", "none")
    if hf.get("use_dora"):
        raise hf.error("use_dora", "DoRA also learns the lengths of weights, which adapters here do not; merge it "
                           "with peft, and load the merged model")  # fmt: skip
    begins = hf.get("init_lora_weights", True)
    if begins not in BEGINNINGS:
        raise hf.error("init_lora_weights", "it changes the base as well; convert it with peft to a plain one "
                           "(path_initial_model_for_weight_conversion)")  # fmt: skip
    strange = [key for key, value in hf.said.items() if value and key not in KNOWN_PEFT_KEYS]
    if strange:
        raise hf.error(strange[0], "it may change outputs, and it is not supported; merge the adapter with "
                           "peft, and load the merged model")  # fmt: skip


# ---------------------------------------------------------------- attaching to a model


class AdapterPlacement(NamedTuple):
    """The target of a LoRA update: one of our linear layers, all of it or one part."""

    path: str
    part: str
    a: Tensor
    b: Tensor
    scale: float


def apply_adapter(model: Any, adapter: PeftAdapter) -> Any:
    """Attach an adapter to a model, completely or not at all; afterwards only the adapter and its full weights are
    trainable."""
    if isinstance(model.c, config.DualEncoder):
        raise config.ConfigError(f"{adapter.path}: it is for one model, and towers are several; merge it with peft")
    if lora.adapted_modules(model):
        raise config.ConfigError(f"{adapter.path}: the model has adapters already; model.merge() makes them part of "
                                 "it, and room for others")  # fmt: skip
    before = model.c, model.head, model.task, model.source_folder
    try:
        attach_all(model, adapter)
    except ValueError as problem:
        model.c, model.head, model.task, model.source_folder = before
        raise problem if isinstance(problem, DataError) else DataError(f"{adapter.path}: {problem}") from None
    return model


def attach_all(model: Any, adapter: PeftAdapter) -> None:
    lows, others, base = sort_tensors(adapter)
    given = [*(f"{name}.weight" for name in lows), *others, *base]
    known, lacking = match_head(model, adapter, given)
    table = match_names(given, known, model.c, adapter)
    places = [place_adapter(model, name, table[f"{name}.weight"], low, adapter) for name, low in lows.items()]
    lora.check_no_hooks(model, (place.path for place in places))
    mine = name_table.model_tensors(model)
    for name, tensor in base.items():
        ours = mine[table[name].ours]
        if not torch.equal(fit_tensor(table[name], tensor, mine, adapter).to(ours), ours):
            raise DataError(f"{adapter.path}: the model that it was trained on has another {name}; load that one")
    whole = full_weights(model, mine, known, {table[name]: tensor for name, tensor in others.items()}, adapter)
    if missing := sorted(lacking - whole.keys()):
        raise DataError(f"{adapter.path}: it is for another head, and neither it nor the model has "
                        f"{name_some(missing)}; "
                        "load the model that it was trained on")  # fmt: skip
    with torch.no_grad():
        for name, tensor in whole.items():
            mine[name].copy_(tensor)
        for path, part, a, b, scale in places:
            weight = model.get_parameter(f"{path}.weight")
            low = lora.LowRankUpdate(weight, len(b), len(a), scale, adapter_dropout(adapter))
            low.a.copy_(a)
            low.b.copy_(b)
            lora.attach_adapter(model, path, part, low)
    weights = dict(model.named_parameters(remove_duplicate=False))
    lora.train_only_adapters(model, {plain for name in whole if (plain := re.sub(r"/[^.]+", "", name)) in weights})


def sort_tensors(
    adapter: PeftAdapter,
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor], dict[str, Tensor]]:
    """The adapter's tensors in three groups: pairs A and B by linear, full weights, and base weights."""
    halves: dict[str, dict[str, Tensor]] = {}
    others, base = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in adapter.tensors.items():
        plain = name.removeprefix(PEFT_PREFIX)
        if low := LOW.fullmatch(plain):
            halves.setdefault(low[1], {})[low[2]] = tensor
        elif "lora_" in plain:
            raise DataError(f"{adapter.path}: {name} is no A or B of a linear layer; adapters of other layers are "
                            "not supported; merge it with peft, and load the merged model")  # fmt: skip
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
        raise DataError(f"{adapter.path}: there is no adapter in {ADAPTER_WEIGHTS}; fetch or write it again")
    return {name: (pair["A"], pair["B"]) for name, pair in halves.items()}, others, base


def match_names(
    given: list[str], known: FamilyClass | None, c: config.Model, adapter: PeftAdapter
) -> dict[str, MatchedName]:
    """The table entries of all names of an adapter."""
    rows, family = name_rows(known, c), known.family if known else None
    table = {name: found for name in given if (found := find_name_row(name, rows, family)) is not None}
    if strange := [name for name in given if name not in table]:
        title = known.family.title if known else "regard"
        raise DataError(f"{adapter.path}: {name_some(strange, 10)}: {title} has no such part in this model; "
                        "load the "
                        "model "
                        "that the adapter was trained on")  # fmt: skip
    return table


def place_adapter(
    model: Any, name: str, found: MatchedName, low: tuple[Tensor, Tensor], adapter: PeftAdapter
) -> AdapterPlacement:
    """The target of the update of one linear."""
    path, _, part = found.ours.removesuffix(".weight").partition("/")
    module = dict(model.named_modules()).get(path)
    sizes = module.sizes if isinstance(module, FusedLinear) else {}
    if not isinstance(module, nn.Linear) or type(module) not in lora.ADAPTED_TYPES or (part and part not in sizes):
        raise DataError(f"{adapter.path}: {name} is no map of this model that an adapter could change; load the model "
                        "that it was trained on")  # fmt: skip
    if lora.is_tied(model, path):
        raise DataError(f"{adapter.path}: {name} shares its weight with another part of this model, and a change would "
                        "be of both; untie the model first (tie_word_embeddings)")  # fmt: skip
    part = part if len(sizes) > 1 and part else lora.WHOLE_LINEAR
    shape = len(module.weight[lora.adapter_rows(module, part)]), module.in_features
    if (len(low[1]), low[0].shape[1]) != shape:
        raise DataError(f"{adapter.path}: {name} changes a map of {len(low[1])} x {low[0].shape[1]}, and here it is "
                        f"{shape[0]} x {shape[1]}; load the model that it was trained on")  # fmt: skip
    return AdapterPlacement(path, part, *low, adapter_scale(name, len(low[0]), adapter))


def adapter_scale(name: str, rank: int, adapter: PeftAdapter) -> float:
    """The scale alpha/r, or alpha/sqrt(r); alpha may be that of a matching pattern."""
    theirs = HFConfig(adapter.settings, str(adapter.path / ADAPTER_CONFIG))
    alpha, patterns = theirs.get_float("lora_alpha", 8), theirs.table("alpha_pattern")
    for key in patterns.said:
        ending = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if re.search(r"[\\*+?()\[\]{}|^$]", ending):  # a file's patterns are never run: one may take for ever
            raise patterns.error(key, "expected the name of a map, or its end")
        if name == ending or (name.endswith(f".{ending}") and not key.startswith("^")):
            alpha = patterns.get_float(key)
            break
    return alpha / (math.sqrt(rank) if theirs.get_bool("use_rslora", False) else rank)


def adapter_dropout(adapter: PeftAdapter) -> float:
    theirs = HFConfig(adapter.settings, str(adapter.path / ADAPTER_CONFIG))
    rate = theirs.get_float("lora_dropout", 0.0)
    if not 0 <= rate < 1:
        raise theirs.error("lora_dropout", "expected a number from 0 up to 1")
    return rate


def full_weights(
    model: Any,
    mine: Mapping[str, Tensor],
    known: FamilyClass | None,
    given: Mapping[MatchedName, Tensor],
    adapter: PeftAdapter,
) -> dict[str, Tensor]:
    """The adapter's full weights by our names; weights that are tied here must be equal under all their names."""
    whole, called = dict[str, Tensor](), {found.theirs for found in given}
    table = hf_tensor_names(model, name_rows(known, model.c)) if given else {}
    for found, tensor in given.items():
        tensor = fit_tensor(found, tensor, mine, adapter)
        before = whole.setdefault(found.ours, tensor)
        whole |= {other: tensor for other in mine if mine[other] is mine[found.ours]}
        missing = [their for their, (_, piece) in table.items()
                   if mine[piece] is mine[found.ours] and their not in called]  # fmt: skip
        if missing or not torch.equal(before, tensor):
            other = missing[0] if missing else "another part"
            raise DataError(f"{adapter.path}: {found.theirs} and {other} are one weight in this model, and two in the "
                            "adapter; untie the model first (tie_word_embeddings)")  # fmt: skip
    return whole


def fit_tensor(found: MatchedName, tensor: Tensor, mine: Mapping[str, Tensor], adapter: PeftAdapter) -> Tensor:
    """A tensor in our layout, if its target has its shape."""
    if found.ours not in mine:
        raise DataError(f"{adapter.path}: {found.theirs}: this model has no such part; load the model that the adapter "
                        "was trained on")  # fmt: skip
    place = mine[found.ours]
    theirs = tuple(found.row.convert(place, back=True).shape)
    if tuple(tensor.shape) != theirs or not tensor.is_floating_point():
        raise DataError(f"{adapter.path}: {found.theirs} is {tuple(tensor.shape)}, and {theirs} in this model; load "
                        "the model that the adapter was trained on")  # fmt: skip
    return found.row.convert(tensor)
