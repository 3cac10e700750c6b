"""GGUF models: loads models and tokenizers of llama.cpp files of Llama and related families; there is no writer.

    regard.load("SmolLM2-135M-Instruct.Q4_1.gguf")

The metadata is translated to the family's config.json, so that the model can be saved as a folder that `transformers`
opens. Needs the package `gguf`, which decodes the quantized blocks.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.errors import DataError
from regard.hub import name_table
from regard.hub.families.hf_config import HFConfig
from regard.hub.families.registry import parse_hf_config
from regard.hub.gguf_file import GGUFFile, GGUFTensor, import_gguf, open_gguf
from regard.hub.read_folder import ModelFolder
from regard.hub.validate import check_config_fits_weights, check_layer_counts
from regard.hub.weight_reader import StoredTensor, all_finite
from regard.hub.weights import materialize
from regard.text.gguf_vocab import WHOLE_WORD_SPLITS, GgufVocab, tokenizer_from_gguf
from regard.text.tokenizer import Tokenizer

KINDS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}  # GGUF architectures, and class names
SUFFIX = ".gguf"
TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


def read_gguf(path: Path) -> ModelFolder:
    """The model folder of a GGUF file, with its metadata as a config.json."""
    import_gguf()
    file = open_gguf(path)
    said = gguf_to_hf_config(file)
    check_layer_counts(said, str(path))
    c, family, architecture, longest = parse_hf_config(said, str(path))
    check_config_fits_weights(c, gguf_tensors(file), str(path))
    return ModelFolder(path, c, family.name, architecture, longest, said=said)


def gguf_tensors(file: GGUFFile) -> dict[str, StoredTensor]:
    """The tensors as entries of a weight reader, in fp32."""
    return {name: StoredTensor(file.path, name, each.shape, torch.float32) for name, each in file.tensors.items()}


# ---------------------------------------------------------------- metadata


def gguf_to_hf_config(file: GGUFFile) -> dict[str, Any]:
    """A config.json from the metadata."""
    theirs = HFConfig(file.facts, str(file.path))
    kind = theirs.get_str("general.architecture", {name: name for name in KINDS})
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise DataError(f"{file.path}: there is no token_embd.weight, a row for each token; fetch it again")
    for key in (f"{kind}.expert_count", f"{kind}.attention.sliding_window"):
        if theirs.get(key):
            raise theirs.error(key, f"a {KINDS[kind]} here has none")
    heads = theirs.get_int(f"{kind}.attention.head_count")
    width = theirs.get_int(f"{kind}.rope.dimension_count", max(1, table.shape[1] // heads))
    ids = {key: theirs.get(f"tokenizer.ggml.{name}_token_id") for key, name in ROLES.items()}
    return {
        "model_type": kind,
        "architectures": [f"{KINDS[kind]}ForCausalLM"],
        "dtype": "float32",
        "vocab_size": table.shape[0],
        "hidden_size": theirs.get_int(f"{kind}.embedding_length"),
        "intermediate_size": theirs.get_int(f"{kind}.feed_forward_length"),
        "num_hidden_layers": theirs.get_int(f"{kind}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": theirs.get_int(f"{kind}.attention.head_count_kv", heads),
        "head_dim": theirs.get_int(f"{kind}.attention.key_length", width),
        "hidden_act": "silu",
        "max_position_embeddings": theirs.get_int(f"{kind}.context_length"),
        "rms_norm_eps": shortest_float(theirs.get_float(f"{kind}.attention.layer_norm_rms_epsilon")),
        "rope_parameters": rope_config(file, theirs, kind),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **({} if kind == "qwen2" else {"attention_bias": "blk.0.attn_q.bias" in file.tensors}),
        **({"mlp_bias": "blk.0.ffn_up.bias" in file.tensors} if kind == "llama" else {}),
        **{f"{key}_id": ident for key, ident in ids.items() if ident is not None},
    }


ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
SCALED = {"factor": "factor", "original_context_length": "original_max_position_embeddings"}


def rope_config(file: GGUFFile, hf: HFConfig, kind: str) -> dict[str, Any]:
    """The RoPE parameters; a tensor of factors for each pair of channels becomes longrope."""
    where, base = f"{kind}.rope.scaling.", shortest_float(hf.get_float(f"{kind}.rope.freq_base", 10_000.0))
    if held := file.tensors.get("rope_freqs.weight"):
        factors = [shortest_float(factor) for factor in whole_tensor(file, held).flatten().tolist()]
        both = {"short_factor": factors, "long_factor": factors, "factor": 1.0, "attention_factor": 1.0}
        length = hf.get_int(f"{kind}.context_length")
        return {"rope_type": "longrope", "rope_theta": base, "original_max_position_embeddings": length, **both}
    scaling = hf.get_str(f"{where}type", {"none": "default", "linear": "linear", "yarn": "yarn"}, "none")
    told = {key.removeprefix(where): value for key, value in file.facts.items() if key.startswith(where)}
    if strange := sorted(told.keys() - SCALED.keys() - {"type", "finetuned"}):
        raise hf.error(where + strange[0], "this scaling is not supported")
    scaled = {} if scaling == "default" else {SCALED[key]: told[key] for key in SCALED if key in told}
    return {"rope_type": scaling, "rope_theta": base, **scaled}


def shortest_float(value: float) -> float:
    """An fp32 value as it was written: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


