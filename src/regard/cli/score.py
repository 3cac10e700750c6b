"""regard evaluate: how surprised a model is by a text that it has not seen."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config, zoo
from regard.cli.output import Checkpoint, Json, as_json, as_rows, with_torch

AT_ONCE = 4096  # tokens in a batch: enough to keep a small machine busy, and little memory


def evaluate(
    checkpoint: Checkpoint,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Texts; the run's own validation text unless given.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure how well a model predicts a text."""
    data = config.Data(source=tuple(files), validation=0.0) if files else own(Path(checkpoint))
    with_torch()
    from regard.data import blocks, prepare
    from regard.generate.limits import least, window
    from regard.generate.model import load
    from regard.train import evaluate as scored

    model = load(checkpoint)
    least(model)  # refuses a model that sees the word it is to predict
    if model.tokenizer is None:
        raise config.DataError(f"{checkpoint}: no tokenizer.json to read a text with; put one beside the model")
    ready = prepare(data, config.Bytes(), tokenizer=model.tokenizer)
    text = ready.train if ready.validation is None else ready.validation
    context = window(model, model.limits) or 512
    score = scored(model, blocks(text, context, max(1, AT_ONCE // context)))
    show(score, size(model.tokenizer, text), text.name, json)


def own(checkpoint: Path) -> config.Data:
    """The text that a run was validated on, for the run itself or one of its checkpoints."""
    run = checkpoint if (checkpoint / "config.toml").is_file() else checkpoint.parent.parent
    if not (run / "config.toml").is_file():
        raise config.ConfigError(f"{checkpoint}: not of a run, so it has no validation text of its own; name a FILE")
    data = zoo.read_recipe(run).data
    if not data.validation:
        raise config.ConfigError(f"{run}: its data.validation is 0, so it kept no text to validate on; name a FILE")
    return data


def size(tokenizer: Any, text: Any) -> int:
    """The bytes of all tokens that were predicted: of all but the first."""
    stream, many = tokenizer.stream(), 0
    stream.put(int(text.ids(0, 1)))
    for id in ids(text):
        many += len(stream.put(id).encode())
    return many + len(stream.flush().encode())


def ids(text: Any, piece: int = 1 << 20) -> Iterable[int]:
    for start in range(1, len(text), piece):
        yield from text.ids(start, min(start + piece, len(text))).tolist()


def show(score: Any, size: int, name: str, json: bool) -> None:
    """A byte is the fair measure between models with different tokens."""
    a_byte = score.sum / math.log(2) / size if size else math.nan
    if json:
        return as_json({"text": name, "loss": score.loss, "perplexity": score.perplexity, "bits_per_token": score.bits,
                        "bits_per_byte": a_byte, "tokens": score.count, "bytes": size})  # fmt: skip
    as_rows([
        ("text", name),
        ("loss", f"{score.loss:.4f}"),
        ("perplexity", f"{score.perplexity:.4f}"),
        ("bits", f"{score.bits:.4f} a token, {a_byte:.4f} a byte"),
        ("tokens", f"{score.count:,}"),
    ])  # fmt: skip
