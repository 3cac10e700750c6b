"""regard embed: a vector for each text or picture; a few of them are shown by how near they are to each other."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.given import File, Lines, Model, brief, loaded, texts, watched
from regard.cli.output import Specials, Weights, as_json, as_rows, with_torch

FORMS = (".npy", ".safetensors")


def embed(
    checkpoint: Model,
    things: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|FILE", help="Texts, and files of pictures for a model that sees; - reads standard "
                       "input."),
    ] = None,
    *,
    file: File = None,
    raw: Annotated[bool, typer.Option("--raw", help="Vectors as they are, not divided by their length.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="All vectors in a .npy or .safetensors.")] = None,
    weights: Weights = "auto",
    specials: Specials = "parse",
    json: Lines = False,
) -> None:  # fmt: skip
    """Give one vector for each text: near each other where they mean the same."""
    if out is not None and out.suffix not in FORMS:
        raise config.ConfigError(f"--out {out}: its name says no form that is written here; end it in "
                                 f"{' or '.join(FORMS)}")  # fmt: skip
    with_torch()
    from regard.generate.embed import embeddings

    given = texts(things, file)
    said = [record["text"] for record in given]
    with loaded(checkpoint, weights, specials) as model, watched(len(given)) as progress:
        vectors = embeddings(model, said, raw=raw, names=[record.where for record in given], progress=progress)
    if out is not None:
        write(out, vectors)
        if not json:
            return as_rows([("vectors", str(out)), ("texts", f"{len(vectors):,}"), ("width", f"{vectors.shape[1]:,}")])
    if json:
        for text, row in zip(said, vectors.tolist(), strict=True):
            as_json({"text": text, "vector": [float(f"{number:.9g}") for number in row]})
    elif len(said) > 1 and sys.stdout.isatty() and not raw and file is None:
        cosines(said, vectors)
    else:
        for row in vectors.tolist():
            print(*(f"{number:.6g}" for number in row))


def write(path: Path, vectors: Any) -> None:
    """All vectors in one table (B, D) of fp32."""
    from regard.data.arrays import content
    from regard.data.store import writing
    from regard.hub.weights import tensors_to

    if not path.parent.is_dir():
        raise config.DataError(f"--out {path}: there is no folder {path.parent}; make it, or choose another")
    if path.suffix == ".safetensors":
        return tensors_to(path, {"vectors": vectors})
    rows, width = vectors.shape
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    header = said.ljust(-(-(len(said) + 11) // 64) * 64 - 11) + "\n"  # as numpy.lib.format lays it out, version 1.0
    with writing(path) as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content(vectors))


def cosines(said: list[str], vectors: Any) -> None:
    """Which are near each other: the cosine of every two."""
    from torch.nn.functional import normalize

    table = (normalize(vectors, dim=-1) @ normalize(vectors, dim=-1).mT).tolist()
    names = [brief(text, 32) for text in said]
    wide, count = max(map(len, names)), len(str(len(names)))
    print(" " * (count + 2 + wide), *(f"{place:>6}" for place in range(1, len(names) + 1)))
    for place, (name, row) in enumerate(zip(names, table, strict=True), 1):
        print(f"{place:>{count}}  {name:<{wide}}", *(f"{cosine:>6.3f}" for cosine in row))
