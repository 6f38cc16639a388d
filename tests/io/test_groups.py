"""A stored group comes back bit for bit, and nothing but a whole, unaltered one comes back."""

import hashlib
import json
import os
import shutil
import tracemalloc
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr

from distrff.errors import InputError, InputTypeError, ModelFileError
from distrff.io.storage import MAX_JSON_BYTES, Location, check_writable, read_group, replacing, write_group

ARRAYS = {
    "W": np.arange(6.0).reshape(2, 3) - 2.5,
    "zeros": np.zeros((4, 2), dtype=np.float32),
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 3)),
    "mask": np.array([True, False, True]),
    "small": np.array([-3, 0, 7], dtype=np.int8),
    "half": np.array([1.5, np.nan, np.inf], dtype=np.float16),
    "big_endian": np.arange(5, dtype=">f8"),
    "columns_first": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "strided": np.arange(20)[::3],
}
METADATA = {
    "kernel": {"name": "Gaussian", "length_scale": 0.1},
    "seed": 2**63 - 1,
    "C": "inf",
    "note": "π ≤ 4",
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.zarr"


@pytest.fixture
def remote():
    bucket = f"memory://{uuid.uuid4().hex}"
    yield f"{bucket}/model.zarr"
    memory = fsspec.filesystem("memory")
    if memory.exists(bucket):
        memory.rm(bucket, recursive=True)


@pytest.fixture(params=["local", "file url", "memory"])
def url(request, path, remote):
    return {"local": path, "file url": f"file://{path}", "memory": remote}[request.param]


def save(url, **changes):
    write_group(url, ARRAYS, METADATA, **{"kind": "model", **changes})


def writable(url, **options):
    check_writable(Location.of(url), **options)


def failing_at(nth, error, function=lambda *args: None, *, after=False):
    """`function`, whose nth call raises instead, or after it is done."""
    calls = []

    def failing(*args):
        calls.append(args)
        result = function(*args) if after or len(calls) != nth else None
        if len(calls) == nth:
            raise error
        return result

    return failing


def test_comes_back_bit_for_bit(url):
    with pytest.raises(ModelFileError, match="does not exist"):
        read_group(url, kind="model")
    save(url)
    arrays, metadata = read_group(url, kind="model")
    assert metadata == METADATA
    assert arrays.keys() == ARRAYS.keys()
    for name, A in ARRAYS.items():
        assert arrays[name].shape == A.shape
        assert arrays[name].dtype == A.dtype.newbyteorder("=")
        assert arrays[name].tobytes() == A.astype(A.dtype.newbyteorder("=")).tobytes()


def test_numpy_and_zarr_read_the_arrays(path):
    save(path)
    group = zarr.open_group(path, mode="r", zarr_format=3)
    stored = dict(group.attrs)["distrff"]
    assert set(group.keys()) == set(ARRAYS)
    for name, A in ARRAYS.items():
        assert group[name].dtype == A.dtype.newbyteorder("=") and group[name].compressors == ()
        np.testing.assert_array_equal(group[name][...], A)
        if A.size:
            chunk = path / name / "/".join(["c", *"0" * A.ndim])
            raw = np.fromfile(chunk, dtype=A.dtype.newbyteorder("<")).reshape(A.shape)
            np.testing.assert_array_equal(raw, A)
            assert stored["checksums"][name] == hashlib.sha256(chunk.read_bytes()).hexdigest()
    assert (stored["kind"], stored["format"], stored["complete"]) == ("model", 1, True)
    assert stored["metadata"] == METADATA
    assert isinstance(stored["version"], str) and len(stored["metadata_checksum"]) == 64


def test_existing_target_needs_overwrite(url):
    save(url)
    for attempt in (lambda: write_group(url, {}, {}, kind="model"), lambda: writable(url)):
        with pytest.raises(InputError, match="exists; pass overwrite=True or --overwrite"):
            attempt()
    assert read_group(url, kind="model")[1] == METADATA
    writable(url, overwrite=True)
    write_group(url, {"other": np.ones(2)}, {"second": True}, kind="gram", overwrite=True)
    arrays, metadata = read_group(url, kind="gram")
    assert list(arrays) == ["other"] and metadata == {"second": True}
    write_group(url, {}, {}, kind="gram", overwrite=True)
    assert read_group(url, kind="gram") == ({}, {})


def test_an_empty_folder_is_taken_and_nothing_left_beside(path):
    path.mkdir()
    save(path, overwrite=True)
    save(path, overwrite=True)
    assert read_group(path, kind="model")[1] == METADATA
    assert os.listdir(path.parent) == ["model.zarr"]
    assert not (set(os.listdir(path)) - {"zarr.json", *ARRAYS})
    link = path.parent / "latest"
    link.symlink_to(path)
    write_group(link, {}, {"second": True}, kind="model", overwrite=True)
    assert link.is_symlink()
    assert read_group(path, kind="model")[1] == {"second": True}


def dataset(path):
    zarr.create_array(path, data=np.ones(3))


def folder_with_a_file(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")


def plain_file(path):
    path.write_text("years of work")


@pytest.mark.parametrize("make", [dataset, folder_with_a_file, plain_file])
def test_overwrite_does_not_replace_what_is_not_ours(path, make):
    make(path)
    before = sorted(path.parent.rglob("*"))
    for attempt in (lambda: save(path, overwrite=True), lambda: writable(path, overwrite=True)):
        with pytest.raises(InputError, match=r"exists and is not .* of distrff"):
            attempt()
    assert sorted(path.parent.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_parent_folder_not_writable(path):
    path.parent.chmod(0o500)
    try:
        with pytest.raises(InputError, match="is not writable"):
            writable(path)
    finally:
        path.parent.chmod(0o700)


def test_places_that_cannot_be_reached(tmp_path):
    for attempt in (save, writable):
        with pytest.raises(InputError, match=r"folder .*nowhere does not exist; create it first"):
            attempt(tmp_path / "nowhere" / "model.zarr")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a symbolic link to"):
        save(tmp_path / "link.zarr")
    with pytest.raises(InputError, match=r"nosuch://x/m\.zarr cannot be reached"):
        writable("nosuch://x/m.zarr")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_group("nosuch://x/m.zarr", kind="model")
    with pytest.raises(InputTypeError, match="a path or a URL is needed, got 3"):
        save(3)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("device lost")])
def test_failure_around_the_swap_leaves_one_whole_group(path, monkeypatch, nth, when, error):
    save(path)
    monkeypatch.setattr(Path, "rename", failing_at(nth, error, Path.rename, after=when == "after"))
    with pytest.raises((KeyboardInterrupt, InputError)):
        write_group(path, {}, {"second": True}, kind="model", overwrite=True)
    assert os.listdir(path.parent) == ["model.zarr"]
    swapped = nth == 2 and when == "after"
    assert read_group(path, kind="model")[1] == ({"second": True} if swapped else METADATA)


def test_replacing_does_not_replace_groups_of_other_kinds_nor_what_appears_meanwhile(path):
    save(path)
    with replacing(Location.of(path), overwrite=True, kinds=("model",)):
        pass
    shutil.rmtree(path)
    with pytest.raises(InputError, match="exists"), replacing(Location.of(path)) as fresh:
        zarr.create_array(fresh.zarr_store(), data=np.ones(2))
        dataset(path)
    assert os.listdir(path.parent) == ["model.zarr"]
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], np.ones(3))
    shutil.rmtree(path)
    save(path)
    with (
        pytest.raises(InputError, match="exists and is not a predictions or features of distrff"),
        replacing(Location.of(path), overwrite=True, kinds=("predictions", "features")),
    ):
        pytest.fail("must refuse before the work")


