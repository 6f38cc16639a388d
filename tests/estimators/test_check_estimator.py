"""scikit-learn's own checks of everything that claims to be one of its estimators."""

from __future__ import annotations

from typing import Any

from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from distrff.estimators.pca import KernelPCA
from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
from distrff.estimators.svm import KernelLikelihoodClassifier, KernelSVC
from distrff.features.binning import RandomBinningFeatures
from distrff.features.compose import ConcatenatedFeatures, LinearFeatures
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.transformer import TransformerFeatures
from distrff.kernels.stationary import Gaussian, Laplacian

_PAIRS = "sets n_components=1, but the features of form='cos_sin' come in pairs"
_NEEDS_PAIRS = dict.fromkeys(
    (
        "check_dont_overwrite_parameters",
        "check_fit2d_1feature",
        "check_fit2d_1sample",
        "check_fit2d_predict1d",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
    ),
    _PAIRS,
)
_AUTOMATIC = {
    "check_sample_weight_equivalence_on_dense_data": (
        "an automatic width is judged on a random quarter of the rows, another one where rows are repeated"
    ),
}


def small_map(width: float | str = 1.0, **options: Any) -> FourierFeatures:
    return FourierFeatures(Gaussian(width), 64, random_state=0, **options)


_LANDMARKS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "landmarks are drawn by row numbers, which are others where rows are repeated or removed"
    ),
}


_FOLDS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "of few rows 'gcv' judges alpha on a fold, drawn by row numbers, others where rows are repeated"
    ),
}


_MEANS = {
    # Asked by scikit-learn before 1.7 whatever the tags say.
    "check_sample_weight_equivalence_on_sparse_data": "scale='standard' refuses sparse rows",
}


def expected_failures(estimator: Any) -> dict[str, str]:
    """Return the checks that an estimator fails by design, with the reasons."""
    if isinstance(getattr(estimator, "features", estimator), NystroemFeatures):
        return _LANDMARKS
    if getattr(estimator, "scale", "none") == "standard" and isinstance(estimator.features, FourierFeatures):
        return _MEANS | (_FOLDS if getattr(estimator, "alpha", None) == "gcv" else {})
    if not isinstance(estimator, FourierFeatures):
        return {}
    automatic = _AUTOMATIC if estimator.kernel is not None and estimator.kernel.is_auto else {}
    return automatic | (_NEEDS_PAIRS if estimator.form == "cos_sin" else {})


ESTIMATORS = [
    KernelRidge(),
    # The checks ask for a score on ten standardised columns, whose distances are about √20.
    KernelRidge(small_map(4.0), alpha="gcv", scale="standard"),
    KernelRidge(small_map(4.0), scale="standard", solver="cg", tol=1e-10),
    KernelRidgeClassifier(small_map()),
    KernelPCA(small_map()),
    KernelLikelihoodClassifier(small_map(), C=10.0),
    KernelLikelihoodClassifier(small_map(), C=10.0, multi_class="softmax"),
    # Two ways of weighting are compared to more digits than the default tolerance asks for.
    KernelSVC(small_map(), C=10.0, tol=1e-9),
    KernelSVC(small_map(), C=10.0, loss="squared_hinge"),
    small_map(),
    small_map(form="phase"),
    small_map("auto", form="phase"),
    LinearFeatures(),
    NystroemFeatures(n_components=4, random_state=0),
    NystroemFeatures(n_components=4, landmarks="leverage", random_state=0),
    TransformerFeatures(PolynomialFeatures(2)),
    TransformerFeatures(StandardScaler()),
    ConcatenatedFeatures([small_map(form="phase"), LinearFeatures()], weights=[2.0, 1.0]),
    RandomBinningFeatures(n_grids=4, random_state=0),
    RandomBinningFeatures(n_grids=4, n_bins=64, random_state=0),
    KernelRidge(RandomBinningFeatures(Laplacian(20.0), 32, random_state=0), scale="standard", tol=1e-10),
    KernelRidge(NystroemFeatures(Gaussian(4.0), 8, random_state=0), scale="standard"),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
