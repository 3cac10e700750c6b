"""regard generate: continue a prompt, printing text while it is generated."""

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, make_dataclass
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.errors import print_stderr
from regard.cli.output import (
    CheckpointArgument,
    Dtype,
    JsonOption,
    Specials,
    WeightsOption,
    add_config_options,
    check_specials_option,
    check_surrogates,
    dim,
    escape_control,
    import_torch,
    print_exact,
    print_json,
    read_text_argument,
)
from regard.config.overrides import parse_value

OPTION_HELP = {
    "max_new_tokens": "Tokens to generate, at most.",
    "min_new_tokens": "Tokens to generate before the text may end.",
    "temperature": "Sampling temperature; below 1 likelier tokens, 0 always the likeliest.",
    "top_k": "Choose among the k likeliest tokens.",
    "top_p": "Choose among the likeliest tokens that together reach this probability.",
    "min_p": "Choose among tokens at least this probable, as a part of the likeliest one's probability.",
    "typical_p": "Choose among the tokens about as surprising as expected that together reach this probability.",
    "repetition_penalty": "Above 1: tokens already seen become less likely.",
    "frequency_penalty": "Above 0: each time that a token occurs makes it less likely.",
    "presence_penalty": "Above 0: tokens that occurred become less likely, however often.",
    "no_repeat_ngram_size": "Never repeat an n-gram of so many tokens.",
    "logit_bias": "Make a token likelier, as in 17=2.5 or ' the'=-5; -inf forbids it. May be given several times.",
    "regex": "The text matches this regular expression.",
    "json_schema": "The text is JSON that matches this JSON schema.",
    "stop": "End before this text; may be given several times.",
    "seed": "The same seed makes the same text.",
    "num_beams": "Beam search: so many hypotheses are followed at a time.",
    "num_return_sequences": "With --num-beams: how many of the texts found to show; lines of --- part them.",
    "length_penalty": "With --num-beams: 0 favours short texts, 1 compares them a token, above 1 favours long ones.",
    "draft_model": "Speculative decoding: a small model of the same vocabulary proposes tokens; the same text, sooner.",
    "prompt_lookup": "Prompt lookup: propose what came after the last so many tokens before; the same text, sooner.",
    "num_speculative_tokens": "Tokens proposed at a time.  [default: 5]",
}
BeamOptions = make_dataclass(
    "Beams", [(name, "int | None", None) for name in ("num_beams", "num_return_sequences", "length_penalty")]
)

SpeculationOptions = make_dataclass("Ahead", [("draft_model", "str | "
                                                              "None", None), ("prompt_lookup", "int | None", None),
                                 ("num_speculative_tokens", "int | None", None)])  # fmt: skip


@add_config_options(SpeculationOptions, OPTION_HELP)
@add_config_options(BeamOptions, OPTION_HELP)
@add_config_options(config.SamplingParams, OPTION_HELP)
def generate(
    checkpoint: CheckpointArgument,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads stdin.")] = None,
    *,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")] = None,
    count: Annotated[int, typer.Option(help="How many texts; lines of --- part them.")] = 1,
    interactive: Annotated[bool, typer.Option("--interactive", help="Write a text in turns with the model.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how each token was chosen, or the tree of a search.")
    ] = False,
    steer: Annotated[
        str | None,
        typer.Option(metavar="FILE[:STRENGTH]", help="Add a steering vector, saved by regard.lens, to every token."),
    ] = None,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonOption = False,
    **settings: Any,
) -> None:
    """Continue a prompt, showing the text while it is generated."""
    given = {name: word for name, word in settings.items() if word is not None}
    given = {name: parse_setting(name, word) for name, word in given.items()}
    ahead = {
        name: given.pop(name) for name in ("draft_model", "prompt_lookup", "num_speculative_tokens") if name in given
    }
    search = check_options(given, count, explain, interactive)
    if ahead and (explain or interactive or search):
        raise config.ConfigError(f"--{next(iter(ahead)).replace('_', '-')}: speculative decoding is for a text that is "
                                 "sampled and shown; leave out --explain, --interactive and --num-beams")  # fmt: skip
    if steer and interactive:
        raise config.ConfigError("--steer: a text in turns is not steered; leave out --interactive")
    if interactive:
        from regard.cli.chat import continue_text

        return continue_text(
            checkpoint, prompt, file, count, json, given, weights, dtype, check_specials_option(specials)
        )
    begin, how = read_prompt(prompt, file), check_specials_option(specials)
    import_torch()
    from regard.inference.load import load_for_inference

    model = load_for_inference(checkpoint, dtype=dtype, weights=weights, specials=how)
    check_generator(model, checkpoint)
    with nullcontext() if steer is None else steering_of(model, steer):
        if explain:
            return show_explanation(model.explain_generation(begin, **given), json)
        if "draft_model" in ahead:
            ahead["draft_model"] = load_for_inference(ahead["draft_model"], dtype=dtype, weights=weights)
        if json or search or count > 1:
            return show_completions(model, model.complete([begin] * count, **given, **ahead), given, json)
        stream_text(model, begin, given | ahead)


def steering_of(model: Any, option: str) -> AbstractContextManager[None]:
    """The steering vector of FILE[:STRENGTH]; a colon within the path does not count."""
    from regard.lens.features.steering import SteeringVector, steering

    path, _, number = option.rpartition(":")
    try:
        strength = float(number) if path else 1.0
    except ValueError:
        path, strength = option, 1.0
    return steering(model, SteeringVector.load(path or option), strength)


