"""What each task is called on the page: what was asked, what its loss is, and which question its answers answer."""

from dataclasses import asdict, dataclass

from regard import config
from regard.inputs.senses import SENSES, sense
from regard.report.run import Run


@dataclass(frozen=True)
class Asks:
    """A task in words. `does` begins the page's first sentence, `question`, `lead` and `name` are those of the answers;
    `loss` is the question of its curve, and `at` what the model is surprised at, once a `unit`.
    """

    does: str
    question: str
    lead: str
    name: str
    loss: str
    at: str
    unit: str = "token"


UNSEEN = "{Things} that it never trained on"
ASKS = {
    "next": Asks(
        "Trained on {data}", "What does it write?",
        "The same prompt along the training, colder and warmer: at a low temperature it says what it is sure of, at a "
        "high one it dares more.", "Samples", "How surprised is it by the next token?", "the next token",
    ),
    "masked": Asks(
        "Guesses hidden words of {data}", "What does it read into the gaps?",
        f"{UNSEEN}, some of their tokens hidden. In every gap stands what it says; where that is wrong, what stood "
        "there follows.", "Gaps", "How surprised is it by what was hidden?", "the hidden tokens", "hidden token",
    ),
    "translate": Asks(
        "Translates {data}", "How does it translate?",
        "The same sentences along the training, none of them trained on: what it says, and what was meant.",
        "Translations", "How surprised is it by the next word of the target?", "the next token of the target",
    ),
    "spans": Asks(
        "Tells what was cut out of {data}", "What does it put back?",
        f"{UNSEEN}, a mark wherever some words were cut out; it tells what stood at each mark.",
        "Answers", "How surprised is it by what was cut out?", "the next token of what was cut out",
    ),
    "infill": Asks(
        "Mends holes in {data}", "How does it mend a text?",
        f"{UNSEEN}, with holes; it tells the whole text.",
        "Answers", "How surprised is it by the whole text?", "the next token of the whole text",
    ),
    "prefix": Asks(
        "Goes on from how {data} begins", "How does it go on?",
        f"{UNSEEN}, cut at some place; it tells what comes after.",
        "Answers", "How surprised is it by how the text goes on?", "the next token",
    ),
    "classify": Asks(
        "Tells what the {things} of {data} are", "What does it take {a_thing} for?",
        f"{UNSEEN}: what it takes each for, how sure it is of that, and what it really is.",
        "Answers", "How surprised is it by the right class?", "the right class", "{thing}",
    ),
    "regress": Asks(
        "Gives each {thing} of {data} a number", "Which number does it give?",
        f"{UNSEEN}: the number it gives to each, and the one it should.",
        "Answers", "How far off is it?", "", "{thing}",
    ),
    "tag": Asks(
        "Names every word of {data}", "What does it call each word?",
        f"{UNSEEN}. Words that it names, or should have named, are marked; where it is wrong, the right name follows.",
        "Answers", "How surprised is it by the right name of a word?", "the right name of each word", "word",
    ),
    "answer": Asks(
        "Finds answers in {data}", "Where does it find the answer?",
        f"{UNSEEN}: the question, and the words of the text that it answers with.",
        "Answers", "How surprised is it by where the answer stands?", "where the answer begins and ends",
        "end of an answer",
    ),
    "pixels": Asks(
        "Tells the {things} of {data} value by value", "What does it draw?",
        "Nothing is drawn here: regard generate draws.", "Samples", "How surprised is it by the next value?",
        "the next value", "value",
    ),
    "forecast": Asks(
        "Tells how {data} goes on", "How does it go on?", "What it tells is scored and not shown here.",
        "Answers", "How far off is it?", "", "number",
    ),
    "nodes": Asks(
        "Tells what the nodes of {data} are", "What does it take a node for?",
        "All nodes are read at once, and what it takes them for is scored and not shown here.",
        "Answers", "How surprised is it by the right class?", "the right class of a node", "node",
    ),
    "caption": Asks(
        "Says what the pictures of {data} show", "What does it see?",
        "Pictures that it never trained on, each with the text that it writes.",
        "Answers", "How surprised is it by the next word of a text?", "the next token",
    ),
    "draw": Asks(
        "Draws what the texts of {data} say", "What does it draw?",
        "Texts that it never trained on, each with a picture that it draws.",
        "Pictures", "How surprised is it by the next colour?", "the next colour, and at the next word", "token",
    ),
    "contrast": Asks(
        "Finds which text of {data} goes with which picture", "Does it find them?",
        "Pictures that it never trained on, each with the text that it finds nearest, among those of all.",
        "Answers", "How surprised is it by what goes together?", "what goes together", "pair",
    ),
}  # fmt: skip
OTHER = Asks(
    "Trained on {data}", "What does it answer?", "What it answers is scored and not shown here.", "Answers",
    "How large is its loss?", "what is right", "answer",
)  # fmt: skip
SPELT = {"char": "character by character", "byte": "byte by byte", "word": "word by word", "file": "token by token"}
LINES = "Faint: every step. Bold: the mean around it. Dots: what it never trained on."
CROSSES = " Crosses: steps that were not taken."


