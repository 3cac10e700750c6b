"""load_model: loads a Model from a folder, a run, a hub id or a file, built on the meta device and then filled."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard import config
from regard.generation.params import read_generation_config as manner_in
from regard.inference.dtypes import DTYPE_ALIASES, DTYPES, parse_dtype
from regard.inference.dual_encoder_model import DualEncoderModel
from regard.inference.model import Model, build_model
from regard.inference.packed_weights import PackedWeights, pack_in_place
from regard.models import lora
from regard.models.meta_init import SkipInit
from regard.native.quantize import WEIGHT_FORMATS, is_large_model, pack_model
from regard.zoo.packaged import packaged_model

if TYPE_CHECKING:
    from regard.hub.read_folder import ModelFolder


def load_model(
    path: str | Path, device: str = "auto", dtype: str | torch.dtype = "fp32", adapter: str | Path | None = None,
    *, weights: str | None = "auto", specials: config.Specials | None = None,
) -> Any:  # fmt: skip
    """Load the model of a run, a checkpoint, a Hugging Face folder or hub id, with its tokenizer, in eval mode.

    Models that come with the package have names: "en-fr" translates. `dtype` is the type of the weights in memory, of
    the computation and of a saved model: fp32 by default, whatever the training or storage type; bf16, fp16, fp64, or
    one of torch's types; "auto" is the stored type, and an unchanged model is then saved byte for byte. The `adapter`
    in a folder is attached, if one is named; a folder with an adapter alone stands for its base model with the adapter.
    On a CPU `weights` selects a packed layout: "auto" keeps plain parameters and uses a packed fp32 copy for inference
    where that pays (`regard.inference.packed_weights`); fp32, bf16 or int8 keep packed weights alone, for a model that
    can be neither trained nor saved (`regard.native.quantize`); "plain" packs nothing. `specials` sets how special
    tokens in a text are encoded: parsed ("parse", the default, as in `transformers`), or as plain text ("plain").
    """
    from regard.hub import peft_load, read_folder
    from regard.text.tokenizer import Tokenizer

    if adapter is None and (base := peft_load.base_model_of(path)) is not None:
        path, adapter = base, path
    peft_adapter = None if adapter is None else peft_load.read_adapter(adapter)
    asked, where = parse_dtype(dtype), resolve_device(device)
    if weights not in (None, "auto", "plain", *WEIGHT_FORMATS):
        raise config.ConfigError(f"weights: no {weights!r}; there are auto, plain, {', '.join(WEIGHT_FORMATS)}")
    stored = read_folder.read_model_folder(packaged_model(path) or path)
    kind = stored_dtype(stored) if asked is None else asked
    found = folder_in_dtype(stored, kind, as_stored=asked is None)
    model = model_on_meta(found).to(kind)  # no data yet: each tensor is read into its final dtype
    read_folder.load_weights(model, found, where)
    model.context, model.decoder_start_id, model.task, model.source_folder = (
        found.context,
        found.begin,
        found.task,
        found,
    )
    model.tokenizer = read_folder.load_tokenizer(found)
    model.target_tokenizer = None if found.target_path is None else Tokenizer.load(found.target_path)
    read_specials(model, specials)
    model.generation_defaults = manner_in(found.path, found.said)
    model.to(where).eval()
    model = model if peft_adapter is None else peft_load.apply_adapter(model, peft_adapter)
    if weights == "auto":
        model.layout = PackedWeights() if where.type == "cpu" and is_large_model(model) else None
    elif weights not in (None, "plain"):
        lora.merge_adapters(model)
        pack_model(model, weights)
    return model


def load_for_inference(
    path: str | Path, device: str = "auto", dtype: str = "fp32", weights: str = "auto",
    specials: config.Specials | None = None,
) -> Any:  # fmt: skip
    """Load a model for inference alone: where packed weights pay, it keeps no plain ones."""
    return pack_in_place(load_model(path, device, dtype, weights=weights, specials=specials))


def read_specials(model: Any, specials: config.Specials | None) -> None:
    """Set whether a model's tokenizers parse special tokens in texts; None changes nothing."""
    for name in ("tokenizer", "target_tokenizer") if specials is not None else ():
        if (known := getattr(model, name, None)) is not None:
            setattr(model, name, known.with_specials(specials))


def folder_in_dtype(found: "ModelFolder", kind: torch.dtype, as_stored: bool) -> "ModelFolder":
    """The folder with its model in a dtype; unless it is the stored one, the model is also saved in it.

    Autocast ("mixed") is a setting of training, never of inference.
    """
    from regard.hub.families.registry import with_precision

    c = with_precision(found.config, "bf16" if kind == torch.bfloat16 else "fp32")
    return replace(found, config=c, types=found.types if as_stored else {})


def stored_dtype(found: "ModelFolder") -> torch.dtype:
    """The dtype of a folder's weights: that of its config.json, or that of its tensors where they agree."""
    name = str(found.said.get("dtype") or found.said.get("torch_dtype")).removeprefix("torch.")
    if name in DTYPE_ALIASES:
        return DTYPES[DTYPE_ALIASES[name]]
    kinds = set(found.types.values())
    return kinds.pop() if len(kinds) == 1 and kinds <= set(DTYPES.values()) else torch.float32


def model_on_meta(found: "ModelFolder") -> Model | DualEncoderModel:
    """The folder's model without data: an initialisation would be overwritten."""
    try:
        with torch.device("meta"), SkipInit():
            model = build_model(found.config)
    except (RuntimeError, ValueError, OverflowError) as problem:
        told = str(problem).splitlines()[0]
        raise config.DataError(f"{found.path / 'config.json'}: no model can be built so: {told}") from None
    stored = model.state_dict().keys()
    apart = [name for name, _ in model.named_buffers() if name not in stored]
    return build_model(found.config) if apart else model  # buffers that are in no file need a real initialisation


def resolve_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is the fastest available."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = next(name for name, is_there in there.items() if is_there)
    kind = device.partition(":")[0]
    if kind not in there:
        raise config.ConfigError(f"device: no {device!r}; there are auto, {', '.join(there)}")
    if not there[kind]:
        raise config.ConfigError(f"device: {device!r} is not available here; choose auto or cpu")
    return torch.device(device)
