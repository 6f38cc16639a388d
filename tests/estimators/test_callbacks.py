"""Callbacks of fits: what they are told, how they end a fit, and that nothing keeps them."""

import numpy as np
import pytest
from sklearn.base import clone

import distrff as drf
from distrff.engine.progress import expected_sweeps
from distrff.errors import InputError
from tests.support.fits import fourier, in_process, margin_classifier

FITS = {
    "hinge": lambda: margin_classifier("hinge", fourier(), 10.0),
    "squared_hinge": lambda: margin_classifier("squared_hinge", fourier(), 10.0),
    "likelihood by sgd": lambda: margin_classifier("logistic", fourier(), solver="sgd"),
    "ridge by cg": lambda: drf.KernelRidge(fourier(), 1e-2, solver="cg", tol=1e-12, random_state=0),
    "ridge by sgd": lambda: drf.KernelRidge(fourier(), 1.0, solver="sgd", random_state=0),
}


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(900, 3))
    return X, (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] > 0).astype(float)


def told_to(seen, stop_at=None):
    def callback(progress):
        seen.append((progress, progress.model))
        return progress.error is not None and progress.sweep == stop_at

    return callback


@pytest.mark.parametrize("name", FITS)
def test_the_last_call_shows_the_model_and_the_error_of_the_report(rows, name):
    seen = []
    fitted = in_process(FITS[name]().set_params(callbacks=[told_to(seen)]), *rows)
    labels = [progress.label for progress, _ in seen]
    assert labels == fitted.report_["sweep_labels"]  # each pass once
    errors = [progress.error for progress, _ in seen if progress.error is not None]
    assert errors[-1] == pytest.approx(fitted.report_["history"]["error"][-1])
    np.testing.assert_allclose(seen[-1][1].coef, fitted.model_.coef)
    np.testing.assert_allclose(seen[-1][1].intercept, fitted.model_.intercept)


@pytest.mark.parametrize("name", ["hinge", "squared_hinge"])
def test_true_ends_the_fit_with_the_best_model_so_far(rows, name):
    seen = []
    fitted = in_process(FITS[name]().set_params(callbacks=[told_to(seen, stop_at=2)]), *rows)
    assert fitted.report_["status"] == "STOPPED"
    assert seen[-1][0].sweep == 2
    np.testing.assert_array_equal(seen[-1][1].coef, fitted.model_.coef)


def test_true_before_there_is_a_model_ends_the_fit_at_its_first_one(rows):
    seen = []

    def stop(progress):
        seen.append(progress)
        return True

    fitted = in_process(FITS["squared_hinge"]().set_params(callbacks=[stop]), *rows)
    assert fitted.report_["status"] == "STOPPED"
    assert [progress.error is None for progress in seen] == [True, True, False]


def test_a_stop_in_the_search_for_c_keeps_a_model(rows):
    callback = told_to([], stop_at=1)
    estimator = margin_classifier("squared_hinge", fourier(), "cv", callbacks=[callback])
    assert in_process(estimator, *rows).report_["status"] == "STOPPED"


def test_a_direct_fit_has_nothing_left_to_stop(rows):
    seen = []

    def stop(progress):
        seen.append(progress.label)
        return True

    fitted = in_process(drf.KernelRidge(fourier(), callbacks=[stop]), *rows)
    assert fitted.report_["status"] == "CONVERGED"
    assert seen == fitted.report_["sweep_labels"]


def test_the_same_bits_with_callbacks(rows):
    plain = in_process(FITS["hinge"](), *rows)
    told = in_process(FITS["hinge"]().set_params(callbacks=[told_to([])]), *rows)
    np.testing.assert_array_equal(plain.coef_, told.coef_)


def test_what_a_callback_raises_ends_the_fit(rows):
    def fail(progress):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        in_process(FITS["hinge"]().set_params(callbacks=[fail]), *rows)


@pytest.mark.parametrize("wrong", [print, "print", [1], {"a": print}])
def test_wrong_callbacks_are_refused_at_fit(rows, wrong):
    estimator = clone(FITS["hinge"]().set_params(callbacks=wrong))
    with pytest.raises(InputError, match="callbacks must be"):
        in_process(estimator, *rows)


def test_a_checkpoint_of_a_stopped_fit_goes_on_with_other_callbacks(rows, tmp_path):
    first, again = [], []
    place = str(tmp_path / "kept")
    stopped = FITS["hinge"]().set_params(callbacks=[told_to(first, stop_at=3)])
    stopped.fit(*rows, checkpoint=place, checkpoint_every=0.001)
    assert stopped.report_["status"] == "STOPPED"
    whole = FITS["hinge"]().set_params(callbacks=[told_to(again)])
    whole.fit(*rows, checkpoint=place)
    errors = [[progress.error for progress, _ in seen if progress.error] for seen in (first, again)]
    assert errors[1][:3] == errors[0]
    np.testing.assert_array_equal(whole.coef_, FITS["hinge"]().fit(*rows).coef_)


# How many sweeps are expected.


@pytest.mark.parametrize("share", [0.3, 0.7, 0.85])
def test_a_steady_fall_is_foreseen_exactly(share):
    n_needed = int(np.ceil(np.log(1e-3) / np.log(share)))
    errors = share ** np.arange(1, n_needed + 1)
    half = -(-n_needed // 2)
    assert abs(expected_sweeps(errors[:half], 1e-3) - n_needed) <= 1
    assert expected_sweeps(errors, 1e-3 * 1.001) == n_needed


def test_more_sweeps_are_always_expected_above_the_tolerance(rng):
    for n in range(1, 60):
        errors = np.exp(rng.normal(size=n).cumsum())
        expected = expected_sweeps(errors, errors.min() / 2)
        assert n < expected <= max(10, n + 1, 3 * n)
    assert expected_sweeps([], 1e-3) == expected_sweeps([np.inf, np.nan, 1.0], 1e-3) == 10
