"""Groups written shard by shard, split and shuffled: every row once, whatever the blocks and the deaths."""

import gzip
import os
import signal
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.sparse import random_array
from scipy.stats import chi2
from sklearn.datasets import dump_svmlight_file

from distrff import convert, open_dataset
from distrff.errors import InputError
from distrff.io import parts, storage
from distrff.io.convert import convert as convert_module
from distrff.io.convert import npz as array_blocks
from distrff.io.convert import runs
from distrff.io.convert import text as texts
from distrff.io.convert.runs import DenseWriter, new_group, shuffle_keys
from distrff.io.storage import Location
from tests.support import commands


class Killed(BaseException):
    """The process is gone: nothing more is written, as after SIGKILL."""


class Fate:
    """Counts what a process does to the storage, and ends it at one of these moments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: float = np.inf
        self.n_moments = 0
        for place, name in (
            (parts, "_write_whole"),
            (runs.GrowingArray, "_flush"),
            (zarr.Array, "resize"),
            (convert_module, "mark_complete"),
            (storage, "put_in_place"),
            (Path, "rename"),
            (Location, "remove"),
        ):
            monkeypatch.setattr(place, name, self._fatal(getattr(place, name)))

    def _fatal(self, function):
        def done(*args, **kwargs):
            self._pass()
            result = function(*args, **kwargs)
            self._pass()
            return result

        return done

    def _pass(self) -> None:
        self.n_moments += 1
        if self.n_moments > self.last:
            raise Killed

    def run(self, last: float, *args, **kwargs):
        """Convert, and die after some moments; return the report, or None."""
        self.last, self.n_moments = last, 0
        try:
            return convert(*args, **kwargs)
        except Killed:
            return None
        finally:
            self.last = np.inf


@pytest.fixture
def fate(monkeypatch):
    """Conversions that die, with pieces, buckets, runs and chunks of a few rows."""
    monkeypatch.setattr(texts, "BLOCK_BYTES", 600)
    monkeypatch.setattr(array_blocks, "_BLOCK_BYTES", 16 * 30)
    monkeypatch.setattr("distrff.io.tables.BATCH_ROWS", 30)
    monkeypatch.setattr(runs, "_CELL_BITS", 4)
    monkeypatch.setattr(runs, "_RANGE_BYTES", 900)
    monkeypatch.setattr(runs, "_SPARSE_CHUNK", 64)
    return Fate(monkeypatch)


def table(rng, n=150) -> pd.DataFrame:
    frame = pd.DataFrame(rng.standard_normal((n, 3)).round(6), columns=list("abc"))
    frame["word"] = rng.choice(["red", "green", "blue"], n)
    frame["y"] = rng.choice(["spam", "egg", "ham"], n)
    frame["w"] = rng.integers(1, 5, n)
    frame.loc[rng.random(n) < 0.1, "b"] = np.nan
    return frame


def csv(folder: Path, rng) -> tuple[list[Path], dict]:
    frame = table(rng)
    for i, part in enumerate((frame[:60], frame[60:])):
        text = part.to_csv(index=False).encode()
        (folder / f"{i}.csv").write_bytes(gzip.compress(text) if i else text)
    options = {"target": "y", "sample_weight": "w", "one_hot": True, "missing": "drop"}
    return [folder / "0.csv", folder / "1.csv"], options | {"test_fraction": 0.3}


def wider(folder: Path, rng) -> tuple[list[Path], dict]:
    """Whole numbers, until the third file."""
    y = rng.integers(0, 9, 150).astype(object)
    y[125:] = np.round(rng.random(25), 6)
    frame = pd.DataFrame({"x": rng.random(150), "t": y})
    (folder / "w.csv").write_text(frame.to_csv(index=False))
    return [folder / "w.csv"], {"target": "t", "missing": "mean"}


def libsvm(folder: Path, rng) -> tuple[list[Path], dict]:
    X = random_array((100, 3000), density=0.002, rng=rng, format="csr")
    dump_svmlight_file(X, rng.integers(0, 2, 100), str(folder / "rows.txt"), zero_based=False)
    return [folder / "rows.txt"], {"positive": 1, "test_fraction": 0.3}


def few_columns(folder: Path, rng) -> tuple[list[Path], dict]:
    """Sparse rows that become a dense array."""
    X = random_array((100, 9), density=0.3, rng=rng, format="csr")
    dump_svmlight_file(X, rng.integers(0, 2, 100), str(folder / "few.txt"), zero_based=False)
    return [folder / "few.txt"], {}


def many_words(folder: Path, rng) -> tuple[list[Path], dict]:
    """A table that becomes CSR."""
    frame = pd.DataFrame({"word": [f"w{i}" for i in rng.permutation(2100)], "y": rng.random(2100)})
    (folder / "words.csv").write_text(frame.to_csv(index=False))
    return [folder / "words.csv"], {"target": "y", "one_hot": True, "max_categories": 2100}


def npz(folder: Path, rng) -> tuple[list[Path], dict]:
    np.savez(folder / "rows.npz", X=rng.standard_normal((150, 2)), y=rng.integers(0, 5, 150))
    return [folder / "rows.npz"], {}


def parquet(folder: Path, rng) -> tuple[list[Path], dict]:
    table(rng).to_parquet(folder / "rows.parquet", row_group_size=40)
    return [folder / "rows.parquet"], {"target": "y", "missing": "indicator", "dtype": "float32"}


def like_others(folder: Path, rng) -> tuple[list[Path], dict]:
    """A table encoded by the steps of other rows, of which those that lack a value are kept."""
    files, options = csv(folder, rng)
    del options["test_fraction"]
    steps = open_dataset(table(rng), **options).steps
    return files, {"steps": steps.for_prediction()}


def content(url: str) -> dict[str, bytes]:
    """All files of a group."""
    fs, path = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return {name.removeprefix(path): fs.cat_file(name) for name in fs.find(path)}


def place(kind: str, tmp_path: Path, name: str) -> str:
    return f"memory://{tmp_path.name}/{name}" if kind == "memory" else str(tmp_path / name)


@pytest.fixture
def folders(tmp_path):
    """Where sources are, and where groups and checkpoints go."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    yield tmp_path / "in", tmp_path / "out"
    fsspec.filesystem("memory").store.clear()


