"""`examples/svm_margins.py` at a small scale: its models, its picture, and the lines it draws."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.optimize import nnls
from sklearn.svm import SVC

import distrff as drf
from distrff.errors import InputError
from tests.support.commands import run

SCRIPT = Path(__file__).parents[2] / "examples" / "svm_margins.py"
N_ROWS = 24


@pytest.fixture
def margins(example):
    return example("svm_margins")


@pytest.fixture
def ax():
    return Figure().add_subplot()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run as a script: the picture, and what it printed."""
    folder = tmp_path_factory.mktemp("margins")
    done = run(sys.executable, SCRIPT, "--n-rows", N_ROWS, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "written to svm_margins.svg"
    return folder / "svm_margins.svg", done.stdout.splitlines()[:-1]


def test_the_picture_and_what_is_refused_in_it(finished, margins):
    root = ElementTree.parse(finished[0]).getroot()
    assert root.tag.endswith("svg")
    assert not re.search(r"\b(nan|inf)\b", " ".join(e.get("d", "") for e in root.iter()))
    shown = dict(zip(*[iter(finished[1])] * 2, strict=True))
    assert list(shown) == [panel.title for panel in margins.panels(N_ROWS)]
    refused = {title: text for title, text in shown.items() if text.strip().startswith("refused")}
    assert list(refused) == ["Overlapping, linear: hard margin"]


def test_the_hard_margin_on_a_line_is_that_of_svc(margins, ax):
    X, y = margins.rows_beside_a_line(N_ROWS)
    text = margins.show(ax, margins.panels(N_ROWS)[0])
    assert ax.get_legend_handles_labels()[1] == ["+1", "-1", "f = 0, between f = ±1", "support row"]
    exact = SVC(C=1e6, kernel="linear", tol=1e-8).fit(X, y)
    said = float(re.match(r"1/‖w‖ = ([\d.]+);", text)[1])
    assert said == pytest.approx(1 / np.linalg.norm(exact.coef_), rel=0.01)
    assert f"{len(exact.support_)} of {N_ROWS} rows are support rows, 0 of them past" in text


@pytest.mark.parametrize("n_rows", [20, 21, 24, 60, 80])
def test_rows_of_both_classes_and_the_meeting_in_their_hulls(margins, n_rows):
    for make in (margins.rows_beside_a_line, margins.rows_in_a_ring, margins.rows_that_overlap):
        X, y = make(n_rows)
        assert X.shape == (n_rows, 2)
        assert np.count_nonzero(y > 0) == n_rows // 2
        assert set(y) == {-1, 1}
    rows = margins.rows_that_overlap(n_rows)
    meeting = margins.meeting_of(rows)
    for side, corners in zip((1, -1), meeting.corners, strict=True):
        assert (corners[:, None] == rows.X[rows.y == side]).all(axis=2).any(axis=1).all()
        weight, distance = nnls(np.vstack([corners.T, np.ones(len(corners))]), [*meeting.point, 1])
        assert distance < 1e-9
        assert (weight >= 0).all()
    assert sum(map(len, meeting.corners)) <= 4
    assert margins.meeting_of(margins.rows_beside_a_line(N_ROWS)) is None


def test_a_refused_model_is_drawn_with_what_shows_why(margins, ax):
    panel = margins.panels(N_ROWS)[-2]
    text = margins.refused(ax, panel, InputError("these rows overlap"))
    assert text.startswith("refused: these rows overlap. The cross ")
    assert set(ax.get_legend_handles_labels()[1]) == {"in both hulls", "corner of a hull"}
    np.testing.assert_array_equal(ax.lines[-1].get_xydata(), [margins.meeting_of(panel.rows).point])


def test_lines_run_where_the_function_has_the_level(margins, ax):
    """A linear model's margins are ±1/‖w‖ from its line."""
    rows = margins.rows_beside_a_line(N_ROWS)
    model = drf.KernelSVC(drf.LinearFeatures(), 1.0, random_state=0).fit(*rows)
    margins.draw_model(ax, model)
    ends = [np.concatenate(path.to_polygons(closed_only=False)) for path in ax.collections[-1].get_paths()]
    for level, points in zip((-1, 0, 1), ends, strict=True):
        np.testing.assert_allclose(model.decision_function(points), level, atol=1e-3)


def test_wrong_options_end_with_one_line(margins, tmp_path, monkeypatch, capsys, refused):
    with pytest.raises(SystemExit) as stop:
        margins.main(["--n-rows", "3"])
    assert stop.value.code == 2
    assert "at least 20, got 3" in capsys.readouterr().err
    monkeypatch.setattr(margins, "panels", lambda n_rows, panels=margins.panels: panels(n_rows)[:2])
    for place in (tmp_path / "none" / "picture.svg", tmp_path / "picture.html"):
        assert "cannot be written" in refused(margins, "--out", place)
