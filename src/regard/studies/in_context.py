"""Demo: in-context learning. A model trained on many lines predicts a new one better with each point (S196).

    2=V;7=L;4=?        this line is new; two points determine the third

Baselines are ridge regression through the previous points, which assumes a line and shrinks towards the mean of all
lines; and always predicting the mean height.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.data import builtin
from regard.data.builtin import ToyDataset
from regard.data.sources import find_records
from regard.studies.comparison import StudyRun
from regard.studies.demo import DemoFigure, DemoInterrupted, DemoSettings, DemoTable, register_demo
from regard.studies.study import StudyPlan, StudyTable
from regard.studies.variant_probes import load_trial
from regard.text.tokenizer import Tokenizer
from regard.training.run import Run

PROMPT_POINTS, EVAL_LINES, UNSEEN_SEED = 9, 256, 1_000_003  # test lines come from another seed
QUICK = ("train.steps=60", "model.dim=32", "model.depth=2")
LINE_SPREAD = [
    ((2 * most + 1) ** 2 - 1) / 12 for most in (builtin.TOY_MAX_SLOPE, builtin.TOY_MAX_HEIGHT)
]  # variance of slope and level
SURE = 1e-6  # noise variance of a height: points are exact


def format_points(points: Sequence[tuple[int, str]], question: int) -> str:  #: S111
    """Format points and a question as in training: "2=V;7=L;4=" is the question for the height at 4."""
    return "".join(f"{x}={y};" for x, y in points) + f"{question}="


@register_demo(
    "in-context",
    "In-context learning from examples in the prompt",
    "A small model reads points of lines. It predicts each next point of lines that it never trained on.",
)
def demo_in_context(demo: DemoSettings) -> list[DemoTable]:
    settings = (*(QUICK if demo.quick else ()), *demo.settings)
    part = StudyTable(recipe="in-context", settings=settings)
    compared = StudyRun(StudyPlan(seeds=demo.seeds or 1, parts=(part,)), demo.out, command=demo.command,
                          tell=demo.tell, measured=False)  # fmt: skip
    if (stopped := compared.run()) is not None:
        raise DemoInterrupted(stopped)
    [table] = compared.tables
    run = load_trial(table.folder / f"{table.variants[0].folder}-seed0")
    return [in_context_table(errors_by_point(run))]


def errors_by_point(run: Run, lines: int = EVAL_LINES) -> list[dict[str, float]]:  #: S196
    """The mean squared error at each point by the number of previous points: of the model, and of the baselines."""
    assert run.tokenizer is not None
    [made] = find_records([f"toy:regress({PROMPT_POINTS}, {lines}, {UNSEEN_SEED})"])
    assert isinstance(made, ToyDataset)
    texts = [made.record(index)["text"] for index in range(lines)]
    places, heights = parse_points(texts)
    said = model_predictions(run, run.tokenizer, texts)
    found = []
    for k in range(PROMPT_POINTS):
        least = torch.stack([ridge_prediction(x[:k], y[:k], x[k]) for x, y in zip(places, heights, strict=True)])
        rivals = {"model": said[:, k], "least squares": least, "mean height": torch.zeros(lines)}
        wrong = {name: float((guess - heights[:, k]).square().mean()) for name, guess in rivals.items()}
        found.append({"examples": float(k), **wrong})
    return found


def parse_points(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Positions and heights (lines, points), both centred."""
    points = [[point.split("=") for point in text.split(";")] for text in texts]
    places = [[int(x) - builtin.TOY_WIDTH // 2 for x, _ in line] for line in points]
    heights = [[builtin.TOY_HEIGHTS.index(y) - len(builtin.TOY_HEIGHTS) // 2 for _, y in line] for line in points]
    return torch.tensor(places).double(), torch.tensor(heights).double()


def model_predictions(run: Run, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """The expected height at each point (lines, points), from the model's distribution after each =."""
    before = list(run.task.specials.single.before)
    ids = torch.tensor([[*before, *tokenizer.encode(text)] for text in texts], device=run.device)
    equals, known = tokenizer.encode("=")[0], [tokenizer.encode(letter)[0] for letter in builtin.TOY_HEIGHTS]
    with torch.inference_mode():
        logits: Tensor = run.model(ids)
    asked = logits[ids == equals].view(len(texts), PROMPT_POINTS, -1)[..., known].double().softmax(-1)
    levels = torch.arange(len(known), device=run.device) - len(known) // 2
    return (asked * levels).sum(-1).cpu()


def ridge_prediction(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """Ridge regression: the posterior mean of the height at a position; exact from two points on."""
    table = torch.stack([x, torch.ones_like(x)], -1)
    prior = torch.diag(SURE / torch.tensor(LINE_SPREAD).double())
    line: Tensor = torch.linalg.solve(table.mT @ table + prior, table.mT @ y)
    return line[0] * at + line[1]


def in_context_table(found: list[dict[str, float]]) -> DemoTable:
    names = [name for name in found[0] if name != "examples"]
    columns = {name: [f"{each[name]:.3f}" for each in found] for name in names}
    lines = {name: [(each["examples"], max(each[name], 1e-3)) for each in found] for name in names}
    few, many = found[0]["model"], found[-1]["model"]
    note = f"the model's error after {PROMPT_POINTS - 1} examples is {100 * many / few:.2g}% of that after none"
    drawing = DemoFigure("Error after each example", "examples before", "squared error", lines,
                      (False, True), dashed=("mean height",))  # fmt: skip
    rows = [f"{each['examples']:.0f} examples" for each in found]
    return DemoTable("Squared error of the next point, in letters", rows, columns, list(found), [note], [drawing])
