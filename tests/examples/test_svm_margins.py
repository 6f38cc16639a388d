"""`examples/svm_margins.py` at a small scale: its machines, its page, and the lines it draws."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.optimize import nnls
from sklearn.svm import SVC

from distrff.errors import InputError

SCRIPT = Path(__file__).parents[2] / "examples" / "svm_margins.py"
N_ROWS = 24


@pytest.fixture
def margins(example):
    return example("svm_margins")


@pytest.fixture
def plane(example):
    return example("plane_chart")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run as a script: the page, and what it printed."""
    folder = tmp_path_factory.mktemp("margins")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--n-rows", str(N_ROWS)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
        # The script imports its neighbour, as it does wherever its folder is on the path.
        env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "written to svm_margins.html"
    return (folder / "svm_margins.html").read_text(encoding="utf-8"), done


def test_the_page_is_well_formed_and_needs_nothing_else(finished):
    page, _ = finished
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "http" not in page
    charts = list(root.iter("svg"))
    assert len(charts) == 10
    for chart in charts:
        assert not re.search(r"\b(nan|inf)\b", ElementTree.tostring(chart, encoding="unicode"))
        texts = {text.text for text in chart.iter("text")}
        assert {"x₁", "x₂", "+1", "−1"} <= texts


def test_only_what_overlaps_on_a_line_is_refused(finished, margins):
    page, done = finished
    shown = dict(zip(*[iter(done.stdout.splitlines()[:-1])] * 2, strict=True))
    assert list(shown) == [panel.title for panel in margins.panels(N_ROWS)]
    refused = {title: text for title, text in shown.items() if text.strip().startswith("refused")}
    assert list(refused) == ["Overlapping, linear: hard margin"]
    assert page.count("<aside>") == 1


def test_the_hard_margin_on_a_line_is_that_of_svc(margins):
    X, y = margins.rows_beside_a_line(N_ROWS)
    shown = margins.show(margins.panels(N_ROWS)[0])
    exact = SVC(C=1e6, kernel="linear", tol=1e-8).fit(X, y)
    said = float(re.match(r"1/‖w‖ = ([\d.]+);", shown.text)[1])
    assert said == pytest.approx(1 / np.linalg.norm(exact.coef_), rel=0.01)
    assert f"{len(exact.support_)} of {N_ROWS} rows are support rows, 0 of them past" in shown.text


@pytest.mark.parametrize("n_rows", [20, 24, 80])
def test_the_meeting_is_in_the_hulls_of_both_classes(margins, n_rows):
    rows = margins.rows_that_overlap(n_rows)
    meeting = margins.meeting_of(rows)
    for side, corners in zip((1, -1), meeting.corners, strict=True):
        assert (corners[:, None] == rows.X[rows.y == side]).all(axis=2).any(axis=1).all()
        weight, distance = nnls(np.vstack([corners.T, np.ones(len(corners))]), [*meeting.point, 1])
        assert distance < 1e-9
        assert (weight >= 0).all()
    assert sum(map(len, meeting.corners)) <= 4


def test_there_is_no_meeting_beside_a_line(margins):
    assert margins.meeting_of(margins.rows_beside_a_line(N_ROWS)) is None


def test_a_refused_machine_is_drawn_with_what_shows_why(margins):
    panel = margins.panels(N_ROWS)[-2]
    frame = margins.Frame.around(panel.rows.X)
    shown = margins.refused(panel, frame, InputError("these <rows> overlap"))
    assert shown.is_refused
    assert shown.text.startswith("refused: these <rows> overlap. The cross ")
    texts = {text.text for text in ElementTree.fromstring(shown.chart).iter("text")}
    assert {"in both hulls", "corner of a hull"} <= texts
    assert "f = 0" not in texts
    assert "&lt;rows&gt; overlap" in margins.page([shown])


@pytest.mark.parametrize("n_rows", [20, 21, 60])
def test_rows_are_as_many_as_asked_for_in_both_classes(margins, n_rows):
    for make in (margins.rows_beside_a_line, margins.rows_in_a_ring, margins.rows_that_overlap):
        X, y = make(n_rows)
        assert X.shape == (n_rows, 2)
        assert np.count_nonzero(y > 0) == n_rows // 2
        assert set(y) == {-1, 1}


def test_wrong_options_end_with_one_line(margins, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        margins.main(["--n-rows", "3"])
    assert stop.value.code == 2
    assert "at least 20, got 3" in capsys.readouterr().err
    monkeypatch.setattr(margins, "panels", lambda n_rows: [])
    assert margins.main(["--out", str(tmp_path / "none" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_lines_run_where_the_function_has_the_level(plane):
    x, y = np.linspace(-2, 2, 41), np.linspace(-1, 3, 31)
    F = (x[None, :] ** 2 + (y[:, None] - 1) ** 2) - 1.5
    ends = plane.segments(plane.Surface(x, y, F), 0.25)
    radii = np.hypot(ends[..., 0], ends[..., 1] - 1)
    np.testing.assert_allclose(radii, np.sqrt(1.75), atol=0.005)
    # Closed, so every end is that of two pieces, and as long as the circle.
    _, counts = np.unique(ends.reshape(-1, 2).round(9), axis=0, return_counts=True)
    assert (counts == 2).all()
    length = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=1).sum()
    assert length == pytest.approx(2 * np.pi * np.sqrt(1.75), rel=0.005)


def test_no_lines_where_the_level_is_not_reached(plane):
    x = np.linspace(0, 1, 5)
    assert plane.segments(plane.Surface(x, x, np.zeros((5, 5))), 1.0).shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("f", "stretches"),
    [
        ([-2, 0, 2], [[0.5, 1.5]]),
        ([0, 0, 0], [[0, 2]]),
        ([3, 3, 3], []),
        ([-3, 3, -3], [[1 / 3, 2 / 3], [4 / 3, 5 / 3]]),
    ],
)
def test_the_band_is_where_the_function_is_within_one(plane, f, stretches):
    found = plane.stretches_within_one(np.arange(3.0), np.array(f, dtype=float))
    np.testing.assert_allclose(found, np.reshape(stretches, (-1, 2)))
