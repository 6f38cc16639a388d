"""Where stored rows lie, and which errors of a store are final."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from distrff.errors import InputError, InputTypeError, access_remedy
from distrff.public_names import public_name, public_text, refuse_open_secret

# How much a reader decodes at once where the storage leaves a choice: large enough that the
# fixed cost of a read and the latency of an object store vanish, small against a worker's memory.
SPAN_BYTES = 8 * 2**20


def locate(path: Any, storage_options: dict[str, Any] | None) -> tuple[Any, str]:
    """Return the fsspec filesystem that holds `path` and the path inside it.

    Raises
    ------
    InputTypeError
        If `path` is neither a string nor path-like.
    InputError
        If the protocol is unknown, its package is missing or it refuses the options, or the URL holds a
        password that is not percent-encoded.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputTypeError(f"path must be a string or a path, got {type(path).__name__}")
    text = os.fspath(path)
    refuse_open_secret(text)
    with reaching(public_name(text)):
        return url_to_fs(text, **(storage_options or {}))


@contextmanager
def reaching(name: str) -> Iterator[None]:
    """Turn what a filesystem raises while something is opened into an `InputError` that says `name`.

    Only for calls of the filesystem: their packages raise exceptions of their own (no credentials,
    no such host) with no common base.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        remedy = access_remedy(error) or "; check the path and the storage options"
        raise InputError(f"{name} cannot be reached ({one_line(error)}){remedy}") from error


def is_local(fs: Any) -> bool:
    """Tell whether `fs` is this machine's own file system."""
    return isinstance(fs, LocalFileSystem)


def file_name(fs: Any, path: str) -> str:
    """Return what messages call a file at a path of `fs`, from which the protocol was stripped."""
    return path if is_local(fs) else public_name(fs.unstrip_protocol(path))


SEEN_BY_ALL = "if workers run on several machines, use a folder that all of them share, or an object store"
"""What to do about rows that one process sees and another does not."""


def passing(error: Exception) -> Exception:
    """Return an error of a read as one that is retried if it may pass.

    That is an OSError. The packages of object stores also raise exceptions of their own for a lost
    connection; they become OSErrors. Python's own exceptions are returned as they are.
    """
    if isinstance(error, OSError) or type(error).__module__ == "builtins":
        return error
    return OSError(errno.EIO, one_line(error))


def one_line(error: BaseException) -> str:
    """Return a short description of an error of another library."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: {error.strerror}"
    # All that file systems say of a file that is not there is its path, in a spelling of their own.
    text = "" if isinstance(error, FileNotFoundError) else public_text(" ".join(str(error).split()))
    return f"{kind}: {text[:160]}" if text else kind
