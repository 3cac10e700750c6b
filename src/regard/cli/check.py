"""regard check: a published model here and in `transformers`, side by side; regard check-kernel: a kernel's laws."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.check_process import CHECK_SIDES, load_ours, measure_both
from regard.cli.doctor import wrap_words
from regard.cli.errors import print_stderr
from regard.cli.explain_heads import print_aligned
from regard.cli.output import JsonOption, import_torch, print_json, print_rows
from regard.config.errors import did_you_mean


def check_kernel(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="PATH_OR_NAME",
            help="A .py file of yours that registers a kernel (it is executed), or a name, such as linear or topk(32).",
        ),
    ],
    max_length: Annotated[int, typer.Option(help="The most tokens that growth is measured with.")] = 4096,
    max_exponent: Annotated[
        float | None, typer.Option(help="Fail if time grows faster than this power of the length.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Check a kernel against the laws: the formula, gradients, causality, padding, empty rows, groups, cache, growth.

    What the kernel refuses does not count as an error. A path is your own code, which is executed on this machine: give
    only a file that you trust. Ends with code 1 if a law is broken.
    """
    if max_length < 512:
        raise config.ConfigError(f"--max-length: {max_length} is not 512 or more")
    import_torch()
    from regard.doctor.kernel_check import check_kernel_laws, load_custom_kernel

    names = load_custom_kernel(Path(thing)) if thing.endswith(".py") or "/" in thing else [thing]
    findings = {name: check_kernel_laws(name, max_length, max_exponent) for name in names}
    broken = [each for found in findings.values() for each in found if each.verdict == "fail"]
    if json:
        told = {name: [vars(each) for each in found] for name, found in findings.items()}
        print_json({"kept": not broken, "kernels": told})
    else:
        for name, found in findings.items():
            show_findings(name, found)
    return 1 if broken else 0


def show_findings(name: str, findings: list[Any]) -> None:
    """Findings in columns: law, verdict, evidence."""
    print(name)
    wide = max(len(each.check) for each in findings)
    for each in findings:
        first, *more = wrap_words(each.evidence)
        print(f"  {each.check:<{wide}}  {each.verdict:<7}  {first}")
        for line in more:
            print(f"  {'':<{wide}}           {line}")
    broken = sum(each.verdict == "fail" for each in findings)
    print(f"\n{broken} of {len(findings)} laws are broken" if broken else "\nall laws hold")


TYPES = ("fp32", "fp64", "bf16", "fp16")


def check(
    thing: Annotated[
        str, typer.Argument(metavar="FOLDER_OR_ID", help="A Hugging Face folder, a checkpoint, a run, or an id.")
    ],
    dtype: Annotated[str, typer.Option(metavar="A,B", help=f"Types of numbers: {', '.join(TYPES)}.")] = "fp32,bf16",
    tokens: Annotated[int, typer.Option(help="Tokens of a row, as far as the model has places for them.")] = 32,
    layers: Annotated[
        bool, typer.Option("--layer-diff", help="Show every layer, not only the first that differs.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where both run: auto, cpu, cuda, mps.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Compare outputs only: no time, no memory.")] = False,
    json: JsonOption = False,
) -> int:
    """Compare a model with the same one in `transformers`: outputs, cost, and whether tensors are saved unchanged.

    Both get the same inputs, some rows padded. Ends with code 0 if the outputs agree to rounding, and with 1 if not;
    then the first layer that differs is shown.
    """
    kinds = parse_dtypes(dtype)
    if tokens < 1:
        raise config.ConfigError(f"--tokens: {tokens} is less than 1")
    import_torch()
    from regard.hub import check as room

    room.import_transformers()  # report a missing package before anything is read
    told = check_facts(thing, device)
    rows = [compare_in_dtype(told["folder"], kind, tokens, device, quick) for kind in kinds]
    same = told["back"]["whole"] and all(row["equal"] for row in rows)
    if not layers:
        rows = [{name: value for name, value in row.items() if name != "layers"} for row in rows]
    result = {**told, "equal": same, "dtypes": rows}
    print_json(result) if json else show_check(result)
    return 0 if same else 1


def parse_dtypes(names: str) -> list[str]:
    kinds = [each.strip() for each in names.split(",")]
    for kind in kinds:
        if kind not in TYPES:
            near = did_you_mean(kind, TYPES)
            raise config.ConfigError(f"--dtype: no type {kind!r}{near} there are {', '.join(TYPES)}")
    return list(dict.fromkeys(kinds))


