"""Environments of their own, made by `venv` and pip in a folder that is kept: the baseline, the neighbours.

What cannot be installed is no error: its reason is what the book says in its place.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distributions
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[3]
BASELINE = "372525531458a41b0d2d2e967ec9aeb1e9db6ea8"
_INSTALL_SECONDS = 900.0
_PROBE_SECONDS = 60.0
_MADE = "made.json"


@dataclass(frozen=True)
class Environment:
    """What is installed, in this order; `module` must import afterwards.

    `probe` is a command that shows in a second whether an installation can work, before gigabytes are loaded.
    """

    module: str
    steps: tuple[tuple[str, ...], ...]
    probe: tuple[str, ...] = ()


_FALKON = "https://github.com/FalkonML/falkon.git"
_EIGENPRO = "https://github.com/EigenPro/EigenPro-pytorch.git"
NEIGHBOURS = {
    # The package without NVIDIA's libraries, which is small.
    "xgboost": Environment(
        "xgboost.dask", (("xgboost-cpu", "dask[array,dataframe,distributed]", "scikit-learn"),)
    ),
    "xgpr": Environment("xGPR", (("xgpr", "numpy", "scipy", "scikit-learn"),)),
    "catboost": Environment("catboost", (("catboost",),)),
    "lightgbm": Environment("lightgbm", (("lightgbm", "scikit-learn"),)),
    "xrfm": Environment("xrfm", (("xrfm", "torch", "numpy"),)),
    "pykrige": Environment("pykrige.ok", (("pykrige", "numpy", "scipy"),)),
    "gpytorch": Environment("gpytorch", (("gpytorch", "torch", "numpy"),)),
    "falkon": Environment(
        "falkon",
        (("torch", "numpy", "setuptools", "wheel", "ninja"), ("--no-build-isolation", f"git+{_FALKON}")),
        ("git", "ls-remote", "--exit-code", _FALKON, "HEAD"),
    ),
    "eigenpro": Environment(
        "eigenpro2.models",
        # Its setup imports the package, and so torch.
        (("torch", "numpy", "scipy", "setuptools", "wheel"), ("--no-build-isolation", f"git+{_EIGENPRO}")),
        ("git", "ls-remote", "--exit-code", _EIGENPRO, "HEAD"),
    ),
}


@dataclass(frozen=True)
class Place:
    """The Python of an environment, or the reason why there is none."""

    python: str | None
    reason: str = ""


HERE = Place(sys.executable)


def default_cache() -> Path:
    """Return the folder of the user's caches that keeps environments."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "distrff-benchmarks"


def prepared(names: Iterable[str], cache: Path) -> dict[str, Place]:
    """Make the environments that are not there yet; "baseline" is that of its commit."""
    cache.mkdir(parents=True, exist_ok=True)
    places = {}
    for name in names:
        print(f"environment {name} …", file=sys.stderr, flush=True)
        try:
            environment = _baseline(cache) if name == "baseline" else NEIGHBOURS[name]
            places[name] = Place(str(_made(cache / name, environment)))
        except (InstallError, OSError, subprocess.SubprocessError) as error:
            places[name] = Place(None, f"not installed: {error}")
            print(f"environment {name}: {places[name].reason}", file=sys.stderr, flush=True)
    return places


def is_made(name: str, cache: Path) -> bool:
    """Whether an environment is already there."""
    return (cache / name / _MADE).is_file()


class InstallError(Exception):
    """An environment that cannot be made; the message is the reason."""


def _made(folder: Path, environment: Environment) -> Path:
    python = folder / "bin" / "python"
    wanted = hashlib.sha256(repr(environment).encode()).hexdigest()
    made = folder / _MADE
    if made.is_file() and json.loads(made.read_text())["wanted"] == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    if environment.probe:
        _run(environment.probe, _PROBE_SECONDS)
    try:
        _run((sys.executable, "-m", "venv", str(folder)), _PROBE_SECONDS)
        for step in environment.steps:
            _run((str(python), "-m", "pip", "install", "--quiet", *step), _INSTALL_SECONDS)
        _run((str(python), "-c", f"import {environment.module}"), _PROBE_SECONDS)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    made.write_text(json.dumps({"wanted": wanted}))
    return python


def _run(command: tuple[str, ...], seconds: float) -> None:
    """Run a command; raise InstallError with what it said last."""
    quiet = {"GIT_TERMINAL_PROMPT": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    # An inherited PYTHONPATH would put this checkout before what is installed.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env=clean | quiet
        )
    except FileNotFoundError:
        raise InstallError(f"there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"`{_short(command)}` took more than {seconds:.0f} s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
        reasons = [line for line in said if line.startswith(("ERROR", "fatal"))] or said[-1:]
        raise InstallError(f"`{_short(command)}`: {(reasons or ['no message'])[-1][:200]}")


def _short(command: tuple[str, ...]) -> str:
    words = command[2:] if command[1:3] == ("-m", "pip") else command
    return " ".join([Path(words[0]).name, *words[1:]])


def _baseline(cache: Path) -> Environment:
    """Return the environment of that commit, with the versions that are installed here."""
    source = cache / f"source-{BASELINE}"
    if not source.is_dir():
        try:
            archive = subprocess.run(
                ("git", "-C", str(ROOT), "archive", BASELINE), capture_output=True, timeout=60, check=False
            )
        except FileNotFoundError:
            raise InstallError("there is no git") from None
        if archive.returncode:
            raise InstallError(f"this is no git checkout that has the commit {BASELINE}")
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(source, filter="data")
    # The ratio is to be that of the code, not of other versions of NumPy and Dask.
    # They are in the name of the file, and so in what is asked of the environment that is kept.
    versions = "".join(
        f"{found.metadata['Name']}=={found.version}\n"
        for found in sorted(distributions(), key=lambda found: found.metadata["Name"])
        if found.metadata["Name"] != "distrff"
    )
    same = cache / f"versions-{hashlib.sha256(versions.encode()).hexdigest()[:16]}.txt"
    same.write_text(versions)
    return Environment("distrff", (("-c", str(same), str(source)),))
