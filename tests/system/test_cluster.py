"""Connecting: what `--scheduler` may be and which software runs there; that nothing stays behind."""

import importlib.metadata
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread

import dask
import pytest
from dask.system import CPU_COUNT
from distributed import Client, default_client
from distributed.system import MEMORY_LIMIT

from distrff.engine.cluster import _check_versions, check_workers, connect, memory_limit_bytes
from distrff.errors import ClusterError, ClusterWarning, InputError
from tests.support.commands import interrupt, is_running, run, start


@contextmanager
def listener(reply: bytes | None) -> Iterator[str]:
    """Something that accepts connections, says `reply` if any, and hangs up if it said something."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                accepted.append(connection)
                if reply is not None:
                    connection.sendall(reply)
                    connection.close()

        Thread(target=serve, daemon=True).start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in accepted:
                connection.close()


def refusal(address: str, timeout: float = 1.0) -> str:
    """The message of the error that connecting ends in, which comes in time and is one line."""
    started = time.monotonic()
    with pytest.raises(ClusterError) as caught, connect(address, timeout=timeout):
        pass
    assert time.monotonic() - started < timeout + 3
    message = str(caught.value)
    assert "\n" not in message
    assert address in message
    return message


# ---------------------------------------------------------------- a cluster of this computer


def test_local_cluster_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with dask.config.set({"temporary-directory": str(scratch)}), connect(n_workers=2) as client:
        assert default_client() is client
        workers = client.scheduler_info()["workers"].values()
        assert [worker["nthreads"] for worker in workers] == [1, 1]
        assert [worker["memory_limit"] for worker in workers] == [int(MEMORY_LIMIT) // 2] * 2
        folders = [worker["local_directory"] for worker in workers]
        pids = set(client.run(os.getpid).values())
        assert len(pids) == 2
        assert os.getpid() not in pids
        assert all(Path(folder).is_relative_to(scratch) for folder in folders)
        # No port is fixed: a second one starts without a warning (they are errors in this suite's settings).
        with connect(n_workers=1, threads_per_worker=2, memory_limit="0") as second:
            assert second.scheduler.address != client.scheduler.address
            (worker,) = second.scheduler_info()["workers"].values()
            assert (worker["nthreads"], worker["memory_limit"]) == (2, 0)
    assert not any(is_running(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.iterdir()) == []
    with pytest.raises(ValueError, match="No clients found"):
        default_client()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("starting", 0.0), pytest.param("starting", 0.3, marks=pytest.mark.slow), ("working", 0.1)],
    ids=str,
)
def test_ctrl_c_leaves_nothing_behind(tmp_path, said, seconds):
    """Ctrl-C goes to all processes of a terminal at once, while they start and while they work."""
    (tmp_path / "scratch").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "from distrff.engine.cluster import connect\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        print('starting', flush=True)\n"
        "        with connect(n_workers=2) as client:\n"
        "            futures = client.map(time.sleep, [0.2] * 100, pure=False)\n"
        "            print('working', *client.run(os.getpid).values(), flush=True)\n"
        "            time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    command = (sys.executable, script)
    with start(*command, cwd=tmp_path, env=environment, start_new_session=True) as running:
        for line in running.stdout:
            if said in line:
                break
        time.sleep(seconds)
        _, errors = interrupt(running, seconds=5)
    # Workers that are starting are waited for, and that is told at once.
    told = "interrupted: it ends once the workers have started\n"
    assert errors in ({"", told} if said == "starting" else {""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "script.py"]
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.slow
def test_a_script_without_main_guard_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import distrff.engine.cluster\n"
        "distrff.engine.cluster._START_SECONDS = 5\n"
        "with distrff.engine.cluster.connect(n_workers=1):\n"
        "    pass\n"
    )
    done = run(sys.executable, script, timeout=120)
    assert "ClusterError: the local workers did not start" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr


@pytest.mark.parametrize(("n_workers", "remedy"), [(CPU_COUNT + 1, f"n_workers={CPU_COUNT}"), (1, "memory")])
def test_workers_that_do_not_start_are_told_with_a_number_that_works(monkeypatch, n_workers, remedy):
    monkeypatch.setattr("distrff.engine.cluster.LocalCluster", lambda **_: 1 / 0)
    message = rf"did not start \(division by zero; {n_workers} were asked for\).* {remedy}"
    with pytest.raises(ClusterError, match=message), connect(n_workers=n_workers):
        pass


def test_memory_limits():
    """By default workers share the memory."""
    sizes = {"4GB": 4 * 10**9, "4GiB": 2**32, "1MB": 10**6, "0": 0, 0: 0, 2**30: 2**30}
    assert {limit: memory_limit_bytes(limit, 3) for limit in sizes} == sizes
    assert memory_limit_bytes("auto", 4) == memory_limit_bytes(None, 4) == int(MEMORY_LIMIT) // 4
    for limit in ("lots", "4", "-4GB", "0.5", "", "4GX", -1, [1]):
        with pytest.raises(InputError, match=r"memory_limit must be .*'4GB'"):
            memory_limit_bytes(limit, 1)


# ---------------------------------------------------------------- a scheduler that runs somewhere


def address_in(file: Path) -> str:
    return json.loads(file.read_text())["address"]


def test_scheduler_by_file_and_by_address(dask_processes):
    """Each time it is still there: leaving does not end it."""
    file = dask_processes.scheduler()
    address = address_in(file)
    for named in (str(file), address, address.removeprefix("tcp://")):
        with connect(named) as client:
            assert client.scheduler.address == address


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (None, "(silent for 1 s); check that"),
        (b"", "not the dashboard's"),
        (b"hello", "not the dashboard's"),
        (b"HTTP/1.1 400 Bad Request\r\nServer: other\r\n\r\n", "not the dashboard's"),
    ],
)
def test_something_else_than_dask_listens(reply, told, capfd):
    with listener(reply) as address:
        assert told in refusal(address)
    assert capfd.readouterr() == ("", "")


def test_nothing_listens_or_a_worker(client, capfd):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert "check that it runs" in refusal(f"tcp://127.0.0.1:{unused.getsockname()[1]}")
    assert "its address and port" in refusal("tcp://127.0.0.1:99999")
    assert capfd.readouterr() == ("", "")
    assert "it is a worker" in refusal(next(iter(client.scheduler_info()["workers"])))


NO_FILE, NO_ADDRESS = "no scheduler file '{}'", "'{}' is not an address .* tcp://host:8786"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: number}, f"{name} must be a positive integer")
            for name in ("n_workers", "threads_per_worker")
            for number in (0, -1, 1.5, True, "2")
        ),
        ({"scheduler": 5}, "scheduler must be 'local', an address or a path, got 5"),
        *(({"scheduler": name}, NO_FILE) for name in ("cluster.json", "folder/cluster", "lcoal")),
        *(
            ({"scheduler": address}, NO_ADDRESS)
            for address in ("http://127.0.0.1:8787", "tcp://127.0.0.1", "tcp://", "tcp://host:x")
        ),
    ],
)
def test_what_cannot_be_connected_to(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message.format(*options.values())), connect(**options):
        pass
    for content in ("", "{}", "[]", '{"address": '):
        Path("c.json").write_text(content)
        with pytest.raises(InputError, match="is not a readable scheduler file"), connect("c.json"):
            pass


# ---------------------------------------------------------------- TLS


def test_tls_is_dasks_configuration(tls_of, dask_processes):
    theirs, others = tls_of("theirs"), tls_of("others")
    address = address_in(dask_processes.scheduler("tls", **theirs))
    assert address.startswith("tls://")
    with dask.config.set(theirs), connect(address) as client:
        assert client.scheduler.address == address
    plain = address.replace("tls://", "tcp://")
    said = f"that TLS is used on both sides or on neither ({address} with TLS, {plain} without)"
    assert said in refusal(plain)
    with dask.config.set(others):
        assert said in refusal(plain)
    assert "no settings for TLS: set ca-file, client.cert and client.key" in refusal(address)
    with dask.config.set(others):
        assert "the ca-file under distributed.comm.tls in Dask's conf" in refusal(address)
    with dask.config.set(others | {"distributed.comm.tls.ca-file": theirs["distributed.comm.tls.ca-file"]}):
        assert "refuses this client's certificate" in refusal(address)


def test_tls_where_there_is_none(tls_of, dask_processes):
    address = address_in(dask_processes.scheduler())
    with dask.config.set(tls_of("theirs")):
        secure = address.replace("tcp://", "tls://")
        assert f"has no TLS: write {address} in place of {secure}" in refusal(secure)
    assert f"or write {address} if it has no TLS" in refusal(secure)
    with dask.config.set({"distributed.comm.require-encryption": True}):
        assert "require-encryption is set: give a tls:// address" in refusal(address)


@pytest.mark.parametrize("broken", ["ca-file", "client.cert", "client.key"])
@pytest.mark.parametrize("how", ["missing", "a folder", "no PEM"])
def test_tls_settings_that_cannot_be_read(tls_of, tmp_path, broken, how):
    file = tmp_path / "broken.pem"
    said = f": {broken} {file}); "
    if how == "a folder":
        file.mkdir()
    elif how == "no PEM":
        file.write_text("hello")
        said = "); ca-file, client.cert and client.key under "
    settings = tls_of("theirs") | {f"distributed.comm.tls.{broken}": str(file)}
    with (
        dask.config.set(settings),
        pytest.raises(ClusterError, match=r"^the TLS settings of this client .* used \([^\n]+$") as caught,
        connect("tls://127.0.0.1:1", timeout=1.0),
    ):
        pass
    assert said in str(caught.value)


# ---------------------------------------------------------------- software on scheduler and workers


def with_versions(**versions: str | None) -> str:
    """A prelude of Python that says it has these versions, None of what is not installed."""
    return (
        "import distributed.versions\n"
        "known = distributed.versions.get_package_info\n"
        f"distributed.versions.get_package_info = lambda names: known(names) | {versions!r}\n"
    )


def version_refusal(client, timeout=30.0) -> str:
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
        found = version_refusal(client, timeout=0.2)
    assert f"no workers after 0.2 s; start some (`dask worker {address}`)" in found


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["worker", "scheduler"])
def test_a_process_without_distrff(dask_processes, lacking):
    """A scheduler unpacks tasks, so that a fit would end in an error of Dask's, of many lines."""
    prelude = with_versions(distrff=None)
    file = dask_processes.scheduler(prelude=prelude if lacking == "scheduler" else "")
    dask_processes.worker(file, prelude=prelude if lacking == "worker" else "")
    with connect(str(file)) as client:
        found = version_refusal(client)
    assert found.startswith("worker tcp://" if lacking == "worker" else "the scheduler at tcp://")
    assert "has no installed distrff, this client distrff " in found
    assert "which must be the same; install distrff==" in found


