"""What a run's own log tells: steps that were passed over, and validation that became worse while training went on."""

from typing import Any

from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong

OFTEN = 0.05  # of all steps
WORSE = 1.1  # times the best validation loss


def past(case: Case) -> Finding | None:
    if not case.log:
        return None
    steps = [line for line in case.log if "norm" in line]
    passed = [line for line in steps if "skipped" in line]
    if len(passed) > OFTEN * len(steps):
        return wrong(f"{len(passed):,} of {len(steps):,} steps were passed over, the last of them step "
                     f"{passed[-1]['step']:,}: {passed[-1]['skipped']}", "a lower train.optimizer.lr")  # fmt: skip
    # the line marked best tells once more of an earlier step
    scores = [line for line in case.log if isinstance(line.get("eval_loss"), float) and not line.get("best")]
    best = min(scores, key=lambda line: line["eval_loss"], default=None)
    if best is not None and scores[-1]["eval_loss"] > WORSE * best["eval_loss"]:
        return look(f"validation was {best['eval_loss']:.3f} at step {best['step']:,} and is "
                    f"{scores[-1]['eval_loss']:.3f} at step {scores[-1]['step']:,}: it learns by heart",
                    f"train.steps={best['step']} or train.best=true")  # fmt: skip
    return fine(f"{len(steps):,} steps, {len(passed):,} passed over{ending(scores, best)}")


def ending(scores: list[dict[str, Any]], best: dict[str, Any] | None) -> str:
    return "" if best is None else f"; validation is {scores[-1]['eval_loss']:.3f}, at best {best['eval_loss']:.3f}"
