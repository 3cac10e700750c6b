"""regard translate: a text in, its translation out; files and standard input line by line, as lines arrive."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

from regard import config
from regard.cli.bad_lines import BadLines, Cut, Skip
from regard.cli.output import (
    Dtype,
    JsonOption,
    Specials,
    WeightsOption,
    check_specials_option,
    check_surrogates,
    config_from_options,
    import_torch,
    print_json,
    read_input_bytes,
    stdin_bytes,
)
from regard.config.generation import BeamSearchParams
from regard.zoo.packaged import DEFAULT_TRANSLATOR

AT_ONCE = 64  # lines of a file at once; standard input one at a time, since a reader may wait for each
FEW = 3  # most attended source tokens shown, where the screen is too narrow for all


class SourceLine(NamedTuple):
    """The name, number and text of a source line; None if the line cannot be read."""

    name: str
    number: int
    text: str


ModelPath = Annotated[str, typer.Option("--model", metavar="PATH", help="A run or a folder with a translator.")]
NumBeams = Annotated[int | None, typer.Option(help="Number of beams: by default the folder's, or 4.")]  # fmt: skip
LengthPenalty = Annotated[float | None, typer.Option(help="score = log p / length^penalty: above 1 longer, below 1 "
                                                          "shorter texts; by default the folder's, or 1.")]  # fmt: skip
MaxNewTokens = Annotated[int | None, typer.Option(help="Tokens of a translation, at most: by default the folder's, "
                                                       "or by the text's length.")]  # fmt: skip
NumReturnSequences = Annotated[int, typer.Option(help="How many translations of each text, with their scores.")]
SourcePrefix = Annotated[str, typer.Option(metavar="TEXT", help="Put before each text, such as \"translate English to "
                                                                "German: \" of T5.")]  # fmt: skip
Align = Annotated[bool, typer.Option("--align", help="Show where each word of the translation comes from.")]


def translate(
    words: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text; - reads standard input.")] = None,
    *,
    model: ModelPath = DEFAULT_TRANSLATOR,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    max_new_tokens: MaxNewTokens = None,
    num_return_sequences: NumReturnSequences = BeamSearchParams.num_return_sequences,
    source_prefix: SourcePrefix = "",
    align: Align = False,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Translate the lines of a file.")] = None,
    skip: Skip = False,
    cut: Cut = False,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    specials: Specials = "parse",
    json: JsonOption = False,
) -> int:
    """Translate a text, or the lines of a file; from English to French unless another model is named."""
    search = check_search_options(max_new_tokens, num_beams=num_beams, length_penalty=length_penalty,
                                  num_return_sequences=num_return_sequences)  # fmt: skip
    bad = BadLines(strict=file is None and words != "-", skip=skip)
    lines = input_lines(words, file, bad)
    loading = {"dtype": dtype, "weights": weights, "specials": check_specials_option(specials)}
    import_torch()
    from regard.inference.batching import in_chunks

    translator = load_translator(model, loading)
    first, total = True, 0
    for chunk in in_chunks(lines, 1 if "-" in (words, file) else AT_ONCE):
        total += len(chunk)
        for line, found in translate_lines(translator, chunk, source_prefix, search, max_new_tokens, bad, cut):
            problem = bad.why.get(line.number)
            if problem is not None and skip:
                continue
            seen = translator.model.align(source_prefix + line.text, found.ids) if align and found is not None else None
            if json:
                print_json(translation_record(line, found, seen, problem, not bad.strict))
            else:
                show_translation(found, seen, num_return_sequences > 1, first)
            first = False
        sys.stdout.flush()
    return bad.tell(total)


def check_search_options(max_new_tokens: int | None, **options: Any) -> dict[str, Any]:
    """Check the given search options before anything is loaded.

    `max_new_tokens` is passed separately: without it, the length of the source decides.
    """
    given = {name: value for name, value in options.items() if value is not None}
    config_from_options(
        BeamSearchParams, given | ({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens})
    )
    return given


def translate_lines(
    translator: Any, lines: list[SourceLine], prefix: str, search: dict[str, Any], max_new_tokens: int | None,
    bad: BadLines, cut: bool,
) -> Iterator[tuple[SourceLine, Any]]:  # fmt: skip
    """Each line with its Completion: None for an empty line, and for a bad one, which is recorded in `bad`."""
    full = [line for line in lines if line.text.strip()]
    numbers = [line.number for line in full]
    found = translator([prefix + line.text for line in full], search, max_new_tokens, [line.name for line in full],
                       bad.refuse(numbers), bad.cut(numbers) if cut else None)  # fmt: skip
    by_number = dict(zip(numbers, found, strict=True))
    for line in lines:
        yield line, by_number.get(line.number)


def load_translator(path: str, loading: dict[str, Any]) -> Any:
    """Load the translation model in a folder; errors name the folder."""
    from regard.inference.load import load_for_inference
    from regard.inference.translation import Translator

    model = load_for_inference(path, **loading)
    try:
        return Translator(model)
    except (config.ConfigError, config.DataError) as problem:
        raise type(problem)(f"{path}: {problem}") from None


# ---------------------------------------------------------------- input


def input_lines(words: str | None, file: str | None, bad: BadLines) -> Iterator[SourceLine]:
    """The lines to translate; a text on the command line must not be empty."""
    if (words is None) == (file is None):
        what = "there is none" if words is None else f"there is --file {file} as well"
        raise config.ConfigError(f"TEXT: {what}; give a text or --file FILE, one of the two")
    if "-" in (words, file):
        return number_lines("standard input", stdin_bytes(), bad)
    if file is not None:
        return number_lines(file, read_input_bytes(file).removesuffix(b"\n").split(b"\n"), bad)
    if not check_surrogates(words or "", "TEXT").strip():
        raise config.DataError(f"TEXT: {words!r} is empty; give it some words")
    lines = (words or "").removesuffix("\n").split("\n")
    return (SourceLine(f"TEXT: line {place}" if len(lines) > 1 else "TEXT", place, line.rstrip("\r"))
            for place, line in enumerate(lines, 1))  # fmt: skip


def number_lines(name: str, lines: Iterable[bytes], bad: BadLines) -> Iterator[SourceLine]:
    """Lines with their numbers, as they arrive."""
    for place, raw in enumerate(lines, 1):
        try:
            yield SourceLine(f"{name}: line {place}", place, raw.decode("utf8").rstrip("\r\n"))
        except UnicodeDecodeError:
            remedy = "convert it, as with iconv -f latin1 -t utf8"
            bad.add(config.DataError(f"{name}: line {place} is not UTF-8; {remedy}"), place)
            yield SourceLine(f"{name}: line {place}", place, "")


def stdin_lines() -> Iterator[tuple[str, str]]:
    """Lines of standard input with their names, as they arrive; a bad one raises."""
    return ((line.name, line.text) for line in number_lines("standard input", stdin_bytes(), BadLines(strict=True)))


# ---------------------------------------------------------------- output


def translation_record(line: SourceLine, one: Any, seen: Any, wrong: str | None, counted: bool) -> dict[str, Any]:
    """One JSON object per line; an empty line has no translations, a bad one has a reason."""
    every = [] if one is None else [one, *one.others]
    told = [{"text": each.text, "score": each.score, "tokens": len(each.ids), "reason": each.reason} for each in every]
    made: dict[str, Any] = {"source": line.text, "text": "" if one is None else one.text, "translations": told}
    made = ({"line": line.number} if counted else {}) | made | ({} if wrong is None else {"error": wrong})
    if seen is None:
        return made
    weights = [[round(weight, 6) for weight in row] for row in seen.weights.tolist()]
    return made | {"alignment": {"layer": seen.layer, "source": seen.source, "target": seen.target, "weights": weights}}


def show_translation(one: Any, seen: Any, scores: bool, first: bool) -> None:
    """One line of output per line; with scores one per translation, and an empty line between texts."""
    if scores and not first:
        print()
    if one is None:
        return None if scores else print()
    for each in [one, *one.others]:
        print(f"{each.score:.4f}\t{each.text}" if scores else each.text)
    if seen is not None:
        print("\n".join(alignment_table(seen, shutil.get_terminal_size().columns)))


def alignment_table(seen: Any, columns: int) -> Iterable[str]:
    """Target tokens down, source tokens across; if that is too wide, the most attended ones of each."""
    wide = max(map(len, seen.target))
    widths = [max(len(token), 3) for token in seen.source]
    weights = seen.weights.tolist()
    if wide + sum(widths) + 2 * len(widths) > columns:
        orders = seen.weights.argsort(dim=-1, descending=True, stable=True)[:, :FEW].tolist()
        for token, row, order in zip(seen.target, weights, orders, strict=True):
            yield f"{token:<{wide}}  " + "  ".join(
                f"{seen.source[place]} {alignment_cell(row[place])}" for place in order
            )
        return
    rows = [seen.source, *([alignment_cell(weight) for weight in row] for row in weights)]
    for token, row in zip(["", *seen.target], rows, strict=True):
        yield f"{token:<{wide}}  " + "  ".join(f"{each:>{width}}" for each, width in zip(row, widths, strict=True))


def alignment_cell(weight: float) -> str:
    """Two digits, and a dot for nearly zero."""
    return "·" if weight < 0.005 else "1.0" if weight > 0.995 else f"{weight:.2f}"[1:]
