"""Forecasts from a CSV file to the next rows: trained, resumed bit for bit, and beside the last value and a line."""

import csv
import io
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from regard import config as C
from regard.cli.forecast import forecast as verb
from regard.cli.forecast import forecast_csv
from regard.evaluation.evaluator import evaluate as examined
from regard.inference.forecasting import forecast_table
from regard.inference.load import load_model
from regard.tasks.forecasting import Forecasting
from regard.training.api import fit, resume_fit
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

ETT = Path(__file__).resolve().parents[3] / "shared/data/ett/ETTh1.csv.xz"


def table(path, rows=400):
    """Two waves, the second a product of two: no line through the window tells how it goes on."""
    lines = ["date,wave,beat"]
    for hour in range(rows):
        day, time = divmod(hour, 24)
        wave, beat = 50 + 9 * math.sin(hour / 3), math.sin(hour / 4) * math.sin(hour / 29)
        lines.append(f"2020-01-{1 + day:02d} {time:02d}:00:00,{wave:.5f},{beat:.5f}" if day < 31 else "")
    path.write_text("\n".join(line for line in lines if line) + "\n")
    return path


def values(folder):
    rows = csv.reader((folder / "waves.csv").read_text().splitlines()[1:])
    return torch.tensor([[float(cell) for cell in row[1:]] for row in rows], dtype=torch.float64)


def recipe(folder, **changes):
    """A small forecaster of a small table."""
    (folder / "recipe.toml").write_text(f"""
[data]
source = "{table(folder / "waves.csv")}"
validation = 0.2
[task]
kind = "forecasting"
[model]
embed = {{kind = "series", length = 32, patch_length = 8, stride = 4}}
head = {{kind = "forecast", horizon = 5}}
[model.trunk]
dim = 16
depth = 2
attention = {{heads = 2}}
dropout = {{embed = 0.0, residual = 0.1}}
[train]
steps = 12
batch_size = 16
eval_every = 6
save_every = 6
device = "cpu"
optimizer = {{kind = "adamw", lr = 3e-3}}
schedule = {{kind = "constant", warmup = 3}}
""")
    overrides = [f"{name.replace('__', '.')}={value}" for name, value in changes.items()]
    return read_recipe(folder / "recipe.toml", overrides)


