"""What a path leads to: rows, raw files of some format, or a refusal that names it."""

import http.server
import threading
from functools import partial

import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from distrff.errors import InputError, InputTypeError
from distrff.io.convert.convert import convert, open_source
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.text import CsvSource, LibsvmSource
from distrff.io.open import is_raw, open_dataset
from distrff.io.parquet_rows import ParquetTable
from distrff.io.storage import Location, retryable

X = np.arange(12.0).reshape(6, 2)
FRAME = pd.DataFrame(X, columns=["a", "b"])


def check(data):
    np.testing.assert_array_equal(next(data.rows(0, 6).tiles(6)).X, X)
    np.testing.assert_array_equal(data.X.compute(scheduler="sync"), X)


def write_group(path):
    zarr.open_group(path, mode="w").create_array("X", data=X)


@pytest.mark.parametrize("name", ["rows.zarr", "rows", "rows[1]"])
def test_zarr_is_known_by_suffix_or_content(tmp_path, name):
    write_group(tmp_path / name)
    for path in (tmp_path / name, f"{tmp_path / name}/", f"file://{tmp_path / name}"):
        check(open_dataset(path))
    with pytest.raises(InputError, match="is a Zarr array; pass the group"):
        open_dataset(tmp_path / name / "X")


@pytest.mark.parametrize(
    "path", ["p.parquet", "p.pq", "folder", "folder/", "*.parquet", "p.par*", ["p.parquet"]]
)
def test_parquet_is_known_by_suffix_glob_or_content(tmp_path, path):
    FRAME.to_parquet(tmp_path / "p.parquet")
    FRAME.to_parquet(tmp_path / "p.pq")
    (tmp_path / "folder" / "deeper").mkdir(parents=True)
    FRAME.to_parquet(tmp_path / "folder" / "deeper" / "x.parquet")
    check(open_dataset([tmp_path / p for p in path] if isinstance(path, list) else f"{tmp_path}/{path}"))
    assert open_dataset(tmp_path / "p.pq", target="b").n_columns == 1


NO_ROWS = {
    "does not exist": [
        *("nowhere", "nowhere.zarr", "nowhere.parquet", "*.parquet", "part-?.parquet"),
        "memory://nowhere/x.zarr",
    ],
    "accepted is a Zarr group .* or Parquet": ["rows.csv", "empty"],
    "holds Parquet, and its name ends otherwise; rename it to end in .parquet": ["parquet.csv"],
}


@pytest.mark.parametrize(("words", "name"), [(words, name) for words in NO_ROWS for name in NO_ROWS[words]])
def test_paths_that_hold_no_rows_are_named(tmp_path, words, name):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    FRAME.to_parquet(tmp_path / "parquet.csv")
    path = name if "://" in name else f"{tmp_path}/{name}"
    if "://" in name:
        pytest.importorskip("fsspec.implementations.asyn_wrapper")
    with pytest.raises(InputError, match=words) as caught:
        open_dataset(path)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        *((content, "no JSON object") for content in (b"[]", b"1", b"null", b'"x"')),
        *((content, "no JSON") for content in (b"garbage", b"\xff\xfe\x00", b"[" * 10**5)),
        (b'{"zarr_format": 3, "node_type": "group", "attributes": []}', "no JSON object"),
        *((content, None) for content in (b"", b"{", b"{}")),
        (b'{"zarr_format": 4, "node_type": "group"}', None),
    ],
)
def test_metadata_that_cannot_be_read(tmp_path, content, found):
    (tmp_path / "g.zarr").mkdir()
    (tmp_path / "g.zarr" / "zarr.json").write_bytes(content)
    named = rf"g.zarr is not a readable .* zarr.json (is|are) {found}\); write"
    with pytest.raises(InputError, match=named if found else "Zarr group|has no array") as caught:
        open_dataset(tmp_path / "g.zarr")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.parquet", "x.zarr"])
def test_rows_by_url(name):
    pytest.importorskip("fsspec.implementations.asyn_wrapper")  # Zarr needs it where files are not async
    fs = fsspec.filesystem("memory")
    url = f"memory://bucket/{name}"
    try:
        if name == "x.zarr":
            write_group(url)
        else:
            fs.pipe_file("/bucket/x.parquet", FRAME.to_parquet())
        for path in (url,) if name == "x.zarr" else (url, "memory://bucket/*.parquet", "memory://bucket"):
            data = open_dataset(path, storage_options={"token": "TOP SECRET"})
            check(data)
            assert "SECRET" not in repr(data) + repr(data.rows(0, 6))
    finally:
        fs.rm("/bucket", recursive=True)


