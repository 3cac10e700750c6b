"""Report wording by task: what the model does, what its loss is, and what its predictions are."""

from dataclasses import asdict, dataclass

from regard import config
from regard.inputs.processors import PROCESSORS, build_processor
from regard.report.run_data import LoggedRun


@dataclass(frozen=True)
class TaskWording:
    """The words for a task. `does` starts the page's first sentence, `heading`, `lead` and `name` describe
    predictions; `loss` is the title of its curve, `at` what the loss counts, per `unit`."""

    does: str
    heading: str
    lead: str
    name: str
    loss: str
    at: str
    unit: str = "token"


UNSEEN = "{Things} that it never trained on"
TASK_WORDINGS = {
    "next_token": TaskWording(
        "Trained on {data}", "Generated text",
        "The same prompt along the training, at several temperatures: a low one samples the likeliest tokens, a high "
        "one less likely tokens too.", "Samples", "Loss on the next token", "the next token",
    ),
    "masked_lm": TaskWording(
        "Predicts masked tokens of {data}", "Predictions of masked tokens",
        f"{UNSEEN}, some of their tokens masked. Each gap shows the prediction; where that is wrong, the masked token "
        "follows.", "Gaps", "Loss on masked tokens", "the masked tokens", "masked token",
    ),
    "translation": TaskWording(
        "Translates {data}", "Translations",
        "The same sentences along the training, none of them trained on: the translation, and the target.",
        "Translations", "Loss on the next token of the target", "the next token of the target",
    ),
    "span_corruption": TaskWording(
        "Predicts the masked spans of {data}", "Predicted spans",
        f"{UNSEEN}, with a sentinel for each masked span, and the span that it predicts for each sentinel.",
        "Answers", "Loss on the masked spans", "the next token of the masked spans",
    ),
    "text_infilling": TaskWording(
        "Restores masked spans of {data}", "Restored texts",
        f"{UNSEEN}, with masked spans, and the whole text that it predicts.",
        "Answers", "Loss on the whole text", "the next token of the whole text",
    ),
    "prefix_lm": TaskWording(
        "Continues prefixes of {data}", "Continuations",
        f"{UNSEEN}, each cut at some position, and the continuation that it predicts.",
        "Answers", "Loss on the continuation", "the next token",
    ),
    "classification": TaskWording(
        "Classifies the {things} of {data}", "Predicted class",
        f"{UNSEEN}: the predicted class of each, its probability, and the label.",
        "Answers", "Loss on the class", "the class", "{thing}",
    ),
    "regression": TaskWording(
        "Predicts a number for each {thing} of {data}", "Predicted number",
        f"{UNSEEN}: the number predicted for each, and the label.",
        "Answers", "Squared error", "", "{thing}",
    ),
    "token_classification": TaskWording(
        "Labels every word of {data}", "Predicted labels of words",
        f"{UNSEEN}. Words with a label, predicted or true, are marked; where the prediction is wrong, the true label "
        "follows.", "Answers", "Loss on the label of a word", "the label of each word", "word",
    ),
    "question_answering": TaskWording(
        "Finds answers in {data}", "Predicted answers",
        f"{UNSEEN}: the question, and the predicted span of the text.",
        "Answers", "Loss on the start and end of the answer", "the start and end of the answer",
        "end of an answer",
    ),
    "next_pixel": TaskWording(
        "Predicts the {things} of {data} value by value", "Generated images",
        "No images are shown here: regard generate draws them.", "Samples", "Loss on the next value",
        "the next value", "value",
    ),
    "forecasting": TaskWording(
        "Forecasts {data}", "Forecasts", "Forecasts are scored and not shown here.",
        "Answers", "Error of the forecast", "", "number",
    ),
    "node_classification": TaskWording(
        "Classifies the nodes of {data}", "Predicted class of a node",
        "All nodes are read at once; their predicted classes are scored and not shown here.",
        "Answers", "Loss on the class of a node", "the class of a node", "node",
    ),
    "captioning": TaskWording(
        "Captions the pictures of {data}", "Captions",
        "Pictures that it never trained on, each with the caption that it writes.",
        "Answers", "Loss on the next token of a caption", "the next token",
    ),
    "text_to_image": TaskWording(
        "Draws the texts of {data}", "Generated pictures",
        "Texts that it never trained on, each with a picture that it draws.",
        "Pictures", "Loss on the next colour", "the next colour and the next token of the text", "token",
    ),
    "contrastive": TaskWording(
        "Matches the pictures and texts of {data}", "Nearest text of each picture",
        "Pictures that it never trained on, each with the nearest of all their texts.",
        "Answers", "Contrastive loss", "the matching pair", "pair",
    ),
}  # fmt: skip
OTHER = TaskWording(
    "Trained on {data}", "Predictions", "Predictions are scored and not shown here.", "Answers",
    "Loss", "the label", "answer",
)  # fmt: skip
SPELT = {"char": "character by character", "byte": "byte by byte", "word": "word by word", "file": "token by token"}
LINES = "Faint: every step. Bold: moving average. Dots: validation data."
CROSSES = " Crosses: skipped steps."


