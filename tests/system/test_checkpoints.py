"""Fits that are stopped and go on from their checkpoint, and what a checkpoint refuses."""

import json
import shutil
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer

import distrff as drf
from distrff.engine import checkpoint as checkpoints
from distrff.engine.tasks import Partial, WorkRecord
from distrff.errors import InputError
from distrff.estimators.base import open_rows
from distrff.io.parts import CheckpointStore, StoredSums, remove_checkpoint
from distrff.io.storage import BUFFER_BYTES, Location
from distrff.preprocessing.splits import BlockFolds, ForwardFolds
from distrff.utils.serialize import DamagedValue, decoded
from tests.support.fits import classes_of, fourier, margin_classifier, small_ridge

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture
def rows(rows) -> tuple[np.ndarray, np.ndarray]:
    """The first six segments and a part: more would only repeat them."""
    return rows[0][:6_011], rows[1][:6_011]


class Stopped(Exception):
    """Stands for the death of the client after a step; real ones are in the chaos benchmark."""


@pytest.fixture
def stopped(monkeypatch):
    """A function that lets the client stop after so many further steps; none for ever."""
    keep = checkpoints.Checkpoint.keep
    left = {"steps": None}

    def counted(self, *args):
        keep(self, *args)
        if left["steps"] is not None:
            left["steps"] -= 1
            if left["steps"] <= 0:
                raise Stopped

    monkeypatch.setattr(checkpoints.Checkpoint, "keep", counted)
    return lambda steps: left.update(steps=steps)


ESTIMATORS = {
    "Gram, folds": lambda: small_ridge("cv"),
    "spans": lambda: small_ridge("cv", cv=ForwardFolds(0, 3, gap=0.1, window=1.0)),
    "cells, of which folds lack rows": lambda: small_ridge("cv", cv=BlockFolds([0], 100.0, n_folds=8)),
    "Gram, chosen width": lambda: drf.KernelRidge(drf.FourierFeatures(n_components=32), "cv", random_state=0),
    "conjugate gradients": lambda: small_ridge(1e-2, solver="cg"),
    "SGD": lambda: small_ridge(1.0, solver="sgd", max_sweeps=8, tol=0.1),
    "binning": lambda: drf.KernelRidge(
        drf.RandomBinningFeatures(drf.Laplacian(4.0), 8), "cv", alphas=[0.1, 1.0], cv=3, random_state=0
    ),
    "hinge": lambda: margin_classifier("hinge", fourier(16)),
    "chosen C": lambda: margin_classifier("squared_hinge", fourier(16), "cv", Cs=[0.01, 1.0], cv=3),
    "logistic": lambda: margin_classifier("logistic", fourier(32)),
    "components": lambda: drf.KernelPCA(fourier(32), n_components=2, random_state=0),
}


def bits(fitted):
    return fitted.model_.coef.tobytes(), fitted.model_.intercept.tobytes()


def data_for(name, X, y):
    if name == "components":
        return (X,)
    return X, classes_of(y) if name in ("hinge", "chosen C", "logistic") else y


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:skipped among folds")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_goes_on_where_it_was_stopped(rows, in_this_thread, stopped, tmp_path, name):
    """The same bits, the same history of passes, and no step twice, wherever it is stopped."""
    data, kept = data_for(name, *rows), {"checkpoint": tmp_path / "kept", "checkpoint_every": 0}
    quiet, n_fits = ESTIMATORS[name]().fit(*data), 0
    while True:
        stopped(5)
        try:
            fitted = ESTIMATORS[name]().fit(*data, **kept)
            break
        except Stopped:
            n_fits += 1
        assert n_fits < 200
    assert bits(fitted) == bits(quiet)
    assert fitted.report_["sweep_labels"] == quiet.report_["sweep_labels"]
    again = ESTIMATORS[name]().fit(*data, **kept)
    assert bits(again) == bits(quiet)
    n_sweeps = quiet.report_["n_sweeps"]
    assert f"{n_sweeps} of {n_sweeps} passes were read from the checkpoint" in again.report_["notes"]


