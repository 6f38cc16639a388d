"""Models with absurd metadata whose checksums hold: they work or are refused in one line, in little memory.

Each value of the metadata of a small model of each kind is replaced by absurd ones, and each array by ones
of other shapes and types; the group is then sealed again. Some of these are drawn.
"""

import hashlib
import json
import shutil
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner

import distrff as drf
from distrff.cli import main
from distrff.errors import InputError
from distrff.io import storage as groups
from distrff.io.storage import ROOT
from tests.support.stored import ABSURD, GONE, NAMES, fitted, paths_of, replaced

N_PLAIN, N_SLOW = 6, 400  # forged models of each kind, of some two thousand
MOST_SECONDS, MOST_BYTES = 1.0, 2**26


@pytest.fixture(scope="module")
def stored(request, tmp_path_factory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator, how = fitted(request.param)
    path = tmp_path_factory.mktemp("forged") / "m.zarr"
    estimator.save(str(path), **how)
    return path


def forged_arrays(A: np.ndarray) -> Iterator[np.ndarray | dict[str, Any]]:
    """Other arrays, and descriptions of such as nobody could hold."""
    yield from (A[:0], A[..., None], A.reshape(-1), A.astype(np.float32), A.astype(np.int8), A > 0)
    yield from (np.float64(3.0), np.zeros((2, 3, 4)), np.concatenate([A, A]) if A.ndim else A)
    yield A * np.nan if A.dtype.kind == "f" else A
    yield from (np.full_like(A, v) for v in (0, -1, 100) if A.dtype.kind in "if")
    yield from ({"shape": shape} for shape in ([10**12], [10**6, 10**6], [-1], ["x"], None, [0, 10**12]))
    yield from ({"data_type": kind} for kind in ("object", "U99", "complex128", "nonsense", None, 5))


def forgeries(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[tuple]:
    metadata = header["metadata"]
    in_metadata = [
        ("metadata", path, value)
        for path in paths_of(metadata)
        if path[0] != "report" or len(path) <= 2  # what was told of the fit, nobody works with
        for value in [*ABSURD, GONE]
    ]
    whole = [("metadata", (), value) for value in ABSURD]
    in_arrays = [("array", name, forged) for name, A in arrays.items() for forged in forged_arrays(A)]
    return [*in_metadata, *whole, *in_arrays, *(("array", name, GONE) for name in arrays)]


def write(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], forgery: tuple) -> None:
    """Write the group with one thing forged, and seal it."""
    what, where, value = forgery
    metadata, arrays, descriptions = header["metadata"], dict(arrays), {}
    if what == "metadata":
        metadata = replaced(metadata, where, value) if where else value
    elif value is GONE:
        del arrays[where]
    elif isinstance(value, dict):
        descriptions[where] = value
    else:
        arrays[where] = np.ascontiguousarray(value)
    described = {name: groups._description(A) | descriptions.get(name, {}) for name, A in arrays.items()}
    checksums = {name: hashlib.sha256(A.tobytes()).hexdigest() for name, A in arrays.items()}
    header = {k: v for k, v in header.items() if k != "metadata_checksum"}
    header |= {"metadata": metadata, "checksums": checksums}
    header["metadata_checksum"] = groups._seal(header, described)
    shutil.rmtree(path, ignore_errors=True)
    fs = fsspec.filesystem("file", auto_mkdir=True)
    for name, A in arrays.items():
        fs.pipe_file(f"{path}/{name}/zarr.json", json.dumps(described[name]).encode())
        fs.pipe_file(f"{path}/{name}/{groups._chunk_key(A.ndim)}", A.tobytes())
    document = {"zarr_format": 3, "node_type": "group", "attributes": {ROOT: header}}
    fs.pipe_file(f"{path}/zarr.json", json.dumps(document).encode())


def use(path: Path) -> None:
    """All that a stored model is for."""
    model = drf.load_model(str(path))
    X = np.zeros((3, model.n_columns))
    model.transform(X)
    if model.kind != "KernelPCA":
        model.predict(X)
        model.decision(X)
    if model.likelihood is not None:
        model.predict_proba(X)
    if model.posterior is not None:
        model.std(X)
    if model.intervals is not None:
        (model.predict_set if model.is_classifier else model.predict_interval)(X, 0.5)
    assert model.digest and repr(model) and model._repr_html_()


def check(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], forgery: tuple) -> None:
    label = str(forgery)[:200]
    write(path, header, arrays, forgery)
    begun = time.perf_counter()
    tracemalloc.start()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(path)
    except InputError as error:
        told = str(error)
        assert "\n" not in told and str(path) in told and len(told) < len(str(path)) + 300, (label, told)
    except Exception as error:
        pytest.fail(f"{label}: {type(error).__name__}: {error}")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES, (label, peak)
    assert time.perf_counter() - begun < 10 * MOST_SECONDS, label  # whatever else the estimator does
    done = CliRunner().invoke(main, ["inspect", str(path)], prog_name="distrff")
    assert done.exit_code in (0, 2), (label, done.output)
    if done.exit_code:
        assert done.stderr.startswith("distrff: ") and done.stderr.count("\n") == 1, label


