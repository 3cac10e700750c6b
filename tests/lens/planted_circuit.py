"""A circuit set by hand: a 2-layer attention-only model that copies, so that a method is tried on a known answer.

    … A B … A ─► B

Head 0.1 attends to the previous token and writes it into a space of its own (prev). Head 1.2 looks with its token for
keys whose prev is that token, and copies the token found there into the logits: an induction circuit (Elhage et al.
2021), joined by K-composition alone. All other heads attend at random and write where nothing reads; the MLPs and the
norms do nothing.
"""

import torch
from torch import Tensor

from regard import config as C
from regard.core.layers import Norm
from regard.inference.model import Model

VOCAB, LENGTH, HEADS, SHARP = 11, 9, 3, 40.0
PREVIOUS, INDUCTION = (0, 1), (1, 2)  # layer and head
TOKEN, PLACE, PREV, OUT = 0, VOCAB, VOCAB + LENGTH, 2 * VOCAB + LENGTH  # where each space of the stream begins
JUNK = 3 * VOCAB + LENGTH  # what nothing reads
DIM = JUNK + 4

CLEAN = torch.tensor([[3, 5, 7, 2, 5]])  # the second 5 is followed by 7, as the first was
CORRUPTED = torch.tensor([[3, 6, 7, 2, 5]])  # nothing is known of what follows a 5
ANSWER, OTHER = 7, 2


def planted_model(dtype: torch.dtype = torch.float64) -> Model:
    """The induction circuit, in evaluation mode."""
    trunk = C.Trunk(
        dim=DIM, depth=2, mask="causal", position=C.LearnedPosition(length=LENGTH), dropout=C.NO_DROPOUT,
        attention=C.Attention(heads=HEADS, head_dim=VOCAB, scale=1.0), mlp=C.MLP(hidden=5), final_norm=False,
    )  # fmt: skip
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk, head=C.LMHead(tied=False)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.tokens.weight[:, TOKEN : TOKEN + VOCAB] = torch.eye(VOCAB)
        model.trunk.position.tables[0][:, PLACE : PLACE + LENGTH] = torch.eye(LENGTH)
        model.head.weight[:, OUT : OUT + VOCAB] = torch.eye(VOCAB)
        plant_circuit(model)
    remove_norms(model)
    return model.to(dtype).eval()


def plant_circuit(model: Model) -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.eye(LENGTH).roll(-1, 0)  # a query at place i looks for the key of place i - 1
    before[-1] = 0
    for layer in range(2):
        for head in range(HEADS):
            asks = torch.randn(VOCAB, VOCAB, generator=generator)
            set_head(model, layer, head, q=(TOKEN, asks), k=(TOKEN, torch.eye(VOCAB)),
                     value=(TOKEN, torch.eye(VOCAB)), to=JUNK, width=4)  # fmt: skip
    set_head(model, *PREVIOUS, q=(PLACE, SHARP * before), k=(PLACE, torch.eye(LENGTH)),
             value=(TOKEN, torch.eye(VOCAB)), to=PREV)  # fmt: skip
    set_head(model, *INDUCTION, q=(TOKEN, SHARP * torch.eye(VOCAB)), k=(PREV, torch.eye(VOCAB)),
             value=(TOKEN, torch.eye(VOCAB)), to=OUT)  # fmt: skip


def set_head(
    model: Model, layer: int, head: int, *, q: tuple[int, Tensor], k: tuple[int, Tensor], value: tuple[int, Tensor],
    to: int, width: int = VOCAB,
) -> None:  # fmt: skip
    """What a head reads, each from a space of the stream on, and the space that it writes into."""
    attention = model.trunk.blocks[layer].attn
    parts = {name: weight for name, (weight, _) in attention.qkv.named_parts().items()}
    own = slice(head * VOCAB, (head + 1) * VOCAB)
    for name, (start, table) in {"q": q, "k": k, "v": value}.items():
        parts[name][own] = 0
        parts[name][own][: len(table), start : start + table.shape[1]] = table
    attention.out.weight[:, own] = 0
    attention.out.weight[to : to + width, own] = torch.eye(width, VOCAB)


class NoNorm(Norm):
    """A norm that changes nothing."""

    def __init__(self) -> None:
        super().__init__(C.Norm(kind="rms", gain=False, bias=False), DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x


def remove_norms(model: Model) -> None:
    """What a block adds is linear in what it reads then, but for the attention weights."""
    for block in model.trunk.blocks:
        block.attn_norm, block.mlp_norm = NoNorm(), NoNorm()
    model.trunk.final_norm = None
