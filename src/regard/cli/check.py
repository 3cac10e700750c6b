"""regard check-kernel: whether a kernel keeps the laws of the table, ours or one of your own."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.doctor import wrapped
from regard.cli.output import Json, as_json, with_torch


def check_kernel(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="PATH_OR_NAME",
            help="A .py file of yours that enters a kernel (it is executed), or a name, such as linear or topk(32).",
        ),
    ],
    longest: Annotated[int, typer.Option(help="The most tokens that growth is measured with.")] = 4096,
    exponent: Annotated[
        float | None, typer.Option(help="Fail if time grows faster than this power of the length.")
    ] = None,
    json: Json = False,
) -> int:
    """Hold a kernel to the laws: the formula, gradients, causality, padding, empty rows, groups, cache, growth.

    What the kernel refuses is no fault. A path is your own code and is run as such, on this machine: give only a file
    that you trust. Ends with code 1 if a law is broken.
    """
    if longest < 512:
        raise config.ConfigError(f"--longest: {longest} is not 512 or more")
    with_torch()
    from regard.efficient.contract import contract
    from regard.efficient.yours import entered

    names = entered(Path(thing)) if thing.endswith(".py") or "/" in thing else [thing]
    findings = {name: contract(name, longest, exponent) for name in names}
    broken = [each for found in findings.values() for each in found if each.verdict == "fail"]
    if json:
        told = {name: [vars(each) for each in found] for name, found in findings.items()}
        as_json({"kept": not broken, "kernels": told})
    else:
        for name, found in findings.items():
            show(name, found)
    return 1 if broken else 0


def show(name: str, findings: list[Any]) -> None:
    """Law, verdict and evidence in columns."""
    print(name)
    wide = max(len(each.check) for each in findings)
    for each in findings:
        first, *more = wrapped(each.evidence)
        print(f"  {each.check:<{wide}}  {each.verdict:<7}  {first}")
        for line in more:
            print(f"  {'':<{wide}}           {line}")
    broken = sum(each.verdict == "fail" for each in findings)
    print(f"\n{broken} of {len(findings)} laws are broken" if broken else "\nit keeps the laws")
