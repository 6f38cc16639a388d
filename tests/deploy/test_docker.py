"""The image: what its Dockerfile copies, pins and runs; in a virtual environment, for want of an engine."""

import fnmatch
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy import chart, pods
from tests.support import commands

DOCKER = chart.ROOT / "deploy" / "docker"


class Instruction(NamedTuple):
    name: str
    words: list[str]  # without flags
    is_copy: bool  # from the repository, not from an earlier stage


def instructions() -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    parsed = []
    for line in filter(str.strip, re.sub(r"\\\n", " ", text).splitlines()):
        name, *rest = line.split()
        words = [word for word in rest if name != "COPY" or not word.startswith("--")]
        parsed.append(Instruction(name, words, name == "COPY" and "--from" not in line))
    return parsed


def copied() -> list[str]:
    """What the Dockerfile copies from the repository."""
    return [source for found in instructions() if found.is_copy for source in found.words[:-1]]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path through; the last line that matches decides."""
    sent = True
    for line in (chart.ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if not line or line.startswith("#"):
            continue
        parts = path.split("/")
        above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        if pattern.startswith("**/"):
            hit = any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
        else:
            hit = any(fnmatch.fnmatch(one, pattern) and one.count("/") == pattern.count("/") for one in above)
        sent = line.startswith("!") if hit else sent
    return sent


def pins(lock: str) -> dict[str, str]:
    """The versions in a lock, in which every line has the hash of one file."""
    lines = (DOCKER / lock).read_text().splitlines()
    found = [re.fullmatch(r"([\w.-]+)==([^*,\s]+) --hash=sha256:[0-9a-f]{64}", line) for line in lines[2:]]
    assert all(line.startswith("# ") for line in lines[:2])
    assert None not in found, lock
    return {canonicalize_name(pin[1]): pin[2] for pin in found if pin}


def required(name: str) -> list[str]:
    return [line for line in (DOCKER / name).read_text().splitlines() if not line.startswith("#")]


def test_what_is_copied_is_there_and_is_sent_and_nothing_else():
    assert len(copied()) > 5
    for path in copied():
        assert (chart.ROOT / path).exists(), path
        assert is_sent(path), f"{path} does not pass .dockerignore"
    for path in (".git/config", "tests/conftest.py", "deploy/helm/values.yaml", "distrff/__pycache__/a.pyc"):
        assert not is_sent(path), f"{path} passes .dockerignore"


def test_the_versions_are_those_that_the_project_allows_and_the_worker_has_no_notebook():
    wanted = [*chart.PROJECT["dependencies"], *chart.PROJECT["optional-dependencies"]["s3"]]
    wanted += required("requirements.txt")
    worker, notebook = pins("lock.txt"), pins("lock-notebook.txt")
    for pinned, requirements in ((worker, wanted), (notebook, required("requirements-notebook.txt"))):
        for requirement in map(Requirement, requirements):
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not pinned; run deploy/docker/pin.py"
            assert requirement.specifier.contains(version), f"{requirement} forbids the pinned {version}"
        assert "distrff" not in pinned
    assert not worker.keys() & notebook.keys()
    assert not [name for name in worker if "jupyter" in name or name in ("ipython", "notebook")]
    assert "jupyterlab" in notebook


def test_the_instructions():
    """The Python that the versions are for; nobody is root, signals arrive, the version is deployed."""
    stages: list[str] = []
    bases = []
    for base, _, stage in (i.words for i in instructions() if i.name == "FROM"):
        bases += [base] if base not in stages else []
        stages.append(stage)
    (outside,) = bases
    assert re.fullmatch(r"python:3\.12-slim-bookworm@sha256:[0-9a-f]{64}", outside)
    assert stages[-1] == "worker"  # what is built where no target is named
    for lock in ("lock.txt", "lock-notebook.txt"):
        assert "Python 3.12" in (DOCKER / lock).read_text().splitlines()[0]
    for install in (text for i in instructions() if "pip install" in (text := " ".join(i.words))):
        assert "--no-deps" in install
        assert ("--require-hashes" in install) != ("--no-index" in install), install
    after = {i.name: i for i in instructions()}  # the last of each
    variables = dict(pair.split("=", 1) for i in instructions() if i.name == "ENV" for pair in i.words)
    assert variables.items() >= pods.BELOW_TMP.items()
    assert after["USER"].words == ["1000:1000"]
    assert json.loads(" ".join(after["ENTRYPOINT"].words)) == pods.ENTRY_POINT
    for target, image in (("worker", "distrff"), ("notebook", "distrff-notebook")):
        tag = f"{image}:{chart.PROJECT['version']}"
        command = f"docker build -f deploy/docker/Dockerfile --target {target} -t {tag} ."
        for path in (DOCKER / "Dockerfile", DOCKER / "README.md", chart.HELM / "README.md"):
            assert command in path.read_text(), path


def test_the_script_puts_the_tags_digest_into_the_dockerfile(tmp_path):
    """The engine's answer here is a program's of this test."""
    folder = tmp_path / "deploy" / "docker"
    shutil.copytree(DOCKER, folder)
    digest = f"sha256:{secrets.token_hex(32)}"
    asked = "buildx imagetools inspect python:3.12-slim-bookworm --format {{.Manifest.Digest}}"
    answer = f"#!/bin/sh\n[ \"$*\" = '{asked}' ] && echo '\"{digest}\"'\n"
    pods.write_program(tmp_path / "bin" / "docker", answer)
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = commands.run(sys.executable, folder / "pin.py", "--base", env={"PATH": path})
    assert done.returncode == 0, done.stderr
    before, after = ((place / "Dockerfile").read_text().splitlines() for place in (DOCKER, folder))
    changed = [new for old, new in zip(before, after, strict=True) if new != old]
    assert changed == [f"FROM python:3.12-slim-bookworm@{digest} AS base"]


@pytest.mark.parametrize("name", ["dask-scheduler", "dask-worker"])
def test_the_removed_commands_stand_for_those_of_today(name, tmp_path):
    """Arguments arrive as they are, and the process is the command itself, which gets the signals."""
    text = '#!/bin/sh\necho $$\nfor word in "$@"; do echo "$word"; done\n'
    pods.write_program(tmp_path / "dask", text)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    with commands.start(pods.SHIMS / name, "--a", "b c", env={"PATH": path}) as shim:
        lines = shim.communicate(timeout=30)[0].splitlines()
    assert lines == [str(shim.pid), name.removeprefix("dask-"), "--a", "b c"]
    assert name in {container["args"][0] for container in chart.containers_of(()).values()}


def test_the_entry_copies_what_must_be_writable_and_becomes_the_command(tmp_path):
    """Once: what a process compiled meanwhile stays. Without a place for it, too, the command runs."""
    places = {name: tmp_path / name for name in ("loops", "tmp", "home", "given")}
    for place in places.values():
        place.mkdir()
    (places["loops"] / "loop.nbi").write_text("compiled")
    (places["given"] / "digits.py").write_text("example")
    caches = places["tmp"] / "numba"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(places["home"]),
        "DISTRFF_LOOPS": str(places["loops"]),
        "NUMBA_CACHE_DIR": str(caches),
    }
    command = (pods.SHIMS / "distrff-entry", "sh", "-c", 'echo $$ "$1"', "sh", "a  b")

    def run_entry(**more: str) -> None:
        with commands.start(*command, env=environment | more) as entry:
            assert entry.communicate(timeout=30)[0] == f"{entry.pid} a  b\n"

    run_entry()
    assert (caches / "loop.nbi").read_text() == "compiled"
    assert not list(places["home"].iterdir())
    (caches / "loop.nbi").write_text("compiled here")
    run_entry(DISTRFF_EXAMPLES=str(places["given"]))
    assert (caches / "loop.nbi").read_text() == "compiled here"
    assert (places["home"] / "examples" / "digits.py").read_text() == "example"
    run_entry(NUMBA_CACHE_DIR=str(tmp_path / "missing" / "numba"))


def compiled_loops() -> set[str]:
    """Module and name of each function under `@compiled`, as Numba's cache spells them."""
    found = set()
    for file in (chart.ROOT / "distrff").rglob("*.py"):
        loops = re.findall(r"^ *@compiled\(.*?\)\n *def (\w+)", file.read_text(), re.MULTILINE | re.DOTALL)
        found |= {f"{file.stem}.{name}" for name in loops}
    return found