def survive(fate: Fate, folders, source, kind: str, n_deaths: int, rng) -> None:
    """Kill conversions of a source at drawn moments, once or more often, and compare what they write."""
    inside, out = folders
    files, options = source(inside, rng)
    options |= {"shuffle": int(rng.integers(2**31)), "chunk_rows": 3, "overwrite": True}
    fate.run(np.inf, files, str(out / "plain.zarr"), **options)
    expected = content(str(out / "plain.zarr"))
    dst, ck = place(kind, out, "rows.zarr"), place(kind, out, "ck")
    options |= {"checkpoint": ck, "checkpoint_every": 0}
    report = fate.run(np.inf, files, dst, **options)
    n_moments = fate.n_moments
    assert content(dst) == expected
    for first in rng.integers(1, n_moments, n_deaths):
        Location(dst).within("stale").write(b"of the group that is replaced")
        deaths = [int(first), *rng.integers(1, n_moments, int(rng.integers(0, 3))).tolist(), np.inf]
        found = next(filter(None, (fate.run(last, files, dst, **options) for last in deaths)))
        assert content(dst) == expected, deaths
        assert found | {"seconds": 0} == report | {"seconds": 0}
        assert not Location(ck).names()
        if kind == "local":
            assert {path.name for path in out.iterdir()} <= {"plain.zarr", "rows.zarr", "ck"}, deaths


SOURCES = (csv, wider, libsvm, few_columns, many_words, npz, parquet, like_others)


@pytest.mark.parametrize(
    ("source", "kind", "n_deaths"),
    [
        (csv, "local", 2),
        pytest.param(csv, "memory", 4, marks=pytest.mark.slow),
        pytest.param(wider, "memory", 4, marks=pytest.mark.slow),
        (libsvm, "memory", 1),
        (npz, "local", 1),
        (few_columns, "memory", 1),
        pytest.param(many_words, "memory", 1, marks=pytest.mark.slow),
        (like_others, "memory", 2),
    ],
)
def test_killed_at_any_moment_it_goes_on_with_the_same_bytes(fate, folders, source, kind, n_deaths, rng):
    survive(fate, folders, source, kind, n_deaths, rng)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("source", SOURCES)
