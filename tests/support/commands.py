"""Programs as processes of their own, the command line among them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

DISTRFF = (sys.executable, "-c", "from distrff.cli import main; main(prog_name='distrff')")


def run(*words: Any, timeout: float = 300.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def start(*words: Any, **options: Any) -> subprocess.Popen[str]:
    """Start a program, and return it with pipes of text to read from."""
    command = [str(word) for word in words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
