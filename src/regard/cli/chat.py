"""regard chat: a conversation with a model that was trained for one."""

import sys
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.ask import ABOUT, beginning, check, looked_over, typed
from regard.cli.mistakes import talk
from regard.cli.output import Checkpoint, Dtype, Weights, spoken, text_in, with_options_of, with_torch


@with_options_of(config.Sampling, ABOUT)
def chat(
    checkpoint: Checkpoint,
    *,
    system: Annotated[str, typer.Option(metavar="TEXT", help="What the model is told before all else.")] = "",
    template: Annotated[
        str | None, typer.Option(metavar="FILE", help="A chat template (Jinja), where the folder has none or another.")
    ] = None,
    weights: Weights = "auto",
    dtype: Dtype = "fp32",
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each answer, for scripts.")] = False,
    **settings: Any,
) -> None:
    """Talk with a model: it answers while you wait, and /help shows what else can be said."""
    given = {name: typed(name, word) for name, word in settings.items() if word is not None}
    looked_over(given, count=1, explain=False, interactive=True)
    written = None if template is None else text_in(template)
    told = spoken(system, "--system")
    with_torch()
    from regard.generate.conversation import Conversation
    from regard.generate.forms import Template
    from regard.generate.opening import load_to_answer

    model = load_to_answer(checkpoint, dtype=dtype, weights=weights)
    check(model, checkpoint)
    form = Template(model, template_in(model, checkpoint, template, written))
    converse(Conversation(model, form, system=told, **given), checkpoint, json)


def template_in(model: Any, name: str, file: str | None, written: str | None) -> Any:
    """The template that was given, or the folder's."""
    from regard.generate.forms import template_of
    from regard.text.chat import Chat

    if written is not None:
        try:
            return Chat.of({**({} if model.tokenizer is None else model.tokenizer.card), "chat_template": written})
        except config.DataError as problem:
            raise config.DataError(f"{file}: {problem}") from None
    if (found := template_of(model)) is None:
        raise config.DataError(f"{name}: it has no chat template, so it was not trained to answer; go on from a text "
                               f"with `regard generate {name} --interactive`, or give --template FILE")  # fmt: skip
    return found


def go_on(
    name: str, prompt: str | None, file: str | None, count: int, json: bool, given: dict[str, Any], weights: str,
    dtype: str, specials: Any,
) -> None:  # fmt: skip
    """regard generate --interactive: a text that two write; a prompt is the first turn."""
    for place, taken in (("PROMPT", prompt == "-"), ("--file", file == "-"), ("--count", count != 1)):
        if taken:
            why = "there is one text" if place == "--count" else "standard input is for what is typed"
            raise config.ConfigError(f"{place}: with --interactive {why}; leave it out")
    first = beginning(prompt, file)
    with_torch()
    from regard.generate.conversation import Conversation
    from regard.generate.forms import Growing
    from regard.generate.opening import load_to_answer

    model = load_to_answer(name, dtype=dtype, weights=weights, specials=specials)
    check(model, name)
    converse(Conversation(model, Growing(model), **given), name, json, first)


def converse(conversation: Any, name: str, json: bool, first: str = "") -> None:
    from regard.cli.talking import Talk

    if sys.stdin is not None and sys.stdin.isatty():
        talk(f"{name}; /help shows what can be said besides messages, Ctrl-D leaves")
    Talk(conversation, json).run(first)
