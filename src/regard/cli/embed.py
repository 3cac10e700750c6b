"""regard embed: a vector for each text or image; for a few, also their cosine similarities."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.bad_lines import Skip
from regard.cli.output import Dtype, Specials, WeightsOption, import_torch, print_json, print_rows
from regard.cli.text_args import (
    FileOption,
    JsonLinesOption,
    ModelArgument,
    TextBatch,
    open_model,
    read_text_batch,
    shorten,
    show_progress,
)

FORMS = (".npy", ".safetensors")


def embed(
    checkpoint: ModelArgument,
    things: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|FILE", help="Texts, and pictures for a vision model; - reads standard "
                       "input."),
    ] = None,
    *,
    file: FileOption = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Divide each vector by its length.")
    ] = True,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="All vectors in a .npy or .safetensors.")] = None,
    skip: Skip = False,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonLinesOption = False,
) -> int:  # fmt: skip
    """Embed each text as one vector; texts of similar meaning have similar vectors."""
    if out is not None and out.suffix not in FORMS:
        raise config.ConfigError(f"--out {out}: unknown suffix; end it in "
                                 f"{' or '.join(FORMS)}")  # fmt: skip
    import_torch()
    from regard.inference.embedding import embed_inputs

    given = read_text_batch(things, file, skip=skip)
    said, bad = [record["text"] for record in given.records], given.bad
    with open_model(checkpoint, weights, dtype, specials) as model, show_progress(len(said)) as progress:
        vectors = embed_inputs(
            model, said, normalize=normalize, names=given.names, progress=progress, refuse=bad.refuse(given.lines)
        )
    if out is not None:
        table = rows_by_line(vectors, given)
        write_vectors(out, table)
        if not json:
            print_rows([("vectors", str(out)), ("texts", f"{len(table):,}"), ("width", f"{table.shape[1]:,}")])
            return bad.tell(given.total)
    if len(said) > 1 and sys.stdout.isatty() and normalize and file is None and not json:
        show_cosines(said, vectors)
        return 0
    for line, place in bad.merge_lines(given.lines):
        if place is None:
            bad.show(line, json)
        elif json:
            numbers = [float(f"{number:.9g}") for number in vectors[place].tolist()]
            print_json({**given.line(line), "text": said[place], "vector": numbers})
        else:
            print(*(f"{number:.6g}" for number in vectors[place].tolist()))
    return bad.tell(given.total)


def rows_by_line(vectors: Any, given: TextBatch) -> Any:
    """A row for each line of the file: NaN where a line has no vector, also with --skip, so that row N is line N."""
    import torch

    lines = sorted({*given.lines, *given.bad.why})
    places = {line: place for place, line in enumerate(given.lines)}
    none = torch.full(vectors.shape[1:], torch.nan)
    return torch.stack([vectors[places[line]] if line in places else none for line in lines])


def write_vectors(path: Path, vectors: Any) -> None:
    """Write all vectors as one array (B, D) in fp32."""
    from regard.data.tensor_store import tensor_bytes
    from regard.files.atomic import atomic_path, open_atomic
    from regard.hub.weights import save_tensors

    if not path.parent.is_dir():
        raise config.DataError(f"--out {path}: there is no folder {path.parent}; make it, or choose another")
    if path.suffix == ".safetensors":
        with atomic_path(path) as aside:
            return save_tensors(aside, {"vectors": vectors})
    rows, width = vectors.shape
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    header = said.ljust(-(-(len(said) + 11) // 64) * 64 - 11) + "\n"  # version 1.0 of numpy.lib.format
    with open_atomic(path) as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + tensor_bytes(vectors))


def show_cosines(texts: list[str], vectors: Any) -> None:
    """The cosine similarity of every pair."""
    from torch.nn.functional import normalize

    table = (normalize(vectors, dim=-1) @ normalize(vectors, dim=-1).mT).tolist()
    names = [shorten(text, 32) for text in texts]
    wide, count = max(map(len, names)), len(str(len(names)))
    print(" " * (count + 2 + wide), *(f"{place:>6}" for place in range(1, len(names) + 1)))
    for place, (name, row) in enumerate(zip(names, table, strict=True), 1):
        print(f"{place:>{count}}  {name:<{wide}}", *(f"{cosine:>6.3f}" for cosine in row))
