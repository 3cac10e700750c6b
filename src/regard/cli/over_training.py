"""regard lens over-training: the loss and the roles of all heads at every snapshot of a run."""

from typing import Annotated

import typer

from regard.cli.lens import OutOption, SourceOption, TextArgument, show_result
from regard.cli.output import Dtype, JsonOption, import_torch
from regard.cli.text_args import show_progress


def over_training(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, trained with train.snapshots.")],
    text: TextArgument,
    *,
    source: SourceOption = None,
    step: Annotated[list[int] | None, typer.Option(metavar="N", help="A kept step; again for more; else all.")] = None,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Find when each head took its role, and when induction appeared, from the snapshots of a run."""
    import_torch()
    from regard.studies.head_history import track_head_roles
    from regard.studies.training_sweep import saved_steps

    with show_progress(len(saved_steps(run, step))) as advance:
        found = track_head_roles(run, text, source=source, steps=step, dtype=dtype,
                                 progress=lambda done, total: advance(done))  # fmt: skip
    show_result(found, out, json)
