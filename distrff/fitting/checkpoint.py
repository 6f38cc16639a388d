"""The checkpoint of a fit: by what it recognizes the same fit, and when it is written for the last time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from distrff.engine.checkpoint import Checkpoint, check_every, ending_on_sigterm
from distrff.engine.run import Run
from distrff.engine.tasks import LocalExecution, calling_modules, in_dask_task
from distrff.errors import ClusterError, InputError, PlanRefused
from distrff.fitting.cost import Plan
from distrff.fitting.problem import FitContext
from distrff.io.dataset import Dataset, Rows
from distrff.io.parts import CheckpointStore
from distrff.io.storage import SEEN_BY_ALL, Location, held, package_version
from distrff.utils.serialize import digest_of, parameters_as_text

_TILE_ROWS = 2**14
_LIBRARIES = ("numpy", "scipy", "numba")  # other versions have other last bits
_SEARCHES = ("sklearn.model_selection", "dask_ml.model_selection")


@contextmanager
def checkpointed(
    fit: FitContext, estimator: Any, plan: Plan, location: Location, every: float | None
) -> Iterator[FitContext]:
    """The fit with a checkpoint at a location, which is locked and written for the last time at the end."""
    with held(location):
        fit = with_checkpoint(fit, estimator, plan, location, every)
        assert fit.run is not None
        with _kept_to_the_end(fit.run):
            yield fit


def with_checkpoint(
    fit: FitContext, estimator: Any, plan: Plan, location: Location, every: float | None
) -> FitContext:
    """The fit with a checkpoint at a location: a new one, or that of the same fit, with its seed.

    Raises InputError for a place that holds something else or the checkpoint of another fit, that workers do
    not see, or inside a search or a Dask task.
    """
    run = fit.run
    assert run is not None
    check_every(every)
    _refuse_several_fits(location)
    store = CheckpointStore(location)
    header = {
        "fingerprint": _fingerprint(run, estimator, fit.dataset),
        "seed": fit.problem.seed,
        "estimator": type(estimator).__name__,
        "source": fit.dataset.source,
        "n_rows": fit.dataset.n_rows,
        "solver": plan.solver,
        "n_sweeps": plan.n_sweeps,
        "began": time.time(),
    }
    # The seed of the first start wins: without random_state each call draws another one.
    found = store.begin(header)
    _check_seen(run, store)
    run.checkpoint = Checkpoint(store, every)
    return replace(fit, problem=fit.problem.seeded(int(found["seed"])))


def _refuse_several_fits(location: Location) -> None:
    """Refuse where several fits would write to one place."""
    where = None
    if in_dask_task():
        where = "a Dask task"
    elif any(module.startswith(_SEARCHES) for module in calling_modules()):
        where = "a search or cross-validation"
    if where is not None:
        raise InputError(
            f"checkpoint={str(location)!r} inside {where}: its fits would write to one place; fit without a "
            f"checkpoint there, or fit the chosen parameters with one afterwards"
        )


def _check_seen(run: Run, store: CheckpointStore) -> None:
    """Refuse a place that a worker does not see: workers write their sums there themselves."""
    execution = run.execution
    if isinstance(execution, LocalExecution):
        return
    futures = {
        worker: execution.submit_to(worker, CheckpointStore.is_seen, store)
        for worker in execution.workers.running_threads()
    }
    for worker, future in futures.items():
        with suppress(ClusterError, TimeoutError):  # a worker that leaves now is no reason
            if not future.result(timeout=60):
                raise InputError(f"{store.location} is not seen by the worker {worker}; {SEEN_BY_ALL}")


# By what the same fit is recognized.


def _fingerprint(run: Run, estimator: BaseEstimator, dataset: Dataset) -> dict[str, Any]:
    """The properties that must agree, in words where these are short, for messages."""
    return {
        "version": package_version(),
        "model": type(estimator).__name__,
        "rows": f"{dataset.n_rows} x {dataset.n_columns} of {dataset.dtype}",
        "targets": f"{dataset.n_targets} of {dataset.y_dtype}",
        "weights": bool(dataset.has_weights),
        "column names": digest_of(dataset.column_names),
        "columns beside X": ", ".join(dataset.id_dtypes),
        "layout": f"{dataset.chunk_rows} rows decoded at once, {dataset.row_bytes} bytes a row",
        "libraries": ", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
        **_contents(run, dataset),
        **parameters_as_text(estimator),
    }


def _contents(run: Run, dataset: Dataset) -> dict[str, Any]:
    """The digest of rows in this process; of others that of a few, and the versions of their files."""
    # Rows in memory take less time than a pass with features. Of stored ones it would be one more reading of
    # all files, whose sizes and times tell as much.
    if dataset.block_rows == 0:
        return {"the rows": _digest_of_rows(dataset.rows(0, dataset.n_rows))}
    sampled = run.map(_digest_of_rows, [(rows,) for rows in dataset.sampled_rows()], group="checkpoint")
    files = [place.versions() for place in dataset.places]
    return {"a sample of the rows": digest_of(sampled), "versions of the files": digest_of(files)}


def same_rows(run: Run, first: Dataset, second: Dataset) -> bool:
    """Whether two datasets have the same rows, and the same values of the columns beside X that both have."""
    # By what a checkpoint compares: digests in memory, else versions of files and a few rows.
    if first is second:
        return True
    both = first.id_readers.keys() & second.id_readers.keys()
    first, second = (
        replace(one, id_readers={n: column for n, column in one.id_readers.items() if n in both})
        for one in (first, second)
    )
    shapes = {(one.n_rows, one.n_columns, one.n_targets, one.column_names) for one in (first, second)}
    if len(shapes) > 1 or (first.block_rows == 0) != (second.block_rows == 0):
        return False
    return _contents(run, first) == _contents(run, second)


def _digest_of_rows(rows: Rows) -> str:
    digests = []
    for block in rows.tiles(_TILE_ROWS):
        X = [block.X.data, block.X.indices, block.X.indptr] if hasattr(block.X, "indptr") else [block.X]
        beside = [part for name, values in block.ids.items() for part in (name, _content(values))]
        digests.append(digest_of(*X, _content(block.y), block.sample_weight, *beside))
    return digest_of(digests)


def _content(values: np.ndarray | None) -> Any:
    # The bytes of an array of objects are addresses.
    return values if values is None or values.dtype.kind != "O" else repr(values.tolist())


# The last write.


@contextmanager
def _kept_to_the_end(run: Run) -> Iterator[None]:
    """Write the checkpoint for the last time when the block ends, fails or is asked to end by SIGTERM."""
    assert run.checkpoint is not None
    checkpoint, store = run.checkpoint, run.checkpoint.store
    assert isinstance(store, CheckpointStore)
    with ending_on_sigterm():
        try:
            yield
            # Without the sums of the last passes: what is left to do takes seconds, and they are large.
            run.save(with_sums=False)
        except BaseException as error:
            with suppress(Exception):  # of a cluster that is gone, beside the failure itself
                run.save(with_sums=not isinstance(error, ClusterError))
            if checkpoint.is_written and not isinstance(error, PlanRefused):
                error.add_note(f"what is finished is in {store.location}: the same fit goes on from there")
            raise
        finally:
            run.checkpoint = None  # what a fitted model computes later is none of its steps