def test_errors_of_filesystems_name_the_path_without_secrets():
    with pytest.raises(InputError, match=r"ftp://127\.0\.0\.1:9/x cannot be reached") as caught:
        Location.of("ftp://user:SECRET@127.0.0.1:9/x", {"timeout": 0.2}).file_system()
    assert "SECRET" not in str(caught.value)
    with pytest.raises(InputError, match=r"nosuch://a/b cannot be reached .*Protocol not known"):
        open_dataset("nosuch://a/b")
    for path in (3, None, b"x"):
        with pytest.raises(InputTypeError, match="a path or a URL is needed"):
            open_dataset(path)
    error = KeyError("bug")
    assert retryable(error) is error  # Python's own are not retried


def test_a_store_whose_package_is_missing():
    class NeedsAPackage(AbstractFileSystem):
        def __init__(self, **options):
            raise ImportError("install some-package to read these")

    fsspec.register_implementation("needs-a-package", NeedsAPackage, clobber=True)
    told = r"install some-package to read these\)?; install this package, here and on every worker"
    with pytest.raises(InputError, match=told):
        open_dataset("needs-a-package://x/rows.parquet")


class FailsOneInTen(MemoryFileSystem):
    """A store of which every tenth request is lost."""

    protocol = "flaky"
    n_requests = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("flaky://", "memory://"))


def _losing(request):
    def lost(self, path, *args, **kwargs):
        FailsOneInTen.n_requests += 1
        if FailsOneInTen.n_requests % 10 == 0:
            raise ConnectionResetError("lost")
        return request(self, path, *args, **kwargs)

    return lost


for name in ("cat_file", "_open", "find", "ls"):
    setattr(FailsOneInTen, name, _losing(getattr(MemoryFileSystem, name)))


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_opening_survives_lost_requests(tmp_path, monkeypatch, rng, kind):
    monkeypatch.setattr("distrff.io.storage._WAITS", (0.0,) * 4)
    fsspec.register_implementation("flaky", FailsOneInTen, clobber=True)
    X, y = rng.standard_normal((100, 3)), rng.standard_normal(100)
    if kind == "zarr":
        group = zarr.create_group(tmp_path / "rows")
        group.create_array("X", data=X)
        group.create_array("y", data=y)
    else:
        (tmp_path / "rows").mkdir()
        for part in range(3):
            frame = pd.DataFrame(X, columns=list("abc")).assign(y=y)
            frame.to_parquet(tmp_path / "rows" / f"{part}.parquet")
    memory = fsspec.filesystem("memory")
    try:
        memory.put(str(tmp_path / "rows"), "/flaky/rows", recursive=True)
        for _ in range(5):
            data = open_dataset("flaky:///flaky/rows", target="y")
            found = np.concatenate([block.X for block in data.rows(0, data.n_rows).tiles(64)])
            np.testing.assert_array_equal(found[:100], X)
    finally:
        memory.rm("/flaky", recursive=True)


# Raw files are known by what they begin with ---------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A file of each format, all by the same kind of name."""
    FRAME.to_csv(tmp_path / "csv", index=False)
    FRAME.to_parquet(tmp_path / "parquet")
    (tmp_path / "libsvm").write_text("1 1:2\n-1 2:3\n")
    for name, save in (("npz", np.savez), ("npy", np.save)):
        with (tmp_path / name).open("wb") as file:
            save(file, X)
    zarr.create_group(tmp_path / "group")
    return tmp_path


KINDS = dict(csv=CsvSource, libsvm=LibsvmSource, npz=ArraySource, npy=ArraySource, parquet=ParquetTable)


@pytest.mark.parametrize("name", KINDS)
def test_formats(folder, name):
    assert type(open_source([folder / name], x_name="arr_0" if name == "npz" else None)) is KINDS[name]
    assert is_raw(folder / name, None) == (name != "parquet")


def test_an_empty_list_is_refused(tmp_path):
    with pytest.raises(InputError, match="the list of files is empty; give at least one"):
        convert([], tmp_path / "rows.zarr")
    assert not any(tmp_path.iterdir())


def test_what_is_not_raw(folder):
    assert not is_raw(folder / "group", None)
    assert not is_raw(folder / "none", None)
    assert is_raw(f"{folder}/c*", None)
    assert not is_raw(f"{folder}/none*", None)
    with pytest.raises(InputError, match="one of 2 NumPy files; convert them one by one"):
        open_source([folder / "npz", folder / "npy"])


def test_folders_behind_a_web_server(folder, monkeypatch):
    pytest.importorskip("aiohttp", reason="fsspec reads http by aiohttp")
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert not is_raw(f"{url}/group", None)
        assert is_raw(f"{url}/csv", None)
        server.shutdown()
