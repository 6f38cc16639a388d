"""The report page is well-formed, whole in itself, and shows what it is given and nothing else."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.ticker import LogLocator

from distrff.diagnostics import pages as page_charts
from distrff.diagnostics.report import FitReport
from distrff.utils.text import Chart
from tests.support.pages import headings, parse, words

BARE = {
    **{"model": "KernelRidge", "status": "CONVERGED", "dtype": "float32", "workers": 2, "seed": 0},
    **{"n_samples": 1_000_000, "n_columns": 4, "n_components": 512, "n_sweeps": 4, "seconds": 41.5},
    **{"notes": [], "sweep_labels": [], "sweep_seconds": []},
    **{"planned_peak_bytes": 4.12e8, "measured_peak_bytes": 3.89e8},
}
TRIED = {"criterion": "squared error", "spread": 0.002, "flops": 2e9, "seconds": 0.25}
PARTS = {
    "path": {
        "alpha": 1e-2,
        "alphas": [1e-3, 1e-2, 1e-1, 1.0],
        "mean_score": [0.3, 0.2, 0.25, None],
        "fold_scores": [[0.28, 0.32], [0.18, 0.22], [0.22, 0.28], [None, 0.5]],
        "noise_floor": 2e-4,
        "criterion": "held-out mean squared error",
    },
    "curve": {
        "learning_curve": [[128, 0.4, 0.1], [256, 0.3, 0.1], [512, 0.2, 0.1]],
        "criterion": "held-out mean squared error",
    },
    "certificate": {
        "history": {
            "measure": "duality gap",
            "sweep": [1, 2, 3, 5],
            "error": [None, 0.4, 0.02, 0.0008],
            "primal": [9.0, 5.0, 4.1, 4.002],
            "dual": [None, 3.0, 4.0, 3.999],
        },
        "tol": 1e-3,
    },
    "widths": {
        "length_scale_search": {
            "rule": "marginal likelihood of 200 rows",
            "length_scale": [500.0, 0.667, 900.0],
            "column_scale": [1.0, 1.0, 1.0],
        },
        "column_names": ["a", "b", "c"],
    },
    "components": {"explained_variance_ratio": [0.5, 0.25, 0.0]},
    "plan": {"plan": {"seconds": 41.0, "n_sweeps": 4}},
    "time": {
        "phases": [["column means", 1.75], ["Gram", 39.0], ["light sweeps", 0.75]],
        "sweep_labels": ["column means", "gradient", "Gram", "gradient"],
        "sweep_seconds": [1.5, 0.25, 38.25, 0.25],
    },
    "candidates": {
        "candidates": [
            {"candidate": "fourier, Gaussian, one width", "error": 0.25, "expected": 0.125, "chosen": True}
            | TRIED,
            {"candidate": "binning, Laplacian, one width", "error": 0.5, "expected": 0.5, "chosen": False}
            | TRIED,
        ]
    },
}
HEADINGS = {
    "path": ["Error against alpha"],
    "curve": ["Error against the number of features"],
    "certificate": ["How the duality gap closed", "The optimum"],
    "widths": ["Learned widths"],
    "components": ["Variance along the components"],
    "plan": ["Plan against measured"],
    "time": ["Time"],
    "candidates": ["Maps that were tried"],
}
SCORES = {"columns": ["", "RMSE"], "rows": [["this model", 0.1043], ["linear ridge", None]]}


def report(**parts):
    """Return a report of these parts, of all of them if none is named."""
    values = dict(BARE)
    for part in (parts or PARTS).values():
        values |= part
    return FitReport(values)


def test_the_whole_report():
    page = report().to_html(title="Ridge on rows.zarr", facts=[["data", "made up"]], scores=SCORES)
    evidence = [h for part in HEADINGS.values() for h in part]
    assert headings(page) == ["Score on held-out rows", "What was fitted", *evidence]
    assert parse(page).findtext("head/title") == "Ridge on rows.zarr"
    shown = words(page)
    for text in (
        "data made up model KernelRidge",
        "rows 1,000,000",
        "this model 0.104",
        "linear ridge –",
        "b 0.667 a 500 c 900",
        "lowest to highest of 2 folds",
        "chosen: 0.0100",
        "noise floor: 0.000200",
        "held-out mean squared error",
        "peak memory of a worker, above idle 412 MB 389 MB 0.944 ×",
        "time of the fit 41.0 s 41.5 s 1.01 ×",
        "gradient (2 times)",
        "4 passes over the rows, together 40.2 s",
        "light sweeps 750 ms",
        "tol: 0.00100",
        "The optimum lies between 3.999 and the objective of this model, 4.002",
        "best lower bound",
        "component 1 25.0%",
        "fourier, Gaussian, one width (chosen) 0.250 ± 0.00200 0.125 2.00×10⁹ 250 ms",
        "binning, Laplacian, one width 0.500 ± 0.00200",
        "squared error of small models on held-out rows of a sample, in units of the targets' variance",
    ):
        assert text in shown, text
    bare = FitReport(BARE).to_html(title="T", scores={"columns": ["", "RMSE"], "rows": []})
    assert words(bare).startswith("T What was fitted model KernelRidge ended converged")
    assert headings(bare) == ["What was fitted"] and "<aside" not in bare
    bars = parse(report(components=PARTS["components"]).to_html()).iter("div")
    shares = [bar.get("style") for bar in bars if bar.get("style")]
    assert shares == ["width: 100.0%", "width: 50.0%", "width: 0.0%"]


def test_the_chosen_map_is_shown_wherever_it_ranks():
    """Better ones may need more memory than there is."""
    names = [f"candidate {rank}" for rank in range(30)]
    tried = [{"candidate": name, "error": 0.1, "expected": 0.1, "chosen": False} | TRIED for name in names]
    tried[20] |= {"chosen": True, "error": 0.125}
    of_classes = [one | {"criterion": "share of wrong classes"} for one in tried]
    shown = words(report(candidates={"candidates": of_classes}).to_html())
    assert "candidate 20 (chosen) 0.125" in shown
    assert "candidate 0 0.100" in shown and "candidate 29" not in shown
    assert "share of wrong classes of small models on held-out rows of a sample, in the last stage" in shown
    n_shown = sum(f"{name} " in shown for name in names)
    assert f"{30 - n_shown} more are not shown" in shown
    search = {"candidates": tried, "alpha": 1.0, "criterion": "", "cv_score": None}
    line = repr(report(candidates=search))
    assert "map candidate 20; chosen of 30 candidates, held-out squared error 0.125 ± 0.00200 of the" in line
    search["candidates"] = of_classes
    assert "held-out share of wrong classes 0.125 ± 0.00200\n" in repr(report(candidates=search))


def test_columns_and_directions_of_a_metric():
    search = {"rule": "gradients", "column_shares": [0.125, 0.75, 0.125], "directions": [0.875, 0.125]}
    metric = {"length_scale_search": search, "column_names": ["a", "b", "c"]}
    page = report(metric=metric).to_html()
    assert headings(page) == ["What was fitted", "Columns and directions that matter"]
    assert "b 75.0% a 12.5% c 12.5% direction 1 87.5% direction 2 12.5%" in words(page)
    search = {"rule": "gradients", "column_shares": [0.02] * 50, "directions": [1.0]}
    shown = words(report(metric={"length_scale_search": search}).to_html())
    assert "column 0 2.0%" in shown
    assert "30 columns of smaller shares are not drawn" in shown


def test_charts_are_described_in_words():
    root = parse(report().to_html())
    described = {svg.find("title").text: svg.find("desc").text for svg in root.iter("svg")}
    assert list(described) == [h for key in ("path", "curve", "certificate") for h in HEADINGS[key]]
    assert described["Error against alpha"] == (
        "alpha across, error upwards. lowest to highest of 2 folds. held-out mean squared error: 3 points, "
        "lowest 0.200 at 0.0100, highest 0.300 at 0.00100. chosen: 0.0100. noise floor: 0.000200."
    )
    texts = {text.text for svg in root.iter("svg") for text in svg.iter("text")}
    assert {"alpha", "error", "0.001", "0.01", "number of features", "128", "512", "light sweep"} <= texts


@pytest.mark.parametrize("key", PARTS)
@pytest.mark.parametrize("absent", ["missing", "null", "empty"])
def test_absent_sections_are_left_out(key, absent, monkeypatch):
    drawn = Chart('<svg role="img"><title>t</title><desc>d</desc></svg>')
    monkeypatch.setattr(page_charts, "_chart", lambda *_: drawn)
    values = report().to_dict()
    if key == "time":
        values |= {"sweep_labels": [], "sweep_seconds": []}
    name = next(name for name, value in PARTS[key].items() if isinstance(value, (list, dict)))
    value = values.pop(name)
    if absent == "null":
        values[name] = None
    elif absent == "empty":
        values[name] = type(value)()
    found = headings(FitReport(values).to_html())
    assert found == ["What was fitted", *(h for k, part in HEADINGS.items() if k != key for h in part)]


def test_only_what_fell_short_is_a_warning():
    harmless = report(notes={"notes": ["a choice was made"]}).to_html()
    assert "<aside" not in harmless and "a choice was made" in words(harmless)
    short = report(alerts={"alerts": ["the gap is 0.1, above tol"]}).to_html()
    (alert,) = parse(short).iter("aside")
    assert "the gap is 0.1, above tol" in "".join(alert.itertext())
    assert words(short).index("above tol") < words(short).index("What was fitted")


NUMBERS = {"kind": "numbers", "rows": "out of fold", "r2": 0.5, "rmse": 2.0, "constant_rmse": 3.0}
CLASSES = {
    "kind": "classes",
    "rows": "out of fold",
    "accuracy": 0.9,
    "majority": "b",
    "majority_accuracy": 0.6,
}


@pytest.mark.parametrize(
    ("quality", "advice"),
    [
        (NUMBERS, None),
        (NUMBERS | {"rows": "the rows of the fit"}, "The fit held no rows out"),
        (NUMBERS | {"linear_rmse": 1.9}, "A linear model has no larger error"),
        (NUMBERS | {"linear_rmse": 2.1}, None),
        (CLASSES, None),
        (CLASSES | {"accuracy": 0.6}, "always says 'b'"),
        (CLASSES | {"balanced_accuracy": 0.4}, "Rare classes are found less often: the mean recall is 0.400"),
    ],
)
def test_advice_beside_the_quality(quality, advice):
    shown = words(report(quality={"quality": quality}).to_html())
    assert shown.startswith("Fit of KernelRidge Quality judged on")
    known = ("The fit held", "A linear model", "always says", "Rare classes")
    assert [one for one in known if one in shown] == [one for one in known if advice and one in advice]
    curve = PARTS["curve"] | {"learning_curve": [[128, 0.4, 0.1], [256, 0.3, 0.1], [512, 0.29, 0.1]]}
    falls = words(report(quality={"quality": quality}, curve=PARTS["curve"]).to_html())
    assert "The error still falls with the number of features, by 33% from 256 to 512" in falls
    assert "still falls" not in words(report(quality={"quality": quality}, curve=curve).to_html())


@pytest.mark.parametrize(
    ("criterion", "held_out"), [("share of wrong classes", "accuracy"), ("squared error", "R²")]
)
def test_an_accuracy_on_the_rows_of_the_fit_is_no_promise(criterion, held_out):
    """What the choice of the map knows of new rows stands first; without it the sentence alone tells."""
    quality = CLASSES | {"rows": "the rows of the fit", "accuracy_error": 0.01, "n_rows": 800}
    quality |= {"balanced_accuracy": 0.9}
    fit = {"C": 1.0, "loss": "hinge", "duality_gap": 1e-3, "solver": "dual", "quality": quality}
    (chosen, _) = PARTS["candidates"]["candidates"]
    tried = {"candidates": [chosen | {"criterion": criterion}]}
    expected = f"{held_out} about 0.750 ± 0.002 (held out of a sample"
    for parts, first in (
        ({"fit": fit}, "accuracy 0.900"),
        ({"fit": fit, "tried": tried}, f"new rows: {expected}"),
    ):
        lines = repr(report(**parts)).splitlines()[2:]
        assert lines[0].startswith(f"  {first}")
        assert any(
            "accuracy 0.900, balanced accuracy 0.900 on the rows of the fit (800 of" in one for one in lines
        )
        assert any("new rows will have larger errors" in one and "C='cv'" in one for one in lines)
        shown = words(report(**parts).to_html())
        assert "accuracy 0.900 always" in shown and (f"new rows {expected}" in shown) == ("tried" in parts)
    left_out = {"fit": fit | {"quality": quality | {"rows": "out of fold"}}, "tried": tried}
    assert "accuracy 0.900 ± 0.01, balanced" in repr(report(**left_out)) and "new rows" not in repr(
        report(**left_out)
    )


def test_nothing_is_loaded_from_elsewhere():
    page = report().to_html(scores=SCORES)
    assert not re.search(r"https?://|//[a-z]|url\((?!#)|@import|<script|src=", page)
    inside = {target for target in re.findall('href="([^"]*)"', page) if target.startswith("#")}
    assert set(re.findall('href="([^"]*)"', page)) - inside == {"data:,"}
    names = re.findall(' id="([^"]*)"', page)
    assert len(set(names)) == len(names)
    assert {name.lstrip("#") for name in inside} | set(re.findall(r"url\(#(.*?)\)", page)) == set(names)


def themes(page):
    """Return the colours of the light and the dark theme."""
    found = re.findall(r"\.distrff\s*\{ (--.*?) \}", page, re.DOTALL)[:2]
    return [dict(re.findall(r"(--[\w-]+): (?:var\([\w-]+, )?(#\w+)", theme)) for theme in found]


def test_both_themes_telephones_and_paper_are_served():
    page = report().to_html(scores=SCORES)
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    light, dark = themes(page)
    used = {name for name in re.findall(r"var\((--[\w-]+)", page) if not name.startswith("--jp-")}
    assert used <= set(light)
    assert set(light) == set(dark)
    (printed,) = re.findall(r"@media print \{ \.distrff:not\(#_\) \{ (.*?) \} \}", page, re.DOTALL)
    assert all(f"{name}: {color}" in printed for name, color in light.items() if name.startswith("--series"))
    charts = "".join(re.findall("<svg.*?</svg>", page, re.DOTALL))
    drawn = set(re.findall(r"(?:fill|stroke): ?([^;\"]+)", charts))
    assert {"currentColor", "var(--series-1)"} <= drawn
    assert drawn <= {"none", "currentColor", *(f"var(--series-{i})" for i in (1, 2, 3, 4))}


def test_texts_are_escaped():
    hostile = "</style><script>alert('x')</script>&\x00\ud83d"
    values = {
        **report().to_dict(),
        **dict.fromkeys(("model", "status", "source", "kernel", "dtype", "criterion"), hostile),
        "notes": [hostile],
        "cv_score": 0.1,
        "column_names": [hostile] * 3,
        "phases": [[hostile, 1.0]],
        "sweep_labels": [hostile] * 4,
        "alphas": None,
        "learning_curve": None,
    }
    scores = {"columns": [hostile], "rows": [[hostile]]}
    page = FitReport(values).to_html(title=hostile, facts=[[hostile, hostile]], scores=scores)
    assert "<script" not in page
    assert "alert('x')" in words(page)
    in_charts = "</text><script>alert('x')</script>&"
    history = {**PARTS["certificate"]["history"], "measure": in_charts}
    page = report(known={"history": history, "tol": 1e-3}).to_html()
    assert "<script" not in page
    assert words(page).count(in_charts) > 3


def test_pages_are_the_same_each_time_and_leave_matplotlib_alone():
    """Also in threads, and whatever style the user has."""
    some = report(path=PARTS["path"], certificate=PARTS["certificate"])
    alone = some.to_html()
    before = pyplot.get_fignums()
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "black"}):
        style = dict(matplotlib.rcParams)
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: some.to_html(), range(4))) == {alone}
        assert dict(matplotlib.rcParams) == style
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize(
    ("values", "scores"),
    [
        ([1e-300, 1e-9, 1, 1e300], [1e-300, 1e300, None, 5]),
        ([1, 1, 1, 1], [-1.7e308, 0, 1.7e308, 1]),
        ([0.3, 0.31, 0.32, 0.33], [None] * 4),
    ],
)
def test_nasty_numbers(values, scores):
    folds = [[score, score] for score in scores]
    path = PARTS["path"] | {"alphas": values, "mean_score": scores, "fold_scores": folds}
    curve = [[size, score, 1.0] for size, score in zip([1, 2, 3, 10**9], scores, strict=True)]
    known = {"measure": "gap", "sweep": [1, 2, 3, 4], "error": scores, "primal": scores, "dual": scores}
    parts = {"curve": {"learning_curve": curve}, "known": {"history": known, "tol": 1e-3}}
    assert len(list(parse(report(path=path, **parts).to_html()).iter("svg"))) >= 3


def test_ticks_that_cannot_be_asked_to_be_fewer_are_left_out() -> None:
    """Within a decade a logarithmic axis has as many as it sees fit, whose names may lie on each other."""

    class Within(LogLocator):
        def __call__(self) -> np.ndarray:
            return np.geomspace(3.79e-8, 5e-8, 13)

    def draw(ax: Any) -> Any:
        ax.semilogx(np.geomspace(3.79e-8, 5e-8, 9), np.arange(9))
        ax.xaxis.set_major_locator(Within())
        ax.xaxis.set_major_formatter("{x:.9e}")
        return ax

    drawn = []
    page_charts._chart("a chart", lambda ax: drawn.append(ax) or draw(ax))
    assert 1 <= len(drawn[0].get_xticks()) < 5