def test_killed_at_many_moments(fate, folders, source, kind, rng):
    survive(fate, folders, source, kind, 60, rng)


@pytest.fixture
def rows(folders, rng) -> tuple[list[Path], dict, Path]:
    """Files, options with a checkpoint, and where groups go."""
    inside, out = folders
    files, options = csv(inside, rng)
    return files, options | {"shuffle": 3, "checkpoint": str(out / "ck"), "checkpoint_every": 0}, out


def encoded_pieces(monkeypatch) -> list[int]:
    """The rows of each piece that is encoded from here on."""
    encode, found = convert_module.TableEncoder.encode, []

    def counted(self, piece):
        encoded = encode(self, piece)
        found.append(encoded[1])
        return encoded

    monkeypatch.setattr(convert_module.TableEncoder, "encode", counted)
    return found


@pytest.mark.parametrize("failure", [KeyboardInterrupt("ended"), OSError(5, "ended")])
def test_what_was_finished_before_a_failure_is_not_done_again(rows, fate, monkeypatch, failure):
    """Without a write on the way: the last one is made when the failure comes."""
    files, options, out = rows
    options["checkpoint_every"] = None
    in_order, taken = convert_module.in_order, []

    def failing(function, pieces):
        for piece, encoded in in_order(function, pieces):
            if len(taken) == 5:
                raise failure
            taken.append(encoded[1])
            yield piece, encoded

    with monkeypatch.context() as patch:
        patch.setattr(convert_module, "in_order", failing)
        patch.setattr(convert_module, "_types_suffice", lambda *args: True)  # so there is no pass before
        with pytest.raises(type(failure), match="ended"):
            convert(files, out / "rows.zarr", **options)
    encoded = encoded_pieces(monkeypatch)
    report = convert(files, out / "rows.zarr", **options)
    assert sum(taken) > 0
    assert sum(encoded) == report["rows_read"] - sum(taken) == 150 - sum(taken)


def test_the_pass_before_the_first_goes_on_too(rows, fate, monkeypatch):
    files, options, out = rows
    of, seen = convert_module.TableProfile.of.__func__, []

    def failing(cls, raw, max_words):
        seen.append(len(next(iter(raw.values()))))
        if len(seen) == 6:
            raise KeyboardInterrupt
        return of(cls, raw, max_words)

    monkeypatch.setattr(convert_module.TableProfile, "of", classmethod(failing))
    with pytest.raises(KeyboardInterrupt):
        convert(files, out / "rows.zarr", **options)
    n_before, first = sum(seen), seen[0]  # the first piece is looked at twice
    convert(files, out / "rows.zarr", **options)
    assert sum(seen) - n_before < 150 + first
    assert not (out / "ck").exists()


def unfinished(fate, rows) -> None:
    """Leave a conversion in its second pass."""
    files, options, out = rows
    flushes = []

    def flush(self):
        if len(flushes) == 9:
            raise Killed
        flushes.append(self)
        return original(self)

    original = runs.GrowingArray._flush
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(runs.GrowingArray, "_flush", flush)
        convert(files, out / "rows.zarr", **options, chunk_rows=3)
    assert (out / "ck" / "output.part").exists()


def test_other_options_files_and_checkpoints_are_refused(rows, fate):
    files, options, out = rows
    unfinished(fate, rows)
    with pytest.raises(InputError, match="another conversion: shuffle was 3, now 4; choose another place"):
        convert(files, out / "rows.zarr", **options | {"shuffle": 4}, chunk_rows=3)
    with pytest.raises(InputError, match="one_hot was True, now False"):
        convert(files, out / "rows.zarr", **options | {"one_hot": False}, chunk_rows=3)
    with pytest.raises(InputError, match=r"dst was .*rows\.zarr, now .*other\.zarr"):
        convert(files, out / "other.zarr", **options, chunk_rows=3)
    os.utime(files[0], (1, 1))
    with pytest.raises(InputError, match=r"files was 2 files, .* version .*, now 2 files, .* version"):
        convert(files, out / "rows.zarr", **options, chunk_rows=3)
    parts.begun(Location(str(out / "fit")), {"fingerprint": {}})
    with pytest.raises(InputError, match="fit is the checkpoint of a fit; choose another place"):
        convert(files, out / "rows.zarr", **options | {"checkpoint": out / "fit"})
    for wrong, message in (
        ({"shuffle": None}, "a checkpoint is for a shuffle"),
        ({"checkpoint": None}, "checkpoint_every=0 needs a checkpoint"),
        ({"checkpoint_every": -1}, "checkpoint_every must be a number"),
        ({"checkpoint": out / "rows.zarr" / "ck"}, "overlap"),
        ({"checkpoint": files[0].parent.parent}, "overlap"),
    ):
        with pytest.raises(InputError, match=message):
            convert(files, out / "rows.zarr", **options | wrong)


