"""A census of heads: one pass over a corpus, resumed where it was interrupted.

    lens.census(model, Path("text.txt"), out="census", tokens=100_000)      the same again resumes it
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config.errors import ConfigError, DataError
from regard.data.token_shards import TokenShards
from regard.files.folder_lock import lock_folder
from regard.lens.activation_stream import TextRow, batch_rows, window_length
from regard.lens.attention_maps import unwrap_model
from regard.lens.head_census.census_circuits import measure_circuits
from regard.lens.head_census.census_folder import model_weights_digest, resume_census, save_census
from regard.lens.head_census.census_result import Census
from regard.lens.head_census.census_state import CensusState
from regard.lens.head_census.corpus_rows import Corpus, corpus_rows, digest_row, name_corpus, open_corpus
from regard.lens.head_census.pattern_stream import batch_tokens_for, head_places
from regard.lens.roles import delimiter_ids

LONGEST = 256  # tokens that a model without a window of its own is taken to read at once
SAVE_SECONDS = 30.0
Progress = Callable[[int, int | None], object]


def census(
    model: Any, texts: Corpus | Sequence[Path], *, out: str | Path | None = None, tokens: int | None = None,
    context: int | None = None, batch_tokens: int | None = None, top_k: int = 5, name: str = "",
    circuits: bool = True, progress: Progress | None = None,
) -> Census:  # fmt: skip
    """Measure every attention head over a corpus, in one pass with bounded memory.

    `texts` are what `lens.find_top_examples` takes, or a Path, or a list of them, of files to be read. A decoder's text
    is read in windows of `context` tokens, each on its own. It ends with the first sequence at which so many `tokens`
    have been read. `out` is a folder: what was read is saved there every half a minute, and the same call resumes it,
    with the numbers of a census that was never interrupted. `name` is what the model is called there. `circuits` are
    those of the weights, measured in the end. `progress` is called with the tokens read so far, and how many there are
    where that is known.
    """
    model = unwrap_model(model)
    check_census(model, tokens, batch_tokens, top_k)
    if isinstance(texts, Path | list | tuple) and not texts:
        raise DataError("texts: there are none; give at least one")
    fresh = begin_census(model, texts, context, batch_tokens, top_k, name)
    folder = None if out is None else Path(out)
    with nullcontext() if folder is None else lock_folder(folder, new=True, doing="taking a census"):
        found = with_budget(model, fresh if folder is None else resume_census(folder, fresh))
        before = found.state.rows
        read_corpus(model, open_corpus(model, texts), found, tokens, folder, progress)
        if circuits and (found.circuits is None or found.state.rows > before):  # other tokens may be frequent now
            if folder is not None:
                save_census(folder, found)  # what has been read is safe
            found = replace(found, circuits=measure_circuits(model, found.state.counts))
        if folder is not None:
            save_census(folder, found)
    return found


def check_census(model: Any, tokens: int | None, batch_tokens: int | None, top_k: int) -> None:
    if hasattr(model, "towers"):
        raise ConfigError("this model has two towers, each with an input of its own, and a census reads one input; "
                          "lens.summarize_heads reads both")  # fmt: skip
    for what, count in (("tokens", tokens), ("batch_tokens", batch_tokens)):
        if count is not None and count < 1:
            raise ConfigError(f"{what}: {count} are too few; give at least one")
    if top_k < 1:
        raise ConfigError(f"top_k: {top_k}; keep at least one sequence of each head")


def begin_census(
    model: Any, texts: Any, context: int | None, batch_tokens: int | None, top_k: int, name: str
) -> Census:
    """A census that has read nothing."""
    window = window_length(model, context)
    if context is not None and window is None:
        raise ConfigError("context: this model reads a text whole, and cannot read it in windows; leave it out")
    state = CensusState.new(head_places(model), top_k, vocabulary_size(model))
    tokenizer = getattr(model, "tokenizer", None)
    state.marks = delimiter_ids(tokenizer) if tokenizer is not None else ()
    known = {"name": name or name_model(model), "weights": model_weights_digest(model)}
    settings = {"context": window, "batch_tokens": batch_tokens, "top_k": top_k}
    both = getattr(model, "output_tokenizer", None) or tokenizer, tokenizer
    return Census(state, known, {"name": name_corpus(texts)}, settings, both)


def with_budget(model: Any, found: Census) -> Census:
    """With the tokens of a batch, where they are not said: as many as fit; a window that does not fit is refused."""
    window = found.settings["context"] or getattr(model, "context", None) or LONGEST
    most = batch_tokens_for(window, next(model.parameters()).device)
    if (given := found.settings["batch_tokens"]) is not None and not found.state.rows and given > most:
        raise ConfigError(f"batch_tokens: {given:,} are more than fit into memory at once; give {most:,} or fewer")
    return replace(found, settings={**found.settings, "batch_tokens": found.settings["batch_tokens"] or most})


def name_model(model: Any) -> str:
    folder = getattr(getattr(model, "source_folder", None), "path", None)
    return type(model).__name__ if folder is None else str(folder)


def vocabulary_size(model: Any) -> int:
    """The largest number of ids that a front end reads; zero for images and sounds."""
    fronts = (getattr(model, name, None) for name in ("embed", "encoder_embed"))
    return max(int(getattr(getattr(front, "c", None), "vocab", 0) or 0) for front in fronts)


# ---------------------------------------------------------------- the pass


def read_corpus(
    model: Any, corpus: Any, found: Census, tokens: int | None, folder: Path | None, progress: Progress | None
) -> None:
    """Read what has not been read, and save it now and then: at most a tenth of the time goes there."""
    state, budget, pause, saved = found.state, found.settings["batch_tokens"], SAVE_SECONDS, time.monotonic()
    total = min(len(corpus), tokens or len(corpus)) if isinstance(corpus, TokenShards) else tokens
    rows = corpus_rows(model, corpus, found.settings["context"], budget)
    before = skip_rows(rows, state, folder)
    for batch in batch_rows(limit_rows(rows, tokens, state, before), budget):
        if not state.rows:
            state.read_repeats(model, batch[0].prompt)
        state.read(model, batch)
        if progress is not None:
            progress(state.tokens, total)
        if folder is not None and (begun := time.monotonic()) - saved >= pause:
            save_census(folder, found)
            saved = time.monotonic()
            pause = max(SAVE_SECONDS, 10 * (saved - begun)) if SAVE_SECONDS else 0.0
    if not state.rows:
        raise DataError("texts: there are none; give at least one")


def skip_rows(rows: Iterator[TextRow], state: CensusState, folder: Path | None) -> int:
    """Pass over the rows that were read before, or refuse a text in which they are others; their number of ids."""
    digest, before, count = "", 0, 0
    while count < state.rows and (row := next(rows, None)) is not None:
        digest, before, count = digest_row(digest, row), before + count_ids(row), count + 1
    if digest != state.digest:
        raise ConfigError(f"{folder}: it holds the census of another text, or of the same in other pieces; choose "
                          "another folder")  # fmt: skip
    return before


def limit_rows(rows: Iterable[TextRow], tokens: int | None, state: CensusState, before: int) -> Iterator[TextRow]:
    """Rows until so many tokens are read; the last one is read whole. What is not made of ids is counted when it has
    been read."""
    for row in rows:
        if tokens is not None and max(before, state.tokens) >= tokens:
            return
        yield row
        before += count_ids(row)


def count_ids(row: TextRow) -> int:
    return 0 if row.prompt.first.is_floating_point() else row.prompt.first.numel()
