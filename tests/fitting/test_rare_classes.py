"""Models of rare classes: certified in few sweeps, and never worse than the best constant."""

import warnings
from functools import partial
from itertools import product

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import distrff as drf
from distrff.errors import InputError
from distrff.solvers.losses import MARGINS, NOISES
from tests.support.fits import fourier, objective

MODELS = {loss: partial(drf.KernelSVC, loss=loss) for loss in MARGINS} | {
    noise: partial(drf.KernelLikelihoodClassifier, noise=noise) for noise in NOISES
}


def rare_rows(rng, n=10_000, share=0.016, spread=1.0):
    """A rare class that the other one surrounds."""
    X, y = rng.standard_normal((n, 10)), np.zeros(n, int)
    y[rng.choice(n, int(share * n), replace=False)] = 1
    X[y == 1] *= spread
    return X, y


def fitted(model, *data):
    """Fit, whatever the status, and return what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(*data)
    return [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_models_grow_until_a_rare_class_is_certified(rng, dtype):
    """Of noise, half of the rare rows' weight lies at the hinge of all others, at the constant."""
    X, y = rare_rows(rng)
    model = drf.KernelSVC(fourier(32, 4.0), C=3.0, dtype=dtype, tol=1e-5, random_state=0, scale="none").fit(
        X, y
    )
    assert model.report_["status"] == "CONVERGED"
    assert model.report_["n_sweeps"] <= 60
    assert model.report_["primal"] <= 2 * 3.0 * y.sum() * (1 + 4 * np.finfo(float).eps)


def test_the_report_says_that_a_model_is_a_constant(rng):
    X, y = rare_rows(rng, n=1500)
    model = drf.KernelSVC(fourier(32, 4.0), 1e-12, random_state=0, scale="none").fit(X, y)
    assert not model.coef_.any()
    assert "the model is a constant: none better was found" in model.report_["notes"]
    # Of five rare rows or fewer the mean is not always a mean of others, and then there is a better model.
    kinds = np.where(y == 1, "rare", np.where(np.arange(len(y)) % 3 == 0, "odd", "common"))
    model = drf.KernelSVC(fourier(32, 4.0), 1e-12, random_state=0, scale="none").fit(X, kinds)
    told = "the model of classes common, odd, rare is a constant: none better was found"
    assert told in model.report_["notes"]


@pytest.mark.parametrize("kinds", [["common", "odd"], ["common"]], ids=["of three", "of two"])
@pytest.mark.parametrize("name", MODELS)
def test_a_class_of_one_row_is_held_out_by_one_fold(rng, name, kinds):
    """The models of that fold have rows of one label alone, and no likelihood has a best intercept then."""
    X = rng.standard_normal((900, 3))
    y = np.array(kinds)[(X[:, 0] > 0.5) * (len(kinds) - 1)].astype("U6")
    y[rng.integers(len(y))] = "rare"
    model = MODELS[name](fourier(32, 2.0), C="cv", Cs=[0.01, 1.0], random_state=0, scale="none").fit(X, y)
    report = model.report_
    assert report["status"] == "CONVERGED"
    assert report["n_sweeps"] < 120  # each of the three solves would be cut off at 200
    assert np.isfinite(model.cv_results_["fold_scores"]).all()


@pytest.mark.parametrize(("solver", "max_sweeps"), [("auto", 1), ("auto", None), ("sgd", 1)])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_no_model_is_worse_than_the_best_constant(rng, name, fit_intercept, solver, max_sweeps):
    X, y = rare_rows(rng, n=1500)
    s = rng.uniform(0.5, 2.0, len(y))
    by_class = {0: 0.7, 1: 1.9}
    options = {
        "class_weight": by_class,
        "fit_intercept": fit_intercept,
        "max_sweeps": max_sweeps,
        "scale": "none",
    }
    model = MODELS[name](fourier(32, 4.0), 2.0, random_state=0, solver=solver, **options)
    fitted(model, X, y, s)
    loss = (MARGINS | NOISES)[name]()
    s = s * np.where(y == 1, by_class[1], by_class[0])
    b = np.linspace(-8, 8, 20_001) if fit_intercept else np.zeros(1)  # the best of these is a bit too large
    of_constants = 2.0 * (s[y == 1].sum() * loss.value(b, 1.0) + s[y == 0].sum() * loss.value(b, -1.0))
    own = objective(loss, 2.0, model.coef_, model.decision_function(X), 2.0 * y - 1, s)
    assert own <= of_constants.min() * (1 + 1e-12)
    assert model.report_["primal"] == pytest.approx(own, rel=1e-9)