def test_what_was_written_by_others_meanwhile_is_no_part_of_the_output(rows, fate):
    """The next conversion to the same place removes the unfinished one, whose checkpoint writes it anew."""
    files, options, out = rows
    unfinished(fate, rows)
    plain = options | {"checkpoint": None, "checkpoint_every": None, "chunk_rows": 3}
    convert(files, out / "rows.zarr", **plain | {"shuffle": 5})
    assert {path.name for path in out.iterdir()} == {"ck", "rows.zarr"}
    with pytest.raises(InputError, match="exists; pass overwrite"):
        convert(files, out / "rows.zarr", **options, chunk_rows=3)
    convert(files, out / "rows.zarr", **options, chunk_rows=3, overwrite=True)
    convert(files, out / "plain.zarr", **plain)
    assert content(str(out / "rows.zarr")) == content(str(out / "plain.zarr"))


def flipped(content: bytes) -> bytes:
    return content[:-20] + bytes([content[-20] ^ 255]) + content[-19:]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("runs/000003.part", flipped),
        ("runs/000003.part", lambda content: content[:-7]),
        ("output.part", lambda content: content[:-7]),
        ("steps.part", flipped),
        # Where nothing keeps two processes apart, a run may begin elsewhere than the one before it ended.
        ("runs/000003.part", "runs/000005.part"),
    ],
)
def test_damage_costs_time_but_no_bytes(rows, fate, name, damage):
    files, options, out = rows
    unfinished(fate, rows)
    damaged = out / "ck" / name
    other = None if callable(damage) else (out / "ck" / damage).read_bytes()
    damaged.write_bytes(damage(damaged.read_bytes()) if other is None else other)
    convert(files, out / "rows.zarr", **options, chunk_rows=3)
    options |= {"checkpoint": None, "checkpoint_every": None}
    convert(files, out / "plain.zarr", **options, chunk_rows=3)
    assert content(str(out / "rows.zarr")) == content(str(out / "plain.zarr"))


def test_only_one_process_works_on_it(rows, fate):
    files, options, out = rows
    unfinished(fate, rows)
    (folder,) = out.glob(".rows.zarr.*.partial")
    message = r"rows\.zarr is being written by another process"
    with (
        storage.lasting_folder(out / "rows.zarr", folder.name.split(".")[-2]),
        pytest.raises(InputError, match=message),
    ):
        convert(files, out / "rows.zarr", **options, chunk_rows=3)
    convert(files, out / "rows.zarr", **options, chunk_rows=3)


SLOW = """
import time
from distrff.io import parts
from distrff.io.convert import text
from distrff.cli import main

text.BLOCK_BYTES, whole = 600, parts._write_whole
parts._write_whole = lambda *args, **options: (time.sleep(0.05), whole(*args, **options))
main(prog_name="distrff")
"""