@pytest.mark.parametrize("large", [False, True], ids=["sums in the client", "sums on the workers"])
def test_a_pass_goes_on_after_the_segments_that_were_summed(rows, client, monkeypatch, tmp_path, large):
    """The pass fails at a row near its end; once that is mended, only what is not stored is summed."""
    if large:
        monkeypatch.setattr("distrff.engine.distributed._SMALL_BYTES", 0)
    left, segments_left = [], checkpoints.PassSums.segments_left

    def seen(sums, nodes):
        left.append(segments_left(sums, nodes))
        return left[-1]

    monkeypatch.setattr(checkpoints.PassSums, "segments_left", seen)
    X, y = rows
    kept = {"checkpoint": str(tmp_path / "kept"), "checkpoint_every": 0}
    quiet, bad = small_ridge().fit(X, y), X.copy()
    bad[-2] = np.nan  # the last one is among those by which the rows are recognized
    for _ in range(3):  # on a busy machine the last segment may fail before the first is stored
        with pytest.raises(InputError, match="NaN"):
            small_ridge().fit(da.from_array(bad, chunks=(4096, -1)), y, **kept)
    of_first_pass = len(left[0])
    left.clear()
    fitted = small_ridge().fit(da.from_array(X, chunks=(4096, -1)), y, **kept)
    assert bits(fitted) == bits(quiet)
    assert 0 < len(left[0]) < of_first_pass
    assert of_first_pass - 1 in left[0], "the last segment, which failed"


def test_a_checkpoint_is_no_larger_than_stated(rows, client, monkeypatch, tmp_path):
    """Sums that others cover go; the largest number is what the docstring of `fit` states."""
    monkeypatch.setattr("distrff.engine.distributed._SMALL_BYTES", 0)
    (X, y), sizes, append = rows, [], CheckpointStore.append

    def measured(store, *args):
        append(store, *args)
        files = [file for file in (tmp_path / "kept" / "sums").rglob("*.part")]
        sizes.append(sum(file.stat().st_size for file in files))

    monkeypatch.setattr(CheckpointStore, "append", measured)
    fitted = small_ridge("cv").fit(X, y, checkpoint=tmp_path / "kept", checkpoint_every=0)
    plan, n_numbers = fitted.report_["plan"], 32 + 1 + 1
    n_sums = 3 * fitted.report_["workers"] * (1 + (plan["n_segments"] - 1).bit_length())
    of_header = 4096
    assert 0 < max(sizes) <= n_sums * (plan["n_folds"] * 4 * n_numbers * (n_numbers + 1) + of_header)


def test_rows_that_changed_are_refused(rows, in_this_thread, tmp_path):
    """Twenty targets of many thousand, none of them among the sampled rows."""
    (X, y), group = rows, zarr.create_group(tmp_path / "rows.zarr")
    group.create_array("X", data=X, chunks=(4096, X.shape[1]))
    group.create_array("y", data=y, chunks=(4096,))
    for data in ((X, y), (drf.open_dataset(tmp_path / "rows.zarr"),)):
        place = tmp_path / f"kept-{len(data)}"
        fitted = small_ridge().fit(*data, checkpoint=place)
        again = small_ridge().fit(*data, checkpoint=place)
        assert bits(again) == bits(fitted)
    y = y.copy()
    y[100:120] += 1
    group["y"][:] = y
    with pytest.raises(InputError, match="the rows: changed"):
        small_ridge().fit(X, y, checkpoint=tmp_path / "kept-2")
    with pytest.raises(InputError, match="versions of the files: changed"):
        small_ridge().fit(drf.open_dataset(tmp_path / "rows.zarr"), checkpoint=tmp_path / "kept-1")


def test_a_store_that_does_not_delete(rows, in_this_thread, monkeypatch, tmp_path):
    """The fit goes on: what is left over takes room, but changes nothing."""

    def refuses(*_):
        raise InputError("no deletes here")

    quiet = small_ridge("cv").fit(*rows)
    monkeypatch.setattr(CheckpointStore, "remove", refuses)
    fitted = small_ridge("cv").fit(*rows, checkpoint=tmp_path / "kept", checkpoint_every=0)
    assert bits(fitted) == bits(quiet)


