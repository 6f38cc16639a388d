"""`examples/svm_margins.py` at a small scale: its models, its picture, and the lines it draws."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.svm import SVC

N_ROWS = 24


@pytest.fixture
def margins(example):
    return example("svm_margins")


@pytest.fixture
def ax():
    return Figure().add_subplot()


def test_the_picture_and_what_is_refused_in_it(margins, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert margins.main(["--n-rows", str(N_ROWS)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "written to svm_margins.svg"
    root = ElementTree.parse("svm_margins.svg").getroot()
    assert root.tag.endswith("svg")
    assert not re.search(r"\b(nan|inf)\b", " ".join(e.get("d", "") for e in root.iter()))
    shown = dict(zip(*[iter(lines)] * 2, strict=True))
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


def test_wrong_options_end_with_one_line(margins, tmp_path, monkeypatch, capsys, refused):
    with pytest.raises(SystemExit) as stop:
        margins.main(["--n-rows", "3"])
    assert stop.value.code == 2
    assert "at least 20, got 3" in capsys.readouterr().err
    monkeypatch.setattr(margins, "panels", lambda n_rows, panels=margins.panels: panels(n_rows)[:2])
    for place in (tmp_path / "none" / "picture.svg", tmp_path / "picture.html"):
        assert "cannot be written" in refused(margins, "--out", place)
