"""Records of processes, and how two become one."""

import os
import socket
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.engine import tasks
from distrff.engine.tasks import (
    ProcessRecord,
    WorkRecord,
    begin_task,
    end_task,
    peak_resident_bytes,
    peak_so_far,
    resident_bytes,
)
from tests.support.draws import derivations

RECORDS = st.builds(
    WorkRecord,
    st.integers(0, 10**6),
    st.integers(0, 100).map(float),
    st.dictionaries(
        st.sampled_from(["a:1", "a:2", "b:1"]),
        st.builds(ProcessRecord, st.just(100), st.integers(100, 103), st.just(1), st.integers(0, 2)),
    ),
)


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch):
    """Measurements made here, with more BLAS threads than fits have, are not for the tests after."""
    fresh = SimpleNamespace(idle_bytes=0, blas_threads=0, fit=None)
    monkeypatch.setattr(tasks, "_THIS", fresh)


@given(RECORDS, RECORDS, RECORDS)
def test_the_order_of_merges_does_not_matter(a, b, c):
    left, right = a.merge(b).merge(c), c.merge(b.merge(a))
    assert (left.n_rows, left.seconds, left.processes) == (right.n_rows, right.seconds, right.processes)
    assert left.n_rows == a.n_rows + b.n_rows + c.n_rows
    assert left.processes.keys() == a.processes.keys() | b.processes.keys() | c.processes.keys()
    for name, process in left.processes.items():  # of one process the later state counts
        states = [r.processes[name] for r in (a, b, c) if name in r.processes]
        assert process.peak_bytes == max(state.peak_bytes for state in states)
    assert left.measured_peak_bytes == max((p.peak_bytes - 100 for p in left.processes.values()), default=0)


def test_a_task_is_recorded():
    begin_task(uuid.uuid4().hex)
    record = end_task(7, 0.5)
    assert (record.n_rows, record.seconds) == (7, 0.5)
    (name, process), = record.processes.items()  # fmt: skip
    assert name == f"{socket.gethostname()}:{os.getpid()}"
    assert process.peak_bytes >= process.idle_bytes > 10 * 2**20
    assert process.blas_threads >= 1
    assert process.n_derivations == derivations()
    assert peak_so_far("another fit") == WorkRecord()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peaks that can be reset here")
def test_the_peak_is_that_of_the_fit():
    begin_task("one")
    before = end_task(0, 0.0)
    hill = np.ones(2**25)  # 256 MB
    during = resident_bytes()
    del hill
    (peak,) = [p.peak_bytes for p in end_task(0, 0.0).processes.values()]
    assert peak >= during - 2**20
    assert during >= 2**28
    begin_task("one")  # the same fit: its peak stays
    assert next(iter(end_task(0, 0.0).processes.values())).peak_bytes >= peak
    begin_task("another")
    after = next(iter(end_task(0, 0.0).processes.values()))
    assert after.peak_bytes < peak - 2**27
    assert after.idle_bytes == next(iter(before.processes.values())).idle_bytes


def test_systems_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(tasks, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    peak = peak_resident_bytes()
    assert peak > 10 * 2**20
    assert resident_bytes() >= peak
    begin_task(uuid.uuid4().hex)
    (tmp_path / "status").write_text("Name:\tx\n")  # one that does not tell
    assert peak_resident_bytes() >= peak
