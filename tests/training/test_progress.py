"""What a person sees: calm lines in a log file, a bar in a terminal, and nothing where quiet was asked for."""

import re
from types import SimpleNamespace

import pytest

from regard import config
from regard.training.api import fit
from regard.training.progress import REPORT_SECONDS, ProgressDisplay, format_time_left

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class Watched:
    """A run of a hundred steps that somebody watches; each takes as long as it is told to."""

    def __init__(self, steps=100, minutes=None):
        self.settings = config.Train(steps=steps, minutes=minutes)
        self.step, self.seconds, self.now = 0, 0.0, 1000.0

    @property
    def progress(self):
        return self.step / self.settings.steps

    def advance(self, display, loss=2.5, seconds=1.0, tokens=70):
        self.step, self.seconds, self.now = self.step + 1, self.seconds + seconds, self.now + seconds
        display.step(loss, tokens)


@pytest.fixture
def run(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    run = Watched()
    monkeypatch.setattr("regard.training.progress.time", SimpleNamespace(monotonic=lambda: run.now))
    return run


@pytest.fixture
def terminal(run, monkeypatch):
    """Let stderr count as a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    return run


# ---------------------------------------------------------------- a log file


def test_a_log_file_gets_a_line_every_ten_seconds_and_no_control_characters(run, capsys):
    with ProgressDisplay(run) as display:
        for _ in range(95):
            run.advance(display)
    out, err = capsys.readouterr()

    assert REPORT_SECONDS == 10 and out == "" and len(err.splitlines()) == 9
    assert not CONTROL.search(err)


def test_a_line_tells_the_step_the_loss_the_speed_and_the_time_left(run, capsys):
    with ProgressDisplay(run) as display:
        for _ in range(25):
            run.advance(display, loss=1.75, seconds=1.0, tokens=1234)
    second = capsys.readouterr().err.splitlines()[1]

    assert re.fullmatch(r"step +20/100 +loss 1\.7500, mean 1\.7500 +1,234 tokens/s +1:20 left", second)


def test_steps_are_not_counted_down_where_the_clock_decides(run, capsys):
    run.settings = config.Train(steps=100, minutes=5.0)
    with ProgressDisplay(run) as display:
        for _ in range(10):
            run.advance(display)

    assert "10/100" not in capsys.readouterr().err


def test_what_is_said_stays_one_line_and_is_not_interpreted(run, capsys):
    line = f"runs/[red]x[/red]{'/deep' * 30}: goes on"
    with ProgressDisplay(run) as display:
        display.say(line)

    assert capsys.readouterr().err == line + "\n"


def test_names_with_colons_are_said_as_they_are(run, capsys):
    with ProgressDisplay(run) as display:
        display.say("runs/:cat:: goes on")

    assert capsys.readouterr().err == "runs/:cat:: goes on\n"


def test_quiet_says_nothing_at_all(run, capsys):
    with ProgressDisplay(run, quiet=True) as display:
        display.say("hello")
        for _ in range(50):
            run.advance(display)

    assert capsys.readouterr() == ("", "")


def test_one_loss_that_is_no_number_is_forgotten_again(run, capsys):
    with ProgressDisplay(run) as display:
        for number in range(40):
            run.advance(display, loss=float("nan") if number == 4 else 1.5)

    assert "loss 1.5000" in capsys.readouterr().err.splitlines()[-1]


def test_a_slow_first_step_does_not_make_the_rest_look_slow(run):
    run.settings = config.Train(steps=220)
    with ProgressDisplay(run, quiet=True) as display:
        run.advance(display, seconds=18.0)
        for _ in range(10):
            run.advance(display, seconds=0.01)

        assert display.remaining() < 10


def test_the_loss_that_is_shown_is_the_step_s_own_and_a_mean_is_called_one(run):
    with ProgressDisplay(run, quiet=True) as display:
        run.advance(display, loss=3.0)
        assert "loss 3.0000 " in display.text()
        run.advance(display, loss=1.0)
        assert "loss 1.0000, mean 2.0000 " in display.text()
        run.advance(display, loss=float("nan"))
        assert "loss nan, mean 2.0000 " in display.text()


def test_a_loss_that_comes_late_is_shown_with_its_own_step(run):
    with ProgressDisplay(run, quiet=True) as display:
        run.step = 40
        display.step(3.0, 70, number=24)

        assert "24/100   loss 3.0000" in display.text()


@pytest.mark.parametrize("seconds, text", [(0, "0 s"), (8.4, "8 s"), (59.6, "1:00"), (125, "2:05"), (4050, "1:07:30")])
def test_times_are_for_people(seconds, text):
    assert format_time_left(seconds) == text


# ---------------------------------------------------------------- a terminal


def test_a_terminal_shows_a_bar_with_loss_speed_and_time_left(terminal, capsys):
    with ProgressDisplay(terminal) as display:
        for _ in range(30):
            terminal.advance(display, loss=1.75, tokens=1234)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)

    assert re.search(r"30/100 +loss 1\.7500, mean 1\.7500 +1,234 tokens/s +1:10 left", shown) and "━" in shown


def test_without_colour_a_bar_has_none(terminal, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with ProgressDisplay(terminal) as display:
        for _ in range(30):
            terminal.advance(display)

    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|9[0-7])[0-9;]*m", capsys.readouterr().err)


def test_a_quiet_terminal_is_quiet(terminal, capsys):
    with ProgressDisplay(terminal, quiet=True) as display:
        terminal.advance(display)

    assert capsys.readouterr() == ("", "")


# ---------------------------------------------------------------- a whole run


def test_a_run_in_a_log_file_introduces_itself_and_tells_its_evaluations(desk, recipe, capsys):
    fit(recipe("train.eval_every=2"), desk / "run")
    out, err = capsys.readouterr()
    told = err.splitlines()

    assert out == "" and not CONTROL.search(err) and len(told) == 4
    assert re.match(r"[\d,]+ parameters, \d+ tokens in the vocabulary, [\d,]+ to read an epoch; cpu, 1 thread", told[0])
    assert [re.match(r"step +(\d) +validation [\d.]+ over", line)[1] for line in told[1:]] == ["2", "4", "6"]
    assert told[-1].endswith("the whole validation text")
