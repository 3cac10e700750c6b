"""regard explain CHECKPOINT --heads: the role of every head, and the loss increase without it.

It reads at most 8 windows of at most 256 tokens, drawn from the text by a fixed seed, so results are reproducible.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard import config, zoo
from regard.cli.evaluate import own_validation
from regard.cli.output import dim, import_torch, print_json, print_rows

ROWS, LONGEST, LEAST, SEED = 8, 256, 4, 0


def explain_heads(thing: str, files: Sequence[str], json: bool) -> None:
    """Print the table of heads, of layers, and of the heads without effect."""
    if not Path(thing).is_dir() and (
        thing.endswith(".toml") or thing in zoo.packaged_recipes() or thing in config.PRESETS
    ):
        raise config.ConfigError(f"{thing}: --heads reads a trained model; name a run, a checkpoint or a Hugging Face "
                                 "folder")  # fmt: skip
    import_torch()
    from regard.inference.load import load_model

    model = load_model(thing)
    check_attention(model, thing)
    text = evaluation_text(
        model, config.Data(source=tuple(files), validation=0.0) if files else own_validation(Path(thing))
    )
    ids = text_windows(model, text)
    told = {"text": text.name, "windows": len(ids), "tokens": ids.shape[1] - 1, "seed": SEED}
    told |= head_roles(model, ids) | ablation_losses(model, ids)
    print_json(told) if json else show_heads(told)


def check_attention(model: Any, thing: str) -> None:
    from regard.lens.attention_maps import why_not_watchable

    if model.encoder is not None or not model.c.embed.vocab:
        reads = "a source beside its text" if model.encoder is not None else "images"
        raise config.ConfigError(f"{thing}: --heads reads a text, and this model reads {reads}; "
                                 "regard.lens.summarize_heads takes any input")  # fmt: skip
    if why := why_not_watchable(model):
        raise config.ConfigError(f"{thing}: {why}")
    if model.tokenizer is None:
        raise config.DataError(f"{thing}: no tokenizer.json; put one beside the model")


def evaluation_text(model: Any, data: config.Data) -> Any:
    from regard.data.prepare import prepare_text

    ready = prepare_text(data, config.ByteTokenizer(), tokenizer=model.tokenizer)
    text = ready.train if ready.validation is None else ready.validation
    if len(text) <= LEAST:
        raise config.DataError(f"{text.name}: {len(text)} tokens are too few to read heads on; name a longer text")
    return text


def text_windows(model: Any, text: Any) -> Any:  # (B, N + 1)
    from regard.data.windows import WindowBatches
    from regard.generation.limits import context_window

    context = min(context_window(model, model.generation_limits) or LONGEST, LONGEST, len(text) - 1)
    many = min(ROWS, max(1, (len(text) - context) // context))
    return WindowBatches(text, context, many, SEED).batch(0)


# ---------------------------------------------------------------- measurements


def head_roles(model: Any, ids: Any) -> dict[str, Any]:
    """Roles and similarity of all heads; similarity on two windows only, since it compares every pair of heads."""
    from regard import lens

    found = lens.summarize_heads(model, ids[:, :-1], marks=lens.delimiter_ids(model.tokenizer))
    twins = lens.most_similar_heads(lens.head_similarity(lens.attention_views(model, ids[:2, :-1])))
    rows = []
    for head, twin in zip(found, twins, strict=True):
        other = None if twin is None else found[twin[0]]
        like = None if other is None or twin is None else {"where": other.where, "head": other.head, "value": twin[1]}
        scores = {name: {**asdict(one), "lift": one.lift} for name, one in head.scores.items()}
        rows.append({**asdict(head), "layer": head.layer, "role": head.role, "scores": scores, "like": like})
    return {"heads": rows}


def ablation_losses(model: Any, ids: Any) -> dict[str, Any]:
    """The loss without each head and layer; empty unless the model predicts next tokens."""
    from torch.nn.functional import cross_entropy

    from regard import lens
    from regard.generation.limits import min_prompt_tokens

    def loss(model: Any) -> Any:  # one loss per window
        given = ids.to(next(model.parameters()).device)
        logits = model(given[:, :-1]).flatten(0, 1).float()
        return cross_entropy(logits, given[:, 1:].flatten(), reduction="none").view(len(ids), -1).mean(1)

    try:
        min_prompt_tokens(model)
    except config.ConfigError:
        return {"loss": None, "within": None, "without": [], "idle": []}
    rows = lens.ablate_all(model, loss, progress=show_count if sys.stderr.isatty() else None)
    within = lens.noise_threshold(rows)
    told = [{"where": row.where, "head": row.head, "delta": row.delta, "error": row.error} for row in rows]
    idle = [{"where": row.where, "head": row.head} for row in lens.idle_heads(rows, within)]
    return {"loss": rows[0].whole, "within": within, "without": told, "idle": idle}


def show_count(done: int, total: int) -> None:
    line = f"without {done} of {total}"
    print("\r" + (" " * len(line) + "\r" if done == total else dim(line)), end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- output


def show_heads(result: dict[str, Any]) -> None:
    deltas = {(row["where"], row["head"]): f"{row['delta']:+.4f} ± {row['error']:.4f}" for row in result["without"]}
    loss = "none: the model does not predict the next token" if result["loss"] is None else f"{result['loss']:.4f}"
    read = f"{result['windows']} x {result['tokens']} tokens of {result['text']}, seed {result['seed']}"
    print_rows([("read on", read), ("loss", loss)])
    print()
    titles = ("head", "role (chance)", "entropy", "distance", "most like", *(["loss without it"] * bool(deltas)))
    print_aligned([titles, *(head_cells(head, deltas) for head in result["heads"])])
    if deltas:
        print()
        layers = [(where, said) for (where, head), said in deltas.items() if head is None]
        print_aligned([("all of", "loss without it"), *layers])
        names = ", ".join(f"{row['where']} {row['head']}" for row in result["idle"])
        print(f"\nheads that do nothing (less than {result['within']:.4f} either way): {names or 'none'}")


def head_cells(head: dict[str, Any], deltas: dict[Any, str]) -> Iterator[str]:
    yield f"{head['where']} {head['head']}"
    best = head["scores"].get(head["role"])
    yield f"{head['role']} {best['value']:.2f} ({best['chance']:.2f})" if best else "-"
    yield f"{head['entropy']:.1f} bits, {head['relative']:.0%}"
    yield "-" if head["distance"] is None else f"{head['distance']:.1f}"
    yield "-" if head["like"] is None else "{where} {head}: {value:.2f}".format(**head["like"])
    trunk, layer, side = head["where"].rsplit(".", 2)
    both = (deltas.get((where, head["head"])) for where in (head["where"], f"{trunk}.*.{side}"))  # *: shared
    yield from filter(None, both)


def print_aligned(rows: Sequence[Any]) -> None:
    """Print columns below their titles."""
    rows = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip())