# ---------------------------------------------------------------- weights


@torch.no_grad()
def load_gguf_weights(model: nn.Module, folder: ModelFolder, device: torch.device | None = None) -> None:
    """Load the tensors of a file into a model of its config, a slice of a tensor at a time."""
    file = open_gguf(folder.path)
    ghosts = {name: each.ghost for name, each in gguf_tensors(file).items()}
    try:
        moves = name_table.plan_moves(model, ghosts, "gguf")
    except ValueError as problem:
        raise DataError(f"{folder.path}: the tensors do not fit the facts: {problem}; fetch it again") from None
    materialize(model, device)
    mine, said = name_table.model_tensors(model), HFConfig(folder.said)
    for move in moves:
        held, place = file.tensors[move.theirs], mine[move.ours]
        order = rope_row_order(held, said)
        for rows, piece in file.pieces(held):
            if order is None:
                place[rows].copy_(piece)
            else:
                place.index_copy_(0, order[rows].to(place.device), piece.to(place))
        if not all_finite(place):
            raise DataError(f"{folder.path}: {held.name} holds numbers that are not finite; fetch it again")


def whole_tensor(file: GGUFFile, held: GGUFTensor) -> Tensor:
    return torch.cat([piece for _, piece in file.pieces(held)])


def rope_row_order(held: GGUFTensor, hf: HFConfig) -> Tensor | None:
    """The target row of each row of q and k: GGUF files of Llama interleave the two channels of a rotary pair."""
    found = TURNED.fullmatch(held.name) if hf.get("model_type") == "llama" else None
    if found is None:
        return None
    heads = hf.get_int("num_attention_heads" if found[1] == "q" else "num_key_value_heads")
    rows: Tensor = torch.arange(held.shape[0]).unflatten(0, (heads, 2, -1))
    return rows.transpose(1, 2).flatten()


# ---------------------------------------------------------------- tokenizer


def gguf_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer of a file, if it has one; if it cannot be used, a warning gives the reason."""
    file = open_gguf(path)
    facts = {key.removeprefix("tokenizer."): each for key, each in file.facts.items() if key.startswith("tokenizer.")}
    theirs = HFConfig(facts, f"{path}: tokenizer")
    if not theirs.get("ggml.tokens"):
        return None
    try:
        return tokenizer_from_gguf(gguf_vocab(theirs), gguf_tokenizer_config(theirs))
    except DataError as problem:
        where = "" if str(problem).startswith(str(path)) else f"{path}: "
        warnings.warn(f"{where}{problem}; the model is read without it and takes ids", stacklevel=3)
        return None


def gguf_vocab(hf: HFConfig) -> GgufVocab:
    kind, split = str(hf.get("ggml.model", "none")), str(hf.get("ggml.pre", "default"))
    starts = hf.get_bool("ggml.add_bos_token", kind == "llama" or split in WHOLE_WORD_SPLITS)
    return GgufVocab(
        kind=kind,
        tokens=typed_list(hf, "ggml.tokens", str),
        merges=typed_list(hf, "ggml.merges", str),
        scores=typed_list(hf, "ggml.scores", float),
        types=typed_list(hf, "ggml.token_type", int),
        split=split,
        start=special_token_id(hf, "bos") if starts else None,
        blank=hf.get_bool("ggml.add_space_prefix", True),
    )


def typed_list(hf: HFConfig, key: str, kind: type) -> list[Any]:
    found = hf.get(key, [])
    if not isinstance(found, list) or (found and type(found[0]) is not kind):
        raise hf.error(key, f"expected a list of {kind.__name__}")
    return found


def special_token_id(hf: HFConfig, name: str) -> int | None:
    """The id of a special token, if it is valid."""
    found = hf.get(f"ggml.{name}_token_id")
    return found if type(found) is int and 0 <= found < len(typed_list(hf, "ggml.tokens", str)) else None


def gguf_tokenizer_config(hf: HFConfig) -> dict[str, Any]:
    """A tokenizer_config.json with the special tokens and the chat template."""
    tokens = typed_list(hf, "ggml.tokens", str)
    roles = {key: special_token_id(hf, name) for key, name in (*ROLES.items(), ("unk_token", "unknown"))}
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    chat = {"chat_template": hf.get("chat_template")} if isinstance(hf.get("chat_template"), str) else {}
    return plain | {key: tokens[id] for key, id in roles.items() if id is not None} | chat
