"""The chart dask/dask with our values: rendered where its folder is given, else as it was rendered last.

The folder is that of the release in VERSION, as `helm pull dask/dask --untar --version VERSION` makes it.

DISTRFF_DASK_CHART=/path/to/helm-chart/dask pytest tests/deploy      renders the chart
python -m tests.deploy.chart /path/to/helm-chart/dask                stores what it renders now
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy" / "helm"
STORED = Path(__file__).parent / "rendered"
KEYS = STORED / "keys.txt"
OVERLAYS = ("highmem", "spot", "tls", "jupyter")
VARIABLE = "DISTRFF_DASK_CHART"
VERSIONS = {"dask/dask": "2024.1.1", "dask/dask-kubernetes-operator": "2026.3.0"}
"""Of the charts that the commands install: the first is the one that is rendered here."""

Manifest = dict[str, Any]
Overlays = tuple[str, ...]

EVERY: list[Overlays] = [chosen for n in range(5) for chosen in combinations(OVERLAYS, n)]
KEPT: list[Overlays] = [(), OVERLAYS]
"""Those whose rendering is stored: nothing but values.yaml, and all overlays together."""


def chart_folder() -> Path | None:
    """The chart's folder, where the environment names one."""
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def available() -> list[Overlays]:
    """Choices of overlays whose manifests can be had."""
    return EVERY if chart_folder() else KEPT


def manifests(overlays: Overlays) -> list[Manifest]:
    """What the chart makes of values.yaml and these overlays."""
    folder = chart_folder()
    if folder is None:
        return list(yaml.safe_load_all(stored_file(overlays).read_text()))
    return rendered(folder, overlays)


def manifests_of(overlays: Overlays, kind: str) -> dict[str, Manifest]:
    """Those of one kind by their names."""
    found = [manifest for manifest in manifests(overlays) if manifest["kind"] == kind]
    return {manifest["metadata"]["name"]: manifest for manifest in found}


def stored_file(overlays: Overlays) -> Path:
    return STORED / ("-".join(["values", *overlays]) + ".yaml")


def file_of(overlay: str) -> Path:
    return HELM / (f"values-{overlay}.yaml" if overlay else "values.yaml")


def read_values(overlay: str) -> dict[str, Any]:
    """The content of one file, `""` for values.yaml."""
    return yaml.safe_load(file_of(overlay).read_text())


def merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them: maps entry by entry, all else as a whole."""
    result = dict(values)
    for key, other in others.items():
        both = isinstance(other, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], other) if both else other
    return result


def rendered(folder: Path, overlays: Overlays) -> list[Manifest]:
    """Render the chart, without what only names its version."""
    from helm_python import Chart

    values: dict[str, Any] = {}
    for overlay in ("", *overlays):
        values = merged(values, read_values(overlay))
    with Chart.load(folder) as chart:
        files = chart.render(values=values, name="dask", namespace="default")
    texts = [files[name] for name in sorted(files) if name.endswith(".yaml")]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    for manifest in found:
        manifest["metadata"]["labels"].pop("chart", None)
    return found


def version_of(folder: Path) -> str:
    """The version of a chart."""
    return yaml.safe_load((folder / "Chart.yaml").read_text())["version"]


def project() -> dict[str, Any]:
    """What `pyproject.toml` says of the project."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def digest_of_values() -> str:
    """A digest of all files of values, comments and all."""
    texts = [file_of(overlay).read_bytes() for overlay in ("", *OVERLAYS)]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def keys_read(folder: Path) -> list[str]:
    """The values that the chart's templates read, a whole section never counting as one."""
    found = set()
    for template in (folder / "templates").iterdir():
        text = template.read_text()
        found |= set(re.findall(r"\.Values\.([\w.]+)", text))
        found |= {f"additional_worker_groups.{key}" for key in re.findall(r"\$worker\.([\w.]+)", text)}
    return sorted(key for key in found if "." in key or key.endswith("Override"))


def keys_used(values: Any, path: str = "") -> Iterator[str]:
    """The paths of all values in a file; groups of workers share one."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from keys_used(value, f"{path}.{key}" if path else key)
    elif isinstance(values, list) and path == "additional_worker_groups" and values:
        for value in values:
            yield from keys_used(value, path)
    else:
        yield path


def main() -> None:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "Chart.yaml").is_file():
        sys.exit("usage: python -m tests.deploy.chart FOLDER, that of the chart dask/dask")
    folder = Path(sys.argv[1])
    if version_of(folder) != VERSIONS["dask/dask"]:
        sys.exit(f"{folder} has version {version_of(folder)}, not {VERSIONS['dask/dask']}")
    KEYS.write_text("".join(f"{key}\n" for key in keys_read(folder)))
    for overlays in KEPT:
        text = yaml.safe_dump_all(rendered(folder, overlays), sort_keys=False, width=110)
        head = f"# By `python -m tests.deploy.chart FOLDER`, of version {version_of(folder)}\n"
        head += f"# and the values {digest_of_values()}\n"
        stored_file(overlays).write_text(head + text)


if __name__ == "__main__":
    main()
