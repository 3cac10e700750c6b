"""One time series of a recipe as batches: windows over the rows to train on, and over those held out.

rows     0 ─────────── train ─────────── 8,640 ── validation ── 11,520 ── test ── 14,400
windows  inputs and targets from these       targets from these     targets from these; inputs may reach back
"""

from dataclasses import replace

from torch import Tensor

from regard import config, data
from regard.config.errors import ConfigError, DataError
from regard.data.readers.time_series import ForecastWindows, TimeSeries, read_series
from regard.data.sources import check_settings_used, name_sources
from regard.files import content_cache
from regard.tasks.forecasting import Forecasting
from regard.training.data.read import INPUT_READERS, Reporter, RunData
from regard.training.data.read_inputs import check_no_text_settings

USUAL = config.Data().validation


def read_forecast(recipe: config.Recipe, voice: Reporter) -> RunData:
    """Read the series of a forecasting recipe."""
    check_no_text_settings(recipe)
    task, c, model = recipe.task, recipe.train, recipe.model
    assert isinstance(task, config.Forecasting) and isinstance(model, config.Transformer)
    if c.batch_tokens is not None or getattr(c, "augment", None) is not None:
        name = "batch_tokens" if c.batch_tokens is not None else "augment"
        raise ConfigError(f"train.{name}: windows are all of one length and read as they are; leave it out")
    Forecasting(task).check(model)
    front, head = model.embed, model.head
    assert isinstance(front, config.SeriesEmbedding) and isinstance(head, config.ForecastHead)
    series, digest = open_series(recipe.data.sources, recipe.data, task)
    borders = split_ranges(series, recipe.data, task)
    front = standardize_series(front, series, series.values[: borders[0][1]])

    def windows(name: str, of: TimeSeries, first: int, last: int, size: int) -> ForecastWindows:
        return ForecastWindows(f"{name} of {of.name}", of.values, first, last, front.length, head.horizon, size, c.seed,
                        front.count * (front.channels if front.channel_mixing == "independent" else 1))  # fmt: skip

    train = windows("train", series, *borders[0], c.batch_size)
    validation = None
    if recipe.data.validations:
        other, more = open_series(recipe.data.validations, recipe.data, task)
        check_columns_equal(other, series)
        there = validation_range(split_ranges(other, recipe.data, task), task) if task.split else (0, len(other))
        part = task.eval_split if task.split else "all"
        validation, digest = windows(part, other, *there, c.batch_size), content_cache.content_key([digest, more])
    elif len(borders) > 1:
        validation = windows(task.eval_split, series, *validation_range(borders, task), c.batch_size)
    recipe = replace(recipe, model=replace(model, embed=front))
    return RunData(recipe, None, Forecasting(task, scale=front.std), train, validation, digest)


def open_series(names: tuple[str, ...], settings: config.Data, task: config.Forecasting) -> tuple[TimeSeries, str]:
    """The only table of the data, and its digest."""
    found = data.find_records(names, settings)
    check_settings_used(settings, found)
    if settings.on_bad_record == "skip":
        raise ConfigError(
            "data.on_bad_record: rows of a series cannot be skipped; leave it out, and set task.fill_gaps"
        )
    if len(found) != 1:
        raise DataError(f"{name_sources([table.name for table in found])}: {len(found)} tables; a series is one, so "
                        "name only "
                        "that one")  # fmt: skip
    return read_series(found[0], task), content_cache.content_key(["series", found[0].digest, config.to_dict(task)])


def check_columns_equal(series: TimeSeries, known: TimeSeries) -> None:
    if series.names != known.names:
        raise DataError(f"{series.name}: columns {', '.join(series.names)}, and {known.name} has "
                        f"{', '.join(known.names)}; name the same ones by task.columns")  # fmt: skip


def split_ranges(series: TimeSeries, settings: config.Data, task: config.Forecasting) -> list[tuple[int, int]]:
    """The first and last row of each part: training, validation, test."""
    sizes, rows, share = list(task.split), len(series), settings.validation
    if task.split and isinstance(share, float) and share != USUAL:
        raise ConfigError(f"data.validation: {share:g}, and task.split sets the held-out rows; leave one of "
                          "the two out")  # fmt: skip
    if sum(sizes) > rows:
        raise ConfigError(f"task.split: {sum(sizes):,} rows, and {series.name} has {rows:,}; name fewer")
    if not sizes:
        back = int(share * rows) if isinstance(share, float) else 0
        sizes = [rows - back, back] if back else [rows]
    borders = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    return list(zip(borders, borders[1:], strict=False))


def validation_range(borders: list[tuple[int, int]], task: config.Forecasting) -> tuple[int, int]:
    """The validation rows: those after the training rows, or the last ones."""
    if task.eval_split == "test" and len(borders) < 3:
        raise ConfigError("task.eval_split: there are no test rows; name three numbers in task.split")
    return borders[2 if task.eval_split == "test" else 1]


def standardize_series(front: config.SeriesEmbedding, series: TimeSeries, rows: Tensor) -> config.SeriesEmbedding:
    """The front end with columns, means and standard deviations of the training rows."""
    if front.channels not in (0, len(series.names)):
        raise ConfigError(f"model.embed.channels: {front.channels}, and {series.name} has {len(series.names)} columns "
                          f"({', '.join(series.names)}); leave it out")  # fmt: skip
    if front.channel_names and front.channel_names != series.names:
        raise DataError(f"{series.name}: columns {', '.join(series.names)}, and the model was made for "
                        f"{', '.join(front.channel_names)}; name the same ones by task.columns")  # fmt: skip
    if front.mean:  # already set, as in a resumed run
        return front
    exact = rows.double()
    center, scale = exact.mean(0), exact.std(0, correction=0)
    if not bool((scale > 0).all()):
        still = series.names[int(scale.argmin())]
        raise DataError(f"{series.name}: column {still!r} never changes in the {len(rows):,} training rows; leave it "
                        "out by task.columns")  # fmt: skip
    return replace(front, channels=len(series.names), channel_names=series.names, mean=tuple(center.tolist()),
                   std=tuple(scale.tolist()))  # fmt: skip


INPUT_READERS["forecasting"] = read_forecast
