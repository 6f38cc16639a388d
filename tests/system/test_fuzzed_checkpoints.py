"""A damaged or forged checkpoint is computed again or refused in one line, in little memory and time.

Any byte of any file is altered, or any value of the JSON in it; half of the parts are then sealed again. What
is not sealed again changes no bit of the model.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import distrff as drf
from distrff.cli import main
from distrff.engine import tasks as engine_tasks
from distrff.errors import DistrffError
from tests.support.fits import classes_of, fourier, margin_classifier, small_ridge
from tests.system.test_fuzzed_groups import altered_bytes, altered_json, guarded, written

pytestmark = pytest.mark.usefixtures("small_segments", "in_this_thread", "quiet_log")

N_PLAIN, N_SLOW = 3, 400  # of each kind
FITS = {
    "Gram, folds": lambda: small_ridge("cv"),
    "conjugate gradients": lambda: small_ridge(1e-2, solver="cg"),
    "SGD": lambda: small_ridge(1.0, solver="sgd", max_sweeps=4, tol=0.1),
    "hinge": lambda: margin_classifier("hinge", fourier(16)),
    "components": lambda: drf.KernelPCA(fourier(16), n_components=2, random_state=0),
}


class Stopped(Exception):
    """Stands for the death of the client."""


@pytest.fixture
def quiet_log():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2100, 3))
    return X, X[:, 0] + 0.5 * rng.standard_normal(2100)


def data_for(kind, X, y):
    return (X,) if kind == "components" else (X, classes_of(y) if kind == "hinge" else y)


def bits(fitted):
    return fitted.model_.coef.tobytes(), fitted.model_.intercept.tobytes()


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def altered_part(content: bytes, rng: np.random.Generator) -> bytes:
    """A part whose JSON is altered, and which is sealed again."""
    _, header, arrays = content.split(b"\n", 2)
    header = altered_json(header, rng) + b"\n"
    seal = {"checksum": hashlib.sha256(header + arrays).hexdigest(), "header_bytes": len(header)}
    return json.dumps(seal).encode() + b"\n" + header + arrays


def altered(files: dict[str, bytes], rng: np.random.Generator) -> tuple[dict[str, bytes], bool, bool]:
    """The files with one of them altered; whether it is a damaged part, or a part that was sealed again."""
    files, names = dict(files), sorted(files)
    name = names[rng.integers(len(names))]
    is_sealed = rng.random() < 0.5
    if rng.random() < 0.05:
        del files[name]
    elif is_sealed:
        files[name] = (altered_json if name.endswith(".json") else altered_part)(files[name], rng)
    else:
        files[name] = altered_bytes(files[name], rng)
    is_part = name.endswith(".part")
    return files, is_part and not is_sealed, is_part and is_sealed


def refused(told: str, path: Path) -> bool:
    return "\n" not in told and str(path) in told and len(told) < 2 * len(str(path)) + 1200


def half_done(fit: Callable[[], object], path: Path, monkeypatch) -> dict[str, bytes]:
    """The files of a checkpoint that has steps, and sums of a pass that was stopped."""
    reduce_rows, left, stored = engine_tasks.reduce_rows, 10**6, {}

    def stops(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise Stopped
        return reduce_rows(*args)

    def has(folder):
        return any(name.startswith(folder) for name in stored)

    with monkeypatch.context() as patched:
        patched.setattr(engine_tasks, "reduce_rows", stops)
        fit()
        n_segments = 10**6 - left
        while not (has("steps") and has("sums")):
            shutil.rmtree(path)
            n_segments = left = n_segments - 1
            with pytest.raises(Stopped):
                fit()
            stored = files_of(path)
    return stored


def check_inspect(path: Path, different: dict[str, bytes]) -> None:
    done = CliRunner().invoke(main, ["inspect", str(path)], prog_name="distrff")
    assert done.exit_code in (0, 2), (different, done.output)
    if done.exit_code:
        assert done.stderr.startswith("distrff: ") and done.stderr.count("\n") == 1, done.stderr


def fuzz(stored: dict[str, bytes], path: Path, rng: np.random.Generator, n: int, use, quiet) -> None:
    """Check that what `use` returns is `quiet`, or a refusal, beside n altered checkpoints at a path."""
    for _ in range(n):
        files, is_seen, is_forged = altered(stored, rng)
        written(files, path)
        different = {k: files.get(k, b"")[:3000] for k in stored if files.get(k) != stored[k]}
        check_inspect(path, different)
        with guarded():
            try:
                found = use()
            except DistrffError as error:
                assert refused(str(error), path), (str(error), different)
                assert not is_seen, (error, different)
            except Exception as error:  # whoever forges a checksum as well finds whatever follows
                if not is_forged:
                    raise AssertionError(f"it is not refused: {different}") from error
            else:
                assert found == quiet or not is_seen, different


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [N_PLAIN, pytest.param(N_SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FITS)
def test_of_fits(data, tmp_path, monkeypatch, rng, kind, n):
    given, path = data_for(kind, *data), tmp_path / "kept"

    def fit(**options):
        return FITS[kind]().fit(*given, checkpoint=path, **options)

    quiet = bits(FITS[kind]().fit(*given))
    stored = half_done(lambda: fit(checkpoint_every=0), path, monkeypatch)
    fuzz(stored, path, rng, n, lambda: bits(fit()), quiet)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [N_PLAIN, pytest.param(N_SLOW, marks=pytest.mark.slow)])
def test_of_conversions(data, tmp_path, monkeypatch, rng, n):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=y, word=np.where(y > 0, "u", "v"))
    source, out, path = tmp_path / "rows.csv", tmp_path / "out.zarr", tmp_path / "kept"
    frame.to_csv(source, index=False)
    kept = {"checkpoint": str(path), "checkpoint_every": 0}

    def converted(**options):
        shutil.rmtree(out, ignore_errors=True)
        drf.convert(str(source), str(out), target="y", one_hot=True, shuffle=0, **options)
        return files_of(out)

    def fails(*_):
        raise Stopped

    quiet = converted()
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr("distrff.io.convert.convert.mark_complete", fails)
        converted(**kept)
    stored = files_of(path)
    assert {"steps.part", "profile.part", "output.part", "runs/000001.part"} <= set(stored)
    fuzz(stored, path, rng, n, lambda: converted(**kept), quiet)
