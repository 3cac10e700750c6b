"""Attention routes: it says who hears whom, and how loudly. Then a gallery of every mask there is.

python examples/routing.py
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard import attention  # noqa: F401  the masks of images and graphs stand there
from regard.core.kernels import AttentionArgs, AttentionSpec, attention_scores, attention_weights, make_plan, reference
from regard.core.masks import CAUSAL, FULL, Mask, mask
from regard.core.tokens import Tokens, grid_tokens, sequence_tokens

# ---------------------------------------------------------------- routing

# The first row is the lecture's (after Prince 2023), the others are ours.
ROUTES = torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.25, 0.25], [0.2, 0.7, 0.1]], dtype=torch.float64)
CONTENT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # three tokens, two channels


def made_for(routes: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose attention is exactly this table: q_n·k_m = log(a_nm), and the softmax undoes the log."""
    return torch.eye(len(routes)).to(routes), routes.log().mT


def route(routes: Tensor = ROUTES, content: Tensor = CONTENT, who: Mask = FULL) -> tuple[Tensor, Tensor]:
    """The weights (Q, K) that attention computes, and the content it brings to each token."""
    q, k, v = (x[None, None] for x in (*made_for(routes), content))
    spec = AttentionSpec(mask=who, q=sequence_tokens(content[None]), k=sequence_tokens(content[None]))
    chosen = make_plan("reference", spec)
    weights = attention_weights(attention_scores(q, k, 1.0, chosen.table(q, None)))
    return weights[0, 0], reference(q, k, v, chosen, AttentionArgs(1.0))[0, 0]


# ---------------------------------------------------------------- the gallery

GALLERY = (
    "full", "causal", "prefix(4)", "window(2)", "strided(3)", "dilated(2, 2)", "blocks(4)", "global_tokens(2)",
    "padding", "documents", "edges", "window2d(2)",
)  # fmt: skip
DECODERS = (
    "causal & window(2)", "causal & strided(3)", "causal & blocks(4)", "causal & (window(1) | strided(4))",
    "causal & (global_tokens(1) | window(2))",
)  # fmt: skip
COUNT = 12


def tokens(text: str) -> Tokens:
    """Twelve tokens that carry what the mask reads: a ring of friends, two documents, a padded tail; or an image."""
    empty = torch.empty(1, COUNT, 0)
    if text.startswith("window2d"):
        return grid_tokens(torch.empty(1, 16, 0), (4, 4))
    if text == "edges":
        return replace(sequence_tokens(empty), edges=ring(COUNT)[None])
    if text == "documents":
        return replace(sequence_tokens(empty), document=torch.tensor([[0] * 5 + [1] * 7]), is_plain=False)
    if text == "padding":
        return replace(sequence_tokens(empty), is_real=torch.tensor([[True] * 9 + [False] * 3]), is_plain=False)
    return sequence_tokens(empty)


def ring(count: int) -> Tensor:
    """(N, N): each node is joined to the next, and the last to the first."""
    after = torch.eye(count, dtype=torch.bool).roll(1, 1)
    return after | after.mT


def gallery(texts: tuple[str, ...] = GALLERY) -> dict[str, str]:
    """The picture of each mask."""
    return {text: mask(text).picture(tokens(text)) for text in texts}  #: S027


def reach(text: str, layers: int) -> Tensor:
    """(N, N): whom a token has heard of after so many layers, directly or through others; itself always (residual)."""
    places = tokens(text)
    direct = mask(text).table(places, places)[0].expand(places.count, places.count)
    paths: Tensor = torch.linalg.matrix_power((direct | torch.eye(places.count).bool()).double(), layers)
    return paths > 0


# ---------------------------------------------------------------- telling it


def beside(pictures: dict[str, str], columns: int = 3) -> str:
    """Pictures with their names above them, a few to a row."""
    blocks = [[name, *picture.splitlines()] for name, picture in pictures.items()]
    rows = []
    for start in range(0, len(blocks), columns):
        row = blocks[start : start + columns]
        wide = max(len(line) for block in row for line in block) + 4
        for i in range(max(map(len, row))):
            rows.append("".join((block[i] if i < len(block) else "").ljust(wide) for block in row).rstrip())
        rows.append("")
    return "\n".join(rows)


def main() -> None:
    weights, brought = route()
    print("Three tokens: each hears all three, in shares of its own. The first: 10%, 30% and 60%.\n")
    for n, (row, result) in enumerate(zip(weights.tolist(), brought.tolist(), strict=True), 1):
        mix = " + ".join(f"{share:.2f}·x{m}" for m, share in enumerate(row, 1))
        print(f"    y{n} = {mix} = ({result[0]:.2f}, {result[1]:.2f})")
    print("\nThe channels never mix: only the tokens do. With the causal mask the shares of the past are scaled up:\n")
    for n, row in enumerate(route(who=CAUSAL)[0].tolist(), 1):
        print(f"    y{n}   " + "  ".join(f"{share:.2f}" for share in row))

    print("\n\nWho may look at whom: a row for each query, a column for each key. Causal, four tokens.\n")
    print(CAUSAL.picture(4))
    print("\n\nEvery mask by its name, on twelve tokens; window2d on an image of 4 x 4. The edges are a ring, the")
    print("last three tokens of padding are not real, documents has one of 5 tokens and one of 7.\n")
    print(beside(gallery()))
    print("\nThe same for decoders: & causal.\n")
    print(beside(gallery(DECODERS)))
    far = ", ".join(str(int(reach("window(2)", layers)[0].sum()) - 1) for layers in (1, 2, 3))
    print(f"\nThrough others one hears further: in 1, 2, 3 layers window(2) reaches {far} places.")


if __name__ == "__main__":
    main()