def test_a_store_that_does_not_answer_loses_no_sum(monkeypatch):
    monkeypatch.setattr("distrff.io.storage._WAITS", (0.0,) * 4)
    place, n_lost = StoredSums(Location.of("memory://checkpoints/pass")), [2]
    place.write((0, 0), Partial(np.arange(3.0), WorkRecord()))
    opened = MemoryFileSystem._open

    def loses(*args, **options):
        n_lost[0] -= 1
        if n_lost[0] >= 0:
            raise ConnectionResetError("lost")
        return opened(*args, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", loses)
    try:
        np.testing.assert_array_equal(place.read((0, 0)).value, np.arange(3.0))
        n_lost[0] = 100
        with pytest.raises(InputError, match="cannot be read"):
            place.read((0, 0))
        n_lost[0] = 0
        np.testing.assert_array_equal(place.read((0, 0)).value, np.arange(3.0))
    finally:
        Location.of("memory://checkpoints").remove()


def test_a_header_that_is_lost_meanwhile_is_written_again(rows, in_this_thread, monkeypatch, tmp_path):
    place, keep = tmp_path / "kept", checkpoints.Checkpoint.keep

    def removed(checkpoint, *args):
        keep(checkpoint, *args)
        shutil.rmtree(place, ignore_errors=True)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.Checkpoint, "keep", removed)
        fitted = small_ridge("cv").fit(*rows, checkpoint=place, checkpoint_every=0)
    assert bits(small_ridge("cv").fit(*rows, checkpoint=place)) == bits(fitted)


def test_a_seed_that_was_drawn_is_kept(rows, in_this_thread, stopped, tmp_path):
    X, y = rows
    fits = [drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(2.0), 32), 1.0) for _ in range(2)]
    stopped(2)
    with pytest.raises(Stopped):
        fits[0].fit(X, y, checkpoint=tmp_path / "kept", checkpoint_every=0)
    stopped(None)
    header = json.loads((tmp_path / "kept" / "_distrff.json").read_text())["attributes"]["distrff"]
    assert fits[1].fit(X, y, checkpoint=tmp_path / "kept").seed_ == header["seed"]


@pytest.mark.parametrize("model", [small_ridge("cv"), ESTIMATORS["chosen C"]()], ids=["alpha", "C"])
def test_folds_are_those_of_the_seed_of_the_start(rows, in_this_thread, stopped, tmp_path, model):
    """Without random_state each call draws a seed, and the first one's holds for its folds as well."""
    X, y = rows[0], rows[1] if isinstance(model, drf.KernelRidge) else classes_of(rows[1])
    model, kept = (
        model.set_params(random_state=None),
        {"checkpoint": tmp_path / "kept", "checkpoint_every": 0},
    )
    stopped(3)
    with pytest.raises(Stopped):
        clone(model).fit(X, y, **kept)
    stopped(None)
    fitted = clone(model).fit(X, y, **kept)
    assert bits(fitted) == bits(clone(model).set_params(random_state=fitted.seed_).fit(X, y))
    again = clone(model).fit(X, y, **kept)
    n_sweeps = fitted.report_["n_sweeps"]
    assert f"{n_sweeps} of {n_sweeps} passes were read from the checkpoint" in again.report_["notes"]


def test_another_fit_is_refused_with_what_differs(rows, in_this_thread, tmp_path):
    X, y = rows
    small_ridge().fit(X, y, checkpoint=tmp_path / "kept")
    with pytest.raises(InputError, match=r"alpha was 1\.0, now 2\.0"):
        small_ridge(2.0).fit(X, y, checkpoint=tmp_path / "kept")
    with pytest.raises(InputError, match=r"rows was \d+ x 3 of float64, now"):
        small_ridge().fit(X[:-1], y[:-1], checkpoint=tmp_path / "kept")
    with pytest.raises(InputError, match="the rows: changed"):
        small_ridge().fit(X + 1, y, checkpoint=tmp_path / "kept")
    groups = np.arange(len(y)) % 5
    data = [open_rows(X, y, groups=g) for g in (groups, groups[::-1])]
    small_ridge().fit(data[0], checkpoint=tmp_path / "grouped")
    with pytest.raises(InputError, match="the rows: changed"):
        small_ridge().fit(data[1], checkpoint=tmp_path / "grouped")
    with pytest.raises(InputError, match="columns beside X was groups, now"):
        small_ridge().fit(X, y, checkpoint=tmp_path / "grouped")
    with pytest.raises(InputError, match=r"features\.n_components was 32, now 16"):
        drf.KernelRidge(fourier(16, random_state=None), 1.0, random_state=0, scale="none").fit(
            X, y, checkpoint=tmp_path / "kept"
        )


