"""Predict with a stored model by NumPy alone: the reference for other languages.

    python examples/numpy_predict.py model.zarr rows.npy predictions.npy

All models; principal components are what `decision` gives. Maps: Fourier (sampling iid, orthogonal or qmc),
Nyström, linear, and concatenations of these. Rows are the columns that the model was fitted to, as numbers.
All of it is float64, so that a model of float32 agrees to about 1e-5.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np


def load(folder):
    """Return the metadata and the arrays of a stored model: each is one chunk of plain bytes."""
    header = json.loads((Path(folder) / "zarr.json").read_text())["attributes"]["distrff"]
    if (header["kind"], header["format"], header.get("complete")) != ("model", 1, True):
        raise ValueError(f"{folder} is no complete model of format 1")
    return header["metadata"], {name: _array(Path(folder) / name) for name in header["checksums"]}


def _array(folder):
    described = json.loads((folder / "zarr.json").read_text())
    dtype, shape = np.dtype(described["data_type"]).newbyteorder("<"), described["shape"]
    chunk = folder.joinpath("c", *"0" * len(shape))
    return np.frombuffer(chunk.read_bytes() if math.prod(shape) else b"", dtype).reshape(shape)


def kernel(spec, X, Y):
    """Return k(X, Y) of shape (n, m) for a kernel as the specification spells it."""
    kind = spec["kernel"]
    if kind in ("sum", "product"):
        combined = np.add if kind == "sum" else np.multiply
        return combined(kernel(spec["k1"], X, Y), kernel(spec["k2"], X, Y))
    if kind == "scaled":
        return spec["a"] * kernel(spec["k"], X, Y)
    if kind == "polynomial":
        return (X @ Y.T + spec["bias"]) ** spec["degree"]
    widths = np.broadcast_to(spec["length_scale"], X.shape[1])
    delta = [np.abs(X[:, j, None] - Y[:, j]) / widths[j] for j in range(X.shape[1])]
    if kind == "laplacian":
        return np.exp(-sum(delta))
    if kind == "cauchy":
        return 1 / np.prod([1 + d**2 for d in delta], axis=0)
    r = np.sqrt(sum(d**2 for d in delta))
    if kind == "gaussian":
        return np.exp(-(r**2) / 2)
    if kind not in ("exponential", "matern"):
        raise ValueError(f"this script has no {kind} kernel")
    nu = spec.get("nu", 0.5)  # the exponential kernel is Matérn's of 0.5
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"nu={nu} needs Bessel functions; this script has 0.5, 1.5 and 2.5")
    s = math.sqrt(2 * nu) * r
    return np.exp(-s) * {0.5: 1, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[nu]


def features(spec, arrays, X, prefix="map_"):
    """Return Z of shape (n, D); the names of the map's arrays begin with `prefix`."""
    if spec["kind"] == "linear":
        return X
    if spec["kind"] == "concatenated":
        parts = [features(part, arrays, X, f"{prefix}part{i}_") for i, part in enumerate(spec["parts"])]
        return np.hstack([math.sqrt(w) * Z for w, Z in zip(spec["weights"], parts, strict=True)])
    if spec["kind"] == "nystroem":
        L = arrays[prefix + "landmarks"][: spec["rank"]]
        Z = np.linalg.solve(np.linalg.cholesky(kernel(spec["kernel"], L, L)), kernel(spec["kernel"], L, X)).T
        return np.pad(Z, [(0, 0), (0, spec["n_components"] - spec["rank"])])
    if spec["kind"] != "fourier" or spec["sampling"] not in ("iid", "orthogonal", "qmc"):
        raise ValueError(f"this script has no {spec['kind']} map with sampling={spec.get('sampling')!r}")
    theta, at_zero = X @ arrays[prefix + "frequencies"], kernel(spec["kernel"], X[:1] * 0, X[:1] * 0)[0, 0]
    if spec["form"] == "phase":
        return np.sqrt(2 * at_zero / theta.shape[1]) * np.cos(theta + arrays[prefix + "phases"])
    pairs = np.stack([np.cos(theta), np.sin(theta)], axis=2)  # adjacent columns
    return np.sqrt(at_zero / theta.shape[1]) * pairs.reshape(len(X), -1)


def decision(metadata, arrays, X):
    """Return f(X) of shape (n, k)."""
    X = np.asarray(X, dtype=np.float64)
    if "column_shift" in arrays:
        X = (X - arrays["column_shift"]) / arrays["column_scale"]
    return features(metadata["specification"], arrays, X) @ arrays["coef"] + arrays["intercept"]


def predict(metadata, arrays, X):
    """Return numbers, or the labels of the largest f (of two classes, the second where f > 0)."""
    F = decision(metadata, arrays, X)
    if metadata["targets"] == "numeric":
        return F[:, 0] if metadata["y_is_1d"] else F
    labels = np.asarray(metadata["classes"]["labels"])
    return labels[F.argmax(axis=1) if F.shape[1] > 1 else (F[:, 0] > 0).astype(int)]


if __name__ == "__main__":
    np.save(sys.argv[3], predict(*load(sys.argv[1]), np.load(sys.argv[2])))
