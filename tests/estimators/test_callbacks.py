"""Callbacks of fits: what they are told, how they end a fit, and that nothing keeps them."""

import os
import pickle
import threading

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import r2_score

import distrff as drf
from distrff.errors import InputError
from tests.support.fits import fourier, in_process, margin_classifier

FITS = {
    "dual": lambda: margin_classifier("hinge", fourier(), 10.0),
    "hinge": lambda: margin_classifier("hinge", fourier(), 10.0, solver="smoothed"),
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


def test_a_stop_in_the_search_for_alpha_keeps_the_mean_of_the_folds(rows):
    labels = []

    def callback(progress):
        labels.append(progress.label)
        return progress.label == "held-out errors"

    binning = drf.RandomBinningFeatures(drf.Laplacian(2.0), 10)
    fitted = in_process(drf.KernelRidge(binning, random_state=0, callbacks=[callback]), *rows)
    assert fitted.report_["status"] == "STOPPED"
    assert labels[-1] == "held-out errors"
    assert np.isfinite(fitted.predict(rows[0])).all()


def test_callbacks_are_called_in_this_process_and_never_sent(rows, client):
    lock, seen = threading.Lock(), []

    def callback(progress):
        with lock:  # which cannot be pickled
            seen.append((os.getpid(), progress.error))

    fitted = FITS["hinge"]().set_params(callbacks=[callback]).fit(*rows)
    assert {pid for pid, _ in seen} == {os.getpid()}
    assert seen[-1][1] == pytest.approx(fitted.report_["duality_gap"])


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


# Early stopping.


@pytest.fixture
def held_out(rng):
    X = rng.normal(size=(400, 3))
    return X, (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] > 0).astype(float)


@pytest.mark.parametrize("name", ["dual", "hinge", "squared_hinge"])
def test_early_stopping_ends_after_sweeps_without_a_better_score(rows, held_out, name):
    stopping = drf.EarlyStopping(*held_out, patience=1, min_delta=1e9)  # nothing is better
    fitted = in_process(FITS[name]().set_params(callbacks=[stopping], tol=1e-10), *rows)
    assert fitted.report_["status"] == "STOPPED"
    assert len(stopping.scores_) == 2  # the first one is better than none
    assert stopping.scores_[-1][1] == pytest.approx(fitted.score(*held_out))
    assert stopping.best_score_ == max(score for _, score in stopping.scores_)
    best = stopping.best_model_.predict(held_out[0])
    assert stopping.best_score_ == pytest.approx(np.mean(best == held_out[1]))


@pytest.mark.parametrize("name", ["ridge by cg", "ridge by sgd"])
def test_regressors_are_scored_by_r2(rows, held_out, name):
    stopping = drf.EarlyStopping(*held_out)
    fitted = in_process(FITS[name]().set_params(callbacks=[stopping]), *rows)
    exact = r2_score(held_out[1], fitted.predict(held_out[0]))
    assert stopping.scores_[-1][1] == pytest.approx(exact)


def test_early_stopping_with_much_patience_changes_no_bit_and_counts_no_sweep(rows, held_out):
    plain = in_process(FITS["hinge"](), *rows)
    stopping = drf.EarlyStopping(*held_out, patience=1000)
    watched = in_process(FITS["hinge"]().set_params(callbacks=[stopping]), *rows)
    np.testing.assert_array_equal(plain.coef_, watched.coef_)
    assert plain.report_["n_sweeps"] == watched.report_["n_sweeps"]
    sweeps = [sweep for sweep, _ in stopping.scores_]
    assert sweeps == sorted(set(sweeps))


def test_early_stopping_starts_afresh_and_copies_share_the_rows(rows, held_out):
    stopping = drf.EarlyStopping(*held_out, patience=1, min_delta=1e9)
    estimator = FITS["hinge"]().set_params(callbacks=[stopping])
    first = in_process(estimator, *rows).coef_
    scores = stopping.scores_
    np.testing.assert_array_equal(first, in_process(estimator, *rows).coef_)
    assert stopping.scores_ == scores
    (copy,) = clone(estimator).callbacks
    assert copy.X is stopping.X


def test_early_stopping_refuses_what_it_cannot_score(rows, held_out):
    X, y = held_out
    for stopping, words in (
        (drf.EarlyStopping(X), "need targets"),
        (drf.EarlyStopping(X, y, patience=0), "patience"),
        (drf.EarlyStopping(X, y, min_delta=-1.0), "min_delta"),
        (drf.EarlyStopping(X[:, :2], y), "2 columns"),
    ):
        with pytest.raises(InputError, match=words):
            in_process(FITS["hinge"]().set_params(callbacks=[stopping]), *rows)
    with pytest.raises(AttributeError, match="scores_"):
        _ = drf.EarlyStopping(X, y).scores_


def test_a_pickle_has_no_callbacks(rows):
    fitted = in_process(FITS["hinge"]().set_params(callbacks=[lambda progress: None]), *rows)
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.callbacks is None
    np.testing.assert_array_equal(copy.predict(rows[0]), fitted.predict(rows[0]))
