"""Programs as processes of their own, the command line among them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

DISTRFF = (sys.executable, "-m", "distrff")


def run(*words: Any, timeout: float = 300.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def start(*words: Any, **options: Any) -> subprocess.Popen[str]:
    """Start a program, and return it with pipes of text to read from."""
    command = [str(word) for word in words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def interrupt(process: subprocess.Popen[str], seconds: float = 10.0) -> tuple[str, str]:
    """Send Ctrl-C to all processes of a session of its own, which must all end; return what it wrote."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    wait_until(lambda: not any(is_running(child.pid) for child in family), seconds)
    return stdout, stderr


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Return as soon as the condition holds, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not after {seconds} s"
        time.sleep(0.05)
