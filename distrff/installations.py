"""Whether scheduler and workers have the software that this process's tasks are made of."""

from __future__ import annotations

import pydoc
from collections.abc import Iterator, Mapping
from typing import Any

from distributed import Client

from distrff.errors import ClusterError, ClusterWarning, first_line, warn

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
