"""regard lens: look inside a model: logit lens, attribution, patching, neurons, words in context, steering vectors.

Each verb calls one function of `regard.lens` on a model and texts, prints its table, and with `--out` writes the
picture (.svg, .png), both (.html) or the numbers (.csv, .json).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import config
from regard.cli.output import Dtype, JsonOption, import_torch, print_json
from regard.cli.text_args import ModelArgument, show_progress, show_rate, text_records

TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help="What the model reads; for an encoder-decoder the "
                                             "target so far.")]  # fmt: skip
SourceOption = Annotated[str | None, typer.Option(metavar="TEXT", help="What an encoder-decoder reads.")]
PositionOption = Annotated[
    int | None, typer.Option(metavar="N", help="The token whose output it is, from 0; by default the last or the mask.")
]
TokenOption = Annotated[
    str | None, typer.Option(metavar="WORD", help="The token or class it is about; by default the likeliest.")
]
AgainstOption = Annotated[str | None, typer.Option(metavar="WORD", help="A second one: the difference of the two.")]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write it: .svg or .png, .html, .csv, .json.")]
AblationOption = Annotated[str, typer.Option(metavar="NAME", help="What takes a head's place: mean or zero.")]
FilesArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Texts, a line each, or the column text of records.")
]


def scan(
    model: ModelArgument,
    text: TextArgument,
    *,
    source: SourceOption = None,
    dtype: Dtype = "fp32",
    json: JsonOption = False,
) -> None:
    """Run the cheap lenses on a text: a page of findings, with the Python behind each."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    show_result(lens.scan(opened, text, source=source, name=model), None, json)


def logit_lens(
    model: ModelArgument,
    text: TextArgument,
    *,
    source: SourceOption = None,
    watch: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Follow this word's rank; again for more.")]
    = None,
    top_k: Annotated[int, typer.Option(metavar="K", help="How many predictions of each place to show.")] = 3,
    halves: Annotated[bool, typer.Option(help="Show the places within a block too.")] = True,
    tuned: Annotated[str | None, typer.Option(metavar="FILE", help="A tuned lens that `regard lens tune` wrote.")]
    = None,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Show what each layer would predict: the residual stream through the model's own head."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    fitted = None if tuned is None else lens.TunedLens.load(tuned)
    show_result(lens.logit_lens(opened, text, source=source, watch=watch or (), top_k=top_k, halves=halves,
                                lens=fitted), out, json)  # fmt: skip


def tune(
    model: ModelArgument,
    file: FilesArgument,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the lens goes, as safetensors.")],
    steps: Annotated[int, typer.Option(metavar="N", help="Texts to fit it to, read again from the start if fewer.")]
    = 250,
    lr: Annotated[float, typer.Option(metavar="RATE", help="Learning rate of the fit.")] = 1e-3,
    halves: Annotated[bool, typer.Option(help="Fit the places within a block too.")] = True,
    dtype: Dtype = "fp32",
) -> None:  # fmt: skip
    """Fit a tuned lens: a map for each place, so that the head reads there what the model says in the end."""
    texts = read_texts(file)
    opened = open_lens_model(model, dtype)
    from regard import lens

    prompts = lay_out_texts(opened, texts)
    with show_progress(steps) as advance:
        fitted = lens.tune_lens(opened, prompts, steps=steps, lr=lr, halves=halves,
                                progress=lambda done, total: advance(done))  # fmt: skip
    fitted.save(out)
    print(f"{out}   {len(fitted.places)} places, {steps:,} steps")


def attribute(
    model: ModelArgument,
    text: TextArgument,
    *,
    source: SourceOption = None,
    token: TokenOption = None,
    against: AgainstOption = None,
    position: PositionOption = None,
    neurons: Annotated[int, typer.Option(metavar="N", help="Show the strongest units of each MLP by themselves.")] = 0,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Split a logit into the parts that sum to it: embeddings, every head, every MLP, biases."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    show_result(lens.attribute_logit(opened, text, token, against=against, source=source, neurons=neurons,
                                     position=-1 if position is None else position), out, json)  # fmt: skip


def inputs(
    model: ModelArgument,
    text: TextArgument,
    *,
    source: SourceOption = None,
    method: Annotated[
        str,
        typer.Option(metavar="NAME", help="integrated_gradients, gradient_x_input, gradient, occlusion, attention, "
                     "last_attention or attention_rollout."),
    ] = "integrated_gradients",
    token: TokenOption = None,
    position: PositionOption = None,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Say which tokens of the input a prediction comes from."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    show_result(lens.attribute_inputs(opened, text, method=method, target=token, position=position, source=source),
                out, json)  # fmt: skip


