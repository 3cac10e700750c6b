"""regard check: a published model here and in `transformers`, side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.heads import aligned
from regard.cli.mistakes import talk
from regard.cli.output import Json, as_json, as_rows, with_torch
from regard.cli.weigh import SIDES, ours_in, weighed
from regard.config.names import did_you_mean

TYPES = ("fp32", "fp64", "bf16", "fp16")


def check(
    thing: Annotated[
        str, typer.Argument(metavar="FOLDER_OR_ID", help="A Hugging Face folder, a checkpoint, a run, or an id.")
    ],
    dtype: Annotated[str, typer.Option(metavar="A,B", help=f"Types of numbers: {', '.join(TYPES)}.")] = "fp32,bf16",
    tokens: Annotated[int, typer.Option(help="Tokens of a row, as far as the model has places for them.")] = 32,
    layers: Annotated[bool, typer.Option("--layers", help="Tell of every layer, not only where they part.")] = False,
    device: Annotated[str, typer.Option(help="Where both run: auto, cpu, cuda, mps.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Compare what they say alone: no time, no memory.")] = False,
    json: Json = False,
) -> int:
    """Compare a model with its twin in `transformers`: what both say and cost, and whether every tensor goes back.

    Both are asked the same, some rows padded. Ends with code 0 if they are equal as far as the numbers' last places
    allow, and with 1 if not; then it says where they part first.
    """
    kinds = types(dtype)
    if tokens < 1:
        raise config.ConfigError(f"--tokens: {tokens} is less than 1")
    with_torch()
    from regard.hub import check as room

    room.library()  # what is missing is told before anything is read
    told = facts(thing, device)
    rows = [compared(told["folder"], kind, tokens, device, quick) for kind in kinds]
    same = told["back"]["whole"] and all(row["equal"] for row in rows)
    if not layers:
        rows = [{name: value for name, value in row.items() if name != "layers"} for row in rows]
    result = {**told, "equal": same, "dtypes": rows}
    as_json(result) if json else show(result)
    return 0 if same else 1


def types(said: str) -> list[str]:
    kinds = [each.strip() for each in said.split(",")]
    for kind in kinds:
        if kind not in TYPES:
            near = did_you_mean(kind, TYPES)
            raise config.ConfigError(f"--dtype: no type {kind!r}{near} there are {', '.join(TYPES)}")
    return list(dict.fromkeys(kinds))


def facts(thing: str, device: str) -> dict[str, Any]:
    """What is compared, and whether its tensors go back as they came."""
    from regard.generate.opening import load
    from regard.hub import adapting
    from regard.hub import check as room

    if adapting.base_of(thing) is not None:
        raise config.DataError(f"{thing}: an adapter, which is part of a model; `regard convert {thing} FOLDER` makes "
                               "a whole one that can be compared")  # fmt: skip
    model = load(thing, device="cpu", dtype="auto")  # as it is stored: it must go back so
    there, gone = room.class_of(model.origin), room.back(model)
    return {
        "folder": model.origin.path, "family": model.origin.family, "class": there.__name__,
        "transformers": room.version(), "device": device,
        "parameters": sum(weight.numel() for weight in model.parameters()), "back": {"whole": gone.whole, **vars(gone)},
    }  # fmt: skip


def compared(folder: Path, kind: str, tokens: int, device: str, quick: bool) -> dict[str, Any]:
    """Both in one type of numbers: what they say, and what it costs."""
    from regard.hub import check as room

    talk(f"{folder} in {kind}")
    ours = ours_in(folder, kind, device)
    theirs = room.opened(ours.origin, room.DTYPES[kind], next(ours.parameters()).device)
    asked = room.question(ours, theirs, tokens, room.DTYPES[kind])
    found = room.equal(ours, theirs, asked, kind)
    del ours, theirs  # what is weighed next has the machine for itself
    cost: dict[str, Any] = dict.fromkeys(SIDES) if quick else weighed(folder, asked, kind, device)
    return {
        "dtype": kind, "difference": found.distance, "largest": found.largest, "tolerance": found.tolerance,
        "equal": found.same, "argmax": found.argmax, "first": found.first,
        "asked": {name: tuple(x.shape) for name, x in asked.theirs.items()},
        "layers": [{"where": step.where, "difference": step.far} for step in found.steps], **cost,
    }  # fmt: skip


# ---------------------------------------------------------------- how it is shown


def show(told: dict[str, Any]) -> None:
    as_rows([
        ("model", f"{told['folder']}: {told['parameters']:,} parameters"),
        ("theirs", f"{told['class']} of transformers {told['transformers']}"),
        ("asked", ", ".join(f"{name} {tuple(size)}" for name, size in told["dtypes"][0]["asked"].items())),
        ("goes back", returned(told["back"])),
    ])  # fmt: skip
    print()
    titles = ("type", "max |Δ|", "allowed", "largest answer", "same argmax", "they part at")
    aligned([titles, *(differences(row) for row in told["dtypes"])])
    if told["dtypes"][0]["ours"] is not None:
        print()
        aligned([("type", "", "open", "answer", "memory"), *(cost for row in told["dtypes"] for cost in costs(row))])
    if "layers" in told["dtypes"][0]:
        print()
        wheres = [step["where"] for step in told["dtypes"][0]["layers"]]
        apart = [[f"{step['difference']:.1e}" for step in row["layers"]] for row in told["dtypes"]]
        aligned([("layer", *(row["dtype"] for row in told["dtypes"])), *zip(wheres, *apart, strict=True)])
    print("\nequal" if told["equal"] else "\nnot equal")


def returned(back: dict[str, Any]) -> str:
    if not back["whole"]:
        wrong = [f"{name} {', '.join(back[name][:3])}" for name in ("changed", "lacking", "added") if back[name]]
        return f"not as it came: {'; '.join(wrong)}"
    left = f", {len(back['unwritten'])} that say nothing new are left out" if back["unwritten"] else ""
    return f"{back['same']} tensors, every byte the same{left}"


def differences(row: dict[str, Any]) -> tuple[str, ...]:
    where = row["first"] or "-"
    return (row["dtype"], f"{row['difference']:.1e}", f"{row['tolerance']:.1e}", f"{row['largest']:.1f}",
            f"{row['argmax']:.2%}", where)  # fmt: skip


def costs(row: dict[str, Any]) -> list[tuple[str, ...]]:
    from regard.measure.told import lasting, si

    def cells(name: str, side: str) -> tuple[str, ...]:
        spent = row[side]
        most = "-" if spent["peak_bytes"] is None else si(spent["peak_bytes"], "B")
        return name, side, lasting(spent["load_seconds"]), lasting(spent["forward_seconds"]), most

    return [cells(row["dtype"], "ours"), cells("", "theirs")]
