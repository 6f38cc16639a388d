"""Writes constraints.txt: the newest versions of everything in the image that go together.

    docker run --rm -v "$PWD:/src" -w /src python:3.12-slim-bookworm python deploy/docker/pin.py

or any Python 3.12 on Linux, from the repository's top folder. Nothing is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = (3, 12)  # of the Dockerfile
HEAD = """\
# Every package of the image but distrff, for Python {}.{} on Linux. Written by deploy/docker/pin.py.
"""


def resolved() -> list[dict]:
    """What pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    wanted = [f"{HERE.parents[1]}[s3]", "--requirement", str(HERE / "requirements.txt")]
    done = subprocess.run([*command, "--report", "-", *wanted], stdout=subprocess.PIPE, check=True)
    return [found["metadata"] for found in json.loads(done.stdout)["install"]]


def main() -> None:
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"the image has Python {'.'.join(map(str, PYTHON))}; run this with it")
    pins = [f"{found['name']}=={found['version']}" for found in resolved() if found["name"] != "distrff"]
    lines = [HEAD.format(*PYTHON), *(f"{pin}\n" for pin in sorted(pins, key=str.lower))]
    (HERE / "constraints.txt").write_text("".join(lines))
    print(f"{len(pins)} packages written to {HERE / 'constraints.txt'}")


if __name__ == "__main__":
    main()
