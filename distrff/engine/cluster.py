"""From the word after `--scheduler` to a client that is connected."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing.resource_tracker
import numbers
import pydoc
import re
import signal
import socket
import ssl
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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

from distrff.errors import ClusterError, ClusterWarning, InputError, first_line, is_number, warn
from distrff.utils.text import public_name, public_text

_START_SECONDS = 60.0
# A local cluster gives up a worker that its nanny has not started again in this time, and starts no other.
# Dask's 15 s are too short: on a loaded machine the imports alone take longer.
_RESTART_PATIENCE = {"distributed.deploy.lost-worker-timeout": "10 minutes"}
_SMALLEST_LIMIT = 2**20  # "4" is a forgotten unit, not four bytes
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
    """Yield a client of a cluster, which is Dask's default client inside the `with`.

    A local cluster ends with the `with`, also when that is left by Ctrl-C: no process and
    no file of it stays. Any other cluster is only disconnected from. TLS is set up by
    Dask's own configuration (`distributed.comm.tls`).

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
        Bytes for each worker of a local cluster, such as "4GB" or "4GiB"; "0" for no
        limit. Default, and "auto": an equal share of this machine's memory.
    timeout : float
        Seconds that a scheduler has to answer.

    Raises
    ------
    InputError
        If `scheduler` is neither an address nor an existing file, or a size or number is
        not one.
    ClusterError
        If no scheduler answers there within `timeout`, or TLS is on one side only or set up with other
        certificates.
    """
    if scheduler == "local":
        workers = _positive_integer("n_workers", CPU_COUNT if n_workers is None else n_workers)
        threads = _positive_integer("threads_per_worker", threads_per_worker)
        limit = memory_limit_bytes(memory_limit, workers)
        with _local_cluster(workers, threads, limit) as cluster, Client(cluster, timeout=timeout) as client:
            yield client
        return
    with _remote_client(_address_of(scheduler), timeout) as client:
        yield client


def memory_limit_bytes(memory_limit: str | int | None, n_workers: int) -> int:
    """Return the bytes that each of `n_workers` local workers may use; 0 for no limit.

    Raises
    ------
    InputError
        If `memory_limit` is not a size such as "4GB" or "4GiB", "auto", "0" or None.
    """
    if memory_limit is None or memory_limit == "auto":
        return int(MEMORY_LIMIT) // n_workers
    try:
        size = int(parse_bytes(memory_limit))
    except (ValueError, TypeError, AttributeError, OverflowError):
        size = -1
    if size >= _SMALLEST_LIMIT or str(memory_limit).strip() == "0":
        return size
    raise InputError(
        f"memory_limit must be a size for each worker such as '4GB' or '4GiB', 'auto', or '0' for no limit; "
        f"got {memory_limit!r}"
    )


def _positive_integer(name: str, value: int) -> int:
    if not is_number(value) or not isinstance(value, numbers.Integral) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1; got {value!r}")
    return int(value)


@contextmanager
def _local_cluster(n_workers: int, threads_per_worker: int, memory_limit: int) -> Iterator[LocalCluster]:
    """Yield a cluster of processes on this machine, and leave nothing of it behind."""
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
        yield cluster


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let a Ctrl-C take effect at the end of the block, and only a second one within it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C reaches the main thread only.
        return
    held_back: list[int] = []

    def hold_back(number: int, frame: object) -> None:
        if held_back:
            raise KeyboardInterrupt
        held_back.append(number)

    handler = signal.signal(signal.SIGINT, hold_back)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held_back:
            signal.raise_signal(signal.SIGINT)


def _start_cluster(**options: Any) -> LocalCluster:
    """Return a local cluster that is complete, or give up on it in time."""
    started: Future[LocalCluster] = Future()

    def start() -> None:
        # Threads and processes inherit the mask, so that Ctrl-C ends this process alone, which ends the
        # workers in order. The resource tracker, which comes with the first process, would reset it.
        multiprocessing.resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started.set_result(LocalCluster(**options))
        except Exception as error:
            started.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    try:
        return started.result(_START_SECONDS)
    except Exception as error:
        reason = first_line(error) if started.done() else f"in {_START_SECONDS:g} s"
        raise ClusterError(
            f"the local workers did not start ({reason}); a script that starts them needs its main part "
            f"under `if __name__ == '__main__':`, else look for too little memory"
        ) from error


def _address_of(scheduler: str) -> str:
    """Return the address that the user names, or that the scheduler file names."""
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
    security = client_security(address)
    try:
        # A client waits without end for the greeting of something that is no scheduler.
        _run_in_thread(asyncio.wait_for(_greet(address, timeout, security), timeout))
        client = Client(address, timeout=timeout)
    except Exception as error:
        raise ClusterError(_no_answer(address, timeout, error)) from error
    # What breaks later is told by exceptions too.
    with silence_logging_cmgr(logging.CRITICAL), client:
        yield client


async def _greet(address: str, timeout: float, security: dict[str, Any]) -> None:
    """Ask the scheduler what it is."""
    # Connecting gives up a little before the caller does, and then tells why.
    async with rpc(address, timeout=0.9 * timeout, connection_args=security) as remote:
        identity = await remote.identity()
    if identity["type"] != "Scheduler":
        raise OSError(f"it is a {identity['type'].lower()}")


def _run_in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, also where this thread has a loop that runs, as in a notebook."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


def _no_answer(address: str, timeout: float, error: Exception) -> str:
    """Return one line that says what is wrong with the scheduler, and what to do."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    reason, name = public_text(first_line(error)), public_name(address)
    if isinstance(error, TimeoutError):
        reason = f"silent for {timeout:g} s"
    elif isinstance(error, MemoryError):
        reason = "it does not speak Dask's protocol"
    return f"no Dask scheduler answers at {name} ({reason}); {remedy(address, error)}"


