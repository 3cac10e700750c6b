"""From a folder, an id or a file to a model that can be asked: built without numbers, then filled where it stays."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard import config, lora
from regard.generate.dtypes import ALIASES, DTYPES, parse_dtype
from regard.generate.layout import Layout, pack
from regard.generate.manner import read as manner_in
from regard.generate.model import Transformer, build
from regard.generate.quick import is_large, quicken
from regard.generate.towers import Towers
from regard.native.held import KINDS
from regard.undrawn import Undrawn
from regard.zoo.models import packaged

if TYPE_CHECKING:  # files and tokenizers are loaded with the first model that needs them
    from regard.hub.folder import Folder


def load(
    path: str | Path, device: str = "auto", dtype: str | torch.dtype = "fp32", adapter: str | Path | None = None,
    *, weights: str | None = "auto", specials: config.Specials | None = None,
) -> Any:  # fmt: skip
    """The model in a run, a checkpoint, a Hugging Face folder or id, with its tokenizer, ready to be asked.

    Models that come with the package have names: "en-fr" translates. `dtype` is the type that it is held in, computes
    in and is saved in: fp32 unless another is given, whatever it was trained or stored in; bf16, fp16, fp64, or one of
    torch's types; "auto" is the type that is stored, and then what is saved unchanged is the same to the byte.
    It wears the `adapter` in a folder, if one is named; a folder that holds an adapter alone stands for the model that
    it was trained on, wearing it.
    On a CPU `weights` selects a packed layout: "auto" keeps the parameters plain and lets the verbs use a packed copy
    in fp32 where that pays (`regard.generate.layout`); fp32, bf16 or int8 hold the weights packed and nothing else, so
    the model can be asked and neither trained nor saved (`regard.generate.quick`); "plain" packs nothing.
    `specials` says what special tokens in a text become: themselves ("parse", as `transformers` has it and so unless
    said), or text like any other ("plain").
    """
    from regard.hub import adapting, folder
    from regard.text import Tokenizer

    if adapter is None and (base := adapting.base_of(path)) is not None:
        path, adapter = base, path
    worn = None if adapter is None else adapting.read(adapter)
    asked, where = parse_dtype(dtype), place(device)
    if weights not in (None, "auto", "plain", *KINDS):
        raise config.ConfigError(f"weights: no {weights!r}; there are auto, plain, {', '.join(KINDS)}")
    stored = folder.read(packaged(path) or path)
    kind = stored_dtype(stored) if asked is None else asked
    found = held(stored, kind, as_stored=asked is None)
    model = hollow(found).to(kind)  # no numbers yet: each tensor is read into the type that it stays in
    folder.fill(model, found, where)
    model.context, model.begin, model.task, model.origin = found.context, found.begin, found.task, found
    model.tokenizer = folder.tokenizer_of(found)
    model.target_tokenizer = None if found.target_path is None else Tokenizer.load(found.target_path)
    read_specials(model, specials)
    model.manner = manner_in(found.path, found.said)
    model.to(where).eval()
    model = model if worn is None else adapting.wear(model, worn)
    if weights == "auto":
        model.layout = Layout() if where.type == "cpu" and is_large(model) else None
    elif weights not in (None, "plain"):
        lora.merge(model)
        quicken(model, weights)
    return model


def load_to_answer(
    path: str | Path, device: str = "auto", dtype: str = "fp32", weights: str = "auto",
    specials: config.Specials | None = None,
) -> Any:  # fmt: skip
    """`load` for a process that only answers: where packed weights pay, they are the only ones it holds."""
    return pack(load(path, device, dtype, weights=weights, specials=specials))


def read_specials(model: Any, specials: config.Specials | None) -> None:
    """Make a model's tokenizers parse special tokens in texts, or spell them; as they are, unless said."""
    for name in ("tokenizer", "target_tokenizer") if specials is not None else ():
        if (known := getattr(model, name, None)) is not None:
            setattr(model, name, known.with_specials(specials))


def held(found: "Folder", kind: torch.dtype, as_stored: bool) -> "Folder":
    """The folder, with its model in a type; unless that is the stored one, what is saved is in this type as well.

    Autocast ("mixed") is how a model was trained, and never how it is asked.
    """
    from regard.hub.families.table import precise

    c = precise(found.config, "bf16" if kind == torch.bfloat16 else "fp32")
    return replace(found, config=c, types=found.types if as_stored else {})


def stored_dtype(found: "Folder") -> torch.dtype:
    """The type of a folder's weights: as its config.json says, or as its tensors have it where they agree."""
    name = str(found.said.get("dtype") or found.said.get("torch_dtype")).removeprefix("torch.")
    if name in ALIASES:
        return DTYPES[ALIASES[name]]
    kinds = set(found.types.values())
    return kinds.pop() if len(kinds) == 1 and kinds <= set(DTYPES.values()) else torch.float32


def hollow(found: "Folder") -> Transformer | Towers:
    """The folder's model without numbers: whatever it begins with would be replaced."""
    try:
        with torch.device("meta"), Undrawn():
            model = build(found.config)
    except (RuntimeError, ValueError, OverflowError) as problem:
        told = str(problem).splitlines()[0]
        raise config.DataError(f"{found.path / 'config.json'}: no model can be built so: {told}") from None
    stored = model.state_dict().keys()
    apart = [name for name, _ in model.named_buffers() if name not in stored]
    return build(found.config) if apart else model  # tables that no file holds are made with the model


def place(device: str) -> torch.device:
    """The device that a name means; "auto" is the fastest there is."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = next(name for name, is_there in there.items() if is_there)
    kind = device.partition(":")[0]
    if kind not in there:
        raise config.ConfigError(f"device: no {device!r}; there are auto, {', '.join(there)}")
    if not there[kind]:
        raise config.ConfigError(f"device: {device!r} is not available here; choose auto or cpu")
    return torch.device(device)
