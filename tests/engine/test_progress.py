"""Progress: nothing for two seconds, then a line for people, in a terminal or a notebook, none in logs."""

import io
import types

import pytest
from ipykernel.iostream import OutStream

from distrff.engine.progress import FitLine, Observer, lines_echoed, pass_line, roughly


class Terminal(io.StringIO):
    def isatty(self):
        return True


Notebook = type("Notebook", (io.StringIO,), {"__module__": OutStream.__module__})


@pytest.fixture
def clock(monkeypatch):
    """`clock.now`, which `FitLine` takes for the time."""
    time = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr("distrff.engine.progress.monotonic", lambda: time.now)
    return time


@pytest.fixture
def run(clock, monkeypatch):
    """Do work in equal steps; return what is on standard error at its end, and what comes after."""

    def go(stream, seconds, n_steps=100):
        monkeypatch.setattr("sys.stderr", stream)
        with pass_line("Gram", 1000) as progress:
            for _ in range(n_steps):
                clock.now += seconds / n_steps
                progress.update(1000 // n_steps)
            shown = stream.getvalue()
        return shown, stream.getvalue()[len(shown) :]

    return go


@pytest.mark.parametrize(
    ("stream", "seconds"), [(Terminal, 1.999), (Notebook, 1.999), (io.StringIO, 1.999), (io.StringIO, 100.0)]
)
def test_two_seconds_without_output_and_nothing_where_nobody_watches(run, stream, seconds):
    assert run(stream(), seconds) == ("", "")


@pytest.mark.parametrize("stream", [Terminal, Notebook])
def test_a_line_where_somebody_does(run, stream):
    shown, afterwards = run(stream(), 10.0)
    first, *_, last = shown.split("\r")[1:]
    assert first == "Gram, 20% of 1,000 rows · about 8 s left of this pass"
    assert last.startswith("Gram, 100% of 1,000 rows")
    assert afterwards.strip() == ""  # the line is cleared
    assert afterwards.endswith("\r")
    assert "\n" not in shown + afterwards


# The line of a fit.


def fit_of(clock, stream, monkeypatch, seconds_a_sweep, n_sweeps=20):
    """Draw the line of a fit; return what is written on standard error before it is removed, and then."""
    monkeypatch.setattr("sys.stderr", stream)
    line = FitLine()
    for number in range(1, n_sweeps + 1):
        with line.begin_pass("margins", 1000) as progress:
            for _ in range(4):
                clock.now += seconds_a_sweep / 4
                progress.update(250)
        line.say(f"sweep {number} of about 20")
    shown = stream.getvalue()
    line.clear()
    return shown, stream.getvalue()[len(shown) :]


@pytest.mark.parametrize("stream", [Terminal, Notebook])
def test_a_line_is_drawn_over_and_over_within_passes_too_and_removed(clock, monkeypatch, stream):
    shown, afterwards = fit_of(clock, stream(), monkeypatch, 4.0)
    drawn = [text.rstrip() for text in shown.split("\r")[1:]]
    assert drawn[0].startswith("margins, 50% of 1,000 rows · about 2 s left of this pass")
    assert "sweep 6 of about 20 · 75%" in drawn
    assert "\n" not in shown + afterwards
    assert afterwards.strip("\r") == " " * len(shown.split("\r")[-1].rstrip())


@pytest.mark.parametrize(("seconds", "n_lines"), [(0.4, 0), (4.0, 6), (60.0, 20)])
def test_a_log_gets_a_line_a_sweep_and_in_ten_seconds_at_most(clock, monkeypatch, seconds, n_lines):
    lines = []
    with lines_echoed(lines.append):
        assert fit_of(clock, io.StringIO(), monkeypatch, seconds) == ("", "")  # nothing is drawn
        terminal = fit_of(clock, Terminal(), monkeypatch, 0.0999)
    assert terminal == ("", "")  # nor in two seconds
    assert len(lines) == n_lines == len(set(lines))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "0.01 s"), (4.56, "4.6 s"), (12.3, "12 s"), (89, "89 s"), (100, "2 min"), (7300, "2 h")],
)
def test_seconds_as_people_say_them(seconds, text):
    assert roughly(seconds) == text


def test_work_between_passes_is_shown_until_the_next_one(clock, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    observer = Observer((), FitLine())
    clock.now += 3
    observer.between_passes("alpha by the folds")
    clock.now += 1
    observer.rows_of("sums", 1000)
    drawn = [text.rstrip() for text in stream.getvalue().split("\r")[1:]]
    assert drawn == ["alpha by the folds", "sums, 0% of 1,000 rows"]
    Observer().between_passes("nobody watches")


def test_what_does_not_stay_goes_with_the_next_pass(clock, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    line = FitLine()
    clock.now += 3
    line.say("column statistics, pass 1", stays=False)
    clock.now += 1
    line.begin_pass("Gram", 1000)
    clock.now += 1
    line.say("short")
    drawn = ["column statistics, pass 1", "Gram, 0% of 1,000 rows   ", "short · 0%            "]
    assert [text[:25] for text in stream.getvalue().split("\r")[1:]] == drawn
