"""Small models of each family and of none, weights moved away from their beginnings, and a tokenizer of words."""

import tokenizers
from parity.tolerance import randomise
from tokenizers import models, pre_tokenizers

from regard import config as C
from regard.core.model import Transformer
from regard.text.tokenizer import Tokenizer

V, D, H, F, LENGTH = 53, 36, 6, 60, 40
LLAMA = dict(norm=C.Norm(kind="rms", eps=1e-6), mlp=C.MLP(hidden=F, activation="silu", gated=True, bias=False))
ROTARY = dict(base=10_000.0)


def gpt2(head=None, mlp=None, **trunk):
    trunk = dict(position=C.LearnedPosition(length=LENGTH), attention=C.Attention(heads=H)) | trunk
    mlp = mlp or C.MLP(hidden=F, activation="gelu_tanh")
    return C.Transformer(
        embed=C.TextEmbedding(vocab=V), trunk=C.Trunk(dim=D, depth=3, mask="causal", mlp=mlp, **trunk),
        head=head or C.LMHead(), init="gpt2",
    )  # fmt: skip


def llama(head=None, rotary=None, **trunk):
    trunk = LLAMA | dict(attention=C.Attention(heads=H, kv_heads=3, head_dim=14, bias=())) | trunk
    position = C.RotaryPosition(**(rotary or ROTARY))
    return C.Transformer(
        embed=C.TextEmbedding(vocab=V), trunk=C.Trunk(dim=D, depth=3, mask="causal", position=position, **trunk),
        head=head or C.LMHead(tied=False), init="bert",
    )  # fmt: skip


def nobodys(**trunk):
    """ALiBi, normed q and k, a window, a shared layer: no family has words for it."""
    trunk = dict(position=C.AlibiPosition(), mask="causal & window(7)", share_layers=True) | trunk
    attention = C.Attention(heads=H, kv_heads=2, qk_norm=C.Norm(kind="rms"), bias=("q", "v"))
    return C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=C.Trunk(dim=D, depth=3, attention=attention, **trunk))


def model(c: C.Transformer) -> Transformer:
    """A model in which no bias is 0 and no gain is 1."""
    made = Transformer(c).eval()
    randomise(made)
    return made


def words(count: int = V) -> Tokenizer:
    """w0, w1, w2, ...: the first three are padding, start and end."""
    inner = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(["w0", "w1", "w2"])
    return Tokenizer(inner, {"pad_token": "w0", "bos_token": "w1", "eos_token": "w2"})