def agreement(
    model: ModelArgument,
    file: FilesArgument,
    *,
    limit: Annotated[int, typer.Option(metavar="N", help="Texts to read at most.")] = 50,
    ablation: AblationOption = "zero",
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Ask whether attention is an explanation: its rank correlation with gradients, occlusion and ablation of heads."""
    texts = read_texts(file)[:limit]
    opened = open_lens_model(model, dtype)
    from regard import lens

    show_result(lens.compare_explanations(opened, lay_out_texts(opened, texts), ablation=ablation), out, json)


def patch(
    model: ModelArgument,
    clean: Annotated[str, typer.Argument(metavar="CLEAN", help="The text whose activations are taken.")],
    corrupted: Annotated[str, typer.Argument(metavar="CORRUPTED", help="The text, as many tokens, that is run.")],
    *,
    token: Annotated[str, typer.Option(metavar="WORD", help="Answer to the clean text.")],
    against: Annotated[str, typer.Option(metavar="WORD", help="Answer to the corrupted text.")],
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="residual, attn, cross, mlp, heads or head_positions; again for more."),
    ] = None,
    source: SourceOption = None,
    corrupted_source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it reads in the corrupted run; by default the same.")
    ] = None,
    noise: Annotated[bool, typer.Option("--noise", help="Put corrupted activations into the clean run.")] = False,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Patch activations of one text into another, and show which of them carry the difference."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    prompts = [lens.read_prompt(opened, text, source=read)
               for text, read in ((clean, source), (corrupted, corrupted_source or source))]  # fmt: skip
    with show_progress(100) as advance:
        found = lens.patch_activations(
            opened, *prompts, metric=lens.logit_difference(token, against), parts=tuple(part or ("residual",)),
            direction="noise" if noise else "denoise", progress=lambda done, total: advance(100 * done // total),
        )  # fmt: skip
    show_result(found, out, json)


def trace(
    model: ModelArgument,
    text: TextArgument,
    *,
    subject: Annotated[str, typer.Option(metavar="WORDS", help="The part of the text that is covered with noise.")],
    token: Annotated[str, typer.Option(metavar="WORD", help="The answer whose probability is restored.")],
    source: SourceOption = None,
    part: Annotated[list[str] | None, typer.Option(metavar="NAME", help="residual, attn or mlp; again for more.")]
    = None,
    window: Annotated[int, typer.Option(metavar="N", help="Layers of attention or MLP that are restored together.")]
    = 1,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Trace where a fact is: cover a subject with noise, restore one activation at a time."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    read, noise = lens.read_prompt(opened, text, source=source), lens.EmbeddingNoise()
    if source is not None:  # the subject is part of the source
        noise = lens.EmbeddingNoise(trunk="encoder")
    with show_progress(100) as advance:
        found = lens.causal_trace(
            opened, read, subject=subject, metric=lens.probability(token), parts=tuple(part or ("residual",)),
            window=window, noise=noise, progress=lambda done, total: advance(100 * done // total),
        )  # fmt: skip
    show_result(found, out, json)


def induction(
    model: ModelArgument,
    *,
    length: Annotated[int, typer.Option(metavar="N", help="Random tokens that are repeated.")] = 24,
    texts: Annotated[int, typer.Option(metavar="N", help="How many such texts.")] = 8,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random tokens.")] = 0,
    ablation: AblationOption = "mean",
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Find the previous-token head and the induction head of a model, and its loss without them."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    with show_progress(100) as advance:
        found = lens.find_induction_circuit(opened, length=length, texts=texts, seed=seed, ablation=ablation,
                                            progress=lambda done, total: advance(100 * done // total))  # fmt: skip
    show_result(found, out, json)


def neurons(
    model: ModelArgument,
    file: FilesArgument,
    *,
    where: Annotated[str, typer.Option(metavar="ADDRESS", help="Which activations.")] = "trunk.*.mlp.hidden",
    unit: Annotated[list[int] | None, typer.Option(metavar="N", help="A unit there; again for more; else all.")] = None,
    top_k: Annotated[int, typer.Option(metavar="K", help="Examples of each unit.")] = 5,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Show the tokens of a file that activate units most, in context, and how often each unit is alive."""
    texts = read_texts(file)
    opened = open_lens_model(model, dtype)
    from regard import lens

    prompts = lay_out_texts(opened, texts)
    with show_progress(len(texts)) as advance:
        found = lens.find_top_examples(opened, prompts, where=where, units=unit or None, top_k=top_k,
                                       progress=lambda done, *_: advance(done))  # fmt: skip
    show_result(found, out, json)


def census(
    model: ModelArgument,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Texts or records; folders; packaged texts.")],
    *,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that it is written to and resumed from.")]
    = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="Read so many tokens; by default all.")] = None,
    context: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a decoder's window; by default 256, or what it can read.")
    ] = None,
    top_k: Annotated[int, typer.Option(metavar="K", help="Sequences that are kept for each head and metric.")] = 5,
    dtype: Dtype = "fp32",
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure every attention head over a corpus: what it looks at, how widely, and where most; resumed by itself."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    with show_rate("tokens") as progress:
        found = lens.census(opened, [Path(file) for file in files], out=out, tokens=tokens, context=context,
                            top_k=top_k, name=model, progress=progress)  # fmt: skip
    show_result(found, None, json)