def test_a_fit_that_memory_ended_goes_on_with_nothing_kept(rows, in_this_thread, stopped, tmp_path):
    """What is kept between passes changes no bit, and so is no other fit."""
    data, kept = data_for("hinge", *rows), {"checkpoint": tmp_path / "kept", "checkpoint_every": 0}
    stopped(3)
    with pytest.raises(Stopped):
        ESTIMATORS["hinge"]().fit(*data, **kept)
    stopped(None)
    fitted = ESTIMATORS["hinge"]().set_params(keep_features=False).fit(*data, **kept)
    assert bits(fitted) == bits(ESTIMATORS["hinge"]().fit(*data))
    assert any("passes were read from the checkpoint" in note for note in fitted.report_["notes"])


def test_what_a_value_holds_counts_and_not_where_it_lies(rows, in_this_thread, tmp_path):
    """Parts of lists, metrics, fitted transformers and functions; dicts in any order."""
    X, y = rows

    def fit(features, place, labels=None, **options):
        kind = drf.KernelRidge if labels is None else drf.KernelRidgeClassifier
        model = kind(features, 1.0, random_state=0, scale="none", **options)
        return model.fit(X, y if labels is None else labels, checkpoint=tmp_path / place)

    def joined(width):
        return drf.ConcatenatedFeatures([fourier(16, random_state=None), fourier(16, width)])

    def measured(P):
        return drf.FourierFeatures(drf.Gaussian(1.0, metric=P), 16)

    def transformed(function):
        return drf.TransformerFeatures(
            make_pipeline(FunctionTransformer(function), QuantileTransformer(n_quantiles=20))
        )

    fit(joined(2.0), "joined")
    with pytest.raises(InputError, match=r"features\.maps\[1\]\.kernel\.length_scale was 2\.0, now 3\.0"):
        fit(joined(3.0), "joined")
    fit(measured(np.eye(3)), "metric")
    with pytest.raises(InputError, match=r"features\.kernel\.metric: changed"):
        fit(measured(2 * np.eye(3)), "metric")
    n_read = [fit(transformed(np.tanh), "pipeline").report_["notes"] for _ in range(2)][1]
    assert any("2 of 2 passes were read" in note for note in n_read)
    with pytest.raises(InputError, match=r"features\.transformer, as it is: changed"):
        fit(transformed(np.sin), "pipeline")
    with pytest.raises(InputError, match="cannot be pickled"):
        fit(transformed(lambda X: X), "function")
    labels = np.digitize(y, [0.0, 1.0])
    for weights in ({0: 1, 1: 2, 2: 3}, {2: 3, 1: 2, 0: 1}):
        fit(fourier(16), "weights", labels, class_weight=weights)
    with pytest.raises(InputError, match=r"class_weight\[1\] was 2, now 5"):
        fit(fourier(16), "weights", labels, class_weight={0: 1, 1: 5, 2: 3})


def test_a_lost_connection_is_no_empty_folder(rows, in_this_thread, monkeypatch):
    """fsspec's `exists` takes any error for a missing file."""
    (X, y), place, n_asked = rows, Location.of("memory://checkpoints/kept"), [0]
    monkeypatch.setattr("distrff.io.storage._WAITS", (0.0,) * 4)

    def losing(request):
        def loses(*args, **options):
            n_asked[0] += 1
            if n_asked[0] % 2:
                raise ConnectionResetError("lost")
            return request(*args, **options)

        return loses

    try:
        small_ridge("cv").fit(X, y, checkpoint=str(place), checkpoint_every=0)
        names = place.within("steps").names()
        for request in ("ls", "info"):
            monkeypatch.setattr(MemoryFileSystem, request, losing(getattr(MemoryFileSystem, request)))
        assert place.within("steps").names() == names
        assert place.exists()
        again = small_ridge("cv").fit(X, y, checkpoint=str(place))
        n_sweeps = again.report_["n_sweeps"]
        assert f"{n_sweeps} of {n_sweeps} passes were read from the checkpoint" in again.report_["notes"]
    finally:
        monkeypatch.undo()
        place.remove()
    assert not place.exists()


def test_places_and_times_that_are_refused(rows, in_this_thread, tmp_path):
    X, y = rows
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(InputError, match=r"holds other things \(notes\.txt\)"):
        small_ridge().fit(X, y, checkpoint=tmp_path / "full")
    with pytest.raises(InputError, match="checkpoint_every must be a number"):
        small_ridge().fit(X, y, checkpoint=tmp_path / "kept", checkpoint_every=-1)
    with pytest.raises(InputError, match="inside a search or cross-validation"):
        cross_val_score(
            small_ridge(), X, y, params={"checkpoint": str(tmp_path / "kept")}, error_score="raise"
        )
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "notes.txt"}


