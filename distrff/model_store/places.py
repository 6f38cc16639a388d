"""Where stored things go: what may be replaced there, and how something whole takes its place."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from distrff.errors import DistrffError, InputError, InputTypeError, access_remedy
from distrff.model_store.own_folders import own_folder, remove_folder
from distrff.public_names import public_name, public_text, refuse_open_secret

ROOT = "distrff"  # the attribute of a root zarr.json in which distrff says what it wrote there
FOLDER_MARK = "_distrff.json"  # in a folder that is no Zarr: what zarr.json says elsewhere

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Url = str | os.PathLike[str]
Options = Mapping[str, Any] | None


def exists_refusal(
    url: Url,
    overwrite: bool,
    storage_options: Options = None,
    *,
    kinds: tuple[str, ...] = (),
) -> None:
    """Raise now what writing to `url` would raise later; called before a long fit. Writes nothing.

    With `overwrite`, only what distrff wrote, of one of `kinds` if any are named, or an empty folder may
    be replaced, so that a slip of the hand costs no data.

    Raises
    ------
    InputError
        If something is there that may not be replaced, or the parent folder or the store is not usable.
    """
    refuse_dangling_link(url)
    local = local_path(url)
    with in_one_line(InputError, f"{public_name(url)} cannot be reached"):
        exists, document = root_document(url, storage_options)
    if local is not None and not local.parent.is_dir():
        raise InputError(
            f"{public_name(url)}: the folder {public_name(local.parent)} does not exist; create it first"
        )
    if local is not None and not os.access(local.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{public_name(url)}: the folder {public_name(local.parent)} is not writable; choose another path"
        )
    if not exists:
        return
    is_empty = local is not None and local.is_dir() and not any(local.iterdir())
    header = header_of(document)
    if not is_empty and (header is None or (kinds and header.get("kind") not in kinds)):
        raise InputError(
            f"{public_name(url)} exists and is not a {' or '.join(kinds) or 'group'} of distrff, "
            f"so --overwrite spares it; choose another path"
        )
    if not overwrite:
        raise InputError(f"{public_name(url)} exists; pass overwrite=True or --overwrite to replace it")


def refuse_dangling_link(url: Url) -> None:
    """Refuse a symbolic link that leads nowhere: what was written would stand where nobody looks for it.

    Raises
    ------
    InputError
    """
    if local_path(url) is None:
        return
    link = Path(_without_protocol(url))
    if link.is_symlink() and not link.exists():
        raise InputError(
            f"{public_name(url)} is a symbolic link to {public_name(os.readlink(link))}, which does not "
            f"exist; remove the link or choose another path"
        )


@contextmanager
def replacing(path: Url, *, overwrite: bool = False, kinds: tuple[str, ...] = ()) -> Iterator[Path]:
    """Give an empty folder beside the local `path`, and put it in that place on success.

    On any exception, KeyboardInterrupt included, the new folder is removed and what was at `path`
    is there as before; it is deleted only once the new content is in place. Tasks that write into the
    new folder must be over or cancelled when the block is left. `overwrite` and `kinds` are those of
    `exists_refusal`, which is asked before and, since hours may pass, again at the end.
    """
    exists_refusal(path, overwrite, kinds=kinds)
    target = local_path(path)
    if target is None:
        raise InputError(f"{public_name(path)} is not a local path; an object store cannot rename")
    with full_disk_told(path), own_folder(target.parent, f".{target.name}.", ".partial") as fresh:
        try:
            yield fresh
            put_in_place(fresh, path, overwrite=overwrite, kinds=kinds)
        finally:
            remove_folder(fresh)


@contextmanager
def full_disk_told(path: Url) -> Iterator[None]:
    """Turn what a file system raises that has no room for what is written to `path` into one clear line.

    Raises
    ------
    InputError
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        told = InputError(
            f"{public_name(path)} could not be written ({error.strerror}): make room there, or choose "
            f"another disk (of temporary files by the environment variable TMPDIR)"
        )
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        raise told from error


def put_in_place(fresh: Path, path: Url, *, overwrite: bool, kinds: tuple[str, ...]) -> None:
    """Move a finished folder to the local `path`, if it may go there; see `exists_refusal`."""
    target = local_path(path)
    assert target is not None
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    for file in filter(Path.is_file, fresh.rglob("*")):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    exists_refusal(path, overwrite, kinds=kinds)
    try:
        if target.exists():
            target.rename(aside)
        fresh.rename(target)
    finally:
        if aside.exists() and not target.exists():
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def in_one_line(error_type: type[DistrffError], what: str) -> Iterator[None]:
    """Turn what a file system raises into one line that begins with `what`.

    The object stores behind fsspec raise exceptions of their own with no common base.
    """
    try:
        yield
    except DistrffError:
        raise
    except Exception as error:
        detail = public_text(" ".join(str(error).split())) or type(error).__name__
        raise error_type(f"{what}: {detail}{access_remedy(error)}") from error


def local_path(url: Url) -> Path | None:
    """Return the path without symbolic links, or None for a URL of another file system."""
    text = _without_protocol(url)
    # Of a loop of links, Path.resolve raises.
    return None if "://" in text or "::" in text else Path(os.path.realpath(text))


def _without_protocol(url: Url) -> str:
    try:
        return os.fsdecode(url).removeprefix("file://")
    except TypeError:
        raise InputTypeError(f"a path or a URL is needed, got {url!r}") from None


def file_system(url: Url, storage_options: Options) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path on it."""
    local = local_path(url)
    if local is not None:
        return fsspec.filesystem("file", auto_mkdir=True), str(local)
    refuse_open_secret(os.fsdecode(url))
    fs, path = fsspec.core.url_to_fs(os.fsdecode(url), **(storage_options or {}))
    return fs, path.rstrip("/")


def root_document(url: Url, storage_options: Options) -> tuple[bool, Any]:
    """Return whether anything is at `url`, and what its zarr.json or folder mark says (None without one)."""
    fs, path = file_system(url, storage_options)
    for name in ("zarr.json", FOLDER_MARK):
        try:
            document = json.loads(file_bytes(fs, f"{path}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (ValueError, RecursionError):
            document = {}
        return True, document if isinstance(document, dict) else {}
    return fs.exists(path), None


def file_bytes(fs: Any, path: str) -> bytes:
    """Return what a file holds; a pipe would be waited for, and a device may have no end.

    Raises
    ------
    ValueError
        If it is no regular file.
    """
    if isinstance(fs, LocalFileSystem) and (kind := fs.info(path)["type"]) not in ("file", "directory"):
        raise ValueError(f"{Path(path).name} is no regular file ({kind})")
    return bytes(fs.cat_file(path))


def stored_header(url: Url, storage_options: Options = None) -> dict[str, Any] | None:
    """Return what distrff noted in the root of what is at `url`, None if it wrote nothing there."""
    return header_of(root_document(url, storage_options)[1])


def header_of(document: Any) -> dict[str, Any] | None:
    """Return what distrff noted in a root document, None if nothing."""
    for key in ("attributes", ROOT):
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else None
