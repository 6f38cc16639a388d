"""What each worker process reports about itself: memory, BLAS threads, how often it derived a map."""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from threadpoolctl import threadpool_info

from distrff.utils.jit import COUNTS, prepare_process

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class ProcessRecord:
    """State of a process at the end of a task."""

    idle_bytes: int  # resident set when the first task began, after all imports
    peak_bytes: int  # largest resident set since the fit began
    blas_threads: int
    n_derivations: int  # how often a map's arrays were derived since the process began


@dataclass
class WorkRecord:
    """The work behind a result; seconds are summed over tasks. Keys of `processes` are host:process id."""

    n_rows: int = 0
    seconds: float = 0.0
    processes: dict[str, ProcessRecord] = field(default_factory=dict)

    def merge(self, other: WorkRecord) -> WorkRecord:
        """Return the record of both; of a process in both the later state, which has the higher peak."""
        processes = self.processes | other.processes
        for name in self.processes.keys() & other.processes.keys():
            both = self.processes[name], other.processes[name]
            processes[name] = max(both[::-1], key=lambda record: (record.peak_bytes, record.n_derivations))
        return WorkRecord(self.n_rows + other.n_rows, self.seconds + other.seconds, processes)

    @property
    def measured_peak_bytes(self) -> int:
        """Largest peak above idle of any process."""
        return max((p.peak_bytes - p.idle_bytes for p in self.processes.values()), default=0)


# State of this process.
_THIS = SimpleNamespace(idle_bytes=0, blas_threads=0, fit=None)


def begin_task(fit: str, needed: Any = None) -> None:
    """Measure the idle memory before the first task, and reset the peak when a new fit begins.

    `needed` is only to be received. Workers are asked to begin before a fit's first pass, as rows that come
    with a task are in memory when it begins.
    """
    if not _THIS.idle_bytes:
        prepare_process()  # so that the idle process has loaded all that it will use
        _THIS.idle_bytes, _THIS.blas_threads = resident_bytes(), blas_threads()
    if fit != _THIS.fit:
        _THIS.fit = fit
        _reset_peak()


def end_task(n_rows: int, seconds: float) -> WorkRecord:
    """Return the record of a task that this process has just run."""
    peak = max(_THIS.idle_bytes, peak_resident_bytes())
    record = ProcessRecord(_THIS.idle_bytes, peak, _THIS.blas_threads, COUNTS["derivations"])
    return WorkRecord(n_rows, seconds, {f"{socket.gethostname()}:{os.getpid()}": record})


def peak_so_far(fit: str) -> WorkRecord:
    """Return the record of a process since a fit began there; an empty one if it did not."""
    return end_task(0, 0.0) if fit == _THIS.fit else WorkRecord()


def blas_threads() -> int:
    """Return the threads of a matrix product in this process."""
    return max((lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"), default=1)


def _status_bytes(key: str) -> int | None:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
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
    """Return the resident set of this process; its peak if the system does not report the present one."""
    return _status_bytes("VmRSS:") or peak_resident_bytes()


def _reset_peak() -> None:
    """Set the peak to the present resident set, if the system allows it."""
    with suppress(OSError):
        _CLEAR_REFS.write_text("5")