def test_headers_that_are_not_believed(rows, in_this_thread, tmp_path):
    place = tmp_path / "kept"
    small_ridge().fit(*rows, checkpoint=place, checkpoint_every=0)
    header = (place / "_distrff.json").read_text()
    (place / "_distrff.json").write_text(header.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match=r"is damaged \(its header has another checksum\); delete it"):
        small_ridge().fit(*rows, checkpoint=place)
    (place / "_distrff.json").unlink()
    with pytest.raises(InputError, match="what is left of a damaged checkpoint; delete it"):
        small_ridge().fit(*rows, checkpoint=place)


def test_inside_a_task_it_is_refused(rows, client, tmp_path):
    def fit(X, y, place):
        small_ridge().fit(X, y, checkpoint=place)

    with pytest.raises(InputError, match="inside a Dask task"):
        client.submit(fit, *rows, str(tmp_path / "kept")).result()


@pytest.mark.parametrize("damage", ["cut off", "flipped", "gone"])
def test_what_is_damaged_is_computed_again(rows, in_this_thread, tmp_path, damage):
    X, y = rows
    quiet = small_ridge("cv").fit(X, y)
    small_ridge("cv").fit(X, y, checkpoint=tmp_path / "kept", checkpoint_every=0)
    for part in (tmp_path / "kept").rglob("*.part"):
        content = bytearray(part.read_bytes())
        if damage == "gone":
            part.unlink()
            continue
        content[len(content) // 2] ^= 1
        part.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    (tmp_path / "kept" / ".half.part.12345678.tmp").write_bytes(b"left over")
    fitted = small_ridge("cv").fit(X, y, checkpoint=tmp_path / "kept")
    assert bits(fitted) == bits(quiet)
    assert not list((tmp_path / "kept").rglob("*.tmp"))


def test_a_checkpoint_in_an_object_store(rows, in_this_thread, stopped):
    X, y = rows
    quiet, place = small_ridge("cv").fit(X, y), "memory://checkpoints/kept"
    try:
        stopped(2)
        with pytest.raises(Stopped):
            small_ridge("cv").fit(X, y, checkpoint=place, checkpoint_every=0)
        stopped(None)
        assert bits(small_ridge("cv").fit(X, y, checkpoint=place)) == bits(quiet)
    finally:
        remove_checkpoint(Location.of(place))
    assert not Location.of(place).exists()


# Values and parts.


def test_the_plan_counts_the_copies_that_a_place_takes(rows, in_this_thread, tmp_path):
    X, y = rows
    places = (None, tmp_path / "kept", "memory://counted/kept")
    plans = [small_ridge("cv").fit(X, y, checkpoint=place).plan_ for place in places]
    assert [plan.size.saving_buffer for plan in plans] == [None, 0, BUFFER_BYTES]
    none, local, remote = peaks = [plan.worker_peak_bytes for plan in plans]
    assert [small_ridge("cv").plan(X, y, checkpoint=place).worker_peak_bytes for place in places] == peaks
    assert none < local <= remote


@pytest.mark.parametrize(
    "tree",
    [
        {"type": "os:system", "fields": {}},
        {"type": "distrff.io.storage:Location", "fields": {"url": "x", "options": None}},
        {"type": "distrff.engine.tasks:Partial", "fields": {"value": 1}},
        {"array": 7},
        {"objects": [1], "shape": [2]},
        {"neither": 1},
    ],
)
def test_a_file_names_no_other_class(tree):
    with pytest.raises(DamagedValue):
        decoded(tree, [])


HOLDER = """
import sys, time
from distrff.io.storage import Location, held
with held(Location(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_checkpoint_belongs_to_one_process_at_a_time(rows, in_this_thread, tmp_path, end):
    """And to the next one as soon as that has ended, in whatever way."""
    place = tmp_path / "kept"
    expected = small_ridge().fit(*rows, checkpoint=place)
    assert not list(place.glob(".*"))
    with subprocess.Popen([sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        told = rf"kept is in use by process {other.pid} on .*, which began .* ago; wait until that ends"
        try:
            with pytest.raises(InputError, match=told):
                small_ridge().fit(*rows, checkpoint=place)
        finally:
            getattr(other, end)()
    assert bits(small_ridge().fit(*rows, checkpoint=place)) == bits(expected)