def task_of(run: Run, model: object) -> config.Task:
    """What was asked of a model: as it remembers, or as its recipe says; runs of before were asked the next token."""
    known = getattr(model, "task", None)
    if known is not None:
        return known  # type: ignore[no-any-return]
    return config.NextToken() if run.recipe is None else run.recipe.task


def things(run: Run) -> tuple[str, str]:
    """What is read, one of it and many: texts, or what the sense of the front end is for."""
    front = None if run.recipe is None else getattr(run.recipe.model, "embed", None)
    if front is None or isinstance(front, config.Embed) or front.kind not in SENSES:
        return "text", "texts"
    one = sense(front).column
    return one, one if one.endswith("s") else f"{one}s"


def asks(run: Run, task: config.Task) -> Asks:
    """The task in words that fit what it is asked of."""
    one, many = things(run)
    said = ASKS.get(task.kind, OTHER)
    article = "an" if one[0] in "aeiou" else "a"
    words = {"thing": one, "a_thing": f"{article} {one}", "things": many, "Things": many.capitalize(), "data": "{data}"}
    return Asks(**{name: text.format(**words) for name, text in asdict(said).items()})


def summary(run: Run, task: config.Task) -> str:
    """What was asked of which data, in a sentence."""
    if run.recipe is None:
        return "A run whose recipe could not be read."
    sources, c = run.recipe.data.sources, run.recipe.train
    named = ", ".join(sources[:3]) + (" and more" if len(sources) > 3 else "")
    length = f"{c.context} tokens at a time" if task.kind == "next" else f"rows of at most {c.context} tokens"
    spelling = SPELT.get(run.recipe.text.kind, "piece by piece")
    how = f", {spelling}, {length}" if things(run)[0] == "text" else f", at most {c.context} tokens each"
    return f"{asks(run, task).does.replace('{data}', named)}{more(task)}{how}."


def more(task: config.Task) -> str:
    """What else a sentence about a task should say."""
    if isinstance(task, config.Translate) and (task.source, task.target) != ("source", "target"):
        return f" from {task.source} to {task.target}"
    if isinstance(task, config.Classify | config.Tag):
        few = len(task.classes) <= 5
        return f", {' or '.join(task.classes)}" if few and task.classes else f", one of {len(task.classes)} classes"
    if isinstance(task, config.Masked) and task.next_sentence:
        return ", and which parts follow each other"
    return ""


def lead(run: Run, task: config.Task) -> str:
    """What the loss is, and what its lines are."""
    lines = LINES + CROSSES * any("skipped" in line for line in run.steps)
    if isinstance(task, config.Regress):
        return f"Loss is the error squared, averaged over {things(run)[1]}. {lines}"
    if isinstance(task, config.Forecast):
        return f"Loss is how far off each number is, in deviations of the training rows. {lines}"
    smooth = getattr(task, "smoothing", 0.0)
    aside = f", a part of {smooth:g} of it for all other words (label smoothing)" if smooth else ""
    both = " and at whether two parts follow each other" if isinstance(task, config.Masked) and task.next_sentence \
        else ""  # fmt: skip
    return f"Loss is the surprise at {asks(run, task).at}{both}, in nats{aside}. {lines}"
