"""Pods as processes of this machine: the commands, arguments, environment and probes that were rendered.

What Kubernetes would do is done here: `$(NAME)` in arguments, secrets, resource fields, names of services,
volumes, ports. Whatever a pod would find in another place than here is named in `Surroundings`.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from tests.deploy.chart import ROOT
from tests.support import commands

Process = subprocess.Popen[bytes]
Begin = Callable[..., Process]

SHIMS = ROOT / "deploy" / "docker" / "bin"
ENTRY_POINT = ["tini", "-g", "--", "distrff-entry"]
BELOW_TMP = {"NUMBA_CACHE_DIR": "/tmp/numba", "MPLCONFIGDIR": "/tmp/matplotlib"}
"""What the image's variables say of folders that are made when they are needed."""
START_SECONDS = 60.0


@dataclass(frozen=True)
class Surroundings:
    """What a pod finds around it.

    Parameters
    ----------
    folder : Path
        For volumes, logs, and the commands of the image that are not installed here.
    secrets : mapping of str to mapping of str to str
    names : mapping of str to str
        What is here in place of what arguments and variables say: addresses, paths.
    ports : mapping of str to str
        Where here the ports are that probes ask.
    stores : tuple of Path
        Folders in place of object storage, which all pods may write to.
    """

    folder: Path
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, str] = field(default_factory=dict)
    stores: tuple[Path, ...] = ()

    def with_places(self, names: Mapping[str, str], ports: Mapping[str, str] | None = None) -> Surroundings:
        """These surroundings where some names and ports lead elsewhere."""
        return replace(self, names={**self.names, **names}, ports={**self.ports, **(ports or {})})

    def here(self, text: str) -> str:
        """The text with everything that is elsewhere here, the longest names first and each once."""
        names = sorted(self.names, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)) or "$^", lambda found: self.names[found[0]], text)


def environment_of(container: Mapping[str, Any], around: Surroundings) -> dict[str, str]:
    """The variables that the container sets, optional secrets and keys that are missing left out."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= _secret(source["secretRef"], around)
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "value" in variable:
            found[variable["name"]] = around.here(expanded(variable["value"], found))
        elif "resourceFieldRef" in source:
            kind, resource = source["resourceFieldRef"]["resource"].split(".")
            found[variable["name"]] = str(container["resources"][kind][resource])
        else:
            reference, content = source["secretKeyRef"], _secret(source["secretKeyRef"], around)
            if reference["key"] in content or not reference.get("optional"):
                found[variable["name"]] = content[reference["key"]]
    return found


def _secret(reference: Mapping[str, Any], around: Surroundings) -> dict[str, str]:
    """The content of a secret; a pod would wait for one that may not be missing."""
    name = reference["name"]
    return dict(around.secrets.get(name, {}) if reference.get("optional") else around.secrets[name])


def arguments_of(container: Mapping[str, Any], around: Surroundings) -> list[str]:
    """The container's command line, without the image's entry point."""
    environment = environment_of(container, around)
    words = [*container.get("command", []), *container.get("args", [])]
    words = words[len(ENTRY_POINT) :] if words[: len(ENTRY_POINT)] == ENTRY_POINT else words
    return [expanded(around.here(word), environment) for word in words]


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """The text with variables that are known in place of `$(NAME)`."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)


@contextmanager
def processes() -> Iterator[Begin]:
    """`begin(container, around, name, *more)` runs a container's command, to which words may be added.

    At the end of the block all processes that it began, and those that they started, are gone.
    """
    begun: list[Process] = []

    def begin(container: Mapping[str, Any], around: Surroundings, name: str, *more: str) -> Process:
        words, environment = _prepared(container, around, more)
        with (around.folder / f"{name}.log").open("wb") as log:
            files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            begun.append(subprocess.Popen(words, env=environment, cwd=around.folder, **files))
        return begun[-1]

    try:
        yield begin
    finally:
        for process in begun:
            end(process)


def end(process: Process) -> None:
    """Kill a process with those that it started, which takes no time; taking leave of each other does."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)  # a nanny would start another worker
    for one in (*psutil.Process(process.pid).children(recursive=True), process):
        one.kill()
    process.wait()


def run(container: Mapping[str, Any], around: Surroundings, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the container's command to its end."""
    words, environment = _prepared(container, around, more)
    return commands.run(*words, env=environment, cwd=around.folder)


