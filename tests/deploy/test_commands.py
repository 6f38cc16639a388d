"""The commands of the READMEs name what is there, and those of all files the versions of charts."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from tests.deploy import chart

DEPLOY = chart.ROOT / "deploy"
READMES = sorted(DEPLOY.rglob("README.md"))
WITH_COMMANDS = [*READMES, *sorted(DEPLOY.rglob("*.yaml"))]
PROGRAMS = {
    "cd", "dask", "distrff", "docker", "export", "helm", "kubectl", "openssl", "pip", "pytest", "python",
    "sudo",
}  # fmt: skip
MADE_BY_A_COMMAND = {"planned.yaml"}


def commands(readme: Path) -> list[list[str]]:
    """The words of each command in the fenced blocks, without variables that it sets."""
    blocks = re.findall(r"^ *```(?:bash)?\n(.*?)^ *```", readme.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] if "=" in words[0] else words for words in found if words]


def named(path: Path, name: str) -> bool:
    """Whether a file or folder is there, seen from the top folder or from that of a README."""
    return any((place / name).exists() for place in (chart.ROOT, path.parent, DEPLOY / "helm"))


def test_every_readme_has_commands_but_none_of_a_program_that_is_not_named_here():
    for readme in READMES:
        found = commands(readme)
        assert found, readme
        assert {words[0] for words in found} <= PROGRAMS, readme


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_files_that_commands_name_are_there(readme):
    for words in commands(readme):
        for flag, name in itertools.pairwise(words):
            takes_file = (flag == "-k") or (flag == "-f" and words[0] in ("helm", "kubectl", "docker"))
            if takes_file and words[1] != "logs" and name not in MADE_BY_A_COMMAND:
                assert named(readme, name), (words, name)


def charts_installed(text: str) -> list[tuple[str, str]]:
    """What follows each `helm` command's chart, as pairs of chart and the rest of the line."""
    return re.findall(r"helm (?:upgrade|install|template|pull)\b[^\n`]*?(dask/[\w-]+)([^\n`]*)", text)


def test_every_command_names_the_version_of_its_chart():
    """For values.yaml the one whose renderings the tests look at."""
    found = [(path, *pair) for path in WITH_COMMANDS for pair in charts_installed(path.read_text())]
    assert {name for _, name, _ in found} == chart.VERSIONS.keys()
    for path, name, rest in found:
        assert f"--version {chart.VERSIONS[name]}" in rest, (path, name)
    assert not charts_installed("helm list")
    assert charts_installed("helm install x dask/dask -f y") == [("dask/dask", " -f y")]
