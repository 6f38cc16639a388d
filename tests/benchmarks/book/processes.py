"""Programs that print JSON lines, with a limit on their time; what they started ends with them."""

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

_GRACE_SECONDS = 5.0
_SAMPLE_SECONDS = 0.1


class Ended(Exception):
    """A program that failed or took too long; the message is the reason."""


class TookTooLong(Ended):
    """A program that was ended by the limit of its time."""


@contextmanager
def _program(command: Sequence[str], python_path: str | None, folder: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a program whose temporary files are in a folder; end it and all that it started."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if python_path is not None:
        environment["PYTHONPATH"] = python_path
    with (Path(folder) / "stderr").open("w") as stderr:
        # Its own session, so that a Ctrl-C comes to it through this process alone.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment | {"TMPDIR": folder},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    family = [process.pid]
    with suppress(psutil.NoSuchProcess):
        family += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    for pid in family:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def results_of(
    command: Sequence[str], seconds: float, python_path: str | None = None, *, starting_seconds: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Yield each JSON object that a program prints, at once.

    With `starting_seconds` the first one may take so long, and the limit of the others counts from it on.

    Raises
    ------
    TookTooLong
        Where it is not done after so many seconds.
    Ended
        Where it fails, or has not started in time.
    """
    with tempfile.TemporaryDirectory() as folder, _program(command, python_path, folder) as process:
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            with suppress(ValueError):  # closed while it was read
                for line in process.stdout:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        is_starting = starting_seconds > 0
        deadline = time.monotonic() + (starting_seconds or seconds)
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                if is_starting:
                    raise Ended(f"had not started after {starting_seconds:.0f} s") from None
                raise TookTooLong(f"stopped after {seconds:.0f} s") from None
            if line is None:
                break
            found = _object_of(line)
            if found is not None:
                if is_starting:
                    is_starting, deadline = False, time.monotonic() + seconds
                yield found
        if process.wait(_GRACE_SECONDS):
            said = (Path(folder) / "stderr").read_text().strip().splitlines() or ["no message"]
            raise Ended(f"exit code {process.returncode}: {said[-1][:200]}")


def _object_of(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for what libraries print beside."""
    with suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else None
    return None


def result_and_peak(
    command: Sequence[str], seconds: float, python_path: str | None = None, *, starting_seconds: float = 0.0
) -> dict[str, Any]:
    """Return the last JSON object that a program prints, with the most memory that its processes had.

    `peak_bytes` is the resident set of the program and all its children together, sampled ten times a second.
    """
    peak, done = [0], threading.Event()

    def watch(program: psutil.Process, known: set[int]) -> None:
        while not done.wait(_SAMPLE_SECONDS):
            family = [child for child in program.children(recursive=True) if child.pid not in known]
            total = 0
            for child in family:
                with suppress(psutil.Error):
                    total += child.memory_info().rss
            peak[0] = max(peak[0], total)

    this = psutil.Process()
    before = {child.pid for child in this.children(recursive=True)}
    watcher = threading.Thread(target=watch, args=(this, before), daemon=True)
    watcher.start()
    last: dict[str, Any] = {}
    try:
        for last in results_of(command, seconds, python_path, starting_seconds=starting_seconds):  # noqa: B007
            pass
    finally:
        done.set()
        watcher.join()
    if not last:
        raise Ended("printed no result")
    return {**last, "peak_bytes": peak[0]}