def _prepared(
    container: Mapping[str, Any], around: Surroundings, more: tuple[str, ...]
) -> tuple[list[str], dict[str, str]]:
    """The words and the environment of a process, which writes where the container may."""
    volumes = volumes_of(container, around)
    around = replace(around, names={**{k: str(v) for k, v in volumes.items()}, **around.names})
    words = [ENTRY_POINT[-1], *arguments_of(container, around), *more]
    if container.get("securityContext", {}).get("readOnlyRootFilesystem") and not why_not_confined():
        words = confined(words, around.folder, [*volumes.values(), *around.stores])
    return words, _whole_environment(container, around)


def volumes_of(container: Mapping[str, Any], around: Surroundings) -> dict[str, Path]:
    """Folders for those mounts of the container that are not found elsewhere; pods have them in common."""
    mounts = [mount for mount in container.get("volumeMounts", []) if mount["mountPath"] not in around.names]
    folders = {mount["mountPath"]: around.folder / "volumes" / mount["name"] for mount in mounts}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return folders


# Binds each folder to itself, so that it stays as it is when the file systems around it are made read-only.
_CONFINE = """
while [ "$1" != -- ]; do mount --bind "$1" "$1" || exit; shift; done; shift
while [ "$1" != -- ]; do mount -o remount,bind,ro "$1" || exit; shift; done; shift
exec "$@"
"""


def confined(words: list[str], folder: Path, writable: list[Path]) -> list[str]:
    """The command that runs a command with nothing but some folders writable, even for root.

    Of the file systems those are meant that hold the root, `folder`, the packages and this repository. The
    process keeps its number, so that signals reach it.
    """
    places = (Path("/"), folder.resolve(), Path(sys.prefix).resolve(), ROOT, Path.home())
    held = {next(str(p) for p in (place, *place.parents) if os.path.ismount(p)) for place in places}
    folders = [*map(str, writable), "--", *sorted(held), "--"]
    return ["unshare", "-rm", "sh", "-c", _CONFINE, "sh", *folders, *words]


@functools.cache
def why_not_confined() -> str:
    """Why processes cannot be kept from writing here, nothing where they can."""
    if shutil.which("unshare") is None:
        return "there is no `unshare` to keep processes from writing"
    with tempfile.TemporaryDirectory() as folder:
        done = commands.run(*confined(["true"], Path(folder), [Path(folder)]))
    return f"nobody may mount here: {done.stderr.strip()}" if done.returncode else ""


def _whole_environment(container: Mapping[str, Any], around: Surroundings) -> dict[str, str]:
    """The container's variables and no credentials, addresses or TLS of whoever runs the tests.

    Folders are as in the image: a home of its own, caches below /tmp, and no compiled loops yet.
    """
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DASK_"))}
    folders = (write_distrff(around.folder / "bin"), SHIMS, Path(sys.executable).parent)
    lonely = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": str(around.folder / "none")}
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
    home = Path(around.names.get("/home/distrff", around.folder / "home"))
    home.mkdir(exist_ok=True)
    loops = around.folder / "loops"
    loops.mkdir(exist_ok=True)
    folders_of_the_image = {"HOME": str(home), "DISTRFF_LOOPS": str(loops)}
    if (tmp := around.names.get("/tmp")) is not None:
        folders_of_the_image |= {name: around.here(path) for name, path in BELOW_TMP.items()}
        folders_of_the_image["TMPDIR"] = tmp
    return (
        ours
        | lonely
        | quiet
        | folders_of_the_image
        | environment_of(container, around)
        | {"PATH": os.pathsep.join([*map(str, folders), ours["PATH"]])}
    )


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def write_distrff(folder: Path) -> Path:
    """Write the command `distrff`, which is not installed where the tests run from a checkout."""
    write_program(folder / "distrff", f'#!/bin/sh\nexec {shlex.join(commands.DISTRFF)} "$@"\n')
    return folder


def wait_for_probe(container: Mapping[str, Any], probe: str, around: Surroundings, process: Process) -> None:
    """Ask where a probe of the container asks until it is answered, as long as the process runs."""
    get = container[probe]["httpGet"]
    named = {port.get("name"): port["containerPort"] for port in container["ports"]}
    url = f"http://127.0.0.1:{around.ports[str(named.get(get['port'], get['port']))]}{get['path']}"
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    logs = (f"{log.name}:\n{log.read_text()}" for log in sorted(around.folder.glob("*.log")))
    raise AssertionError("\n".join([f"{url} does not answer", *logs]))


def free_ports(number: int) -> list[str]:
    """Ports of this computer that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [str(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
