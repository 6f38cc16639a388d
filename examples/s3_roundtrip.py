"""From rows in S3 to a model and its predictions in S3, read and written by separate processes.

    python examples/s3_roundtrip.py

starts an S3 server on this machine (moto, from the extra `test`), so that nothing has to be paid for
or configured; with a bucket of your own only `storage_options` and the URLs change.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import zarr

import distrff as drf

BUCKET = "s3://distrff-example"
START_SECONDS = 60.0


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Run an S3 server in a process of its own, and yield the storage options that lead to it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", _text_of(log))):
                if server.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the S3 server does not start: " + _text_of(log))
                time.sleep(0.05)
            yield {"key": "nobody", "secret": "nothing", "endpoint_url": found[0]}
        finally:
            server.kill()
            server.wait()


def _text_of(log: Any) -> str:
    log.seek(0)
    return log.read()


def write_rows(url: str, n_rows: int, storage_options: dict[str, Any]) -> None:
    """Write rows X, their target y and their numbers as a Zarr group."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 8))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n_rows)
    group = zarr.open_group(zarr.storage.FsspecStore.from_url(url, storage_options=storage_options), mode="w")
    for name, values in {"X": X, "y": y, "number": np.arange(n_rows)}.items():
        group.create_array(name, data=values, chunks=(min(n_rows, 8192), *values.shape[1:]))


def roundtrip(n_rows: int, n_components: int, storage_options: dict[str, Any]) -> dict[str, Any]:
    """Write rows, fit them, save the model, and write its predictions; return what came out."""
    fsspec.filesystem("s3", **storage_options).mkdir(BUCKET)
    write_rows(f"{BUCKET}/rows.zarr", n_rows, storage_options)
    print(f"wrote {n_rows:,} rows to {BUCKET}/rows.zarr")

    data = drf.open_dataset(f"{BUCKET}/rows.zarr", ids=["number"], storage_options=storage_options)
    features = drf.FourierFeatures(drf.Gaussian("auto"), n_components)
    model = drf.KernelRidge(features, alpha="cv", scale="standard", random_state=0).fit(data)
    print(f"fitted {n_components} features: {model.report_['status']}, cv error {model.cv_score_:.4g}")
    model.save(f"{BUCKET}/model.zarr", storage_options=storage_options)

    frozen = drf.load_model(f"{BUCKET}/model.zarr", storage_options=storage_options)
    out = f"{BUCKET}/predictions.parquet"
    report = drf.write_predictions(frozen, data, out, storage_options=storage_options)
    print(f"predicted {report['n_samples']:,} rows to {out}")

    frame = pd.read_parquet(out, storage_options=storage_options)
    error = frame["prediction"].to_numpy() - data.y.compute()
    rmse = float(np.sqrt(np.mean(error**2)))
    in_order = bool((frame["number"] == np.arange(n_rows)).all())
    print(f"read them back {'in order' if in_order else 'OUT OF ORDER'}: rmse {rmse:.4g}; the noise is 0.1")
    return {"rmse": rmse, "in_order": in_order, "columns": list(frame)}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n-rows", type=int, default=200_000)
    parser.add_argument("--n-components", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    with s3_server() as storage_options:
        print(f"an S3 server runs at {storage_options['endpoint_url']}")
        with drf.connect("local", n_workers=options.workers):
            return roundtrip(options.n_rows, options.n_components, storage_options)


if __name__ == "__main__":
    main()
