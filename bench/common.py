"""What every benchmark here shares: models of equal work, turns taken in one run, medians, a kept table."""

import csv
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import config as C
from regard.core.model import Transformer
from regard.hub import name_table

RESULTS = Path(__file__).parent / "results"


def gpt2(depth: int, dim: int, heads: int, vocab: int, length: int, precision: str = "fp32"):
    """transformers' GPT-2 (sdpa) and ours, with the same weights."""
    import transformers as hf

    sizes = dict(vocab_size=vocab, n_positions=length, n_embd=dim, n_layer=depth, n_head=heads)
    no_dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    rest = dict(bos_token_id=0, eos_token_id=0, attn_implementation="sdpa", use_cache=False)
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **no_dropout, **rest))
    ours = Transformer(
        C.Transformer(
            embed=C.TextEmbedding(vocab=vocab), init="gpt2", precision=precision,
            trunk=C.Trunk(
                dim=dim, depth=depth, mask="causal", position=C.LearnedPosition(length=length),
                attention=C.Attention(heads=heads), mlp=C.MLP(activation="gelu_tanh"), dropout=C.NO_DROPOUT,
            ),
        )
    )  # fmt: skip
    name_table.load_tensors(ours, theirs.state_dict(), "gpt2")
    return theirs, ours


def bert(depth: int, dim: int, heads: int, vocab: int, length: int, precision: str = "fp32"):
    """transformers' BERT (sdpa) and ours, with the same weights."""
    import transformers as hf

    theirs = hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=vocab, hidden_size=dim, num_hidden_layers=depth, num_attention_heads=heads,
            intermediate_size=4 * dim, max_position_embeddings=length, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip
    ours = Transformer(
        C.Transformer(
            embed=C.TextEmbedding(vocab=vocab, segments=2), head=C.LMHead(bias=True, transform=True), init="bert",
            precision=precision,
            trunk=C.Trunk(
                dim=dim, depth=depth, position=C.LearnedPosition(length=length), norm_placement="post", embed_norm=True,
                attention=C.Attention(heads=heads), mlp=C.MLP(activation="gelu"), norm=C.Norm(eps=1e-12),
                dropout=C.NO_DROPOUT,
            ),
        )
    )  # fmt: skip
    name_table.load_tensors(ours, theirs.state_dict(), "bert")
    return theirs, ours


class Stack(nn.Module):
    """torch.nn's own encoder between the same embedding and head: the third peer."""

    def __init__(self, depth: int, dim: int, heads: int, vocab: int, length: int, causal: bool) -> None:
        super().__init__()
        act = partial(F.gelu, approximate="tanh") if causal else F.gelu  # GPT-2's, as in the other two
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, act, batch_first=True, norm_first=causal)
        self.embed, self.place = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        norm = nn.LayerNorm(dim) if causal else None
        self.layers = nn.TransformerEncoder(layer, depth, norm, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], x.device) if self.causal else None
        x = self.layers(x, mask, None if real is None else ~real, is_causal=self.causal)
        return F.linear(x, self.embed.weight)


def training(forward: Callable[[], Tensor], model: nn.Module, labels: Tensor) -> Callable[[], Tensor]:
    """One optimizer step: loss, backward, clip, fused AdamW; the same for every peer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> Tensor:
        loss = F.cross_entropy(forward().flatten(0, 1).float(), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def take_turns(work: dict[str, Callable[[], object]], rounds: int, warm: int = 2) -> dict[str, float]:
    """Median seconds of each, one after the other in every round, so that a slow minute hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(warm + rounds):
        for name, call in work.items():
            wait()
            start = time.perf_counter()
            call()
            wait()
            if turn >= warm:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def keep(name: str, rows: Iterable[dict[str, object]]) -> None:
    """Write bench/results/NAME.csv, each row with machine, torch and date."""
    rows = [{**row, "machine": machine(), "torch": torch.__version__, "date": date.today().isoformat()} for row in rows]
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{name}.csv", "w", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        table.writeheader()
        table.writerows(rows)


def show(rows: list[dict[str, object]]) -> None:
    """A table for the terminal, columns aligned."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    values = [[row.get(head, "") for head in heads] for row in rows]
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in values]
    widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(heads))]
    for row in [heads, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)
