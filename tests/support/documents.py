"""Markdown files of the project: their fenced blocks, links, and commands."""

import re
import shlex
from pathlib import Path

from distrff.cli import main

ROOT = Path(__file__).parents[2]
SCHEDULER = "tcp://scheduler:8786"  # of nobody; the session's cluster takes its place


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, "" for none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for found, block in fenced if found == language]


def dead_links(path: Path) -> list[str]:
    """The links of a file to what is not there."""
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()) if "://" not in link]
    return [link for link in links if not (path.parent / link).exists()]


def commands(block: str) -> list[list[str]]:
    """The words of each line of a block, all of which are commands of ours."""
    lines = block.splitlines()
    assert all(line.startswith("distrff ") for line in lines), lines
    return [shlex.split(line, comments=True)[1:] for line in lines]


def smaller(words: list[str], scheduler: str) -> list[str]:
    """The same command with what a shell does to it, few features, and workers that are there."""
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if "*" in word:
            found += sorted(map(str, Path().glob(word)))
        else:
            found.append("32" if before == "--n-components" else scheduler if word == SCHEDULER else word)
    taken = {option.name for option in main.get_command(None, words[0]).params}  # type: ignore[arg-type,union-attr]
    if "--scheduler" not in found and "scheduler" in taken:
        found += ["--scheduler", scheduler]
    if "--n-components" not in found and "n_components" in taken and "--like" not in found:
        found += ["--n-components", "500" if "equispaced" in found else "32"]
    return found