def test_a_remote_place_is_incomplete_until_its_root_is_written_last(remote, monkeypatch):
    """So that no reader takes what a killed writer leaves for what was there, or for what was to come."""
    save(remote)
    with replacing(Location.of(remote), overwrite=True, kinds=("model",)) as fresh:
        assert fresh.names() == ["zarr.json"]
        with pytest.raises(ModelFileError, match="incomplete"):
            read_group(remote, kind="model")
    written, memory = [], fsspec.get_filesystem_class("memory")
    pipe_file = memory.pipe_file

    def record(self, path, value, *args, **kwargs):
        written.append((path.split("model.zarr/")[1], b'"complete": true' in bytes(value)))
        return pipe_file(self, path, value, *args, **kwargs)

    monkeypatch.setattr(memory, "pipe_file", record)
    save(remote, overwrite=True)
    assert [complete for _, complete in written] == [False] * (len(written) - 1) + [True]
    assert written[-1][0] == "zarr.json"
    assert read_group(remote, kind="model")[1] == METADATA


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("disk full"), RuntimeError])
def test_failure_while_writing_leaves_the_old_group_or_nothing(path, remote, monkeypatch, interruption):
    """In a folder the old group; in a remote place nothing, where the writing can be repeated."""
    for url, protocol in ((path, "file"), (remote, "memory")):
        save(url)
        with monkeypatch.context() as patch:
            kind = fsspec.get_filesystem_class(protocol)
            patch.setattr(kind, "pipe_file", failing_at(3, interruption, kind.pipe_file))
            with pytest.raises(KeyboardInterrupt if interruption is KeyboardInterrupt else InputError):
                save(url, overwrite=True)
    assert os.listdir(path.parent) == ["model.zarr"]
    assert not Location.of(remote).exists()
    save(remote)
    for url in (path, remote):
        assert read_group(url, kind="model")[1] == METADATA
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{remote}/W/c/0/0", memory.cat_file(f"{remote}/W/c/0/0")[:-8])
    with pytest.raises(ModelFileError, match="array 'W' does not match its checksum"):
        read_group(remote, kind="model")