# ---------------------------------------------------------------- its steps, in a virtual environment


class Image(NamedTuple):
    """The folders of the image below one of ours."""

    root: Path
    environment: dict[str, str]

    def here(self, text: str) -> str:
        of_the_image = r"(?<![\w./])/(opt|src|usr/local/bin|var/cache|home)(?=[-/\s:]|$)"
        return re.sub(of_the_image, rf"{self.root}/\1", text)


def python_of_the_image() -> str:
    """Python 3.12: the lock has the hashes of its wheels alone."""
    found = shutil.which("python3.12")
    if found and subprocess.run([found, "-c", "0"], check=False, capture_output=True).returncode == 0:
        return found
    pytest.skip("there is no Python 3.12, which the lock is for")


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Iterator[Image]:
    """The Dockerfile's instructions, but for those that need an engine: the base, apt-get and useradd."""
    root = tmp_path_factory.mktemp("image")
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(python_of_the_image())
    path = os.pathsep.join([str(root / "bin"), os.environ["PATH"]])
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "NUMBA_CACHE_DIR")
    lonely = {name: value for name, value in os.environ.items() if name not in ours}
    built = Image(root, lonely | {"PATH": path})
    for instruction in instructions():
        follow(instruction, built)
    yield built


def follow(instruction: Instruction, image: Image) -> None:
    if instruction.name == "ENV":
        for pair in instruction.words:
            name, value = pair.split("=", 1)
            image.environment[name] = image.here(value.replace("$PATH", image.environment["PATH"]))
    elif instruction.is_copy:
        *sources, there = instruction.words
        for source in sources:
            copy(chart.ROOT / source, Path(image.here(there)), into=there.endswith("/"))
    elif instruction.name == "RUN" and instruction.words[0] not in ("apt-get", "useradd"):
        run(image, "sh", "-c", image.here(" ".join(instruction.words)))