@pytest.mark.slow
def test_a_worker_of_another_release(dask_processes):
    file = dask_processes.scheduler()
    dask_processes.worker(file, prelude=with_versions(distributed="2020.12.0"))
    ours = {name: importlib.metadata.version(name) for name in ("dask", "distributed")}
    with connect(str(file)) as client:
        found = version_refusal(client)
    told = r"worker tcp://\S+ has distributed 2020.12.0, this client distributed \S+, which must"
    assert re.match(told, found)
    assert "install dask=={dask} distributed=={distributed} there, or start".format(**ours) in found


OURS = {
    "distrff": "0.3.0", "python": "3.12.1.final.0", "dask": "2026.8.1", "distributed": "2026.8.1",
    "numpy": "2.4.6",
}  # fmt: skip
VERSIONS = [
    ("distrff", "0.3.1", "distrff 0.3.1, this client distrff 0.3.0, which must be the same; install"),
    ("distrff", None, "no installed distrff, this client distrff 0.3.0, which must"),
    ("python", "3.11.9.final.0", "Python 3.11.9, this client Python 3.12.1, which must be the same except"),
    ("dask", "2026.7.1", "dask 2026.7.1, this client dask 2026.8.1, which must be the same except"),
    ("numpy", None, "no installed numpy, this client numpy 2.4.6, which must be installed; install numpy=="),
    ("python", "3.12.9.final.0", None), ("dask", "2026.8.0", None), ("numpy", "2.0.0", None),
]  # fmt: skip