def neuron(
    model: ModelArgument,
    layer: Annotated[int, typer.Argument(metavar="LAYER", help="The layer, from 0.")],
    unit: Annotated[int, typer.Argument(metavar="UNIT", help="The unit of its MLP, from 0.")],
    *,
    top_k: Annotated[int, typer.Option(metavar="K", help="Words of each kind.")] = 10,
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Show the words that a unit promotes and suppresses, and those that excite it, from its weights."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    show_result(lens.neuron_words(opened, layer, unit, top_k=top_k), out, json)


def context(
    model: ModelArgument,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A text with the word.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Another one.")],
    *,
    word: Annotated[str, typer.Option(metavar="WORD", help="The word in both.")],
    dtype: Dtype = "fp32",
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Compare one word in two texts: the cosine of its vectors, layer by layer."""
    opened = open_lens_model(model, dtype)
    from regard import lens

    show_result(lens.compare_contexts(opened, first, second, word), out, json)


def steer(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Records with a text in first and one in second.")],
    *,
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="Where it is added, such as trunk.2.residual.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the vector goes, as safetensors.")],
    dtype: Dtype = "fp32",
    json: JsonOption = False,
) -> None:
    """Make a steering vector from pairs of texts, for `regard generate --steer`."""
    pairs = read_pairs(file)
    opened = open_lens_model(model, dtype)
    from regard import lens

    firsts, seconds = (lay_out_texts(opened, texts) for texts in zip(*pairs, strict=True))
    vector = lens.steering_vector(opened, list(zip(firsts, seconds, strict=True)), address=address)
    vector.save(out)
    show_result(vector, None, json)


# ---------------------------------------------------------------- shared by the verbs


def open_lens_model(thing: str, dtype: str) -> Any:
    """Load the model in plain weights, which hooks and gradients need."""
    import_torch()
    from regard.inference.load import load_model

    return load_model(thing, dtype=dtype)


def lay_out_texts(model: Any, texts: Sequence[str]) -> list[Any]:
    """Texts as they are; for an encoder-decoder each source with the model's own translation."""
    from regard import lens

    if model.c.encoder is None:
        return list(texts)
    return [lens.read_prompt(model, None, source=text) for text in texts]


def read_texts(file: str) -> list[str]:
    """The non-empty lines of a file."""
    texts = [record["text"] for record in text_records(None, file) if record["text"].strip()]
    if not texts:
        raise config.DataError(f"{file}: it holds no text; name a file with a text on each line")
    return texts


def read_pairs(file: str) -> list[tuple[str, str]]:
    """The columns first and second of records."""
    from regard.data.records import BadRecordPolicy
    from regard.data.sources import find_records

    found = []
    for record in (record for table in find_records((file,)) for record in table.records(BadRecordPolicy())):
        first, second = record.get("first"), record.get("second")
        if not (isinstance(first, str) and first.strip() and isinstance(second, str) and second.strip()):
            raise config.DataError(f"{record.where}: expected a text in each of the columns first and second")
        found.append((first, second))
    if not found:
        raise config.DataError(f"{file}: it holds no pairs; name a file of records with the columns first and second")
    return found


def show_result(result: Any, out: Path | None, json: bool) -> None:
    """Print the table, or one JSON object, to stdout; write the picture or the numbers to a file."""
    print_json(result.to_json()) if json else print(result)
    if out is not None:
        result.plot(str(out))
