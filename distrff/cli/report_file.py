"""The page of a fit as a file: refused before the fit, or written whole."""

from __future__ import annotations

import os
import secrets

from distrff.display.page import GENERATOR
from distrff.errors import InputError
from distrff.model_store.places import Url, full_disk_told, local_path, refuse_dangling_link
from distrff.public_names import public_name

_HEAD_BYTES = 512  # of a page, which names its generator there


def check_report_place(path: Url, *, overwrite: bool) -> None:
    """Raise what writing a page to `path` would raise; writes nothing.

    With `overwrite` a page of distrff may be replaced and nothing else, so that a slip of the hand costs no
    data.

    Raises
    ------
    InputError
        If it is no local path, its folder is not there or not writable, or something is there that may not
        be replaced.
    """
    refuse_dangling_link(path)
    file, name = local_path(path), public_name(path)
    if file is None:
        raise InputError(f"--report {name} is not a local path; write the page to one and copy it")
    if file.is_dir():
        raise InputError(f"--report {name} is a folder; name a file in it")
    folder = public_name(file.parent)
    if not file.parent.is_dir():
        raise InputError(f"--report {name}: the folder {folder} does not exist; create it first")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise InputError(f"--report {name}: the folder {folder} is not writable; choose another path")
    if not file.exists():
        return
    with file.open("rb") as handle:
        is_page = GENERATOR.encode() in handle.read(_HEAD_BYTES)
    if not is_page:
        raise InputError(
            f"--report {name} exists and is not a page of distrff, so --overwrite spares it; "
            f"choose another path"
        )
    if not overwrite:
        raise InputError(f"--report {name} exists; pass --overwrite to replace it")


def write_report(page: str, path: Url, *, overwrite: bool = False) -> None:
    """Put a page of a fit at the local `path` as UTF-8: whole, or not at all.

    Raises
    ------
    InputError
        As `check_report_place`, which is asked again, since hours may have passed.
    """
    check_report_place(path, overwrite=overwrite)
    file = local_path(path)
    assert file is not None
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        with full_disk_told(path):
            fresh.write_text(page, encoding="utf-8")
            fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