# TLS of a client as Dask's configuration sets it up, and what to do where an address does not answer.

_HANDSHAKE_SECONDS = 1.0
_TLS_SETTINGS = "ca-file, client.cert and client.key under distributed.comm.tls in Dask's configuration"
_NO_TLS = "what listens there has no TLS: write {tcp} in place of {tls}"
# By what an error's text has in it, which is OpenSSL's or Dask's.
_REMEDIES = (
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("cannot convert to SSL", _NO_TLS),  # it spoke before it was asked to
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the ca-file under distributed.comm.tls in Dask's configuration did not sign the certificate of what "
        "listens there; give the one that did",
    ),
    ("ALERT", f"it refuses this client's certificate: set {_TLS_SETTINGS} to those that it knows"),
    # The same, when it hangs up before its reason is read.
    (
        "EOF occurred",
        f"it hung up, as one does that refuses this client's certificate: set {_TLS_SETTINGS} to those that "
        "it knows",
    ),
    (
        "encryption required",
        "distributed.comm.require-encryption is set: give a tls:// address, or unset it for a network that "
        "is trusted",
    ),
)


def client_security(address: str) -> dict[str, Any]:
    """Return what Dask's configuration says of TLS, as far as it can be used for this address."""
    try:
        security = Security().get_connection_args("client")
    except (OSError, ValueError) as error:  # OpenSSL's own errors are OSErrors
        _refuse_unreadable_file(error)
        raise ClusterError(
            f"the TLS settings of this client cannot be used ({first_line(error)}); {_TLS_SETTINGS} must be "
            f"files that can be read, or PEM text, and client.key the key of client.cert"
        ) from error
    if address.startswith("tls://") and security.get("ssl_context") is None:
        raise ClusterError(
            f"{public_name(address)} asks for TLS, which this client has no settings for; set "
            f"{_TLS_SETTINGS} to those that belong to the scheduler, or by the environment: "
            f"DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT, …__CLIENT__KEY; or write "
            f"{_with_scheme('tcp', address)} if it has no TLS"
        )
    return security


def _refuse_unreadable_file(cause: Exception) -> None:
    """Raise ClusterError for the first file of this client's TLS settings that cannot be opened, if any."""
    for name in ("ca-file", "client.cert", "client.key"):
        path = dask.config.get(f"distributed.comm.tls.{name}")
        if path is None or "\n" in path:  # PEM text
            continue
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise ClusterError(
                f"the {name} of this client's TLS settings cannot be read: {path} ({error.strerror}); set "
                f"distributed.comm.tls.{name} in Dask's configuration to a file that is there and readable"
            ) from cause


def remedy(address: str, error: Exception) -> str:
    """Return what to do about the error in which connecting to the address ended."""
    tcp, tls = _with_scheme("tcp", address), _with_scheme("tls", address)
    for sign, told in _REMEDIES:
        if sign in str(error):
            return told.format(tcp=tcp, tls=tls)
    if address.startswith("tcp://") and _speaks_tls(address):
        return f"what listens there speaks TLS: write {tls} in place of {tcp}"
    security = (
        f", and that {_TLS_SETTINGS} belong to it ({tcp} if it has no TLS)"
        if address.startswith("tls://")
        else ""
    )
    return (
        f"check that it runs, that this is its address and port (not the dashboard's), and that no firewall "
        f"is between{security}"
    )


def _with_scheme(scheme: str, address: str) -> str:
    return f"{scheme}://{public_name(address).partition('://')[2]}"


