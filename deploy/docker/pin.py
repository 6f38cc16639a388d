"""Writes the locks and renews the base image: the newest versions of everything that go together.

    docker run --rm -v "$PWD:/src" -w /src python:3.12-slim-bookworm python deploy/docker/pin.py
    python deploy/docker/pin.py --base

The first writes the locks, with any Python 3.12 on Linux and x86_64; nothing is installed. The second renews
the digest of the base image, with any Python, and asks the registry by `docker buildx imagetools`. Both from
the repository's top folder. There is no image for arm64, as finufft has no wheel for it.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = "3.12"  # of the Dockerfile
HEAD = """\
# Every package of {}, for Python {} on Linux and
# x86_64, each with the hash of its wheel. Written by deploy/docker/pin.py.
"""


def resolved(*requirements: str) -> dict[str, str]:
    """The hashes of what pip would install for distrff and these files into an empty environment, by pins."""
    # No wheel, no pin: a package that is built when it is installed fetches what builds it, and asks no hash.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--only-binary=:all:", "--report", "-", f"{HERE.parents[1]}[s3]"]
    command += [f"--requirement={HERE / name}" for name in requirements]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    hashes = {}
    for found in json.loads(done.stdout)["install"]:
        name, version = (found["metadata"][key] for key in ("name", "version"))
        if name != "distrff":
            hashes[f"{name}=={version}"] = found["download_info"]["archive_info"]["hashes"]["sha256"]
    return hashes


def write(name: str, what: str, hashes: dict[str, str]) -> None:
    pins = sorted(hashes, key=str.lower)
    lines = [HEAD.format(what, PYTHON), *(f"{pin} --hash=sha256:{hashes[pin]}\n" for pin in pins)]
    (HERE / name).write_text("".join(lines))
    print(f"{len(pins)} packages written to {HERE / name}")


def write_locks() -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if (here, platform.machine(), sys.platform) != (PYTHON, "x86_64", "linux"):
        sys.exit(f"the image has Python {PYTHON} on Linux and x86_64; run this with it")
    # The notebook's choice decides, for both images must have the same versions of what they share.
    everything = resolved("requirements.txt", "requirements-notebook.txt")
    shared = {pin.partition("==")[0] for pin in resolved("requirements.txt")}
    parts: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for pin, digest in everything.items():
        parts[pin.partition("==")[0] in shared][pin] = digest
    write("lock.txt", "both images but distrff", parts[True])
    write("lock-notebook.txt", "the notebook's image beside those of lock.txt", parts[False])


def renew_base() -> None:
    """Put the digest that the tag has now into the Dockerfile."""
    file = HERE / "Dockerfile"
    text = file.read_text()
    (tag,) = re.findall(r"^FROM (python:[\w.-]+)@sha256:", text, re.MULTILINE)
    command = ["docker", "buildx", "imagetools", "inspect", tag, "--format", "{{.Manifest.Digest}}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    digest = done.stdout.strip().strip('"')
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.exit(f"{digest!r} is no digest")
    file.write_text(re.sub(rf"{re.escape(tag)}@sha256:[0-9a-f]{{64}}", f"{tag}@{digest}", text))
    print(f"{tag} is {digest}")


if __name__ == "__main__":
    renew_base() if sys.argv[1:] == ["--base"] else write_locks()
