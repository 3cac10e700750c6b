"""Models in GGUF files, as llama.cpp keeps them: Llama and its relatives, with their tokenizers; read, never written.

    regard.load("SmolLM2-135M-Instruct.Q4_1.gguf")

The facts of the file are said in the words of the family's config.json, so what is read can be saved as a folder that
`transformers` opens. Needs the package `gguf`, which knows what the blocks of few bits mean.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import DataError
from regard.hub import names
from regard.hub.families import heard
from regard.hub.families.theirs import Theirs
from regard.hub.folder import Folder
from regard.hub.gguf_file import File, Held, opened, package
from regard.hub.headers import Stored
from regard.hub.plausible import bounded, plausible
from regard.hub.reading import finite
from regard.hub.weights import settle
from regard.text import Tokenizer
from regard.text.lists import WHOLE, Lists, told

KINDS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}  # their architectures, and what the classes are called
SUFFIX = ".gguf"
TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


def read(path: Path) -> Folder:
    """What a file says, in the words of config.json."""
    package()
    file = opened(path)
    said = settings(file)
    bounded(said, str(path))
    c, family, architecture, longest = heard(said, str(path))
    plausible(c, listed(file), str(path))
    return Folder(path, c, family.name, architecture, longest, said=said)


def listed(file: File) -> dict[str, Stored]:
    """The tensors as if they stood there in fp32."""
    return {name: Stored(file.path, name, each.shape, torch.float32) for name, each in file.tensors.items()}


# ---------------------------------------------------------------- facts


def settings(file: File) -> dict[str, Any]:
    """A config.json, from the facts."""
    theirs = Theirs(file.facts, str(file.path))
    kind = theirs.word("general.architecture", {name: name for name in KINDS})
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise DataError(f"{file.path}: there is no token_embd.weight, a row for each token; fetch it again")
    for key in (f"{kind}.expert_count", f"{kind}.attention.sliding_window"):
        if theirs.get(key):
            raise theirs.wrong(key, f"a {KINDS[kind]} here has none")
    heads = theirs.whole(f"{kind}.attention.head_count")
    width = theirs.whole(f"{kind}.rope.dimension_count", max(1, table.shape[1] // heads))
    ids = {key: theirs.get(f"tokenizer.ggml.{name}_token_id") for key, name in ROLES.items()}
    return {
        "model_type": kind,
        "architectures": [f"{KINDS[kind]}ForCausalLM"],
        "dtype": "float32",
        "vocab_size": table.shape[0],
        "hidden_size": theirs.whole(f"{kind}.embedding_length"),
        "intermediate_size": theirs.whole(f"{kind}.feed_forward_length"),
        "num_hidden_layers": theirs.whole(f"{kind}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": theirs.whole(f"{kind}.attention.head_count_kv", heads),
        "head_dim": theirs.whole(f"{kind}.attention.key_length", width),
        "hidden_act": "silu",
        "max_position_embeddings": theirs.whole(f"{kind}.context_length"),
        "rms_norm_eps": short(theirs.number(f"{kind}.attention.layer_norm_rms_epsilon")),
        "rope_parameters": rope(file, theirs, kind),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **({} if kind == "qwen2" else {"attention_bias": "blk.0.attn_q.bias" in file.tensors}),
        **({"mlp_bias": "blk.0.ffn_up.bias" in file.tensors} if kind == "llama" else {}),
        **{f"{key}_id": ident for key, ident in ids.items() if ident is not None},
    }


ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
SCALED = {"factor": "factor", "original_context_length": "original_max_position_embeddings"}


def rope(file: File, theirs: Theirs, kind: str) -> dict[str, Any]:
    """Rotary positions; a factor for each pair of channels, where a tensor has them, is what longrope says."""
    where, base = f"{kind}.rope.scaling.", short(theirs.number(f"{kind}.rope.freq_base", 10_000.0))
    if held := file.tensors.get("rope_freqs.weight"):
        factors = [short(factor) for factor in whole(file, held).flatten().tolist()]
        both = {"short_factor": factors, "long_factor": factors, "factor": 1.0, "attention_factor": 1.0}
        length = theirs.whole(f"{kind}.context_length")
        return {"rope_type": "longrope", "rope_theta": base, "original_max_position_embeddings": length, **both}
    scaling = theirs.word(f"{where}type", {"none": "default", "linear": "linear", "yarn": "yarn"}, "none")
    told = {key.removeprefix(where): value for key, value in file.facts.items() if key.startswith(where)}
    if strange := sorted(told.keys() - SCALED.keys() - {"type", "finetuned"}):
        raise theirs.wrong(where + strange[0], "no such scaling is known here")
    scaled = {} if scaling == "default" else {SCALED[key]: told[key] for key in SCALED if key in told}
    return {"rope_type": scaling, "rope_theta": base, **scaled}


def short(value: float) -> float:
    """A number of fp32 as somebody wrote it: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


