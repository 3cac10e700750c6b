"""Why residuals: the same deep model trained with and without them, and a slice through the loss of each (S195)."""

from regard.measure.landscape import Slice, landscape
from regard.train.compare.claims import Asked, Drawing, Sheet, Stopped, claim
from regard.train.compare.comparison import Comparison
from regard.train.compare.probes import back
from regard.train.compare.study import Part, Study
from regard.train.evaluate import evaluate
from regard.train.run import Run

RECIPE, KEY = "shakespeare-nano", "model.trunk.residual"
DEEP = ("model.dim=64", "model.depth=8", "train.steps=600", "train.precision=fp32")
QUICK = ("model.dim=32", "model.depth=3", "train.steps=8", "train.schedule.warmup=2")
TOKENS, STEPS, FEW = 4096, 15, 5


@claim("landscape", "What do residual connections do to the loss?",
       "The same deep, narrow model with and without them, trained alike; and the loss around where each ended, along "
       "two random directions that move every filter by up to its own length (Li et al. 2018).")
def slices(asked: Asked) -> list[Sheet]:
    settings = (*(QUICK if asked.quick else DEEP), *asked.settings)
    part = Part(recipe=RECIPE, settings=settings, grid=(f"{KEY}=true,false",))
    compared = Comparison(Study(seeds=asked.seeds or 1, parts=(part,)), asked.out, command=asked.command,
                          tell=asked.tell, measured=False)  # fmt: skip
    if (stopped := compared.go()) is not None:
        raise Stopped(stopped)
    [table] = compared.tables
    cut = {variant.name: through(back(table.folder / f"{variant.folder}-seed0"), FEW if asked.quick else STEPS)
           for variant in table.variants}  # fmt: skip
    return [sheet(cut)]


def through(run: Run, steps: int) -> Slice:
    assert run.validation is not None
    batches = list(run.validation.batches(TOKENS))
    return landscape(run.model, lambda: evaluate(run.model, batches, run.task).loss, steps=steps)


def sheet(cut: dict[str, Slice]) -> Sheet:
    columns = {
        "loss": [f"{each.middle:.4f}" for each in cut.values()],
        "rises to the rim by": [f"{each.rise:.3f}" for each in cut.values()],
        "bends down": [f"{100 * each.bent:.0f}%" for each in cut.values()],
    }
    numbers = [{"name": name, "middle": each.middle, "rise": each.rise, "bent": each.bent, "places": each.places,
                "losses": each.losses} for name, each in cut.items()]  # fmt: skip
    drawings = [Drawing(f"The loss around {name}", "along one direction", "along another", places=each.places,
                        field=each.losses) for name, each in cut.items()]  # fmt: skip
    return Sheet("The loss around where training ended", list(cut), columns, numbers, [
        "bends down: the part of the places where the surface is not the bottom of a bowl along a row or a column",
    ], drawings)  # fmt: skip
