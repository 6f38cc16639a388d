"""Progress: nothing for two seconds, then a bar for people, plain lines for logs, one line of a notebook."""

from __future__ import annotations

import io
import sys
import types

import pytest

from distrff.engine import progress
from distrff.engine.progress import Notebook, Progress, screen_for


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """`clock.now`, which the progress takes for the time."""
    time = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now)  # the module that screens have too
    return time


def run(stream, clock, seconds, n_steps, label="Gram"):
    shown = Progress(label, 1000, screen_for(stream))
    for _ in range(n_steps):
        clock.now += seconds / n_steps
        shown.advance(1000 // n_steps)
    shown.close()
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_two_seconds_without_output(clock, stream):
    assert run(stream(), clock, 1.999, 100) == ""


def test_plain_lines_where_nobody_watches(clock):
    text = run(io.StringIO(), clock, 100.0, 100)
    lines = text.splitlines()
    assert text.endswith("\n")
    assert "\r" not in text
    assert "\x1b" not in text
    # One when two seconds have passed, then one every fifteen.
    assert lines[0] == "Gram: 20 of 1,000 rows, 2 s, 98 s left"
    assert lines[1] == "Gram: 170 of 1,000 rows, 17 s, 83 s left"
    assert len(lines) == 7


def test_a_bar_on_a_terminal(clock):
    text = run(Terminal(), clock, 10.0, 100)
    frames = text.split("\r")[1:]
    assert frames[0].startswith("[######........................] Gram: 200 of 1,000 rows, 2 s, 8 s left")
    assert frames[-1] == f"[{'#' * 30}] Gram: 1,000 of 1,000 rows, 10 s\x1b[K\n"
    assert text.count("\n") == 1
    assert all(frame.endswith(("\x1b[K", "\x1b[K\n")) for frame in frames)
    # Every 0.2 s from the second on, and once when it ends.
    assert 30 < len(frames) <= 42


def test_the_bar_ends_where_the_work_did(clock):
    stream = Terminal()
    shown = Progress("Gram", 1000, screen_for(stream))
    clock.now += 3
    shown.advance(500)
    shown.close()  # as after an interrupt
    last = stream.getvalue().split("\r")[-1]
    assert last.startswith(f"[{'#' * 15}{'.' * 15}] Gram: 500 of 1,000 rows")
    assert last.endswith("\n")


def test_standard_error_by_default(clock, capsys):
    shown = Progress("score", 10)
    clock.now += 5
    shown.advance(10)
    shown.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "score: 10 of 10 rows, 5 s\n"


class Outputs:
    """Stands in for IPython's display: what a notebook has on show, and how often it was drawn."""

    def __init__(self):
        self.shown, self.n_drawn = [], 0

    def display(self, output, *, raw, display_id):
        assert raw and display_id
        self.shown.append(output)
        self.n_drawn += 1
        place = len(self.shown) - 1
        return types.SimpleNamespace(update=lambda output, *, raw: self._redraw(place, output))

    def _redraw(self, place, output):
        self.shown[place] = output
        self.n_drawn += 1


def test_a_notebook_has_one_line_for_all_sweeps(clock):
    outputs = Outputs()
    screen = Notebook(outputs.display)
    for label in ("column <b>statistics</b>", "Gram"):
        shown = Progress(label, 1000, screen)
        for _ in range(100):
            clock.now += 0.1
            shown.advance(10)
        shown.close()
    (line,) = outputs.shown
    assert line["text/plain"] == "Gram: 1,000 of 1,000 rows, 10 s"
    assert '<progress value="1.000" max="1"' in line["text/html"]
    assert 35 < outputs.n_drawn <= 42, "every half second, and when a sweep ends"


def test_many_short_sweeps_are_shown_in_a_notebook(clock):
    outputs = Outputs()
    screen = Notebook(outputs.display)
    for sweep in range(10):
        shown = Progress("<i>margins</i>", 1000, screen)
        clock.now += 1
        shown.advance(1000)
        shown.close()
        assert bool(outputs.shown) == (sweep >= 1), "after two seconds of sweeps"
        clock.now += 60  # of other work, which does not count
    assert "&lt;i&gt;margins" in outputs.shown[0]["text/html"]


@pytest.mark.parametrize(
    ("shell", "kind"),
    [("ZMQInteractiveShell", "Notebook"), ("TerminalInteractiveShell", "Log"), (None, "Log")],
)
def test_the_notebook_is_taken_where_there_is_one(monkeypatch, shell, kind):
    instance = None if shell is None else type(shell, (), {})()
    display = types.SimpleNamespace(display=Outputs().display)
    ipython = types.SimpleNamespace(get_ipython=lambda: instance, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert type(screen_for(io.StringIO())).__name__ == kind


def test_ipython_is_not_imported_for_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    screen_for(io.StringIO())
    assert "IPython" not in sys.modules
