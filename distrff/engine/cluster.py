"""Connecting to a Dask cluster, and a check of the versions of its workers."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing.resource_tracker
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed import Client, LocalCluster, rpc
from distributed.comm import get_address_host_port
from distributed.security import Security
from distributed.system import MEMORY_LIMIT
from distributed.utils import silence_logging_cmgr

from distrff.errors import ClusterError, ClusterWarning, InputError, Terminated, first_line, warn
from distrff.utils.text import public_name, public_text
from distrff.utils.validation import check_count

_START_SECONDS = 60.0
_END_SECONDS = 0.5  # for a worker of an interrupted program to end by itself; Dask gives it five
# A local cluster gives up a worker that its nanny has not restarted in this time, and starts no other. Dask's
# 15 s are too short: on a loaded machine the imports alone take longer.
_RESTART_PATIENCE = {"distributed.deploy.lost-worker-timeout": "10 minutes"}
_SMALLEST_LIMIT = 10**6  # "4" is more likely a forgotten unit than four bytes
_HOST_AND_PORT = re.compile(r"[^/\\\s]+:\d+")


@contextmanager
def connect(
    scheduler: str = "local",
    *,
    n_workers: int | None = None,
    threads_per_worker: int = 1,
    memory_limit: str | int | None = None,
    timeout: float = 10.0,
) -> Iterator[Client]:
    """Connect to a Dask cluster, which is the ambient one inside the `with`.

    A local cluster ends with the `with`, even after Ctrl-C, and leaves no process or file behind. From any
    other cluster the client only disconnects. TLS is configured by Dask (`distributed.comm.tls`).

    Parameters
    ----------
    scheduler : str
        "local" for processes on this machine; an address such as "tcp://host:8786" or
        "tls://host:8786"; or the path of a scheduler file.
    n_workers : int, optional
        Worker processes of a local cluster. Default: the cores that this process may use.
    threads_per_worker : int
        Threads of each worker of a local cluster.
    memory_limit : str or int, optional
        Bytes for each worker of a local cluster, such as "4GB" or "4GiB"; "0" for no limit.
        Default, and "auto": an equal share of this machine's memory.
    timeout : float
        Seconds to wait for the scheduler.

    Yields
    ------
    distributed.Client
        Dask's default client until the `with` ends.

    Raises
    ------
    InputError
        If `scheduler` is neither an address nor an existing file, or another argument has a wrong value.
    ClusterError
        If no scheduler answers within `timeout`, or TLS is used on one side only or with other certificates.

    Examples
    --------
    >>> with drf.connect(n_workers=4, memory_limit="4GB"):  # doctest: +SKIP
    ...     model = drf.KernelRidge().fit(drf.open_dataset("rows.zarr"))
    """
    if scheduler == "local":
        check_count("n_workers", n_workers, or_none=True)
        check_count("threads_per_worker", threads_per_worker)
        workers = CPU_COUNT if n_workers is None else int(n_workers)
        limit = memory_limit_bytes(memory_limit, workers)
        with (
            _local_cluster(workers, int(threads_per_worker), limit) as cluster,
            Client(cluster, timeout=timeout) as client,
        ):
            yield client
        return
    with _remote_client(_address_of(scheduler), timeout) as client:
        yield client


def memory_limit_bytes(memory_limit: str | int | None, n_workers: int) -> int:
    """The bytes that each of `n_workers` local workers may use; 0 means no limit.

    `memory_limit` is a size such as "4GB" or "4GiB", "auto", "0" or None.
    """
    if memory_limit is None or memory_limit == "auto":
        # Dask's own "auto" is the share of a worker's threads in all cores: on 16 cores two workers of one
        # thread would have a sixteenth of the memory each.
        return int(MEMORY_LIMIT) // n_workers
    try:
        size = int(parse_bytes(memory_limit))
    except (ValueError, TypeError, AttributeError, OverflowError):
        size = -1
    if size >= _SMALLEST_LIMIT or str(memory_limit).strip() == "0":
        return size
    raise InputError(
        f"memory_limit must be a size of at least 1MB for each worker such as '4GB' or '4GiB', 'auto', or "
        f"'0' for no limit; got {memory_limit!r}"
    )


@contextmanager
def _local_cluster(n_workers: int, threads_per_worker: int, memory_limit: int) -> Iterator[LocalCluster]:
    """Yield a cluster of processes on this machine, of which nothing is left after the block."""
    with ExitStack() as cleanup:
        with _interrupts_held_back():
            scratch = tempfile.TemporaryDirectory(
                prefix="distrff-",
                dir=dask.config.get("temporary-directory", None),
                ignore_cleanup_errors=True,
            )
            with dask.config.set({"temporary-directory": cleanup.enter_context(scratch)}):
                cluster = _start_cluster(
                    n_workers=n_workers,
                    threads_per_worker=threads_per_worker,
                    processes=True,
                    memory_limit=memory_limit,
                    dashboard_address=None,
                    # Without a dashboard the scheduler still serves its metrics, by default on a fixed port.
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    silence_logs=logging.CRITICAL,
                )
            cleanup.callback(cluster.close)
        cleanup.enter_context(dask.config.set(_RESTART_PATIENCE))
        try:
            yield cluster
        except (KeyboardInterrupt, Terminated):
            with suppress(Exception):  # the cluster's own closing ends those that this does not
                cluster.sync(_end_workers, cluster)
            raise


async def _end_workers(cluster: LocalCluster) -> None:
    """End all workers soon, whatever they do: each has a thread in a product that nobody waits for."""
    await asyncio.gather(*(nanny.close(timeout=_END_SECONDS) for nanny in cluster.workers.values()))


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Delay a Ctrl-C to the end of the block; a second one takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C interrupts the main thread only
        return
    held_back: list[int] = []

    def hold_back(number: int, frame: object) -> None:
        if held_back:
            raise KeyboardInterrupt
        held_back.append(number)
        os.write(2, b"interrupted: it ends once the workers have started\n")  # safe in a handler

    handler = signal.signal(signal.SIGINT, hold_back)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held_back:
            signal.raise_signal(signal.SIGINT)


def _start_cluster(**options: Any) -> LocalCluster:
    """A local cluster once all its workers run, or raise after a minute."""
    started: Future[LocalCluster] = Future()

    def start() -> None:
        # Threads and processes inherit the mask, so that Ctrl-C reaches only this process, which then ends
        # the workers in order. The resource tracker, which starts with the first process, would reset it.
        multiprocessing.resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started.set_result(LocalCluster(**options))
        except Exception as error:
            started.set_exception(error)

    # A daemon: after a minute nobody waits for it, and it must not hold the process.
    threading.Thread(target=start, daemon=True).start()
    try:
        return started.result(_START_SECONDS)
    except Exception as error:
        reason = first_line(error) if started.done() else f"in {_START_SECONDS:g} s"
        remedy = "check that there is enough memory, or take fewer n_workers; in a script put the main part "
        remedy += "under `if __name__ == '__main__':`"
        if (n_workers := options["n_workers"]) > CPU_COUNT:
            remedy = f"this process may use {CPU_COUNT} cores: take n_workers={CPU_COUNT}, more are no faster"
        raise ClusterError(
            f"the local workers did not start ({reason}; {n_workers} were asked for); {remedy}"
        ) from error


def _address_of(scheduler: str) -> str:
    """The address given by the user, or by the scheduler file."""
    if not isinstance(scheduler, str | Path):
        raise InputError(f"scheduler must be 'local', an address or a path, got {scheduler!r}")
    scheduler = str(scheduler)
    if "://" in scheduler:
        return _checked_address(scheduler)
    path = Path(scheduler)
    if not path.exists():
        if _HOST_AND_PORT.fullmatch(scheduler):
            return _checked_address(f"{dask.config.get('distributed.comm.default-scheme')}://{scheduler}")
        raise InputError(
            f"there is no scheduler file {public_name(scheduler)!r}; give 'local', an address such as "
            f"'tcp://host:8786', or the path that `dask scheduler --scheduler-file` writes"
        )
    try:
        return str(json.loads(path.read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{public_name(scheduler)!r} is not a readable scheduler file (JSON with an address); "
            f"give the one that `dask scheduler --scheduler-file` writes"
        ) from error


def _checked_address(address: str) -> str:
    try:
        get_address_host_port(address, strict=True)
    except ValueError as error:
        raise InputError(
            f"{public_name(address)!r} is not an address ({public_text(first_line(error))}); one looks like "
            f"tcp://host:8786 or tls://host:8786"
        ) from error
    return address


@contextmanager
def _remote_client(address: str, timeout: float) -> Iterator[Client]:
    security = _tls_settings()
    try:
        # A client would wait forever for the greeting of something that is not a scheduler.
        greeting = asyncio.wait_for(_greet(address, timeout, security), timeout)
        with ThreadPoolExecutor(1) as thread:  # in a notebook this thread already runs an event loop
            thread.submit(asyncio.run, greeting).result()
        client = Client(address, timeout=timeout)
    except Exception as error:
        raise ClusterError(_no_answer(address, timeout, error)) from error
    # Dask also logs the errors that it raises.
    with silence_logging_cmgr(logging.CRITICAL), client:
        yield client


async def _greet(address: str, timeout: float, security: dict[str, Any]) -> None:
    """Check that a scheduler listens at the address."""
    # Connecting gives up shortly before the caller does, so that its own error is raised.
    async with rpc(address, timeout=0.9 * timeout, connection_args=security) as remote:
        identity = await remote.identity()
    if identity["type"] != "Scheduler":
        raise OSError(f"it is a {identity['type'].lower()}")


# What to do if an address does not answer, by a text in the error of OpenSSL or Dask.

_TLS = "ca-file, client.cert and client.key under distributed.comm.tls in Dask's configuration"
_NO_TLS = "what listens there has no TLS: write {tcp} in place of {tls}"
_CERTIFICATE = f"refuses this client's certificate: set {_TLS} to those that it knows"
_REMEDIES = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "cannot convert to SSL": _NO_TLS,  # it sent data before the handshake
    "CERTIFICATE_VERIFY_FAILED": "the ca-file under distributed.comm.tls in Dask's configuration did not "
    "sign the certificate of what listens there; give the one that did",
    "ALERT": f"it {_CERTIFICATE}",
    "EOF occurred": f"it hung up, probably because it {_CERTIFICATE}",  # the reason did not arrive
    "ssl_context": f"this client has no settings for TLS: set {_TLS} to those that belong to the scheduler, "
    "or by the environment: DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT, …__CLIENT__KEY; or write "
    "{tcp} if it has no TLS",
    "encryption required": "distributed.comm.require-encryption is set: give a tls:// address, or unset it "
    "in a trusted network",
    "": "check that it runs, that this is its address and port (not the dashboard's), that no firewall is "
    "between, and that TLS is used on both sides or on neither ({tls} with TLS, {tcp} without)",
}


def _no_answer(address: str, timeout: float, error: Exception) -> str:
    """One line that says what is wrong with the scheduler, and what to do."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    reason, name = public_text(first_line(error)), public_name(address)
    if isinstance(error, TimeoutError):
        reason = f"silent for {timeout:g} s"
    elif isinstance(error, MemoryError):
        reason = "it does not speak Dask's protocol"
    remedy = next(remedy for sign, remedy in _REMEDIES.items() if sign in str(error))
    rest = name.partition("://")[2]
    return (
        f"no Dask scheduler answers at {name} ({reason}); "
        f"{remedy.format(tcp=f'tcp://{rest}', tls=f'tls://{rest}')}"
    )


