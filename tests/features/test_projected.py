"""Maps of kernels with a metric: those of the kernel without it, of projected rows."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

from distrff import Cauchy, Gaussian, Laplacian, Matern, NystroemFeatures, RandomBinningFeatures
from distrff.errors import InputError
from distrff.features.fitted import Trait, project
from distrff.features.fourier import FORMS, SAMPLING_CHOICES, FourierFeatures
from tests.support.draws import seed_of

R, D_COLUMNS = 17, 20
P = np.random.default_rng(0).standard_normal((R, D_COLUMNS)) / 4
MAPS = {
    **{s: FourierFeatures(Matern(1.5), 64, sampling=s) for s in SAMPLING_CHOICES},
    **{form: FourierFeatures(Gaussian(2.0), 64, form=form) for form in FORMS},
    "product of columns": FourierFeatures(Cauchy(2.0), 64),
    "auto": FourierFeatures(Gaussian("auto"), 64),
    "nystroem": NystroemFeatures(Matern(2.0, nu=2.5), 24),
    "nystroem auto": NystroemFeatures(Laplacian("auto"), 24),
    "leverage": NystroemFeatures(Gaussian(2.0), 24, landmarks="leverage"),
    "binning": RandomBinningFeatures(Laplacian(3.0), 8),
    "binning auto": RandomBinningFeatures(Laplacian("auto"), 8),
    "hashed": RandomBinningFeatures(Laplacian(3.0), 8, n_bins=64),
}


def with_metric(map_, metric=P):
    return clone(map_).set_params(kernel__metric=metric)


def dense(Z):
    return Z.toarray() if hasattr(Z, "toarray") else Z


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MAPS)
def test_it_is_the_map_of_projected_rows(name, dtype, rng):
    X = rng.standard_normal((60, D_COLUMNS)).astype(dtype)
    projected, y = project(X, P), X[:, 0]
    np.testing.assert_allclose(projected, X @ P.T, rtol=0, atol=20 * np.finfo(dtype).eps * 20)
    seed = seed_of(rng)
    map_ = with_metric(MAPS[name]).set_params(random_state=seed).fit(X, y)
    inner = clone(MAPS[name]).set_params(random_state=seed).fit(projected, y)
    np.testing.assert_array_equal(dense(map_.transform(X)), dense(inner.transform(projected)))
    assert map_.kernel_ == inner.kernel_.set_params(metric=P) == map_.specification_.kernel
    assert map_.length_scale_search_ == inner.length_scale_search_
    spec = map_.specification_
    assert map_.n_features_in_ == spec.n_columns == D_COLUMNS
    for what in ("n_features", "row_entries", "at_zero"):
        assert getattr(spec, what) == getattr(inner.specification_, what), what
    assert spec.traits == inner.specification_.traits | {Trait.FROM_ROWS}
    assert spec.nested_sizes() == inner.specification_.nested_sizes()
    assert spec.cost.flops(64) == inner.specification_.cost.flops(64) + 2 * R * D_COLUMNS
    assert map_.outline(D_COLUMNS, 100).cost == spec.cost
    if isinstance(map_, FourierFeatures) and map_.form == "cos_sin":
        theta = X.astype(np.float64) @ map_.frequencies_
        pairs = np.stack([np.cos(theta), np.sin(theta)], axis=2).reshape(60, 64) / np.sqrt(32)
        np.testing.assert_allclose(map_.transform(X), pairs, atol=2e3 * np.finfo(dtype).eps)
    for use, metric, message in (
        (lambda m: m.fit(X), np.eye(3), "the metric has 3 columns, the data 20"),
        (lambda m: m.check_columns(D_COLUMNS), np.eye(3), "the metric has 3 columns, the data 20"),
        (lambda m: m.fit(X), "learned", "targets"),
    ):
        with pytest.raises(InputError, match=message):
            use(with_metric(MAPS[name], metric))
    assert not with_metric(MAPS[name], "learned").takes_sparse_rows


@pytest.mark.parametrize("name", MAPS)
def test_sparse_rows_are_projected(name, rng):
    X = np.where(rng.random((60, D_COLUMNS)) < 0.3, rng.standard_normal((60, D_COLUMNS)), 0.0)
    map_ = with_metric(MAPS[name]).set_params(random_state=seed_of(rng))
    assert map_.takes_sparse_rows
    sparse = clone(map_).fit(csr_matrix(X))
    Z, of_dense = dense(sparse.transform(csr_matrix(X))), dense(map_.fit(X).transform(X))
    np.testing.assert_allclose(project(csr_matrix(X), P), project(X, P), rtol=1e-12, atol=1e-12)
    # Products, as rounding may change which of the landmarks comes first.
    np.testing.assert_allclose(Z @ Z.conj().T, of_dense @ of_dense.conj().T, atol=1e-8)
    assert sparse.specification_.takes_sparse_rows
    shares = [sparse.specification_.cost.flops(64, share) for share in (0.0, 1.0)]
    assert shares[1] - shares[0] == 2 * R * D_COLUMNS + sparse.specification_.inner.cost.row_flops


def test_a_metric_is_sent_apart_and_the_frequencies_are_derived(rng):
    X = rng.standard_normal((50, D_COLUMNS))
    for name, carried in (("iid", {"map_metric"}), ("nystroem", {"map_metric", "map_inner_landmarks"})):
        spec = with_metric(MAPS[name]).fit(X).specification_
        assert set(spec.arrays_to_send(derived=False)) == carried
        derived = set(spec.derive())
        assert set(spec.arrays_to_send(derived=True)) == {f"map_{key}" for key in derived}
        light = spec.without_arrays()
        assert len(pickle.dumps(light)) < 2000 and light == spec and not light.arrays_at_hand
        sent = light.build_sent(spec.arrays_to_send(derived=False))
        Z = spec.build().apply(X)
        np.testing.assert_array_equal(sent.apply(X), Z)
        coef = rng.standard_normal((spec.n_features, 2))
        F = sent.basis_tile(X) @ sent.basis_coef(coef, X.dtype)
        np.testing.assert_allclose(F, Z @ coef, atol=1e-8)
        sums = sent.feature_sums(np.ones((1, 50)) @ sent.basis(X))
        np.testing.assert_allclose(sums[0], Z.sum(axis=0), atol=1e-8)
        other = with_metric(MAPS[name], P * (1 + 1e-12)).set_params(random_state=0).fit(X).specification_
        assert other != with_metric(MAPS[name]).set_params(random_state=0).fit(X).specification_
        again = light.with_arrays(spec.checked_arrays())
        assert again.kernel == spec.kernel and again.digested(again.derive()) == spec
