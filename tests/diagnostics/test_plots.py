"""Plots show the numbers of the fit, and tell apart without colour what they show."""

import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

import distrff as drf
from distrff.errors import InputError

matplotlib.use("Agg")


@pytest.fixture
def ax():
    yield pyplot.subplots()[1]
    pyplot.close("all")


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((200, 3)) * [3.0, 2.0, 0.1] + 5.0
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)


def small_map(kernel=None, D=64):
    return drf.FourierFeatures(kernel or drf.Gaussian(2.0), D, random_state=0)


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def styles(ax):
    return [(line.get_linestyle(), line.get_marker()) for line in lines(ax).values()]


def test_kernel_error(ax, rows):
    X = rows[0]
    found = [drf.kernel_error(small_map(D=D).fit(X), X, n_blocks=1, block_rows=50) for D in (256, 32, 64)]
    assert drf.plot_kernel_error(found, ax=ax) is ax
    drawn = lines(ax)
    assert set(drawn) == {"largest of the pairs", "RMS expected", "bound of the largest"}
    largest = drawn["largest of the pairs"]
    np.testing.assert_array_equal(largest.get_xdata(), [32, 64, 256])
    np.testing.assert_array_equal(largest.get_ydata(), [found[i].max_error for i in (1, 2, 0)])
    (bars,) = ax.containers
    np.testing.assert_array_equal(bars[0].get_ydata(), [found[i].rms_error for i in (1, 2, 0)])
    segments = bars[2][0].get_segments()
    np.testing.assert_allclose([s[:, 1] for s in segments], [found[i].rms_interval for i in (1, 2, 0)])
    assert len(set(styles(ax))) == 3


def test_the_path_of_C(ax, rows):
    model = drf.KernelSVC(small_map(), "cv", Cs=[0.1, 1.0, 10.0], cv=2, random_state=0, scale="none")
    drf.plot_alpha_path(model.fit(rows[0], rows[1] > 0), ax=ax)
    assert ax.get_xlabel() == "C"
    curve = lines(ax)[model.report_["criterion"]]
    np.testing.assert_array_equal(curve.get_ydata(), model.cv_results_["mean_score"])


def test_alpha_path_and_learning_curve(ax, rows):
    model = drf.KernelRidge(small_map(), alpha="cv", cv=3, random_state=0, scale="none").fit(*rows)
    assert drf.plot_alpha_path(model, ax=ax) is ax
    drawn = lines(ax)
    curve = drawn["mean squared error over 3 held-out folds"]
    np.testing.assert_array_equal(curve.get_xdata(), model.cv_results_["alphas"])
    np.testing.assert_array_equal(curve.get_ydata(), model.cv_results_["mean_score"])
    (chosen,) = [line for label, line in drawn.items() if label.startswith("chosen")]
    assert chosen.get_xdata()[0] == model.alpha_
    (band,) = ax.collections
    top = model.cv_results_["fold_scores"].max()
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(top)
    assert len(set(styles(ax))) == len(drawn)
    ax.clear()
    drf.plot_learning_curve(model.report_, ax=ax)
    (curve,) = lines(ax).values()
    sizes, scores, _ = zip(*model.report_["learning_curve"], strict=True)
    np.testing.assert_array_equal(curve.get_xdata(), sizes)
    np.testing.assert_array_equal(curve.get_ydata(), scores)


@pytest.mark.parametrize("kernel", [drf.Gaussian((0.5, 2.0, 4.0)), 3.0 * drf.Laplacian((0.5, 2.0, 4.0))])
def test_relevance(ax, rows, kernel):
    frame = pd.DataFrame(rows[0], columns=["height", "b", "c"])
    model = drf.KernelRidge(small_map(kernel), 1.0).fit(frame, rows[1])
    drf.plot_relevance(model, ax=ax)
    assert [bar.get_height() for bar in ax.patches] == [2.0, 0.5, 0.25]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["height", "b", "c"]
    drf.plot_relevance(model.features_, ax=ax)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "2"]
    with pytest.raises(InputError, match="names has 2 entries"):
        drf.plot_relevance(model, names=["a", "b"], ax=ax)
    own = drf.plot_relevance(model)
    assert own is not ax and pyplot.fignum_exists(own.figure.number)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_surface_of_classes(ax, rows, n_classes):
    X = rows[0]
    y = np.array(["low", "middle", "top"])[np.digitize(X[:, 0], [3.0, 6.0][: n_classes - 1])]
    model = drf.KernelRidgeClassifier(small_map(drf.Gaussian(1.0)), alpha=0.1, scale="standard").fit(X, y)
    drf.plot_decision_surface(model, X, y, resolution=40, ax=ax)
    drawn = lines(ax)
    assert sorted(drawn) == sorted(set(y))
    assert sum(len(line.get_xdata()) for line in drawn.values()) == 200
    assert len({line.get_marker() for line in drawn.values()}) == n_classes
    filled = next(c for c in ax.collections if getattr(c, "hatches", None) and c.filled)
    assert len(set(filled.hatches)) == n_classes
    # The projections of scaled rows on their two leading directions, up to sign.
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    spread = np.sort(np.linalg.svd(scaled)[1])[::-1][:2]
    T = np.concatenate([line.get_xydata() for line in drawn.values()])
    np.testing.assert_allclose(np.linalg.norm(T, axis=0), spread, rtol=1e-9)


