"""A real model, trained by others: 260 thousand weights that tell stories (karpathy/tinyllamas)."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from parity.tolerance import assert_near
from torch import Tensor

from regard import config as C
from regard.core.model import Transformer
from regard.hub import name_table

FOLDER = Path(__file__).parents[2].parent / "shared" / "weights" / "stories260K"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared weights (stories260K) are not on this machine")

PROMPT = [1, 403, 407, 261, 378]
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high."
)
HEADER = ("dim", "hidden", "depth", "heads", "kv_heads", "vocab", "length")


def weights() -> tuple[dict[str, int], dict[str, Tensor]]:
    """The sizes, and the tensors under Llama's names: the file has each kind of tensor for all layers in a row."""
    raw = (FOLDER / "stories260K.bin").read_bytes()
    size = dict(zip(HEADER, np.frombuffer(raw, "<i4", len(HEADER)).tolist(), strict=True))
    floats, at = np.frombuffer(raw, "<f4", offset=4 * len(HEADER)), 0
    D, F, L = size["dim"], size["hidden"], size["depth"]
    G = D * size["kv_heads"] // size["heads"]
    layout = {
        "model.embed_tokens.weight": (size["vocab"], D),
        "model.layers.{}.input_layernorm.weight": (L, D),
        "model.layers.{}.self_attn.q_proj.weight": (L, D, D),
        "model.layers.{}.self_attn.k_proj.weight": (L, G, D),
        "model.layers.{}.self_attn.v_proj.weight": (L, G, D),
        "model.layers.{}.self_attn.o_proj.weight": (L, D, D),
        "model.layers.{}.post_attention_layernorm.weight": (L, D),
        "model.layers.{}.mlp.gate_proj.weight": (L, F, D),
        "model.layers.{}.mlp.down_proj.weight": (L, D, F),
        "model.layers.{}.mlp.up_proj.weight": (L, F, D),
        "model.norm.weight": (D,),
    }
    state = {}
    for name, shape in layout.items():
        count = int(np.prod(shape))
        tensor, at = torch.from_numpy(floats[at : at + count].reshape(shape).copy()), at + count
        state |= {name.format(i): x for i, x in enumerate(tensor)} if "{}" in name else {name: tensor}
    unused = 2 * size["length"] * (D // size["heads"] // 2)  # cos and sin of every place
    assert at + unused == len(floats)
    return size, state


def told(size: dict[str, int], state: dict[str, Tensor], layout: str) -> Transformer:
    model = Transformer(
        C.Transformer(
            embed=C.TextEmbedding(vocab=size["vocab"]),
            trunk=C.Trunk(
                dim=size["dim"], depth=size["depth"], mask="causal", position=C.RotaryPosition(layout=layout),
                norm=C.Norm(kind="rms", eps=1e-5), dropout=C.NO_DROPOUT,
                attention=C.Attention(heads=size["heads"], kv_heads=size["kv_heads"], bias=()),
                mlp=C.MLP(hidden=size["hidden"], activation="silu", gated=True, bias=False),
            ),
        )
    )  # fmt: skip
    name_table.load_tensors(model, state, "llama")
    return model.eval()


def halved(size: dict[str, int], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same model for rotary pairs (i, i + d/2): rows of q and k change places within their head."""
    width = size["dim"] // size["heads"]

    def move(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, width // 2, 2)).transpose(1, 2).flatten(0, 2)

    return {name: move(x) if "q_proj" in name or "k_proj" in name else x for name, x in state.items()}


def pieces() -> list[bytes]:
    """The tokenizer: the longest length, then for each piece its score, its length and its bytes."""
    raw, at, out = (FOLDER / "tok512.bin").read_bytes(), 4, []
    while at < len(raw):
        length = int.from_bytes(raw[at + 4 : at + 8], "little")
        out.append(raw[at + 8 : at + 8 + length])
        at += 8 + length
    return out


def text(ids: list[int]) -> str:
    """The first id begins the text and is not part of it, nor is the blank in front of the first word."""
    table = pieces()
    return b"".join(table[i] for i in ids[1:]).decode().removeprefix(" ")


@torch.no_grad()
def cached(model: Transformer, count: int) -> list[int]:
    cache, ids = model.cache(1, len(PROMPT) + count), list(PROMPT)
    new = torch.tensor([PROMPT])
    for _ in range(count):
        new = model(new, cache=cache)[:, -1:].argmax(-1)
        ids.append(int(new))
    return ids


@torch.no_grad()
def uncached(model: Transformer, count: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids


def test_the_story_goes_on_word_for_word():
    model = told(*weights(), "interleaved")

    assert text(cached(model, 80)).startswith(STORY)


def test_with_and_without_the_cache_the_story_is_the_same():
    model = told(*weights(), "interleaved")

    assert cached(model, 80) == uncached(model, 80)


def test_both_layouts_of_rotary_pairs_tell_the_same_story():
    size, state = weights()

    assert cached(told(size, halved(size, state), "halves"), 80) == cached(told(size, state, "interleaved"), 80)


def test_the_logits_of_the_story_are_those_of_transformers():
    size, state = weights()
    theirs = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=size["vocab"], hidden_size=size["dim"], intermediate_size=size["hidden"],
            num_hidden_layers=size["depth"], num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"],
            max_position_embeddings=size["length"], rms_norm_eps=1e-5, tie_word_embeddings=True,
        )
    )  # fmt: skip
    halves = halved(size, state)
    theirs.load_state_dict(halves | {"lm_head.weight": halves["model.embed_tokens.weight"]})
    model = told(size, state, "interleaved")
    words = torch.tensor([cached(model, 80)])

    # fp64, because logits reach 22 here, where either side's fp32 rounds by 2e-5
    assert_near(model.double()(words), theirs.double().eval()(words).logits)
