"""Software on scheduler and workers: what must be the same, what is warned of, and what is told otherwise."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal

import pytest

from distrff.engine.cluster import _check_versions, check_workers, connect
from distrff.errors import ClusterError, ClusterWarning


def with_versions(**versions: str | None) -> str:
    """A prelude of Python that says it has these versions, None of what is not installed."""
    return (
        "import distributed.versions\n"
        "known = distributed.versions.get_package_info\n"
        f"distributed.versions.get_package_info = lambda names: known(names) | {versions!r}\n"
    )


def refusal(client, timeout=30.0) -> str:
    with pytest.raises(ClusterError) as caught:
        check_workers(client, timeout=timeout, patience=timeout)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_workers_of_the_same_environment(client, recwarn):
    check_workers(client)
    assert not recwarn.list


def test_no_workers(dask_processes):
    with connect(str(dask_processes.scheduler())) as client:
        address = client.scheduler.address
        found = refusal(client, timeout=0.2)
    assert f"no workers after 0.2 s; start some (`dask worker {address}`)" in found


@pytest.mark.parametrize("lacking", ["worker", "scheduler"])
def test_a_process_without_distrff(dask_processes, lacking):
    """A scheduler unpacks tasks, so that a fit would end in an error of Dask's, of many lines."""
    prelude = with_versions(distrff=None)
    file = dask_processes.scheduler(prelude=prelude if lacking == "scheduler" else "")
    dask_processes.worker(file, prelude=prelude if lacking == "worker" else "")
    with connect(str(file)) as client:
        found = refusal(client)
    assert found.startswith("worker tcp://" if lacking == "worker" else "the scheduler at tcp://")
    assert "has no installed distrff, this client distrff " in found
    assert "which must be the same; install distrff==" in found


@pytest.mark.slow
def test_a_worker_of_another_release(dask_processes):
    file = dask_processes.scheduler()
    dask_processes.worker(file, prelude=with_versions(distributed="2020.12.0"))
    ours = {name: importlib.metadata.version(name) for name in ("dask", "distributed")}
    with connect(str(file)) as client:
        found = refusal(client)
    told = r"worker tcp://\S+ has distributed 2020.12.0, this client distributed \S+, which must"
    assert re.match(told, found)
    assert "install dask=={dask} distributed=={distributed} there, or start".format(**ours) in found


OURS = {
    "distrff": "0.3.0", "python": "3.12.1.final.0", "dask": "2026.8.1", "distributed": "2026.8.1",
    "numpy": "2.4.6",
}  # fmt: skip


@pytest.mark.parametrize(
    ("package", "version", "told"),
    [
        ("distrff", "0.3.1", "distrff 0.3.1, this client distrff 0.3.0, which must be the same; install"),
        ("distrff", None, "no installed distrff, this client distrff 0.3.0, which must"),
        (
            "python",
            "3.11.9.final.0",
            "Python 3.11.9, this client Python 3.12.1, which must be the same except",
        ),
        ("dask", "2026.7.1", "dask 2026.7.1, this client dask 2026.8.1, which must be the same except"),
        ("python", "3.12.9.final.0", None),
        ("dask", "2026.8.0", None),
        ("numpy", "2.0.0", None),
        (
            "numpy",
            None,
            "no installed numpy, this client numpy 2.4.6, which must be installed; install numpy==2.4.6",
        ),
    ],
)
def test_what_must_be_the_same(package, version, told):
    theirs = OURS | {package: version}
    if told is None:
        _check_versions("w", theirs, OURS)
    else:
        with pytest.raises(ClusterError, match=f"^w has {re.escape(told)}"):
            _check_versions("w", theirs, OURS)


@pytest.mark.slow
def test_versions_that_are_warned_of(dask_processes):
    """Another NumPy, which tasks survive; a patch of Dask is not told."""
    patched = importlib.metadata.version("dask").rsplit(".", 1)[0] + ".99"
    file = dask_processes.scheduler()
    dask_processes.worker(file, prelude=with_versions(numpy="2.0.99", dask=patched))
    told = r"^worker tcp\S+ has numpy 2.0.99, this client numpy .*not to the last bit$"
    with connect(str(file)) as client, pytest.warns(ClusterWarning, match=told):
        check_workers(client, timeout=30)


def test_a_worker_that_hangs():
    with connect(n_workers=1) as client:
        pid = next(iter(client.run(os.getpid).values()))
        os.kill(pid, signal.SIGSTOP)
        try:
            assert "do not answer within 0.5 s" in refusal(client, timeout=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_scheduler_that_is_gone(dask_processes, capfd):
    with connect(str(dask_processes.scheduler())) as client:
        dask_processes.end()
        found = refusal(client, timeout=1)
    assert "the connection to the scheduler at tcp://" in found
    assert "was lost" in found
    assert capfd.readouterr().err == ""