def test_the_training_rows_settle_columns_means_and_deviations(tmp_path):
    run = Run.from_recipe(recipe(tmp_path))
    front, rows = run.recipe.model.embed, values(tmp_path)[:320]

    assert front.channel_names == ("wave", "beat") and front.channels == 2
    assert_close(torch.tensor(front.mean, dtype=torch.float64), rows.mean(0), atol=1e-5, rtol=1e-5)
    assert_close(torch.tensor(front.std, dtype=torch.float64), rows.std(0, correction=0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("loss, measure", [
    ("mse", lambda far: far.square()), ("mae", lambda far: far.abs()),
    ("huber", lambda far: torch.where(far.abs() < 1, far.square(), 2 * far.abs() - 1)),
])  # fmt: skip
def test_the_loss_is_the_mean_over_all_told_numbers_in_deviations(loss, measure, tmp_path):
    run = Run.from_recipe(recipe(tmp_path, task__loss=loss))
    run.model.eval()
    batch, task = run.data.batch(0), run.task
    far = (run.model(batch["ids"]).detach() - batch["target"]) / torch.tensor(run.recipe.model.embed.std)

    assert isinstance(task, Forecasting) and task.count_parts(batch)["loss"].count == far.numel() == 16 * 5 * 2
    assert_close(task.loss_sums(run.model, batch)["loss"].detach(), measure(far).sum())
    scores = validate(run.model, [batch], task, True).scores
    assert scores == pytest.approx({"mse": float(far.square().mean()), "mae": float(far.abs().mean())}, rel=1e-4)


def test_a_split_in_rows_is_that_of_the_field(tmp_path):
    parts = {part: Run.from_recipe(recipe(tmp_path, task__split="[200, 80, 60]", task__eval_split=part,
                                          data__validation=0.1))
             for part in ("validation", "test")}  # fmt: skip
    first = {part: next(run.validation.batches())["target"][0, 0, 0] for part, run in parts.items()}
    wave = values(tmp_path)[:, 0].float()

    assert [run.validation.count for run in parts.values()] == [76, 56] and parts["test"].data.count == 164
    assert_close(torch.stack(list(first.values())), wave[[200, 280]])


REFUSED = {
    "two splits": ({"task__split": "[200, 80]", "data__validation": 0.3}, "data.validation"),
    "no test rows": ({"task__eval_split": "test"}, "task.eval_split"),
    "too many rows": ({"task__split": "[300, 200]", "data__validation": 0.1}, "task.split"),
    "skipped rows": ({"data__on_bad_record": "skip"}, "data.on_bad_record"),
    "other channels": ({"model__embed__channels": 3}, "model.embed.channels"),
    "tokens": ({"train__batch_tokens": 512}, "train.batch_tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_do_not_go_together_are_refused_by_name(name, tmp_path):
    changes, says = REFUSED[name]

    with pytest.raises(C.ConfigError, match=f"^{says}: "):
        Run.from_recipe(recipe(tmp_path, **changes))


def test_a_column_that_never_changes_is_refused(tmp_path):
    made = recipe(tmp_path)
    rows = "".join(f"{year},{year % 7},5\n" for year in range(1900, 2000))
    (tmp_path / "waves.csv").write_text("date,x,still\n" + rows)

    with pytest.raises(C.DataError, match="column 'still' never changes in the 80 training rows"):
        Run.from_recipe(made)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    whole = fit(recipe(tmp_path), tmp_path / "whole", quiet=True)
    fit(recipe(tmp_path, train__steps=6), tmp_path / "half", quiet=True)
    half = resume_fit(tmp_path / "half", ["train.steps=12"], quiet=True)
    one, other = (load_model(tmp_path / name, device="cpu").state_dict() for name in ("whole", "half"))

    assert whole.loss == half.loss and whole.eval_loss == half.eval_loss and whole.scores == half.scores
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_an_evaluation_says_which_rows_were_asked(tmp_path):
    """All of a file, most of which was trained on, scores better than what was kept back: 0.109 against 0.269."""
    made, said = recipe(tmp_path), []
    fit(made, tmp_path / "run", quiet=True)
    own = examined(tmp_path / "run", notice=said.append)
    assert own.data == f"validation of {made.data.source}" and said == []
    whole = examined(tmp_path / "run", made.data.source, notice=said.append)
    assert whole.data == f"all of {made.data.source}" and whole.loss != own.loss
    assert len(said) == 1 and "trained on all but the last 0.2 of them" in said[0] and "regard evaluate" in said[0]


def test_a_file_of_the_rows_that_were_kept_back_scores_as_they_do(tmp_path):
    """The windows are the same: those before the kept ones are read, and not told."""
    made, said = recipe(tmp_path), []
    fit(made, tmp_path / "run", quiet=True)
    head, *rows = (tmp_path / "waves.csv").read_text().splitlines()
    kept = int(0.2 * len(rows)) + made.model.embed.length
    (tmp_path / "kept.csv").write_text("\n".join([head, *rows[-kept:]]) + "\n")
    own, other = (examined(tmp_path / "run", *more, notice=said.append) for more in ((), (str(tmp_path / "kept.csv"),)))

    assert other.loss == pytest.approx(own.loss, abs=1e-6) and other.scores == pytest.approx(own.scores) and said == []


def test_the_next_rows_come_with_their_dates(tmp_path, capsys):
    fit(recipe(tmp_path), tmp_path / "run", quiet=True)
    model = load_model(tmp_path / "run", device="cpu")
    told = forecast_table(model, tmp_path / "waves.csv")
    rows = list(csv.reader(io.StringIO(forecast_csv(told))))
    last = values(tmp_path)[-32:].float()

    assert rows[0] == ["date", "wave", "beat"] and rows[1][0] == "2020-01-17 16:00:00" and len(rows) == 6
    assert_close(told.values, model(last[None])[0].detach())
    capsys.readouterr()
    verb(str(tmp_path / "run"), str(tmp_path / "waves.csv"), out=str(tmp_path / "next.csv"))
    assert (tmp_path / "next.csv").read_text() == forecast_csv(told) and capsys.readouterr().out == ""


def test_a_model_in_training_forecasts_without_dropout(tmp_path):
    run = Run.from_recipe(recipe(tmp_path))
    run.model.train()
    for part in run.model.parameters():
        torch.nn.init.normal_(part, std=0.2)  # a fresh head says zero, whatever is dropped before it
    first, second = (forecast_table(run.model, tmp_path / "waves.csv").values for _ in range(2))

    assert torch.equal(first, second) and run.model.training and not first.is_inference()


def test_python_forecasts_a_file_and_numbers_as_the_command_line_does(tmp_path, capsys):
    fit(recipe(tmp_path), tmp_path / "run", quiet=True)
    model = load_model(tmp_path / "run", device="cpu")
    capsys.readouterr()
    verb(str(tmp_path / "run"), str(tmp_path / "waves.csv"), json=True)
    printed = json.loads(capsys.readouterr().out)
    told, numbers = model.forecast(tmp_path / "waves.csv"), model.forecast(values(tmp_path))

    assert (told.header(), list(told.lines())) == (printed["columns"], printed["rows"])
    assert torch.equal(numbers.values, told.values) and numbers.header() == ["wave", "beat"]
    assert torch.equal(model.forecast(values(tmp_path).tolist()).values, told.values)
    for table, how, sentence in ((values(tmp_path)[:, 0], {}, r"shape \(400, 1\), expected \(rows, 2\)"),
                                 ("none.csv", {}, "none.csv: no such file"), ([["a"]], {}, "is no table"),
                                 (values(tmp_path) / 0, {}, "a number is missing or infinite"),
                                 (values(tmp_path), {"fill_gaps": "last"},
                                  "fill_gaps: a setting for files")):  # fmt: skip
        with pytest.raises(C.UserError, match=sentence):
            model.forecast(table, **how)


@pytest.mark.slow
def test_a_table_that_the_model_cannot_read_is_one_sentence(tmp_path):
    run = Run.from_recipe(recipe(tmp_path))
    (tmp_path / "short.csv").write_text("date,wave,beat\n2020-01-01,1,2\n2020-01-02,2,3\n")
    (tmp_path / "other.csv").write_text("date,beat,wave\n2020-01-01,1,2\n2020-01-02,2,3\n")

    with pytest.raises(C.DataError, match=r"short\.csv: 2 rows, and the model reads 32"):
        forecast_table(run.model, tmp_path / "short.csv")
    with pytest.raises(C.DataError, match=r"columns beat, wave, and the model was trained on wave, beat"):
        forecast_table(run.model, tmp_path / "other.csv")


def straight(run, ridge=1e-3):
    """The mean square error of least squares from the window to the horizon, and of the last value, in deviations."""
    scale = torch.tensor(run.recipe.model.embed.std)

    def rows(windows):
        batches = list(windows.batches())
        x, y = (torch.cat([batch[name] for batch in batches]) / scale for name in ("ids", "target"))
        level = x[:, -1:]
        return (x - level).mT.flatten(0, 1), (y - level).mT.flatten(0, 1)

    x, y = rows(run.data)
    weight = torch.linalg.solve(x.mT @ x + ridge * len(x) * torch.eye(x.shape[1]), x.mT @ y)
    x, y = rows(run.validation)
    return float((x @ weight - y).square().mean()), float(y.square().mean())


def mean_square_errors(folder: Path, values: Iterable[float], **changes: str) -> tuple[float, float, float]:
    """Of a small forecaster after 250 steps on a column of numbers, of the line and of the last value."""
    made = recipe(folder, train__steps=250, train__eval_every="none", **changes)
    (folder / "waves.csv").write_text(
        "\n".join(["date,x", *(f"{hour},{x:.5f}" for hour, x in enumerate(values))]) + "\n"
    )
    run = Run.from_recipe(made)
    line, last = straight(run)
    for _ in train_steps(run):
        pass
    return validate(run.model, run.validation.batches(), run.task, True).scores["mse"], line, last


@pytest.mark.slow
@pytest.mark.spec("S135")
def test_a_small_forecaster_beats_the_last_value_and_a_line_on_a_wave_made_for_it(tmp_path):
    """A cubed wave whose loudness wanders, without its sign: least squares, blind to products, cannot go on with it."""
    wave = (abs(math.sin(hour / 3) ** 3 * (2 + math.sin(hour / 17)) + math.cos(hour / 5) ** 5) for hour in range(700))
    ours, line, last = mean_square_errors(tmp_path, wave, model__embed__normalize="false")

    assert ours < line < last


@pytest.mark.slow
@pytest.mark.spec("S135")
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_on_a_trend_with_noise_a_small_forecaster_is_within_a_tenth_of_a_line(noise, tmp_path):
    """Here nothing beats a line: it is there to see that the tokens do not lose what it finds."""
    chance = random.Random(0)
    ours, line, last = mean_square_errors(tmp_path, (0.02 * hour + chance.gauss(0, noise) for hour in range(700)))

    assert line < 0.7 * last and ours < 1.1 * line


@pytest.mark.slow
@pytest.mark.skipif(not ETT.exists(), reason=f"{ETT}: the table is not here")
def test_etth1_is_read_as_the_field_reads_it():
    run = Run.from_recipe("etth1", [f"data.source={ETT}", "task.eval_split=test"])

    assert run.recipe.model.embed.channel_names == ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    assert (run.data.count, run.validation.count) == (8209, 2785)
    _, last = straight(run)
    assert last == pytest.approx(1.294, abs=0.01)  # as Zeng et al. 2023 have it: 1.295
