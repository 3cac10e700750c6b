"""regard convert: whatever can be loaded, written as a folder: in the words of `transformers` where it has a class."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import config
from regard.cli.output import Checkpoint, Json, as_json, as_rows, with_torch


def convert(
    source: Checkpoint,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it goes.")],
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None, typer.Option(help="The type of its numbers; as they are unless said.")
    ] = None,
    form: Annotated[
        Literal["regard", "transformers"] | None,
        typer.Option("--as", help="In whose words; those of transformers where it has a class for the model."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a model as a folder with config.json, safetensors and its tokenizer.

    What stands in the folder and was not written by a save is never replaced.
    """
    with_torch()
    from regard.generate.opening import load
    from regard.hub import adapting
    from regard.hub.families.near import why
    from regard.hub.ours import save_own

    model = load(source, device="cpu", dtype=dtype or "auto")
    if adapting.base_of(source) is not None:
        model.merge()  # a folder of weights has no word for an adapter
    if target.resolve() == model.origin.path.resolve():
        raise config.DataError(f"{target}: is where it is read from; name another folder")
    if form == "transformers" and (reason := why(model.c)):
        raise config.ConfigError(f"--as transformers: it has no class for this model ({reason}); leave it out")
    if form == "regard":
        save_own(model, target)
    else:
        model.save(target)
    told = facts(source, target, model)
    as_json(told) if json else show(told)


def facts(source: str, target: Path, model: Any) -> dict[str, Any]:
    """What stands there now, read from what was written."""
    from regard.hub.families.near import why
    from regard.hub.folder import read

    found = read(target)
    files = [each for each in target.iterdir() if each.suffix == ".safetensors"]
    return {
        "source": source, "folder": target, "family": found.family, "class": found.architecture,
        "parameters": sum(weight.numel() for weight in model.parameters()), "dtype": found.said.get("dtype"),
        "bytes": sum(each.stat().st_size for each in files), "tokenizer": found.tokenizer_path is not None,
        "why": None if found.architecture else why(model.c) or None,
    }  # fmt: skip


def show(told: dict[str, Any]) -> None:
    from regard.measure.told import si

    kind = f"{told['class']}, which transformers opens"
    if told["class"] is None:
        because = f", as transformers has no class for it: {told['why']}" if told["why"] else ""
        kind = f"our own kind{because}"
    as_rows([
        ("written", str(told["folder"])),
        ("class", kind),
        ("parameters", f"{told['parameters']:,} in {told['dtype']}, {si(told['bytes'], 'B')}"),
        ("tokenizer", "beside it" if told["tokenizer"] else "none"),
    ])  # fmt: skip