@pytest.mark.parametrize("max_sweeps", [1, None])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_no_softmax_model_is_worse_than_the_shares_of_the_classes(rng, fit_intercept, max_sweeps):
    X, y = rng.standard_normal((900, 10)), rng.choice(3, 900, p=[0.02, 0.38, 0.6])
    options = {"fit_intercept": fit_intercept, "max_sweeps": max_sweeps, "random_state": 0, "scale": "none"}
    model = drf.KernelLikelihoodClassifier(fourier(32, 4.0), 2.0, multi_class="softmax", **options)
    fitted(model, X, y)
    counts = np.bincount(y)
    share = counts / len(y) if fit_intercept else np.full(3, 1 / 3)
    most = -2.0 * counts @ np.log(share)
    proba = model.predict_proba(X)[np.arange(len(y)), y]
    own = -2.0 * np.log(proba).sum() + 0.5 * (model.coef_**2).sum()
    assert own <= most * (1 + 1e-9)
    assert model.report_["primal"] == pytest.approx(own, rel=1e-9)


@pytest.mark.parametrize("C", [1e-50, 1e-30, 1e-12, 1e12, 1e30, 1e50])
@pytest.mark.parametrize(
    ("name", "solver"), [*product(MODELS, ["auto", "sgd"]), ("softmax", "auto")]
)  # fmt: skip
def test_any_C_gives_a_model_or_advice(rng, name, C, solver):
    X = rng.standard_normal((300, 3))
    y = (X[:, 0] + 0.8 * rng.standard_normal(300) > 1).astype(int)
    options = {"random_state": 0, "max_sweeps": 40, "scale": "none"}
    if name != "softmax":
        model = MODELS[name](fourier(16), C, solver=solver, **options)
    else:
        y += X[:, 1] > 1.5
        model = drf.KernelLikelihoodClassifier(fourier(16), C, multi_class="softmax", **options)
    told = fitted(model, X, y)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.intercept_).all()
    for warning in told:
        if solver == "auto" and C < 1e-20:
            assert "is lost to rounding: use a C above" in warning
        elif solver == "auto" and C > 1e20:
            assert "the penalty is lost to rounding: use a C below" in warning
        else:
            assert "allow more by max_sweeps" in warning
    if C < 1 and name != "softmax":
        assert model.report_["status"] in ("CONVERGED", "CONVERGED_UNCERTIFIED")


@pytest.mark.parametrize("name", MODELS)
def test_a_C_that_no_sum_can_hold_is_refused(name):
    X, y = np.zeros((10, 2)), np.arange(10) % 2
    for C in (1e300, 1e-300):
        with pytest.raises(InputError, match=r"C must be from 1e-50 to 1e\+50, got"):
            MODELS[name](fourier(32, 4.0), C).fit(X, y)
    with pytest.raises(InputError, match=r"Cs must be from 1e-50 to 1e\+50, got 1e-60"):
        MODELS[name](fourier(32, 4.0), "cv", Cs=[1e-60, 1.0]).fit(X, y)


@pytest.mark.parametrize("noise", NOISES)
def test_advice_is_taken_with_success(rng, noise):
    """What a warning says helps: more sweeps, other numbers, a smaller C."""
    X = rng.standard_normal((600, 3))
    y = (X[:, 0] + 0.8 * rng.standard_normal(600) > 1).astype(int)
    kind = partial(drf.KernelLikelihoodClassifier, fourier(16), noise=noise, random_state=0, scale="none")

    few = fitted(kind(max_sweeps=1), X, y)
    assert "allow more by max_sweeps" in few[0]
    assert not fitted(kind(), X, y)

    # Rounding may as well fall so that the gap is closed.
    for warning in fitted(kind(C=1e10, dtype="float32"), X, y):
        assert "rounding ends it: use dtype='float64'" in warning
        assert not fitted(kind(C=1e10, dtype="float64"), X, y)

    for warning in fitted(kind(C=1e30), X, y):
        assert "beside C=1e+30 the penalty is lost to rounding: use a C below" in warning
        assert not fitted(kind(C=float(warning.rpartition(" ")[2]) / 10), X, y)