def taken_apart(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    header = json.loads((path / "zarr.json").read_text())["attributes"][ROOT]
    return header, groups.read_group(path, kind="model")[0]


@pytest.mark.parametrize("n", [N_PLAIN, pytest.param(N_SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stored", NAMES, indirect=True)
def test_forged_models(stored, tmp_path, n, rng):
    header, arrays = taken_apart(stored)
    all_of_them = forgeries(header, arrays)
    for i in rng.choice(len(all_of_them), n, replace=False):
        check(tmp_path / "m.zarr", header, arrays, all_of_them[i])


def test_a_number_that_stands_for_a_truth_value(tmp_path):
    """scikit-learn would take it for a number of columns, here 146 TiB of them."""
    fitted("splines")[0].save(str(tmp_path / "true.zarr"))
    forgery = ("metadata", ("specification", "parameters", "include_bias"), -(10**12))
    check(tmp_path / "m.zarr", *taken_apart(tmp_path / "true.zarr"), forgery)


@pytest.mark.parametrize("name", ["iid", "countsketch", "nystroem", "metric"])
@pytest.mark.parametrize("forged", [lambda A: A + 1, lambda A: A.T + 1], ids=["values", "shape"])
def test_a_forged_map_is_not_kept_for_the_next_model(name, forged, tmp_path):
    """A process keeps maps by their digest, and a forged file has that of the true map."""
    estimator, _ = fitted(name)
    estimator.save(str(tmp_path / "true.zarr"))
    header, arrays = taken_apart(tmp_path / "true.zarr")
    for array in (array for array in arrays if array.startswith("map_")):
        write(tmp_path / "m.zarr", header, arrays, ("array", array, forged(arrays[array])))
        with suppress(InputError):
            use(tmp_path / "m.zarr")
    X = np.random.default_rng(1).standard_normal((5, 20))
    true = drf.load_model(str(tmp_path / "true.zarr"))
    np.testing.assert_array_equal(true.predict(X), estimator.predict(X))


@pytest.mark.parametrize("stored", NAMES, indirect=True)
def test_sizes_beyond_what_is_stored(stored, tmp_path, rng):
    """The first thing that somebody would write: more features, or columns, than there are numbers for.

    A model that is written so, but unforged, is read.
    """
    header, arrays = taken_apart(stored)
    write(tmp_path / "m.zarr", header, arrays, ("metadata", ("model",), header["metadata"]["model"]))
    use(tmp_path / "m.zarr")
    sizes = ("n_columns", "n_components", "n_bins", "n_outputs", "n_features")
    found = [p for p in paths_of(header["metadata"]["specification"]) if p[-1] in sizes]
    assert found
    for path in found:
        for size in (10**12, (2**63, -1, 0)[rng.integers(3)]):
            forgery = ("metadata", ("specification", *path), size)
            check(tmp_path / "m.zarr", header, arrays, forgery)
            if len(path) == 1:  # those of parts are not asked for, as their arrays tell
                with pytest.raises(InputError, match=r"m\.zarr"):
                    drf.load_model(str(tmp_path / "m.zarr"))


@pytest.mark.parametrize(
    ("name", "array", "forged"),
    [
        ("fastfood", "map_order", lambda A: A[:0]),
        ("fastfood", "map_radii", lambda A: np.tile(A, 100)),
        ("countsketch", "map_buckets", lambda A: A[:0]),
        ("countsketch", "map_buckets", lambda A: A - 2048),
        ("binning", "map_steps", lambda A: A[:, :3]),
        ("binning", "map_keys", lambda A: A[:-1]),
        ("binning", "map_ends", lambda A: A[::-1]),
        ("metric of bins", "map_inner_steps", lambda A: np.concatenate([A, A])),
        ("metric of bins", "map_inner_ends", lambda A: A + 1),
        ("sketch", "map_indexHash", lambda A: A > 0),
        ("intervals", "interval_keys", lambda A: A[::-1]),
        ("intervals", "interval_keys", lambda A: A[:-1]),
        ("intervals", "interval_weights", lambda A: -A),
        ("intervals", "interval_weights", lambda A: np.full(len(A), 1e308)),
        ("intervals", "interval_ends", lambda A: A[::-1]),
        ("intervals", "interval_ends", lambda A: np.int64(A[-1])),
        ("intervals", "interval_ends", lambda A: np.array([2**63 - 1, *A[1:]])),
        ("sets", "interval_ends", lambda A: np.r_[A // 2, A]),
    ],
)
def test_arrays_that_do_not_fit_together(name, array, forged, tmp_path):
    """Compiled loops would follow them out of their arrays, or a second row would end in a traceback."""
    fitted(name)[0].save(str(tmp_path / "true.zarr"))
    header, arrays = taken_apart(tmp_path / "true.zarr")
    write(tmp_path / "m.zarr", header, arrays, ("array", array, forged(arrays[array])))
    with pytest.raises(InputError, match=r"m\.zarr"):
        drf.load_model(str(tmp_path / "m.zarr"))


@pytest.mark.parametrize(
    ("name", "words", "metadata", "arrays"),
    [
        ("iid", "lacks the arrays of its map", {"n_columns": 2**20}, {"map_frequencies": GONE}),
        ("nystroem", "do not fit its sizes", {"rank": 2**15}, {"map_landmarks": np.zeros((2**15, 20))}),
        ("iid", "nothing is known of an array 'other'", {}, {"other": np.zeros(3)}),
        ("classes", "class labels have the dtype", {}, {}),
    ],
)
def test_more_than_is_stored(name, words, metadata, arrays, tmp_path):
    """What follows from a few numbers could take gigabytes: frequencies, factors, wide labels."""
    fitted(name)[0].save(str(tmp_path / "true.zarr"))
    header, true = taken_apart(tmp_path / "true.zarr")
    header["metadata"]["specification"] |= metadata
    if name == "classes":
        header["metadata"]["classes"] = {"dtype": "<U99999999", "labels": ["a", "b", "c"]}
    last = list(arrays)[-1] if arrays else "coef"
    forgery = ("array", last, arrays.get(last, true["coef"]))
    check(tmp_path / "m.zarr", header, true, forgery)
    with pytest.raises(InputError, match=words):
        drf.load_model(str(tmp_path / "m.zarr"))


def test_intervals_belong_to_the_metadata_that_tell_of_them(tmp_path):
    """Models of earlier versions tell of none, and have none."""
    for name in ("iid", "intervals"):
        fitted(name)[0].save(str(tmp_path / f"{name}.zarr"))
    older, newer = (taken_apart(tmp_path / f"{name}.zarr") for name in ("iid", "intervals"))
    path = tmp_path / "m.zarr"
    write(path, *older, ("metadata", ("intervals",), GONE))
    assert drf.load_model(str(path)).intervals is None
    write(path, *newer, ("metadata", ("intervals", "n_groups"), GONE))  # as before there were groups
    assert drf.load_model(str(path)).intervals.n_groups == 0
    header, arrays = newer
    ends = arrays["interval_ends"][:2]  # of two targets
    kept = {name: arrays[name][: ends[-1]] for name in ("interval_keys", "interval_weights")}
    old = arrays | kept | {"interval_ends": ends}
    write(path, header, old, ("metadata", ("intervals", "floors"), GONE))
    found = drf.load_model(str(path))  # as before there were scores in standard deviations
    assert not found.intervals.scaled and found.interval_method() == "constant"
    write(path, *newer, ("metadata", ("intervals",), GONE))
    with pytest.raises(InputError, match="nothing is known of an array 'interval_"):
        drf.load_model(str(path))
    for key, value in [
        ("source", "by an oracle"), ("source", ["calibrated"]), ("n_rows", -1), ("n_rows", 2.5),
        ("n_rows", True), ("n_outside", None), ("n_unseen", 2**64), ("n_groups", "some"),
        ("floors", 1.0), ("floors", [1.0]), ("floors", [1.0, 0.0]), ("floors", ["1", 2]), ("floors", [1] * 5),
    ]:  # fmt: skip
        write(path, *newer, ("metadata", ("intervals", key), value))
        with pytest.raises(InputError, match=r"m\.zarr"):
            drf.load_model(str(path))