def copy(source: Path, there: Path, *, into: bool) -> None:
    there = there / source.name if into else there
    there.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        others = shutil.ignore_patterns("__pycache__", "*.zarr")
        shutil.copytree(source, there, dirs_exist_ok=True, ignore=others)
    else:
        shutil.copy(source, there)


def run(image: Image, *command: str) -> str:
    done = commands.run(*command, cwd=image.root, env=image.environment, timeout=900)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_its_steps_make_an_environment_that_works_with_all_loops_compiled(image):
    versions = json.loads(run(image, "python", "-m", "pip", "list", "--format=json"))
    installed = {canonicalize_name(found["name"]): found["version"] for found in versions}
    assert installed.pop("distrff") == chart.PROJECT["version"]
    assert installed.items() >= (pins("lock.txt") | pins("lock-notebook.txt")).items()
    for command in ("dask distrff --help", "dask-scheduler --help", "jupyter lab --version"):
        run(image, *command.split())
    assert (Path(image.environment["DISTRFF_EXAMPLES"]) / "digits.py").is_file()
    assert len(compiled_loops()) > 15
    cache = Path(image.environment["DISTRFF_LOOPS"])
    assert str(cache).startswith(str(image.root))
    assert {file.name.split("-")[0] for file in cache.rglob("*.nbi")} == compiled_loops()
