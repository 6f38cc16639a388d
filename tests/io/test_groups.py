"""A stored group comes back bit for bit, and nothing but a whole, unaltered one comes back."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr

from distrff.errors import InputError, InputTypeError, ModelFileError
from distrff.io.groups import read_group, write_group
from distrff.io.storage import Location, check_writable, replacing

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


def failing_at(nth, error, function=lambda *args: None):
    """`function`, whose nth call raises instead."""
    calls = []

    def failing(*args):
        calls.append(args)
        if len(calls) == nth:
            raise error
        return function(*args)

    return failing


def edit(file, change):
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def test_comes_back_bit_for_bit(url):
    save(url)
    arrays, metadata = read_group(url, kind="model")
    assert metadata == METADATA
    assert arrays.keys() == ARRAYS.keys()
    for name, A in ARRAYS.items():
        assert arrays[name].shape == A.shape
        assert arrays[name].dtype == A.dtype.newbyteorder("=")
        assert arrays[name].tobytes() == A.astype(A.dtype.newbyteorder("=")).tobytes()


def test_no_arrays_and_no_metadata(url):
    write_group(url, {}, {}, kind="gram")
    assert read_group(url, kind="gram") == ({}, {})


@pytest.mark.parametrize("name", [name for name, A in ARRAYS.items() if A.size])
def test_numpy_alone_reads_the_chunk(path, name):
    save(path)
    A = ARRAYS[name]
    chunk = path / name / "/".join(["c", *"0" * A.ndim])
    raw = np.fromfile(chunk, dtype=A.dtype.newbyteorder("<")).reshape(A.shape)
    np.testing.assert_array_equal(raw, A)
    header = json.loads((path / "zarr.json").read_text())["attributes"]["distrff"]
    assert header["checksums"][name] == hashlib.sha256(chunk.read_bytes()).hexdigest()


def test_zarr_reads_the_arrays(path):
    save(path)
    group = zarr.open_group(path, mode="r", zarr_format=3)
    assert set(group.keys()) == set(ARRAYS)
    for name, A in ARRAYS.items():
        node = group[name]
        assert node.dtype == A.dtype.newbyteorder("=") and node.compressors == ()
        np.testing.assert_array_equal(node[...], A)


def test_root_attributes(path):
    save(path)
    header = dict(zarr.open_group(path, mode="r").attrs)["distrff"]
    assert header["kind"] == "model" and header["format"] == 1 and header["complete"] is True
    assert header["metadata"] == METADATA
    assert isinstance(header["version"], str) and len(header["metadata_checksum"]) == 64


def test_existing_target_needs_overwrite(url):
    save(url)
    with pytest.raises(InputError, match="exists; pass overwrite=True or --overwrite"):
        write_group(url, {}, {}, kind="model")
    with pytest.raises(InputError, match="exists; pass overwrite=True or --overwrite"):
        check_writable(Location.of(url))
    assert read_group(url, kind="model")[1] == METADATA
    check_writable(Location.of(url), overwrite=True)
    write_group(url, {"other": np.ones(2)}, {"second": True}, kind="gram", overwrite=True)
    arrays, metadata = read_group(url, kind="gram")
    assert list(arrays) == ["other"] and metadata == {"second": True}


def test_local_write_leaves_nothing_beside(path):
    save(path)
    save(path, overwrite=True)
    assert os.listdir(path.parent) == ["model.zarr"]
    assert not (set(os.listdir(path)) - {"zarr.json", *ARRAYS})


def test_empty_folder_is_taken(path):
    path.mkdir()
    save(path, overwrite=True)
    assert read_group(path, kind="model")[1] == METADATA


def dataset(path):
    zarr.create_array(path, data=np.ones(3))


def folder_with_a_file(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")


def plain_file(path):
    path.write_text("years of work")


@pytest.mark.parametrize("make", [dataset, folder_with_a_file, plain_file])
def test_overwrite_spares_what_is_not_ours(path, make):
    make(path)
    before = sorted(path.parent.rglob("*"))
    for attempt in (
        lambda: save(path, overwrite=True),
        lambda: check_writable(Location.of(path), overwrite=True),
    ):
        with pytest.raises(InputError, match=r"exists and is not .* of distrff"):
            attempt()
    assert sorted(path.parent.rglob("*")) == before


def test_overwrite_spares_a_remote_dataset(remote):
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{remote}/X/c/0", b"years of work")
    for root in (None, b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'):
        if root:
            memory.pipe_file(f"{remote}/zarr.json", root)
        with pytest.raises(InputError, match="exists and is not a model or gram"):
            save(remote, overwrite=True)
    assert memory.cat_file(f"{remote}/X/c/0") == b"years of work"


def test_symbolic_link_stays(path, tmp_path):
    save(path)
    link = tmp_path / "latest"
    link.symlink_to(path)
    write_group(link, {}, {"second": True}, kind="model", overwrite=True)
    assert link.is_symlink()
    assert read_group(path, kind="model")[1] == {"second": True}


def test_parent_folder_missing(tmp_path):
    for attempt in (save, lambda url: check_writable(Location.of(url))):
        with pytest.raises(InputError, match=r"folder .*nowhere does not exist; create it first"):
            attempt(tmp_path / "nowhere" / "model.zarr")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_parent_folder_not_writable(path):
    path.parent.chmod(0o500)
    try:
        with pytest.raises(InputError, match="is not writable"):
            check_writable(Location.of(path))
    finally:
        path.parent.chmod(0o700)


def test_unknown_protocol():
    with pytest.raises(InputError, match=r"nosuch://x/m\.zarr cannot be reached"):
        check_writable(Location.of("nosuch://x/m.zarr"))
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_group("nosuch://x/m.zarr", kind="model")


def test_not_a_path():
    with pytest.raises(InputTypeError, match="a path or a URL is needed, got 3"):
        save(3)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("disk full"), RuntimeError])
def test_failure_while_writing_leaves_the_old_group(path, monkeypatch, interruption):
    save(path)

    monkeypatch.setattr(fsspec.get_filesystem_class("file"), "pipe_file", failing_at(3, interruption))
    expected = KeyboardInterrupt if interruption is KeyboardInterrupt else InputError
    with pytest.raises(expected):
        save(path, overwrite=True)
    assert os.listdir(path.parent) == ["model.zarr"]
    assert read_group(path, kind="model")[1] == METADATA


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("device lost")])
def test_failure_around_the_swap_leaves_one_whole_group(path, monkeypatch, nth, when, error):
    save(path)
    rename, calls = Path.rename, []

    def failing_rename(self, target):
        calls.append(target)
        if len(calls) == nth and when == "before":
            raise error
        rename(self, target)
        if len(calls) == nth:
            raise error

    monkeypatch.setattr(Path, "rename", failing_rename)
    with pytest.raises((KeyboardInterrupt, InputError)):
        write_group(path, {}, {"second": True}, kind="model", overwrite=True)
    assert os.listdir(path.parent) == ["model.zarr"]
    swapped = nth == 2 and when == "after"
    assert read_group(path, kind="model")[1] == ({"second": True} if swapped else METADATA)


def test_target_that_appears_during_the_work_is_kept(path):
    with pytest.raises(InputError, match="exists"), replacing(Location.of(path)) as fresh:
        zarr.create_array(fresh.zarr_store(), data=np.ones(2))
        dataset(path)
    assert os.listdir(path.parent) == ["model.zarr"]
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], np.ones(3))


def test_replacing_spares_groups_of_other_kinds(path):
    save(path)
    with replacing(Location.of(path), overwrite=True, kinds=("model",)):
        pass
    save(path, overwrite=True)
    with (
        pytest.raises(InputError, match="exists and is not a predictions or features of distrff"),
        replacing(Location.of(path), overwrite=True, kinds=("predictions", "features")),
    ):
        pytest.fail("must refuse before the work")


def test_a_remote_place_is_incomplete_before_anything_else(remote):
    """So that no reader takes what a killed writer leaves for what was there, or for what was to come."""
    save(remote)
    with replacing(Location.of(remote), overwrite=True, kinds=("model",)) as fresh:
        assert fresh.names() == ["zarr.json"]
        with pytest.raises(ModelFileError, match="incomplete"):
            read_group(remote, kind="model")
    save(remote, overwrite=True)
    assert read_group(remote, kind="model")[1] == METADATA


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("disk full"), RuntimeError])
def test_failed_remote_write_leaves_nothing_and_can_be_repeated(remote, monkeypatch, interruption):
    save(remote)
    with monkeypatch.context() as patch:
        memory = fsspec.get_filesystem_class("memory")
        patch.setattr(memory, "pipe_file", failing_at(3, interruption, memory.pipe_file))
        with pytest.raises(KeyboardInterrupt if interruption is KeyboardInterrupt else InputError):
            save(remote, overwrite=True)
    assert not Location.of(remote).exists()
    save(remote)
    assert read_group(remote, kind="model")[1] == METADATA


def test_remote_root_metadata_comes_last(remote, monkeypatch):
    written = []
    memory = fsspec.get_filesystem_class("memory")
    pipe_file = memory.pipe_file

    def record(self, path, value, *args, **kwargs):
        written.append((path.split("model.zarr/")[1], b'"complete": true' in bytes(value)))
        return pipe_file(self, path, value, *args, **kwargs)

    monkeypatch.setattr(memory, "pipe_file", record)
    save(remote)
    assert [complete for _, complete in written] == [False] * (len(written) - 1) + [True]
    assert written[-1][0] == "zarr.json"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"a": {"b": [1.0, float("nan")]}}, r"metadata\.a\.b\[1\] is nan.*store null"),
        ({"C": float("inf")}, r"metadata\.C is inf"),
        ({"C": np.float64(np.inf)}, r"metadata\.C is inf"),
        ({"k": {1: 2}}, r"metadata\.k has the key 1"),
        ({"n": np.int64(3)}, r"metadata\.n is of type int64"),
        ({"x": np.ones(2)}, r"metadata\.x is of type ndarray"),
    ],
)
def test_loose_json_is_refused(path, metadata, words):
    with pytest.raises(InputError, match=words):
        write_group(path, {}, metadata, kind="model")
    assert not os.listdir(path.parent)


@pytest.mark.parametrize("A", [np.array(["a"]), np.array([1j]), np.array([None])])
def test_other_dtypes_are_refused(path, A):
    with pytest.raises(InputTypeError, match="array 'A' has dtype"):
        write_group(path, {"A": A}, {}, kind="model")


# what is done to a good group, and what the refusal says


def damage_truncated(path):
    chunk = path / "W/c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-3])


def damage_emptied(path):
    (path / "W/c/0/0").write_bytes(b"")


def damage_appended(path):
    with (path / "W/c/0/0").open("ab") as chunk:
        chunk.write(b"12345678")


def damage_bit(path):
    chunk = path / "W/c/0/0"
    data = bytearray(chunk.read_bytes())
    data[0] ^= 1
    chunk.write_bytes(data)


def damage_chunk_removed(path):
    (path / "W/c/0/0").unlink()


def damage_array_removed(path):
    (path / "W/c/0/0").unlink()
    (path / "W/zarr.json").unlink()


def damage_array_header(path):
    (path / "W/zarr.json").write_text("{")


def damage_array_header_fields(path):
    (path / "W/zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')


def damage_array_is_group(path):
    (path / "W/zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')


def damage_shape(path):
    edit(path / "W/zarr.json", lambda node: node.update(shape=[3, 2]))


def damage_huge_shape(path):
    edit(path / "W/zarr.json", lambda node: node.update(shape=[10**9, 10**9]))


def damage_dtype(path):
    edit(path / "W/zarr.json", lambda node: node.update(data_type="int64"))


def damage_object_dtype(path):
    edit(path / "W/zarr.json", lambda node: node.update(data_type="object"))


def header_edit(**changes):
    def change(path):
        edit(path / "zarr.json", lambda root: root["attributes"]["distrff"].update(changes))

    return change


def damage_root(path):
    (path / "zarr.json").write_text('{"zarr_format": 3, ')


def damage_root_not_text(path):
    (path / "zarr.json").write_bytes(b"\xff\xfe\x00")


def damage_root_is_list(path):
    (path / "zarr.json").write_text("[1]")


def damage_root_removed(path):
    (path / "zarr.json").unlink()


def damage_root_other(path):
    edit(path / "zarr.json", lambda root: root.update(attributes={"title": "someone else's"}))


def damage_by(name, special):
    def change(path):
        (path / name).unlink()
        special(path / name)

    return change


def endless(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_by("W/c/0/0", os.mkfifo), "array 'W' cannot be read.*no regular file"),
        (damage_by("W/zarr.json", os.mkfifo), "array 'W' cannot be read.*no regular file"),
        (damage_by("W/c/0/0", endless), "array 'W' cannot be read.*no regular file"),
        (damage_by("zarr.json", os.mkfifo), "not a group of distrff"),
        (damage_by("zarr.json", endless), "not a group of distrff"),
        (damage_truncated, "array 'W' does not match its checksum"),
        (damage_emptied, "array 'W' does not match its checksum"),
        (damage_appended, "array 'W' does not match its checksum"),
        (damage_bit, "array 'W' does not match its checksum"),
        (damage_chunk_removed, "array 'W' is missing"),
        (damage_array_removed, "array 'W' is missing"),
        (damage_array_header, "array 'W' cannot be read"),
        (damage_array_header_fields, "array 'W' cannot be read"),
        (damage_array_is_group, "array 'W' cannot be read"),
        (damage_shape, "the metadata do not match"),
        (damage_huge_shape, "array 'W' cannot be read"),
        (damage_object_dtype, "array 'W' cannot be read"),
        (damage_dtype, "the metadata do not match"),
        (header_edit(metadata={"seed": 1}), "the metadata do not match"),
        (header_edit(metadata=None), "the metadata do not match"),
        (header_edit(checksums={}), "the metadata do not match"),
        (header_edit(checksums=None), "the metadata do not match"),
        (header_edit(checksums=7), "cannot be read"),
        (header_edit(checksums=["W"]), "cannot be read"),
        (header_edit(checksums={"../../W": "0"}), "array '../../W' is missing"),
        (header_edit(checksums={"W": 3}), "array 'W' does not match"),
        (header_edit(format="one"), "the metadata do not match"),
        (header_edit(format=2, version="9.1"), r"distrff 9\.1 in format 2.*update distrff"),
        (header_edit(complete=False), "incomplete"),
        (header_edit(complete=None), "incomplete"),
        (header_edit(kind="gram"), "this is a gram, not a model"),
        (damage_root, "not a group of distrff"),
        (damage_root_not_text, "not a group of distrff"),
        (damage_root_is_list, "not a group of distrff"),
        (damage_root_removed, "is not a Zarr group"),
        (damage_root_other, "not a group of distrff"),
    ],
)
def test_bad_files_are_refused_in_one_line(path, damage, words):
    save(path)
    damage(path)
    with pytest.raises(ModelFileError, match=words) as caught:
        read_group(path, kind="model")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_path(url):
    with pytest.raises(ModelFileError, match="does not exist"):
        read_group(url, kind="model")


def test_remote_damage_is_refused(remote):
    save(remote)
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{remote}/W/c/0/0", memory.cat_file(f"{remote}/W/c/0/0")[:-8])
    with pytest.raises(ModelFileError, match="array 'W' does not match its checksum"):
        read_group(remote, kind="model")
