"""The commands of the READMEs name what is there, and those of all files the versions of charts."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from tests.deploy import chart

DEPLOY = chart.ROOT / "deploy"
PRIVATE = "deploy/private/"
"""Where commands put what git ignores."""


def files(pattern: str) -> list[Path]:
    """Those of deploy/ that are not made by commands."""
    return [path for path in sorted(DEPLOY.rglob(pattern)) if "private" not in path.parts]


READMES = files("README.md")
WITH_COMMANDS = [*READMES, *(path for path in files("*.yaml") if path.name != "chart.yaml")]
PROGRAMS = {
    "dask", "distrff", "docker", "export", "helm", "kubectl", "openssl", "pip", "pytest", "python", "sudo",
}  # fmt: skip
MADE_BY_A_COMMAND = {f"{PRIVATE}planned.yaml"}


def commands(readme: Path) -> list[list[str]]:
    """The words of each command in the fenced blocks, without variables that it sets."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", readme.read_text(), re.DOTALL | re.MULTILINE)
    lines = [
        line
        for language, block in blocks
        if language != "ini"
        for line in block.replace("\\\n", " ").splitlines()
    ]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] if "=" in words[0] else words for words in found if words]


def test_every_readme_has_commands_but_none_of_a_program_that_is_not_named_here():
    for readme in READMES:
        found = commands(readme)
        assert found, readme
        assert {words[0] for words in found} <= PROGRAMS, readme


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_files_that_commands_name_are_there_seen_from_the_top_folder(readme):
    for words in commands(readme):
        for flag, name in itertools.pairwise(words):
            takes_file = (flag == "-k") or (flag == "-f" and words[0] in ("helm", "kubectl", "docker"))
            if takes_file and words[1] != "logs" and name not in MADE_BY_A_COMMAND:
                assert (chart.ROOT / name).exists(), (words, name)


@pytest.mark.parametrize("readme", READMES[1:], ids=lambda path: path.parent.name)
def test_git_ignores_what_commands_make(readme):
    """Keys and certificates among it."""
    ignored = (chart.ROOT / ".gitignore").read_text().split()
    made = {
        name
        for words in commands(readme)
        for flag, name in itertools.pairwise(words)
        if flag in (">", "-keyout", "-out", "--untardir")
    }
    assert not [name for name in made if not name.startswith(PRIVATE.rstrip("/")) and name not in ignored]
    assert "*" in (DEPLOY / "private" / ".gitignore").read_text().split()
    assert len(made) > 5 or readme.parent.name != "helm"


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
