"""The chart dask/dask with our values: rendered where its folder is given, else as it was rendered last.

The folder is that of the release in VERSIONS, as `helm pull dask/dask --untar --version VERSION` makes it.

DISTRFF_DASK_CHART=/path/to/helm-chart/dask pytest tests/deploy      renders the chart, for all overlays
python -m tests.deploy.chart /path/to/helm-chart/dask                stores what it renders now
"""

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
FILES = ROOT / "deploy"
HELM = FILES / "helm"
STORED = Path(__file__).parent / "rendered"
OVERLAYS = ("highmem", "spot", "tls", "jupyter")
VERSIONS = {"dask/dask": "2024.1.1", "dask/dask-kubernetes-operator": "2026.3.0"}
"""Of the charts that the commands install: the first is the one that is rendered here."""

Manifest = dict[str, Any]
Overlays = tuple[str, ...]

KEPT: list[Overlays] = [(), OVERLAYS]
"""Choices whose rendering is stored: nothing but values.yaml, and all overlays together."""
FOLDER = Path(os.environ["DISTRFF_DASK_CHART"]) if os.environ.get("DISTRFF_DASK_CHART") else None
CHOICES = [chosen for n in range(5) for chosen in combinations(OVERLAYS, n)] if FOLDER else KEPT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def manifests(overlays: Overlays) -> list[Manifest]:
    """What the chart makes of values.yaml and these overlays."""
    if FOLDER is not None:
        return rendered(FOLDER, overlays)
    return list(yaml.safe_load_all(stored_file(overlays).read_text()))


def manifests_of(overlays: Overlays, kind: str) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in manifests(overlays) if m["kind"] == kind}


def containers_of(overlays: Overlays) -> dict[str, dict[str, Any]]:
    """The containers of the chart's Deployments, each of which has one."""
    found = manifests_of(overlays, "Deployment").items()
    return {name: m["spec"]["template"]["spec"]["containers"][0] for name, m in found}


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


def head_of(overlays: Overlays) -> str:
    """The first lines of a stored rendering: of which chart, and of which values, comments and all."""
    texts = [file_of(overlay).read_bytes() for overlay in ("", *OVERLAYS)]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()
    made = f"# By `python -m tests.deploy.chart FOLDER`, of version {VERSIONS['dask/dask']}"
    return f"{made}\n# and the values {digest}\n"


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
    version = yaml.safe_load((folder / "Chart.yaml").read_text())["version"]
    if version != VERSIONS["dask/dask"]:
        sys.exit(f"{folder} has version {version}, not {VERSIONS['dask/dask']}")
    (STORED / "keys.txt").write_text("".join(f"{key}\n" for key in keys_read(folder)))
    for overlays in KEPT:
        text = yaml.safe_dump_all(rendered(folder, overlays), sort_keys=False, width=110)
        stored_file(overlays).write_text(head_of(overlays) + text)


if __name__ == "__main__":
    main()