def _speaks_tls(address: str) -> bool:
    """Return whether what listens there takes up a TLS handshake, whatever it thinks of certificates.

    In the clear it tells nothing: it hangs up, or is silent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent that matters
    try:
        with (
            socket.create_connection(get_address_host_port(address), _HANDSHAKE_SECONDS) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError as error:  # that of TLS included
        return "ALERT" in str(error)  # it refused, as TLS does
    except (ValueError, OverflowError):  # no name of a host, no number of a port
        return False


# Whether scheduler and workers have the software that this process's tasks are made of.

Versions = Mapping[str, str | None]

# Until where releases must be the same: tasks are functions of distrff; Python's code objects and what Dask
# sends change from minor to minor version, which of Dask's is the month.
_NEEDED = {"distrff": None, "python": 2, "dask": 2, "distributed": 2}
# Arrays that other releases of these made are read alike, but last digits may differ.
_NUMERIC = ("numpy", "scipy", "numba")


def check_workers(client: Client, timeout: float = 10.0, *, patience: float = 60.0) -> None:
    """Make sure that there are workers, and that they and the scheduler can run this distrff.

    Everywhere there must be the client's distrff, Python to its minor version, and dask and distributed
    to their month. Other releases of NumPy, SciPy and numba are warned of: a machine is then the
    same up to rounding, not to the last bit.

    Raises
    ------
    ClusterError
        If there is no worker within `timeout` seconds, one does not answer within `patience` seconds (it
        imports distrff first, which takes a loaded machine tens of them), or the scheduler or a worker
        lacks distrff or has another release of what must be the same.
    """
    address = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=timeout)
        found = client.sync(_ask, client, callback_timeout=patience)
    except TimeoutError as error:
        if client.scheduler_info()["n_workers"]:
            raise ClusterError(
                f"workers of {address} do not answer within {patience:g} s; "
                f"look at their logs and restart those that hang"
            ) from error
        raise ClusterError(
            f"the scheduler at {address} has no workers after {timeout:g} s; "
            f"start some (`dask worker {address}`), or look at the logs of those that should be there"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"the connection to the scheduler at {address} was lost: {first_line(error)}"
        ) from error
    imported, versions = found
    for name, result in imported.items():
        _check_import(name, result)
    ours = versions["client"]["packages"]
    others = {f"the scheduler at {address}": versions["scheduler"]} | {
        f"worker {worker}": theirs for worker, theirs in versions["workers"].items()
    }
    for name, theirs in others.items():
        _check_versions(name, theirs["packages"], ours)
    _warn_of_differences({name: theirs["packages"] for name, theirs in others.items()}, ours)


async def _ask(client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return distrff as the scheduler and each worker import it, None or an error, and all versions."""
    # A function of ours would be sent by name, which a process without distrff cannot look up; one that
    # raises leaves a traceback in the log there, which of local workers is the notebook itself. The scheduler
    # needs distrff as well: it unpacks the tasks.
    workers = await client.run(pydoc.locate, "distrff", on_error="return")
    try:
        scheduler = await client.run_on_scheduler(pydoc.locate, "distrff")
    except (ImportError, pydoc.ErrorDuringImport) as error:
        scheduler = error
    imported = {f"the scheduler at {client.scheduler.address}": scheduler}
    imported |= {f"worker {address}": result for address, result in workers.items()}
    return imported, await client.get_versions(packages=["distrff", *_NUMERIC[1:]])


def _check_import(name: str, result: Any) -> None:
    if result is None:
        raise ClusterError(
            f"{name} has no distrff; install there what the client has, or start it from an image that has it"
        )
    if isinstance(result, BaseException):
        raise ClusterError(
            f"{name} could not import distrff ({type(result).__name__}: {first_line(result)}); look at its "
            f"log, mend or restart it"
        )


def _check_versions(name: str, theirs: Versions, ours: Versions) -> None:
    for package, n_parts in _NEEDED.items():
        if _release(theirs.get(package), n_parts) != _release(ours.get(package), n_parts):
            there = _shown(package, theirs.get(package))
            raise ClusterError(
                f"{name} has {there}, this client {_shown(package, ours.get(package))}, which must be the "
                f"same{'' if n_parts is None else ' but for the last number'}; {_remedy(package, ours)}"
            )


def _remedy(package: str, ours: Versions) -> str:
    image = "start scheduler and workers from the image or environment that the client has"
    version = ours.get(package)
    if package == "python" or version is None:
        return image
    packages = ("dask", "distributed") if package in ("dask", "distributed") else (package,)
    wanted = " ".join(f"{one}=={ours.get(one)}" for one in packages)
    return f"install {wanted} there, or {image}"


def _warn_of_differences(others: Mapping[str, Versions], ours: Versions) -> None:
    differing = list(_differences(others, ours))
    if differing:
        name, package, theirs = differing[0]
        n_more = len({name for name, _, _ in differing}) - 1
        more = f" (and {n_more} other(s) differ)" if n_more else ""
        warn(
            f"{name} has {_shown(package, theirs)}, this client {_shown(package, ours.get(package))}{more}; "
            f"results are then the same up to rounding, not to the last bit",
            ClusterWarning,
        )


def _differences(others: Mapping[str, Versions], ours: Versions) -> Iterator[tuple[str, str, str | None]]:
    for name, theirs in others.items():
        if name.startswith("worker"):  # the scheduler does no arithmetic
            for package in _NUMERIC:
                if theirs.get(package) != ours.get(package):
                    yield name, package, theirs.get(package)


def _release(version: str | None, n_parts: int | None) -> str | None:
    """Return a version up to its first parts, all of it for None."""
    return version if version is None or n_parts is None else ".".join(version.split(".")[:n_parts])


def _shown(package: str, version: str | None) -> str:
    name = "Python" if package == "python" else package
    if version is None:
        return f"no {name} that says its version" if package == "distrff" else f"no {name}"
    return f"{name} {'.'.join(version.split('.')[:3])}"