def check_facts(thing: str, device: str) -> dict[str, Any]:
    """The facts of the comparison, and whether tensors round-trip."""
    from regard.hub import check as room
    from regard.hub import peft_load
    from regard.inference.load import load_model

    if peft_load.base_model_of(thing) is not None:
        raise config.DataError(f"{thing}: an adapter, which is part of a model; `regard convert {thing} FOLDER` makes "
                               "a whole one that can be compared")  # fmt: skip
    model = load_model(thing, device="cpu", dtype="auto")  # in its stored dtype, which the round trip must preserve
    there, gone = room.reference_class(model.source_folder), room.check_round_trip(model)
    return {
        "folder": model.source_folder.path, "family": model.source_folder.family, "class": there.__name__,
        "transformers": room.transformers_version(), "device": device,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "back": {"whole": gone.is_lossless, **vars(gone)},
    }  # fmt: skip


def compare_in_dtype(folder: Path, kind: str, tokens: int, device: str, quick: bool) -> dict[str, Any]:
    """Compare outputs and costs in one dtype."""
    from regard.hub import check as room

    print_stderr(f"{folder} in {kind}")
    ours = load_ours(folder, kind, device)
    theirs = room.load_reference(ours.source_folder, room.DTYPES[kind], next(ours.parameters()).device)
    asked = room.build_probe(ours, theirs, tokens, room.DTYPES[kind])
    found = room.compare_outputs(ours, theirs, asked, kind)
    del ours, theirs  # free memory for the measurements
    cost: dict[str, Any] = dict.fromkeys(CHECK_SIDES) if quick else measure_both(folder, asked, kind, device)
    return {
        "dtype": kind, "difference": found.distance, "largest": found.largest, "tolerance": found.tolerance,
        "equal": found.same, "argmax": found.argmax, "first": found.first,
        "asked": {name: tuple(x.shape) for name, x in asked.theirs.items()},
        "layers": [{"where": step.where, "difference": step.far} for step in found.steps], **cost,
    }  # fmt: skip


# ---------------------------------------------------------------- output


def show_check(result: dict[str, Any]) -> None:
    print_rows([
        ("model", f"{result['folder']}: {result['parameters']:,} parameters"),
        ("theirs", f"{result['class']} of transformers {result['transformers']}"),
        ("asked", ", ".join(f"{name} {tuple(size)}" for name, size in result["dtypes"][0]["asked"].items())),
        ("goes back", format_round_trip(result["back"])),
    ])  # fmt: skip
    print()
    titles = ("type", "max |Δ|", "allowed", "largest answer", "same argmax", "first difference")
    print_aligned([titles, *(format_differences(row) for row in result["dtypes"])])
    if result["dtypes"][0]["ours"] is not None:
        print()
        print_aligned(
            [("type", "", "open", "answer", "memory"), *(cost for row in result["dtypes"] for cost in cost_cells(row))]
        )
    if "layers" in result["dtypes"][0]:
        print()
        wheres = [step["where"] for step in result["dtypes"][0]["layers"]]
        apart = [[f"{step['difference']:.1e}" for step in row["layers"]] for row in result["dtypes"]]
        print_aligned([("layer", *(row["dtype"] for row in result["dtypes"])), *zip(wheres, *apart, strict=True)])
    print("\nequal" if result["equal"] else "\nnot equal")


def format_round_trip(back: dict[str, Any]) -> str:
    if not back["whole"]:
        wrong = [f"{name} {', '.join(back[name][:3])}" for name in ("changed", "lacking", "added") if back[name]]
        return f"changed by saving: {'; '.join(wrong)}"
    left = f", {len(back['unwritten'])} redundant ones are left out" if back["unwritten"] else ""
    return f"{back['same']} tensors, every byte the same{left}"


def format_differences(row: dict[str, Any]) -> tuple[str, ...]:
    where = row["first"] or "-"
    return (row["dtype"], f"{row['difference']:.1e}", f"{row['tolerance']:.1e}", f"{row['largest']:.1f}",
            f"{row['argmax']:.2%}", where)  # fmt: skip


def cost_cells(row: dict[str, Any]) -> list[tuple[str, ...]]:
    from regard.measure.format_estimate import format_duration, format_si

    def cells(name: str, side: str) -> tuple[str, ...]:
        spent = row[side]
        most = "-" if spent["peak_bytes"] is None else format_si(spent["peak_bytes"], "B")
        return name, side, format_duration(spent["load_seconds"]), format_duration(spent["forward_seconds"]), most

    return [cells(row["dtype"], "ours"), cells("", "theirs")]
