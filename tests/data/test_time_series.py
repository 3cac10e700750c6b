"""Tables of numbers over time: dates evenly apart, gaps named or filled, windows that tell every row they should."""

import pytest
import torch
from torch.testing import assert_close

from regard import config as C
from regard.data.readers.time_series import ForecastWindows, read_series
from regard.data.sources import find_records


def series(folder, text, **settings):
    (folder / "a.csv").write_text(text)
    [table] = find_records([str(folder / "a.csv")])
    return read_series(table, C.Forecasting(**settings))


HOURS = "date,load,oil\n" + "".join(f"2016-07-0{1 + i // 24} {i % 24:02d}:00:00,{i}.5,{-i}\n" for i in range(30))


def test_all_columns_but_the_date_are_the_series(tmp_path):
    read = series(tmp_path, HOURS)

    assert read.names == ("load", "oil") and read.values.shape == (30, 2)
    assert_close(read.values, torch.stack([torch.arange(30) + 0.5, -torch.arange(30.0)], 1))
    assert series(tmp_path, HOURS, columns=("oil",)).values.shape == (30, 1)


@pytest.mark.parametrize("dates, ahead", [
    (("2016-07-01 22:00:00", "2016-07-01 23:00:00", "2016-07-02 00:00:00"), "2016-07-02 01:00:00"),
    (("2016-02-27", "2016-02-28", "2016-02-29"), "2016-03-01"),
    (("2016-10-01", "2016-11-01", "2016-12-01"), "2017-01-01"),
    (("1949-10", "1949-11", "1949-12"), "1950-01"),
    (("2016-07-01T10:00", "2016-07-01T10:15", "2016-07-01T10:30"), "2016-07-01T10:45"),
    (("1989", "1990", "1991"), "1992"),
])  # fmt: skip
def test_dates_go_on_as_they_began(dates, ahead, tmp_path):
    read = series(tmp_path, "date,x\n" + "".join(f"{date},{place}\n" for place, date in enumerate(dates)))

    assert [read.clock.at(row) for row in range(4)] == [*dates, ahead]


GAPS = "date,x,y\n2016-07-01,1,0\n2016-07-02,,0\n2016-07-03,3,0\n2016-07-06,9,3\n2016-07-07,10,4\n2016-07-08,11,5\n"


def test_gaps_are_named_by_their_line(tmp_path):
    with pytest.raises(C.DataError, match=r"a\.csv:5: 2 rows are missing before this one; .*task.fill_gaps"):
        series(tmp_path, GAPS)
    with pytest.raises(
        C.DataError, match=r"a\.csv:3: no number in column 'x' \(1 in all are missing\); .*task.fill_gaps"
    ):
        series(tmp_path, "".join(GAPS.splitlines(keepends=True)[:4]))


def test_gaps_are_filled_with_the_last_value_or_along_a_line(tmp_path):
    last, linear = (series(tmp_path, GAPS, fill_gaps=way).values.mT.tolist() for way in ("last", "linear"))

    assert last == [[1, 1, 3, 3, 3, 9, 10, 11], [0, 0, 0, 0, 0, 3, 4, 5]]
    assert linear == [[1, 2, 3, 5, 7, 9, 10, 11], [0, 0, 0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("way, row", [("last", 0), ("linear", 0), ("linear", 2)])
def test_a_gap_with_nothing_beyond_it_is_refused(way, row, tmp_path):
    values = ["1", "2", "3"]
    values[row] = "nan"
    text = "date,x\n" + "".join(f"2016-07-0{place},{value}\n" for place, value in enumerate(values, 1))

    with pytest.raises(C.DataError, match=rf"a\.csv:{row + 2}: a gap in column 'x' at an end of the table"):
        series(tmp_path, text, fill_gaps=way)


BAD = {
    "no numbers": ("date,x\n2016-07-01,low\n2016-07-02,high\n", ":2: column 'x' holds 'low' and no number"),
    "infinite": ("date,x\n2016-07-01,1\n2016-07-02,inf\n", ":3: column 'x' holds 'inf'"),
    "no date": (
        "when,x\n2016-07-01,1\n2016-07-02,2\n",
        ":2: no column 'date'; there are when, x; .*task.date_column=none",
    ),
    "odd dates": ("date,x\n1. July,1\n2. July,2\n", ":2: '1. July' is no date; write it as 2016-07-01"),
    "backwards": ("date,x\n2016-07-02,1\n2016-07-01,2\n", ":3: '2016-07-01' does not come after '2016-07-02'"),
    "twice": ("date,x\n2016-07-02,1\n2016-07-02,2\n", ":3: '2016-07-02' does not come after"),
    "uneven": ("date,x\n2016-07-01,1\n2016-07-02,2\n2016-07-03,3\n2016-07-04 12:00,3\n", ":5: .*whole number of steps"),
    "one row": ("date,x\n2016-07-01,1\n", ": 1 rows are no series"),
    "dates alone": ("date\n2016-07-01\n2016-07-02\n", ":2: no column beside the date"),
    "too few fields": ("date,x\n2016-07-01,1\n2016-07-02\n", ":3: 1 fields, expected 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_series_is_one_sentence_with_its_line(name, tmp_path):
    text, says = BAD[name]

    with pytest.raises(C.DataError, match=rf"a\.csv{says}") as caught:
        series(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_without_dates_rows_are_evenly_apart(tmp_path):
    read = series(tmp_path, "x,y\n1,2\n3,4\n5,6\n", date_column=None)

    assert read.clock is None and read.values.tolist() == [[1, 2], [3, 4], [5, 6]]


# ---------------------------------------------------------------- windows


def outlooks(first, last, rows=40, length=7, horizon=3, **more):
    values = torch.arange(float(rows))[:, None].repeat(1, 2)
    return ForecastWindows("part", values, first, last, length, horizon, **more)


def test_windows_to_validate_on_read_what_was_before_and_tell_only_their_own_rows():
    batches = list(outlooks(20, 32, size=4).batches())
    read, told = (torch.cat([batch[name] for batch in batches])[..., 0] for name in ("ids", "target"))

    assert [len(batch["ids"]) for batch in batches] == [4, 4, 2]
    assert told[:, 0].tolist() == list(range(20, 30)) and told[-1].tolist() == [29, 30, 31]
    assert_close(read[:, -1] + 1, told[:, 0])
    assert read[0].tolist() == list(range(13, 20))


def test_an_epoch_has_every_window_once_and_any_step_can_be_asked_for():
    windows = outlooks(0, 40, size=6, seed=3)
    steps = [windows.batch(step)["ids"][:, 0, 0] for step in range(windows.count)]
    first = torch.cat(steps)[: windows.count]

    assert windows.count == 31 and first.sort().values.tolist() == list(range(31))
    again = outlooks(0, 40, size=6, seed=3).batch(17)
    assert torch.equal(again["ids"], windows.batch(17)["ids"]) and windows.epochs(31) == 6.0


def test_the_windows_of_ett_are_as_many_as_published():
    parts = [(0, 8640), (8640, 11_520), (11_520, 14_400)]
    values = torch.zeros(17_420, 7)

    assert [ForecastWindows("ETTh1", values, *part, 336, 96).count for part in parts] == [8209, 2785, 2785]


def test_too_few_rows_for_a_window_are_one_sentence():
    with pytest.raises(C.DataError, match="9 rows, and a window has 7 as input and 3 to predict; .*model.head.horizon"):
        outlooks(0, 9, rows=9)