@pytest.mark.parametrize(("package", "version", "told"), VERSIONS)
def test_what_must_be_the_same(package, version, told):
    refused = (
        nullcontext() if told is None else pytest.raises(ClusterError, match=f"^w has {re.escape(told)}")
    )
    with refused:
        _check_versions("w", OURS | {package: version}, OURS)


@pytest.mark.slow
def test_versions_that_are_warned_of(dask_processes):
    """Another NumPy, which tasks survive; a patch of Dask is not told."""
    patched = importlib.metadata.version("dask").rsplit(".", 1)[0] + ".99"
    file = dask_processes.scheduler()
    dask_processes.worker(file, prelude=with_versions(numpy="2.0.99", dask=patched))
    told = r"^worker tcp\S+ has numpy 2.0.99, this client numpy .*not to the last bit$"
    with connect(str(file)) as client, pytest.warns(ClusterWarning, match=told):
        check_workers(client, timeout=30)


@pytest.mark.slow
def test_a_worker_that_hangs():
    with connect(n_workers=1) as client:
        pid = next(iter(client.run(os.getpid).values()))
        os.kill(pid, signal.SIGSTOP)
        try:
            assert "do not answer within 0.5 s" in version_refusal(client, timeout=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)


def pause(dask_worker) -> None:
    """Let the worker believe that its memory is full."""
    dask_worker.memory_manager.memory_pause_fraction = 1e-9


def test_workers_that_are_paused(local_cluster):
    with local_cluster(1, processes=False) as cluster, Client(cluster) as client:
        client.run(pause)
        deadline = time.monotonic() + 30
        while {w["status"] for w in client.scheduler_info(n_workers=-1)["workers"].values()} != {"paused"}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "are paused, as their memory is nearly full; restart them" in version_refusal(
            client, timeout=0.5
        )


def test_a_scheduler_that_is_gone(dask_processes, capfd):
    with connect(str(dask_processes.scheduler()), timeout=2.0) as client:
        dask_processes.end()
        found = version_refusal(client, timeout=1)
    assert "the connection to the scheduler at tcp://" in found
    assert "was lost" in found
    assert capfd.readouterr().err == ""