def trained_task_of(run: LoggedRun, model: object) -> config.Task:
    """The task of a model: its own, or the recipe's; old runs are next-token prediction."""
    known = getattr(model, "task", None)
    if known is not None:
        return known  # type: ignore[no-any-return]
    return config.NextToken() if run.recipe is None else run.recipe.task


def input_nouns(run: LoggedRun) -> tuple[str, str]:
    """Singular and plural of the input: texts, or the kind of the front end."""
    front = None if run.recipe is None else getattr(run.recipe.model, "embed", None)
    if front is None or isinstance(front, config.TextEmbedding) or front.kind not in PROCESSORS:
        return "text", "texts"
    one = build_processor(front).column
    return one, one if one.endswith("s") else f"{one}s"


def task_wording(run: LoggedRun, task: config.Task) -> TaskWording:
    """The wording of a task for its input."""
    one, many = input_nouns(run)
    said = TASK_WORDINGS.get(task.kind, OTHER)
    article = "an" if one[0] in "aeiou" else "a"
    words = {"thing": one, "a_thing": f"{article} {one}", "things": many, "Things": many.capitalize(), "data": "{data}"}
    return TaskWording(**{name: text.format(**words) for name, text in asdict(said).items()})


def task_summary(run: LoggedRun, task: config.Task) -> str:
    """A sentence on the task and its data."""
    if run.recipe is None:
        return "A run whose recipe could not be read."
    sources, c = run.recipe.data.sources, run.recipe.train
    named = ", ".join(sources[:3]) + (" and more" if len(sources) > 3 else "")
    length = f"{c.context} tokens at a time" if task.kind == "next_token" else f"rows of at most {c.context} tokens"
    spelling = SPELT.get(run.recipe.tokenizer.kind, "piece by piece")
    how = f", {spelling}, {length}" if input_nouns(run)[0] == "text" else f", at most {c.context} tokens each"
    return f"{task_wording(run, task).does.replace('{data}', named)}{task_details(task)}{how}."


def task_details(task: config.Task) -> str:
    """Further details of a task."""
    if isinstance(task, config.Translation) and (task.source, task.target) != ("source", "target"):
        return f" from {task.source} to {task.target}"
    if isinstance(task, config.Classification | config.TokenClassification):
        few = len(task.classes) <= 5
        return f", {' or '.join(task.classes)}" if few and task.classes else f", one of {len(task.classes)} classes"
    if isinstance(task, config.MaskedLM) and task.next_sentence:
        return ", and whether two parts follow each other"
    return ""


def loss_lead(run: LoggedRun, task: config.Task) -> str:
    """A sentence on the loss and the lines of its plot."""
    lines = LINES + CROSSES * any("skipped" in line for line in run.steps)
    if isinstance(task, config.Regression):
        return f"Loss is the squared error, averaged over {input_nouns(run)[1]}. {lines}"
    if isinstance(task, config.Forecasting):
        return f"Loss is the error of each number, in standard deviations of the training rows. {lines}"
    smooth = getattr(task, "label_smoothing", 0.0)
    aside = f", with label smoothing {smooth:g}" if smooth else ""
    both = " and of whether two parts follow each other" if isinstance(task, config.MaskedLM) and task.next_sentence \
        else ""  # fmt: skip
    return f"Loss is the cross-entropy of {task_wording(run, task).at}{both}, in nats{aside}. {lines}"