@pytest.mark.parametrize(
    ("arrays", "metadata", "words"),
    [
        ({}, {"a": {"b": [1.0, float("nan")]}}, r"metadata\.a\.b\[1\] is nan.*store null"),
        ({}, {"C": float("inf")}, r"metadata\.C is inf"),
        ({}, {"C": np.float64(np.inf)}, r"metadata\.C is inf"),
        ({}, {"k": {1: 2}}, r"metadata\.k has the key 1"),
        ({}, {"n": np.int64(3)}, r"metadata\.n is of type int64"),
        ({}, {"x": np.ones(2)}, r"metadata\.x is of type ndarray"),
        *(({"A": np.array(values)}, {}, "array 'A' has dtype") for values in (["a"], [1j], [None])),
    ],
)
def test_loose_json_and_other_dtypes_are_refused(path, arrays, metadata, words):
    with pytest.raises(InputTypeError if arrays else InputError, match=words):
        write_group(path, arrays, metadata, kind="model")
    assert not os.listdir(path.parent)


def test_more_metadata_than_a_reader_takes_are_not_written(path):
    with pytest.raises(InputError, match="give columns shorter names"):
        write_group(path, {}, {"note": "x" * MAX_JSON_BYTES}, kind="model")
    assert not os.listdir(path.parent)


# What is done to a good group, and what the refusal says.


def rewritten(name, change):
    """The bytes of a file as `change` makes them."""
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes()))


def replaced(name, make):
    """Something else in the place of a file; nothing, where `make` only looks."""
    return lambda path: ((path / name).unlink(), make(path / name))


def updated(name, *keys, **changes):
    """Entries of a JSON file, inside of those of `keys`."""

    def change(content):
        document = entry = json.loads(content)
        for key in keys:
            entry = entry[key]
        entry.update(changes)
        return json.dumps(document).encode()

    return rewritten(name, change)


def endless(path):
    path.symlink_to("/dev/zero")


def header(**changes):
    return updated("zarr.json", "attributes", "distrff", **changes)


CHUNK, NODE, ROOT = "W/c/0/0", "W/zarr.json", "zarr.json"
NODES = [b"{", *(b'{"zarr_format": 3, "node_type": "%b"}' % kind for kind in (b"array", b"group"))]
FORMS = [
    {"shape": [10**9] * 2},
    {"shape": [True, 6]},
    *({"data_type": t} for t in ("object", "<U99999999", ["bool"])),
]
DAMAGES = {
    "array 'W' cannot be read.*no regular file": [
        *(replaced(name, os.mkfifo) for name in (CHUNK, NODE)),
        replaced(CHUNK, endless),
    ],
    "array 'W' does not match its checksum": [
        *(
            rewritten(CHUNK, change)
            for change in (lambda data: data[:-3], lambda _: b"", lambda data: data + b"x" * 8)
        ),
        rewritten(CHUNK, lambda data: bytes([data[0] ^ 1]) + data[1:]),
        lambda path: os.truncate(path / CHUNK, 2**40),
        header(checksums={"W": 3}),
    ],
    "array 'W' is missing": [replaced(CHUNK, Path.exists), lambda path: shutil.rmtree(path / "W")],
    "array '../../W' is missing": [header(checksums={"../../W": "0"})],
    "array 'W' cannot be read": [
        *(rewritten(NODE, lambda data, text=text: text) for text in NODES),
        rewritten(NODE, lambda data: data + b" " * 2**16 + b"x"),
        *(updated(NODE, **form) for form in FORMS),
    ],
    "the metadata do not match": [
        *(updated(NODE, **other) for other in ({"shape": [3, 2]}, {"data_type": "int64"})),
        *(header(**{key: other}) for key in ("metadata", "checksums") for other in ({}, None)),
        header(format="one"),
    ],
    "not a group of distrff": [
        *(replaced(ROOT, make) for make in (os.mkfifo, endless)),
        *(
            rewritten(ROOT, lambda _, text=text: text)
            for text in (b'{"zarr_format": 3, ', b"\xff\xfe\x00", b"[1]")
        ),
        lambda path: os.truncate(path / ROOT, 2**40),
        updated(ROOT, attributes={"title": "someone else's"}),
    ],
    "is not a Zarr group": [replaced(ROOT, Path.exists)],
    "cannot be read": [header(checksums=other) for other in (7, ["W"])],
    r"distrff 9\.1 in format 2.*update distrff": [header(format=2, version="9.1")],
    "incomplete": [header(complete=other) for other in (False, None)],
    "this is a gram, not a model": [header(kind="gram")],
    "this is a a b, not a model": [header(kind="a\nb")],
}


@pytest.mark.parametrize(
    ("words", "damage"), [(words, damage) for words, found in DAMAGES.items() for damage in found]
)
def test_bad_files_are_refused_in_one_line(path, damage, words):
    save(path)
    damage(path)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=words) as caught:
        read_group(path, kind="model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MAX_JSON_BYTES
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
