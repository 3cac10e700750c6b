"""OV circuits from word to word, W_U W_OV W_E: what a head promotes for a token it attends to (Elhage et al. 2021).

The direct path alone: embedding, one head, unembedding. What MLPs and other heads do on the way is left out, as are
positions, biases and the scales of norms. So the values are known up to a positive factor.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.errors import ConfigError
from regard.inputs.text import TextEmbedding
from regard.lens.attention_maps import unwrap_model
from regard.lens.circuits.attention_circuits import (
    HeadPlace,
    find_attention_head,
    memory_norms,
    ov_matrix,
    stream_norms,
)
from regard.lens.circuits.factored_matrix import CircuitMatrix
from regard.lens.frozen_norm import apply_gain, fold_norm, linear_matrix, widen
from regard.lens.prompt import token_id
from regard.lens.result import LensResult, Table
from regard.models.heads import LMHead, PretrainingHead

ROWS = 8192  # words of the vocabulary at a time


@dataclass(frozen=True, eq=False)
class WordEffects(LensResult):
    """The words that a head's OV circuit promotes and suppresses most for one token; values have no unit."""

    where: str
    head: int
    token: str
    promoted: tuple[tuple[str, float], ...]
    suppressed: tuple[tuple[str, float], ...]

    def table(self) -> Table:
        rows = tuple((word, value, "promoted") for word, value in self.promoted)
        rows += tuple((word, value, "suppressed") for word, value in self.suppressed)
        title = f"Which words does {self.where} head {self.head} promote where it attends to {self.token!r}?"
        note = "By the direct path alone, without biases; up to a positive factor, around the mean of all words."
        return Table(title, ("word", "value", "effect"), rows, note)


def copying_score(model: Any, where: str, head: int) -> float:
    """Copying score of a head: the sum of the eigenvalues of W_U W_OV W_E over the sum of their magnitudes.

    Near 1 where attending to a token makes this token likelier, near -1 where less likely, and near 0 for no such
    rule. A positive score is necessary for copying and not sufficient: eigenvalues forget how words mix.
    """
    circuit, embed, unembed = vocabulary_circuit(model, where, head)
    small = circuit.left.new_zeros(circuit.right.shape[0], circuit.right.shape[0])
    count = min(len(embed), len(unembed))  # ids that are read and written
    for start in range(0, count, ROWS):
        words = slice(start, min(start + ROWS, count))
        small += multiply_rows(embed[words], circuit.right.mT).mT @ multiply_rows(unembed[words], circuit.left)
    values = torch.linalg.eigvals(small)
    return float(values.real.sum() / values.abs().sum().clamp(min=1e-300))


def ov_words(model: Any, where: str, head: int, token: str | int, *, top_k: int = 10) -> WordEffects:
    """The words whose logits an OV circuit raises and lowers most when the head attends to a token."""
    if top_k < 1:
        raise ConfigError(f"top_k: {top_k}; give 1 or more words to name")
    circuit, embed, unembed = vocabulary_circuit(model, where, head)
    ident = token_id(model, token)
    written = circuit.left @ (circuit.right @ widen(embed[ident]))
    logits = torch.cat([multiply_rows(part, written) for part in unembed.split(ROWS)])
    logits = logits - logits.mean()
    found = [logits.topk(min(top_k, len(logits)), largest=largest) for largest in (True, False)]
    words = [tuple((word_label(model, i), float(value)) for value, i in zip(values, ids.tolist(), strict=True))
             for values, ids in found]  # fmt: skip
    return WordEffects(where, head, word_label(model, ident), *words)


def multiply_rows(table: Tensor, x: Tensor) -> Tensor:
    """table @ x in the table's own type, or in fp32 where that is coarser: a vocabulary is large."""
    table = table if table.dtype == torch.float64 else table.float()
    return widen(table @ x.to(table.dtype))


def word_label(model: Any, ident: int) -> str:
    tokenizer = getattr(unwrap_model(model), "output_tokenizer", None)
    return str(tokenizer.token_text(ident)) if tokenizer is not None and ident < len(tokenizer) else str(ident)


def vocabulary_circuit(model: Any, where: str, head: int) -> tuple[CircuitMatrix, Tensor, Tensor]:
    """An OV circuit from the width of the embedding table to that of the unembedding's; and both tables (V, d)."""
    model, place = unwrap_model(model), find_attention_head(model, where, head)
    circuit = ov_matrix(model, where, head)
    left, unembed = write_unembedding(model, place, circuit.left)
    right, embed = read_embedding(model, place, circuit.right)
    return CircuitMatrix(left, right, circuit.name, circuit.note), embed, unembed


def write_unembedding(model: Any, place: HeadPlace, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns that an attention writes to the stream (D, n), as columns that the unembedding table reads; and that
    table (V, D)."""
    out = model.head.lm if isinstance(getattr(model, "head", None), PretrainingHead) else getattr(model, "head", None)
    if not isinstance(out, LMHead) or place.trunk_name != "trunk":
        raise ConfigError(f"{place.where}: what this attention writes does not go to a vocabulary directly, so there "
                          "are no words to name")  # fmt: skip
    if out.dense is not None:
        raise ConfigError("head.transform: a dense layer and an activation stand before the vocabulary, so a head's "
                          "way to the words is not linear; attribute_logit linearises it for one prompt")  # fmt: skip
    for norm in stream_norms(place.trunk, f"{place.layer}.{place.side}"):
        columns = apply_gain(norm, columns)
    return columns * out.scale, out.weight.detach()


def read_embedding(model: Any, place: HeadPlace, reader: Tensor, query: bool = False) -> tuple[Tensor, Tensor]:
    """Rows that read the stream, as rows that read the embedding table; and that table. Across, the source's, unless
    it is the `query` that reads."""
    trunk, front = place.trunk, model.embed
    norms = stream_norms(trunk, "embed", f"{place.layer}.{place.side}")
    if place.side == "cross" and not query:
        if model.encoder_embed is not None:
            raise ConfigError(f"{place.where}: the source has a front end of its own, and not the target's vocabulary")
        trunk = model.encoder
        norms = memory_norms(place, "embed")
    if not isinstance(front, TextEmbedding):
        raise ConfigError(f"{place.where}: what it reads is not made of words of a vocabulary")
    for norm in norms[::-1]:
        reader = fold_norm(norm, reader)
    if trunk.project is not None:
        reader = reader @ linear_matrix(trunk.project, trunk.project.in_features).to(reader).mT
    if trunk.embed_norm is not None:
        reader = fold_norm(trunk.embed_norm, reader)
    table: nn.Embedding = front.tokens
    return reader[:, : table.weight.shape[1]] * front.c.scale, table.weight.detach()