def _tls_settings() -> dict[str, Any]:
    """The TLS settings of Dask's configuration; errors name a missing file, which Dask's do not."""
    try:
        return Security().get_connection_args("client")
    except (OSError, ValueError) as error:  # OpenSSL's own errors are OSErrors
        named = [
            (n, dask.config.get(f"distributed.comm.tls.{n}"))
            for n in ("ca-file", "client.cert", "client.key")
        ]
        missing = [
            f"{n} {path}" for n, path in named if path and "\n" not in path and not Path(path).is_file()
        ]
        raise ClusterError(
            f"the TLS settings of this client cannot be used ({': '.join([first_line(error), *missing])}); "
            f"{_TLS} must be files that can be read, or PEM text, and client.key the key of client.cert"
        ) from error


# Versions of the scheduler and the workers.

Versions = Mapping[str, str | None]

# How many numbers of each version must be the same; None: all, 0: none. Tasks are functions of distrff;
# Python's code objects and Dask's messages change with the minor version, which for Dask is the month. Other
# releases of the last three packages read arrays alike, but results may differ in their last digits.
_NEEDED = {"distrff": None, "python": 2, "dask": 2, "distributed": 2, "numpy": 0, "scipy": 0, "numba": 0}
_MUST = {None: "must be the same", 2: "must be the same except the last number", 0: "must be installed"}
_NUMERIC = ("numpy", "scipy", "numba")


