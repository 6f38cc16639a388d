"""What each worker process tells of itself: memory, BLAS threads, how often it derived a map."""

from __future__ import annotations

import os
import resource
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from threadpoolctl import threadpool_info

from distrff.utils.process import COUNTS, prepare_process

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class ProcessRecord:
    """One process, as seen at the end of a task.

    Parameters
    ----------
    idle_bytes : int
        Resident set when the first task began, after all imports.
    peak_bytes : int
        Largest resident set since the fit began.
    blas_threads : int
    n_derivations : int
        How often a map's arrays were derived since the process began.
    """

    idle_bytes: int
    peak_bytes: int
    blas_threads: int
    n_derivations: int


@dataclass
class WorkRecord:
    """What a sweep's tasks report beside their result.

    Parameters
    ----------
    n_rows : int
    seconds : float
        Summed over tasks.
    processes : dict of str to ProcessRecord
        By host and process id.
    """

    n_rows: int = 0
    seconds: float = 0.0
    processes: dict[str, ProcessRecord] = field(default_factory=dict)

    def merge(self, other: WorkRecord) -> WorkRecord:
        """Return the record of both; of one process the later state, which has the higher peak."""
        processes = dict(self.processes)
        for name, record in other.processes.items():
            seen = processes.get(name)
            if seen is None or (record.peak_bytes, record.n_derivations) >= (
                seen.peak_bytes,
                seen.n_derivations,
            ):
                processes[name] = record
        return WorkRecord(self.n_rows + other.n_rows, self.seconds + other.seconds, processes)

    @property
    def measured_peak_bytes(self) -> int:
        """Largest peak above idle of any process."""
        return max((p.peak_bytes - p.idle_bytes for p in self.processes.values()), default=0)


class _ThisProcess:
    """State of the process that this module was imported into."""

    def __init__(self) -> None:
        self.idle_bytes: int | None = None
        self.blas_threads = 0
        self.fit: str | None = None

    def begin(self, fit: str) -> None:
        """Note the idle memory once, and forget the peaks of earlier fits."""
        if self.idle_bytes is None:
            prepare_process()  # idle is a process with all that it will use loaded
            self.idle_bytes = resident_bytes()
            self.blas_threads = blas_threads()
        if fit != self.fit:
            self.fit = fit
            _reset_peak()

    def record(self) -> ProcessRecord:
        idle = self.idle_bytes or 0
        return ProcessRecord(idle, max(idle, peak_resident_bytes()), self.blas_threads, COUNTS["derivations"])


_THIS = _ThisProcess()


def begin_task(fit: str) -> None:
    """Note that this process works for `fit` from now on."""
    _THIS.begin(fit)


def end_task(n_rows: int, seconds: float) -> WorkRecord:
    """Return the record of one task of this process."""
    return WorkRecord(n_rows, seconds, {f"{socket.gethostname()}:{os.getpid()}": _THIS.record()})


def blas_threads() -> int:
    """Return the threads that a product of this process takes."""
    return max((lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"), default=1)


def _status_bytes(key: str) -> int | None:
    try:
        text = _STATUS.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return None


def peak_resident_bytes() -> int:
    """Return the largest resident set of this process since its peak was last reset."""
    peak = _status_bytes("VmHWM:")
    if peak is not None:
        return peak
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maximum if sys.platform == "darwin" else maximum * 1024


def resident_bytes() -> int:
    """Return the resident set of this process; its peak where the system does not tell."""
    return _status_bytes("VmRSS:") or peak_resident_bytes()


def _reset_peak() -> None:
    """Set the peak to the present resident set, where the system lets a process do that."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return