def stream_text(model: Any, begin: str, given: dict[str, Any]) -> None:
    """Print a text while it is generated."""
    if sys.stdout.isatty():  # a terminal shows prompt and text; a pipe gets the new text only
        print(dim(begin), end="", file=sys.stderr, flush=True)
    last = "\n"
    with warnings.catch_warnings(record=True) as notes:  # shown at the end, not in the middle of the text
        try:
            for part in model.stream(begin, **given):
                print(escape_control(last := part), end="", flush=True)
        finally:
            if sys.stdout.isatty() and not last.endswith("\n"):
                print()
    for note in notes:
        print_stderr(f"note: {note.message}")


def show_completions(model: Any, texts: list[Any], given: dict[str, Any], json: bool) -> None:
    """Print complete texts: several, or the result of beam search."""
    every = [one for made in texts for one in (made, *made.others)]
    print_json(completion_record(model, every, given)) if json else print_exact(
        "\n---\n".join(one.text for one in every)
    )


def show_explanation(explanation: Any, json: bool) -> None:
    from regard.inference.explain_generation import format_explanation

    print_json(asdict(explanation)) if json else print(format_explanation(explanation))


def check_options(given: dict[str, Any], count: int, explain: bool, interactive: bool) -> bool:
    """Check options before a model is loaded, by the names that were typed. Returns whether beam search is used."""
    from regard.generation import params

    if count < 1:
        raise config.ConfigError(f"--count: {count} is less than 1")
    if explain and (count > 1 or interactive):
        raise config.ConfigError("--explain: one text at a time is explained; leave out --count and --interactive")
    try:
        search = params.is_beam_search(given)
        for line in given.get("logit_bias", ()):
            params.parse_logit_bias(line)
        plain = {name: value for name, value in given.items() if name != "logit_bias"}
        params.beam_search_params(plain) if search else params.sampling_params(plain)
    except config.ConfigError as problem:
        name, _, rest = str(problem).partition(":")
        raise config.ConfigError(f"--{name.replace('_', '-')}:{rest}") from None
    if search and (count > 1 or interactive):
        raise config.ConfigError("--num-beams: a search finds the same texts each time, and only at their end; leave "
                                 "out --count and --interactive, or set --num-return-sequences")  # fmt: skip
    return search


def parse_setting(name: str, word: Any) -> Any:
    """Parse a setting as typed: a number or a name; a regex or a schema always stays text."""
    return parse_value(word) if isinstance(word, str) and name not in ("regex", "json_schema", "draft_model") else word


def check_generator(model: Any, name: str) -> None:
    """Refuse a model that cannot generate text, and name the verb for it."""
    if isinstance(model.task, config.Classification | config.Regression):
        raise config.ConfigError(f"{name}: it was trained for {model.task.kind!r} and generates no text; use "
                                 f"`regard classify {name}`")  # fmt: skip
    if model.c.encoder is not None:
        raise config.ConfigError(f"{name}: it is an encoder-decoder and does not continue prompts; use "
                                 f"`regard translate TEXT --model {name}`")  # fmt: skip
    if model.task is None and (verb := verb_for_model(model)) is not None:
        raise config.ConfigError(f"{name}: it is an encoder and does not generate text; use `regard {verb} {name}`")


def verb_for_model(model: Any) -> str | None:
    """The verb for a published model that is not a decoder."""
    from regard.core.masks import mask

    name = model.source_folder.architecture or ""
    match model.c.head:
        case _ if isinstance(model.c, config.DualEncoder) or name.endswith("WithProjection"):
            return "embed"
        case config.TokenHead():
            return "answer" if name.endswith("ForQuestionAnswering") else "tag"
        case config.PoolingHead(out=int()):
            return "classify"
        case config.LMHead() | config.PretrainingHead(lm=config.LMHead()):
            return "fill" if any(mask(text).ahead for text in model.c.trunk.masks) else None
    return "embed"


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt from the argument, the file or stdin; an empty one is left to the model."""
    if prompt is not None and file is not None:
        raise config.ConfigError(f"--file {file}: there is a PROMPT as well; keep one of the two")
    place = "-" if prompt == "-" else file
    return read_text_argument(place) if place is not None else check_surrogates(prompt or "", "PROMPT")


def completion_record(model: Any, texts: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The JSON record of completions of one prompt; with its settings, the same texts can be generated again."""
    from regard.generation.params import beam_search_params, is_beam_search, sampling_params

    first, search = texts[0], is_beam_search(given)
    ids = model.encode_prompts([first.prompt])[1]
    usual = (
        model.default_settings(ids, model.generation_defaults.beam_search, given.get("max_new_tokens"))
        if search
        else model.default_settings(ids)
    )
    c = asdict((beam_search_params if search else sampling_params)(usual | given, model.output_tokenizer))
    told = [{"text": made.text, "tokens": len(made.ids), "reason": made.reason, "seconds": made.seconds}
            | ({"score": made.score} if search else {})
            | ({"guessed": made.guessed, "kept": made.kept} if made.guessed else {}) for made in texts]  # fmt: skip
    how = {"search": c} if search else {"sampling": c | {"seed": first.seed}}
    return {"prompt": first.prompt, "text": first.text, "texts": told, **how}