# ---------------------------------------------------------------- numbers


@torch.no_grad()
def pour(model: nn.Module, folder: Folder, device: torch.device | None = None) -> None:
    """The numbers of a file into a model of its config, a piece of a tensor at a time."""
    file = opened(folder.path)
    ghosts = {name: each.ghost for name, each in listed(file).items()}
    try:
        moves = names.moves(model, ghosts, "gguf")
    except ValueError as problem:
        raise DataError(f"{folder.path}: the tensors do not fit the facts: {problem}; fetch it again") from None
    settle(model, device)
    mine, said = names.tensors(model), Theirs(folder.said)
    for move in moves:
        held, place = file.tensors[move.theirs], mine[move.ours]
        order = turned(held, said)
        for rows, piece in file.pieces(held):
            if order is None:
                place[rows].copy_(piece)
            else:
                place.index_copy_(0, order[rows].to(place.device), piece.to(place))
        if not finite(place):
            raise DataError(f"{folder.path}: {held.name} holds numbers that are not finite; fetch it again")


def whole(file: File, held: Held) -> Tensor:
    return torch.cat([piece for _, piece in file.pieces(held)])


def turned(held: Held, said: Theirs) -> Tensor | None:
    """Where each row of q and k goes: a file of a Llama has the two channels that turn together beside each other."""
    found = TURNED.fullmatch(held.name) if said.get("model_type") == "llama" else None
    if found is None:
        return None
    heads = said.whole("num_attention_heads" if found[1] == "q" else "num_key_value_heads")
    rows: Tensor = torch.arange(held.shape[0]).unflatten(0, (heads, 2, -1))
    return rows.transpose(1, 2).flatten()


# ---------------------------------------------------------------- words


def words(path: Path) -> Tokenizer | None:
    """The tokenizer in a file, if it has one; a warning says why it cannot be used."""
    file = opened(path)
    facts = {key.removeprefix("tokenizer."): each for key, each in file.facts.items() if key.startswith("tokenizer.")}
    theirs = Theirs(facts, f"{path}: tokenizer")
    if not theirs.get("ggml.tokens"):
        return None
    try:
        return told(lists(theirs), card(theirs))
    except DataError as problem:
        where = "" if str(problem).startswith(str(path)) else f"{path}: "
        warnings.warn(f"{where}{problem}; the model is read without it and takes ids", stacklevel=3)
        return None


def lists(theirs: Theirs) -> Lists:
    kind, split = str(theirs.get("ggml.model", "none")), str(theirs.get("ggml.pre", "default"))
    starts = theirs.flag("ggml.add_bos_token", kind == "llama" or split in WHOLE)
    return Lists(
        kind=kind,
        tokens=some(theirs, "ggml.tokens", str),
        merges=some(theirs, "ggml.merges", str),
        scores=some(theirs, "ggml.scores", float),
        types=some(theirs, "ggml.token_type", int),
        split=split,
        start=ident(theirs, "bos") if starts else None,
        blank=theirs.flag("ggml.add_space_prefix", True),
    )


def some(theirs: Theirs, key: str, kind: type) -> list[Any]:
    found = theirs.get(key, [])
    if not isinstance(found, list) or (found and type(found[0]) is not kind):
        raise theirs.wrong(key, f"expected a list of {kind.__name__}")
    return found


def ident(theirs: Theirs, name: str) -> int | None:
    """The id of a token with a role, if there is such a token."""
    found = theirs.get(f"ggml.{name}_token_id")
    return found if type(found) is int and 0 <= found < len(some(theirs, "ggml.tokens", str)) else None


def card(theirs: Theirs) -> dict[str, Any]:
    """A tokenizer_config.json: which token is for what, and how a chat is written."""
    tokens = some(theirs, "ggml.tokens", str)
    roles = {key: ident(theirs, name) for key, name in (*ROLES.items(), ("unk_token", "unknown"))}
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    chat = {"chat_template": theirs.get("chat_template")} if isinstance(theirs.get("chat_template"), str) else {}
    return plain | {key: tokens[id] for key, id in roles.items() if id is not None} | chat
