"""regard convert: writes any loadable model as a folder, in the format of `transformers` where possible."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import config
from regard.cli.output import CheckpointArgument, JsonOption, import_torch, print_json, print_rows


def convert(
    source: CheckpointArgument,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="The target folder.")],
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None, typer.Option(help="Number type of the weights; unchanged by default.")
    ] = None,
    form: Annotated[
        Literal["regard", "transformers"] | None,
        typer.Option("--as", help="The format; by default transformers where it has a class for the model."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a model as a folder with config.json, safetensors and its tokenizer.

    Files in the folder that no save has written are never replaced.
    """
    import_torch()
    from regard.hub import peft_load
    from regard.hub.families.registry import explain_no_family
    from regard.hub.write_folder import save_in_own_format
    from regard.inference.load import load_model

    model = load_model(source, device="cpu", dtype=dtype or "auto")
    if peft_load.base_model_of(source) is not None:
        model.merge()  # a model folder has no separate adapter
    if target.resolve() == model.source_folder.path.resolve():
        raise config.DataError(f"{target}: source and target folder are the same; name another folder")
    if form == "transformers" and (reason := explain_no_family(model.c)):
        raise config.ConfigError(f"--as transformers: it has no class for this model ({reason}); leave it out")
    if form == "regard":
        save_in_own_format(model, target)
    else:
        model.save(target)
    told = conversion_facts(source, target, model)
    print_json(told) if json else show_conversion(told)


def conversion_facts(source: str, target: Path, model: Any) -> dict[str, Any]:
    """Facts about the new folder, read back from it."""
    from regard.hub.families.registry import explain_no_family
    from regard.hub.read_folder import read_model_folder

    found = read_model_folder(target)
    files = [each for each in target.iterdir() if each.suffix == ".safetensors"]
    return {
        "source": source, "folder": target, "family": found.family, "class": found.architecture,
        "parameters": sum(weight.numel() for weight in model.parameters()), "dtype": found.said.get("dtype"),
        "bytes": sum(each.stat().st_size for each in files), "tokenizer": found.tokenizer_path is not None,
        "why": None if found.architecture else explain_no_family(model.c) or None,
    }  # fmt: skip


def show_conversion(result: dict[str, Any]) -> None:
    from regard.measure.format_estimate import format_si

    kind = f"{result['class']}, which transformers opens"
    if result["class"] is None:
        because = f", as transformers has no class for it: {result['why']}" if result["why"] else ""
        kind = f"regard's own format{because}"
    print_rows([
        ("written", str(result["folder"])),
        ("class", kind),
        ("parameters", f"{result['parameters']:,} in {result['dtype']}, {format_si(result['bytes'], 'B')}"),
        ("tokenizer", "beside it" if result["tokenizer"] else "none"),
    ])  # fmt: skip
