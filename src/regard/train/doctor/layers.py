"""Layers that learn nothing: no gradient reaches them, no step moves them, or their units never answer."""

from regard import config
from regard.core.watch import looking
from regard.lens.views import still
from regard.train.doctor.case import Case
from regard.train.doctor.findings import Finding, fine, look, wrong
from regard.train.doctor.lively import said
from regard.train.evaluate import moved
from regard.train.frozen import matches
from regard.train.health import layer, listed

DEAD, MANY = 0.9, 0.5  # of the units of a feed-forward layer


def layers(case: Case) -> Finding:
    course, meant = case.course, frozen(case)
    names = [name for name, _ in case.model.named_parameters() if name not in meant]
    unreached = [name for name in names if name not in course.reached]
    unmoved = [name for name in names if name not in course.changed]
    steps = len(course.taken)
    if unreached:
        return wrong(f"no gradient reached {places(unreached)} in {steps} steps: {reason(case, unreached)}",
                     f"train.freeze={parts(unreached)} if that is meant")  # fmt: skip
    if len(unmoved) == len(names) and course.sound:
        return wrong(f"no weight moved in {steps} steps: the learning rate is {course.optimizer.base[-1]:g}",
                     "train.optimizer.lr=1e-3")  # fmt: skip
    if unmoved and course.sound:
        return wrong(f"{places(unmoved)} did not move in {steps} steps, though gradients reach them",
                     "make the optimizer after the model, with all of its weights")  # fmt: skip
    said = "train.freeze" if case.settings.lora is None else "train.lora"
    kept = f"; {places(sorted(meant))} stay as {said} says" if meant else ""
    return fine(f"gradients reach all {len(names)} weights, and every step moves them{kept}")


def frozen(case: Case) -> set[str]:
    """The weights that the settings freeze; a tied one under each of its names. Beside adapters nearly all are."""
    every = dict(case.model.named_parameters(remove_duplicate=False))
    chosen = {id(every[path]) for name in case.settings.freeze for path in matches(case.model, name)}
    if case.settings.lora is not None:
        chosen |= {id(weight) for weight in every.values() if not weight.requires_grad}
    return {path for path, weight in every.items() if id(weight) in chosen}


def reason(case: Case, names: list[str]) -> str:
    weights = dict(case.model.named_parameters())
    still = [name for name in names if not weights[name].requires_grad]
    return "they are frozen, and train.freeze does not name them" if still else "nothing they do changes the loss"


def places(names: list[str]) -> str:
    return listed(list(dict.fromkeys(layer(name) for name in names)))


def units(case: Case) -> Finding | None:
    if not case.course.sound:
        return look("the probe left no numbers to look at", "mend the learning rate first")
    dead = silent(case)
    if not dead:
        return None
    where = max(dead, key=lambda name: dead[name])
    told = f"{dead[where]:.0%} of the units of {where} answered to no token"
    if dead[where] > DEAD:
        return wrong(f"{told}: the layer is dead", "model.trunk.mlp.activation=gelu")
    return look(told, "model.trunk.mlp.activation=gelu") if dead[where] > MANY else fine(f"at most {told}")


def parts(names: list[str]) -> str:
    """As train.freeze names them."""
    return str([name.replace(".", ".blocks.", 1) if name[-1].isdigit() else name for name in
                dict.fromkeys(layer(name) for name in names)]).replace(" ", "")  # fmt: skip


def silent(case: Case) -> dict[str, float]:
    """By feed-forward layer, the share of units that are zero for every token of a batch; of ReLUs alone."""
    model, c = case.course.model, case.model.c
    trunks = {"trunk": c.trunk, **({} if c.encoder is None else {"encoder": c.encoder.trunk})}
    kinds = [side for side, trunk in trunks.items()
             if isinstance(trunk, config.Trunk) and trunk.mlp.activation.startswith("relu")]  # fmt: skip
    if not kinds:
        return {}
    with still(model), looking(model, *(f"{side}.*.mlp.hidden" for side in kinds)) as seen:
        said(model, moved(next(case.read()), case.run.device))
        return {name.removesuffix(".hidden"): float((seen[name] == 0).flatten(0, 1).all(0).float().mean())
                for name in seen}  # fmt: skip
