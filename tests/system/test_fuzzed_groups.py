"""Files are not code: a damaged or forged group loads or is refused in one line, in little memory and time.

Groups of every kind are altered at random: any byte of any file, or any value of the JSON; half of them are
then sealed again, as by whoever means harm.
"""

import json
import shutil
import signal
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import distrff as drf
from distrff.cli import main
from distrff.errors import InputError
from distrff.io.storage import ROOT
from tests.support.stored import ABSURD, GONE, NAMES, SUMS, fitted, paths_of, replaced, sealed, sums

KINDS = [*NAMES, *SUMS]
N_PLAIN, N_SLOW = 2, 280  # of each kind: some 100 and 10,000
MOST_BYTES, MOST_SECONDS = 2**26, 20
LOADERS = {"gram": drf.GramStatistics.load, "toeplitz": drf.ToeplitzStatistics.load}
VALUES = [
    *ABSURD,
    "<U99999999",
    "V999999999",
    "9999999f8",
    [10**9, 10**9],
    [-1],
    "a\nb\nc",
    "x" * 10**5,
    2**31,
]


@pytest.fixture(scope="module")
def stored(request, tmp_path_factory) -> dict[str, bytes]:
    """The files of a group, by their paths in it."""
    path = tmp_path_factory.mktemp("fuzzed") / "group.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param in SUMS:
            sums(request.param).save(str(path))
        else:
            estimator, how = fitted(request.param)
            estimator.save(str(path), **how)
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def altered_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """A file with some bytes changed, left out or added."""
    at, how = int(rng.integers(len(content) + 1)), rng.integers(5)
    if how == 0:
        return content[:at]
    if how == 1:
        return content + rng.bytes(int(rng.integers(1, 100)))
    if how == 2:
        return content[:at] + content[at + 8 :]
    length = 1 if how == 3 else 8
    return content[:at] + rng.bytes(length) + content[at + length :]


def altered_json(content: bytes, rng: np.random.Generator) -> bytes:
    """A file of JSON with a value at some depth replaced, left out, or doubled in number."""
    document = value = json.loads(content)
    path: tuple = ()
    while isinstance(value, dict | list) and value and (not path or rng.random() < 0.8):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        path = (*path, keys[rng.integers(len(keys))])
        value = value[path[-1]]
    others = [*VALUES, GONE, *([value, value] for _ in range(2))]
    if isinstance(value, int | float):
        others += [value + 1, value - 1, -value, value * 1000, float(value), str(value)]
    return json.dumps(replaced(document, path, others[rng.integers(len(others))])).encode()


def altered(files: dict[str, bytes], rng: np.random.Generator) -> dict[str, bytes]:
    # Most of what there is to forge is in the root.
    names = sorted(files)
    name = "zarr.json" if rng.random() < 0.4 else names[rng.integers(len(names))]
    files = dict(files)
    if rng.random() < 0.05:
        del files[name]
    elif name.endswith("zarr.json") and rng.random() < 0.8:
        files[name] = altered_json(files[name], rng)
    else:
        files[name] = altered_bytes(files[name], rng)
    return sealed(files) if rng.random() < 0.5 else files


def written(files: dict[str, bytes], path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)


@contextmanager
def guarded() -> Iterator[None]:
    """Fail where it takes too long or much; not by an Exception, which a reader may catch.

    The seconds are the processor's: on a machine that does other things too, others pass.
    """

    def too_long(*_: Any) -> None:
        pytest.fail(f"it takes more than {MOST_SECONDS} s")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    tracemalloc.start()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert peak < MOST_BYTES, f"it takes {peak:,} bytes"


def use(path: Path, kind: str) -> None:
    """Load the group, which is as good as another if it loads."""
    if kind not in SUMS:
        assert repr(drf.load_model(str(path)))
        return
    one = LOADERS[kind.split()[0]](str(path))
    both = one + one
    assert both.n_rows == 2 * one.n_rows and repr(both)


@pytest.mark.parametrize("stored", SUMS, indirect=True)
def test_sums_of_other_sizes(stored, tmp_path, request):
    """More features or columns than there are numbers for; a rank may be 0."""
    kind, path = request.node.callspec.params["stored"], tmp_path / "group.zarr"
    document = json.loads(stored["zarr.json"])
    where = ("attributes", ROOT, "metadata", "specification")
    sizes = ("n_columns", "n_components", "rank", "n_outputs", "modes")
    found = [p for p in paths_of(document) if p[: len(where)] == where and p[-1] in sizes]
    assert found
    for place in found:
        for size in (10**12, 2**31, 10**7, -1, 8.0, *([0] if place[-1] != "rank" else [])):
            value = [size] * 2 if place[-1] == "modes" else size
            root = json.dumps(replaced(document, place, value)).encode()
            written(sealed(stored | {"zarr.json": root}), path)
            with guarded(), pytest.raises(InputError, match=r"group\.zarr"):
                use(path, kind)


@pytest.mark.parametrize("n", [N_PLAIN, pytest.param(N_SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stored", KINDS, indirect=True)
def test_fuzzed_groups(stored, tmp_path, n, rng, request):
    kind, path = request.node.callspec.params["stored"], tmp_path / "group.zarr"
    written(stored, path)
    use(path, kind)
    for _ in range(n):
        files = altered(stored, rng)
        written(files, path)
        different = {
            name: files.get(name, b"")[:10_000] for name in stored if files.get(name) != stored[name]
        }
        with guarded():
            try:
                use(path, kind)
            except InputError as error:
                told = str(error)
                assert "\n" not in told and str(path) in told and len(told) < len(str(path)) + 400, told
            except Exception as error:
                raise AssertionError(f"it is not refused: {different}") from error
        done = CliRunner().invoke(main, ["inspect", str(path)], prog_name="distrff")
        assert done.exit_code in (0, 2), (different, done.exception)
        if done.exit_code:
            assert done.stderr.startswith("distrff: ") and done.stderr.count("\n") == 1, done.stderr
