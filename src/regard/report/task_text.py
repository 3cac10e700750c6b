"""Report wording by task: what the model does, what its loss is, and what its predictions are."""

from dataclasses import asdict, dataclass

from regard import config
from regard.inputs.processors import PROCESSORS, build_processor
from regard.report.run_data import LoggedRun


@dataclass(frozen=True)
class TaskWording:
    """The words for a task. `does` starts the page's first sentence, `question`, `lead` and `name` describe
    predictions; `loss` is the title of its curve, `at` what the loss counts, per `unit`."""

    does: str
    question: str
    lead: str
    name: str
    loss: str
    at: str
    unit: str = "token"


UNSEEN = "{Things} that it never trained on"
TASK_WORDINGS = {
    "next_token": TaskWording(
        "Trained on {data}", "What does it write?",
        "The same prompt along the training, colder and warmer: at a low temperature it says what it is sure of, at a "
        "high one it dares more.", "Samples", "How surprised is it by the next token?", "the next token",
    ),
    "masked_lm": TaskWording(
        "Guesses hidden words of {data}", "What does it read into the gaps?",
        f"{UNSEEN}, some of their tokens hidden. In every gap stands what it says; where that is wrong, what stood "
        "there follows.", "Gaps", "How surprised is it by what was hidden?", "the hidden tokens", "hidden token",
    ),
    "translation": TaskWording(
        "Translates {data}", "How does it translate?",
        "The same sentences along the training, none of them trained on: what it says, and what was meant.",
        "Translations", "How surprised is it by the next word of the target?", "the next token of the target",
    ),
    "span_corruption": TaskWording(
        "Tells what was cut out of {data}", "What does it put back?",
        f"{UNSEEN}, a mark wherever some words were cut out; it tells what stood at each mark.",
        "Answers", "How surprised is it by what was cut out?", "the next token of what was cut out",
    ),
    "text_infilling": TaskWording(
        "Mends holes in {data}", "How does it mend a text?",
        f"{UNSEEN}, with holes; it tells the whole text.",
        "Answers", "How surprised is it by the whole text?", "the next token of the whole text",
    ),
    "prefix_lm": TaskWording(
        "Goes on from how {data} begins", "How does it go on?",
        f"{UNSEEN}, cut at some place; it tells what comes after.",
        "Answers", "How surprised is it by how the text goes on?", "the next token",
    ),
    "classification": TaskWording(
        "Tells what the {things} of {data} are", "What does it take {a_thing} for?",
        f"{UNSEEN}: what it takes each for, how sure it is of that, and what it really is.",
        "Answers", "How surprised is it by the right class?", "the right class", "{thing}",
    ),
    "regression": TaskWording(
        "Gives each {thing} of {data} a number", "Which number does it give?",
        f"{UNSEEN}: the number it gives to each, and the one it should.",
        "Answers", "How far off is it?", "", "{thing}",
    ),
    "token_classification": TaskWording(
        "Names every word of {data}", "What does it call each word?",
        f"{UNSEEN}. Words that it names, or should have named, are marked; where it is wrong, the right name follows.",
        "Answers", "How surprised is it by the right name of a word?", "the right name of each word", "word",
    ),
    "question_answering": TaskWording(
        "Finds answers in {data}", "Where does it find the answer?",
        f"{UNSEEN}: the question, and the words of the text that it answers with.",
        "Answers", "How surprised is it by where the answer stands?", "where the answer begins and ends",
        "end of an answer",
    ),
    "next_pixel": TaskWording(
        "Tells the {things} of {data} value by value", "What does it draw?",
        "Nothing is drawn here: regard generate draws.", "Samples", "How surprised is it by the next value?",
        "the next value", "value",
    ),
    "forecasting": TaskWording(
        "Tells how {data} goes on", "How does it go on?", "What it tells is scored and not shown here.",
        "Answers", "How far off is it?", "", "number",
    ),
    "node_classification": TaskWording(
        "Tells what the nodes of {data} are", "What does it take a node for?",
        "All nodes are read at once, and what it takes them for is scored and not shown here.",
        "Answers", "How surprised is it by the right class?", "the right class of a node", "node",
    ),
    "captioning": TaskWording(
        "Says what the pictures of {data} show", "What does it see?",
        "Pictures that it never trained on, each with the text that it writes.",
        "Answers", "How surprised is it by the next word of a text?", "the next token",
    ),
    "text_to_image": TaskWording(
        "Draws what the texts of {data} say", "What does it draw?",
        "Texts that it never trained on, each with a picture that it draws.",
        "Pictures", "How surprised is it by the next colour?", "the next colour, and at the next word", "token",
    ),
    "contrastive": TaskWording(
        "Finds which text of {data} goes with which picture", "Does it find them?",
        "Pictures that it never trained on, each with the text that it finds nearest, among those of all.",
        "Answers", "How surprised is it by what goes together?", "what goes together", "pair",
    ),
}  # fmt: skip
OTHER = TaskWording(
    "Trained on {data}", "What does it answer?", "What it answers is scored and not shown here.", "Answers",
    "How large is its loss?", "what is right", "answer",
)  # fmt: skip
SPELT = {"char": "character by character", "byte": "byte by byte", "word": "word by word", "file": "token by token"}
LINES = "Faint: every step. Bold: the mean around it. Dots: what it never trained on."
CROSSES = " Crosses: steps that were not taken."


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
        return ", and which parts follow each other"
    return ""


def loss_lead(run: LoggedRun, task: config.Task) -> str:
    """A sentence on the loss and the lines of its plot."""
    lines = LINES + CROSSES * any("skipped" in line for line in run.steps)
    if isinstance(task, config.Regression):
        return f"Loss is the error squared, averaged over {input_nouns(run)[1]}. {lines}"
    if isinstance(task, config.Forecasting):
        return f"Loss is how far off each number is, in deviations of the training rows. {lines}"
    smooth = getattr(task, "label_smoothing", 0.0)
    aside = f", a part of {smooth:g} of it for all other words (label smoothing)" if smooth else ""
    both = " and at whether two parts follow each other" if isinstance(task, config.MaskedLM) and task.next_sentence \
        else ""  # fmt: skip
    return f"Loss is the surprise at {task_wording(run, task).at}{both}, in nats{aside}. {lines}"