def test_surface_of_values_is_what_the_model_predicts(ax, rng):
    """For a linear model on a plane of data, the surface is the plane's own linear function."""
    X = rng.standard_normal((100, 2)) * [3.0, 1.0] + 2.0
    y = X @ [1.0, -2.0]
    model = drf.KernelRidge(drf.LinearFeatures(), alpha=1e-9, scale="standard").fit(X, y)
    drf.plot_decision_surface(model, X, y, resolution=30, ax=ax)
    filled = next(c for c in ax.collections if getattr(c, "filled", False))
    assert filled.zmin <= y.min() and filled.zmax >= y.max()
    scatter = next(c for c in ax.collections if len(c.get_offsets()) == 100)
    np.testing.assert_array_equal(scatter.get_array(), y)
    drf.plot_decision_surface(model, X, resolution=5, ax=ax)
    assert len(lines(ax)["rows"].get_xdata()) == 100


def test_what_cannot_be_drawn(ax, rows):
    X, y = rows
    model = drf.KernelRidge(small_map(), 1.0).fit(X, y)
    several = drf.KernelRidge(small_map(), 1.0).fit(X, np.stack([y, y], axis=1))
    flat = drf.KernelRidge(small_map(), 1.0).fit(X[:, :1], y)
    unsearched = drf.KernelLikelihoodClassifier(small_map(), 1.0).fit(X, y > 0)
    for draw, given, words in (
        (drf.plot_alpha_path, (unsearched,), "searched for neither alpha nor C"),
        (drf.plot_learning_curve, (unsearched,), "has no learning curve"),
        (drf.plot_learning_curve, (drf.KernelRidge(alpha=1.0, scale="none"),), "expected a fitted model"),
        (drf.plot_relevance, (model.features_,), "no length scale for each column"),
        (drf.plot_relevance, (drf.LinearFeatures().fit(X),), "no length scale for each column"),
        *((drf.plot_kernel_error, (wrong,), None) for wrong in ([], [0.1], 3)),
        (drf.plot_decision_surface, (drf.KernelRidge(alpha=1.0, scale="none"), X), "expected a fitted model"),
        (drf.plot_decision_surface, (model, X[:, :2]), "X must have shape"),
        (drf.plot_decision_surface, (model, X, y[:-1]), "y must have shape"),
        (drf.plot_decision_surface, (several, X), "one output"),
        (drf.plot_decision_surface, (flat, X[:, :1]), "at least two columns"),
        (drf.plot_importance, (rows,), "expected the result of"),
        (drf.plot_partial_dependence, (rows,), "expected the result of"),
        (drf.plot_partial_dependence, (curve_of("number", [1.0]), "z"), "no curve of column 'z'; it has: x"),
    ):
        with pytest.raises(InputError if words else (InputError, TypeError), match=words):
            draw(*given, ax=ax)


def test_matplotlib_is_imported_only_to_draw():
    """Neither by a fit nor for a card; a page does without pyplot, which would choose a window's backend."""
    program = (
        "import sys, distrff\n"
        "[getattr(distrff, name) for name in distrff.__all__]\n"
        "map_ = distrff.FourierFeatures(distrff.Gaussian((1.0, 2.0)), 4)\n"
        "X, y = [[0, 1], [1, 2], [2, 0], [3, 1]], [0, 1, 2, 3]\n"
        "model = distrff.KernelRidge(map_, alpha='cv', cv=2, random_state=0).fit(X, y)\n"
        "assert all(shown._repr_html_() for shown in (map_.kernel, model.report_, model.model_))\n"
        "assert 'matplotlib' not in sys.modules\n"
        "assert '<svg' in model.report_.to_html()\n"
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def importance_of(measure="r2", n=3):
    columns = [
        {"column": f"column {i}", "importance": None if i == 24 else 3.0 - i, "std_error": 0.1 * i}
        for i in range(n)
    ]
    return {"measure": measure, "columns": columns}


@pytest.mark.parametrize(("measure", "name"), [("r2", "R²"), ("accuracy", "accuracy")])
def test_importance(ax, measure, name):
    assert drf.plot_importance(importance_of(measure), ax=ax) is ax
    assert [bar.get_width() for bar in ax.patches] == [3.0, 2.0, 1.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["column 0", "column 1", "column 2"]
    assert ax.yaxis_inverted()  # the most important at the top
    assert ax.get_xlabel() == f"fall of {name}"
    (errors,) = ax.collections
    np.testing.assert_allclose([s[:, 0] for s in errors.get_segments()], [[3, 3], [1.9, 2.1], [0.8, 1.2]])


def curve_of(kind, values, k=1, unit=None):
    mean = np.outer(np.arange(len(values)), np.arange(k) + 1.0).tolist()
    curve = {"column": "x", "kind": kind, "values": values, "unit": unit, "mean": mean, "std_error": mean}
    return {"result": "probability", "outputs": list(map(str, range(k))), "curves": [curve]}


def test_partial_dependence_of_categories_and_times(ax):
    drf.plot_partial_dependence(curve_of("category", ["a", "b", "long name"], 2), ax=ax)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "long name"]
    assert all(line.get_linestyle() == "None" for line in ax.lines)
    assert len(ax.containers) == 2
    own = drf.plot_partial_dependence(curve_of("time", ["Mon", "Tue"], 2))
    assert own.get_ylabel() == "mean probability"
    assert len({style for style in styles(own)}) == 2
    seconds = drf.plot_partial_dependence(curve_of("number", [1.0, 9.0], unit="seconds since 2020"))
    assert seconds.get_xlabel() == "x, seconds since 2020"
    pyplot.close("all")


def test_partial_dependence_of_many_classes_shows_those_that_vary_most(ax):
    drf.plot_partial_dependence(curve_of("number", [1.0, 2.0, 3.0], 20), ax=ax)
    assert list(lines(ax)) == list(map(str, range(12, 20)))
    assert len(set(styles(ax))) == 8
