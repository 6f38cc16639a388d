"""Sweeps over rows in an object store beside the same sweeps over local files, the same bits asked for."""

import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

import distrff as drf
from examples.s3_roundtrip import s3_server
from tests.benchmarks.measuring import alternate, workers, write_rows

_ASKED = "<= 1.5 times local files"
_BUCKET = "benchmark"


def sweeps(scale: float) -> Iterator[dict[str, Any]]:
    """A fit of ridge by its Gram, and a score, which is one light sweep: S3 against a folder.

    The server runs on the same cores as the workers, so that what it takes counts against the ratio.
    """
    n_rows, n_columns = int(1_000_000 * scale), 20
    with tempfile.TemporaryDirectory() as folder, s3_server() as options, workers() as client:
        path = write_rows(Path(folder) / "rows.zarr", n_rows, n_columns)
        store = fsspec.filesystem("s3", **options)
        store.mkdir(_BUCKET)
        store.put(str(path), f"{_BUCKET}/rows.zarr", recursive=True)
        places = {
            "s3": drf.open_dataset(f"s3://{_BUCKET}/rows.zarr", storage_options=options),
            "local": drf.open_dataset(str(path)),
        }
        client.run(import_module, "s3fs")
        for name, fit in _models().items():
            found = {place: fit(data) for place, data in places.items()}  # compiles and warms up
            times = alternate(lambda: fit(places["s3"]), lambda: fit(places["local"]))  # noqa: B023
            same = np.array_equal(found["s3"], found["local"])
            yield {"sweep": name, "n_rows": n_rows, "asked": _ASKED, "same_bits": same, **times}


def _models() -> dict[str, Callable[[Any], np.ndarray]]:
    ridge, scored = (
        drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(4.0), 1024, random_state=0), 1.0, random_state=0)
        for _ in range(2)
    )

    def score(data: Any) -> np.ndarray:
        if not hasattr(scored, "coef_"):
            scored.fit(data)
        return np.asarray(scored.score(data))

    return {"fit by the Gram": lambda data: ridge.fit(data).coef_, "light: score": score}


BENCHMARKS = {"sweeps": sweeps}
