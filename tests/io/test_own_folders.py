"""Folders that killed processes left behind are removed; those in use, and those of others, are kept."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from distrff.io import storage
from distrff.io.storage import own_folder, remove_abandoned

HOLD = (
    "import sys, time; from pathlib import Path; from distrff.io.storage import own_folder\n"
    "with own_folder(Path(sys.argv[1]), '.a[1].', '.partial') as folder:\n"
    "    (folder / 'sub').mkdir(); (folder / 'sub' / 'file').write_text('x')\n"
    "    print(folder, flush=True); time.sleep(600)\n"
)


@pytest.fixture
def holder(tmp_path):
    """A process that works in such a folder, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_leaves_goes_with_the_next(holder, tmp_path):
    process, left = holder
    others = {".a[1].0123456.partial", ".a[1].x1234567.partial", ".a1.01234567.partial", ".a[1].01234567.old"}
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".a[1].00000000.partial").write_text("no folder")
    (tmp_path / ".a[1].11111111.partial").symlink_to(tmp_path / ".a1.01234567.partial")
    others |= {".a[1].00000000.partial", ".a[1].11111111.partial"}
    with own_folder(tmp_path, ".a[1].", ".partial") as mine:
        assert names(tmp_path) == others | {os.path.basename(left), mine.name}  # somebody works there
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.exists(f"{left}/sub/file")
    with own_folder(tmp_path, ".a[1].", ".partial") as mine:
        assert names(tmp_path) == others | {mine.name}
        remove_abandoned(tmp_path, ".a[1].", ".partial")
        assert mine.exists()
    assert names(tmp_path) == others


def test_one_that_is_taken_for_abandoned_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    lock, taken = storage._lock, []

    def removed_first(folder):
        if not taken:
            taken.append(folder)
            shutil.rmtree(folder)
        return lock(folder)

    monkeypatch.setattr(storage, "_lock", removed_first)
    with own_folder(tmp_path, "a-") as mine:
        assert mine.exists()
        assert mine != taken[0]


def test_without_locks_or_listings_nothing_is_removed(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(9, "Bad file descriptor")

    (tmp_path / "a-01234567").mkdir()
    monkeypatch.setattr(storage.fcntl, "flock", no_locks)
    with own_folder(tmp_path, "a-") as mine:
        assert names(tmp_path) == {"a-01234567", mine.name}
    assert names(tmp_path) == {"a-01234567"}

    def hidden(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(storage.os, "listdir", hidden)
    with own_folder(tmp_path, "a-") as mine:
        assert mine.is_dir()


def test_many_at_once(tmp_path):
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            with own_folder(tmp_path, "a-") as mine:
                (mine / "file").write_text("x")
                if not (mine / "file").exists():
                    wrong.append(mine.name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, names(tmp_path)) == ([], set())