def check_workers(client: Client, timeout: float = 10.0, *, patience: float = 60.0) -> None:
    """Check that there are workers, and that they and the scheduler can run this distrff.

    All need the client's version of distrff, of Python up to the minor version, and of dask and distributed
    up to the month. Other releases of NumPy, SciPy and numba give a warning: a model is then the same up to
    rounding, not to the last bit.

    Raises ClusterError if there is no worker within `timeout` seconds, a worker does not answer within
    `patience` seconds, or the scheduler or a worker has another version where it must be the same.
    """
    address = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=timeout)
        packages = ["distrff", *_NUMERIC]
        # `get_versions` by itself has no limit of time, and one worker that hangs would hold all.
        found = client.sync(client.get_versions, packages=packages, callback_timeout=patience)
    except TimeoutError as error:
        states = {worker["status"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()}
        if states == {"paused"}:
            raise ClusterError(
                f"all workers of {address} are paused, as their memory is nearly full; restart them, or give "
                f"them a larger memory limit"
            ) from error
        if states:
            raise ClusterError(
                f"workers of {address} do not answer within {patience:g} s; "
                f"look at their logs and restart workers that hang"
            ) from error
        raise ClusterError(
            f"the scheduler at {address} has no workers after {timeout:g} s; "
            f"start some (`dask worker {address}`), or look at the logs of those that should be running"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"the connection to the scheduler at {address} was lost: {first_line(error)}"
        ) from error
    ours = found["client"]["packages"]
    workers = {f"worker {worker}": theirs["packages"] for worker, theirs in found["workers"].items()}
    for name, theirs in {f"the scheduler at {address}": found["scheduler"]["packages"], **workers}.items():
        _check_versions(name, theirs, ours)
    _warn_of_differences(workers, ours)


def _check_versions(name: str, theirs: Versions, ours: Versions) -> None:
    for package, n_parts in _NEEDED.items():
        there, here = theirs.get(package), ours.get(package)
        if _release(there, n_parts) != _release(here, n_parts):
            pair = ("dask", "distributed")  # which are released together
            wanted = " ".join(f"{one}=={ours.get(one)}" for one in (pair if package in pair else (package,)))
            install = "" if package == "python" or here is None else f"install {wanted} there, or "
            raise ClusterError(
                f"{name} has {_shown(package, there)}, this client {_shown(package, here)}, which "
                f"{_MUST[n_parts]}; {install}start scheduler and workers from the image or environment of "
                f"the client"
            )


def _warn_of_differences(workers: Mapping[str, Versions], ours: Versions) -> None:
    differing = [
        (name, package)
        for name, theirs in workers.items()
        for package in _NUMERIC
        if theirs.get(package) != ours.get(package)
    ]
    if differing:
        name, package = differing[0]
        n_more = len({name for name, _ in differing}) - 1
        more = f" (and {n_more} other(s) differ)" if n_more else ""
        there, here = workers[name].get(package), ours.get(package)
        warn(
            f"{name} has {_shown(package, there)}, this client {_shown(package, here)}{more}; "
            f"results are the same up to rounding, not to the last bit",
            ClusterWarning,
        )


def _release(version: str | None, n_parts: int | None) -> list[str] | None:
    """The first numbers of a version; None if there is no version."""
    return None if version is None else version.split(".")[:n_parts]


def _shown(package: str, version: str | None) -> str:
    name = "Python" if package == "python" else package
    return f"no installed {name}" if version is None else f"{name} {'.'.join(version.split('.')[:3])}"