@pytest.mark.slow
def test_the_command_after_sigkill_and_sigterm(folders, rng):
    inside, out = folders
    table(rng).dropna().to_csv(inside / "rows.csv", index=False)
    words = ["convert", inside / "rows.csv", out / "rows.zarr", "--target", "y", "--shuffle", 3,
             "--chunk-rows", 3, "--checkpoint", out / "ck", "--checkpoint-every", 0]  # fmt: skip

    def end(number: int, when: str) -> tuple[int, str]:
        process = commands.start(commands.DISTRFF[0], "-c", SLOW, *words)
        commands.wait_until(lambda: (out / "ck" / when).exists() or process.poll() is not None)
        process.send_signal(number)
        return process.wait(30), process.communicate()[1]

    assert end(signal.SIGKILL, "runs/000003.part")[0] == -signal.SIGKILL
    assert end(signal.SIGTERM, "runs/000006.part") == (143, "distrff: ended by SIGTERM\n")
    assert end(signal.SIGKILL, "output.part")[0] == -signal.SIGKILL
    done = commands.run(*commands.DISTRFF, *words)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"rows.zarr"}
    convert(inside / "rows.csv", out / "plain.zarr", target="y", shuffle=3, chunk_rows=3)
    assert content(str(out / "rows.zarr")) == content(str(out / "plain.zarr"))


# Without a death: the order of the rows, and their layout.


@pytest.mark.parametrize("range_bytes", [2**25, 1500])
@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_rows_stand_in_the_order_of_their_keys_and_keep_their_types(
    tmp_path, monkeypatch, layout, range_bytes, rng
):
    """Each part by itself; which rows are test rows follows from their numbers."""
    monkeypatch.setattr(runs, "_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(runs, "_RUN_BYTES", 4 * range_bytes)
    monkeypatch.setattr(runs, "_SPARSE_CHUNK", 50)
    monkeypatch.setattr(texts, "BLOCK_BYTES", 2000)
    n, seed, fraction = 700, int(rng.integers(2**31)), 0.3
    if layout == "dense":
        X, y = rng.random((n, 4)), np.array([f"row {i}" for i in range(n)], dtype=object)
        source = tmp_path / "rows.csv"
        pd.DataFrame(X, columns=list("abcd")).assign(y=y, w=np.arange(n)).to_csv(source, index=False)
        options = {"target": "y", "sample_weight": "w"}
    else:
        X, y = random_array((n, 3000), density=0.002, rng=rng, format="csr"), np.arange(n)
        source, options = tmp_path / "rows.txt", {}
        X.data = X.data.round(6)
        dump_svmlight_file(X, y, str(source), zero_based=False)
        X = X[:, : X.indices.max() + 1].toarray()
    convert(source, tmp_path / "a.zarr", shuffle=seed, test_fraction=fraction, **options)
    in_test = runs.is_test_row(np.arange(n), seed, fraction)
    assert abs(in_test.mean() - fraction) < 6 * np.sqrt(fraction * (1 - fraction) / n)
    for place, chosen in (("a.zarr", ~in_test), ("a.zarr/test", in_test)):
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(shuffle_keys(np.arange(len(rows)), seed))]
        data = open_dataset(tmp_path / place)
        (block,) = data.rows(0, data.n_rows).tiles(data.n_rows)
        np.testing.assert_array_equal(block.X if layout == "dense" else block.X.toarray(), X[rows])
        assert block.y.tolist() == y[rows].tolist()
        assert layout == "csr" or block.sample_weight.tolist() == rows.tolist()


def test_places_are_uniform(rng):
    """Where the rows of each twentieth went is as even as chance makes it; wrong once in a million."""
    n, parts = 100_000, 20
    place = np.argsort(np.argsort(shuffle_keys(np.arange(n), int(rng.integers(2**62)))))
    table = np.bincount(np.arange(n) * parts // n * parts + place * parts // n, minlength=parts**2)
    statistic = ((table - n / parts**2) ** 2).sum() / (n / parts**2)
    # Rows and columns of the table have fixed sums.
    assert chi2.sf(statistic, (parts - 1) ** 2) > 1e-6
    assert chi2.cdf(statistic, (parts - 1) ** 2) > 1e-6
    # The rank correlations of row and place and of neighbours are 0 but for chance: six of its deviations.
    assert abs(np.corrcoef(np.arange(n), place)[0, 1]) < 6 / np.sqrt(n)
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 6 / np.sqrt(n)


def test_an_unfinished_group_is_refused(tmp_path):
    with new_group(Location.of(tmp_path / "a.zarr")) as group:
        DenseWriter(group).append({"X": np.zeros((3, 1))})
    with pytest.raises(InputError, match="incomplete, its writing was interrupted"):
        open_dataset(tmp_path / "a.zarr")
