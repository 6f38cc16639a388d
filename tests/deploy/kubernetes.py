"""What kustomize and the operator make of `deploy/`, and the schemas that take it.

A source is a folder of `deploy/kubernetes`, or a choice of the chart's overlays. All are rendered from a copy
of `deploy/` whose file of images names a registry: every pod shows what that file changes.
"""

import functools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.chart import Manifest, Overlays

FOLDER = chart.FILES / "kubernetes"
JOBS = ("fit", "predict")
OPERATED = ("dask-cluster", "dask-job")
ELSEWHERE = tuple(f"on-dask-cluster/{name}" for name in JOBS)
PLAIN = (*JOBS, *OPERATED, *ELSEWHERE, "autoscaled")
APPLIED = [name for each in PLAIN for name in (each, f"tls/{each}")]
VERSIONS = ("1.31", "1.34")
"""Of Kubernetes, whose schemas are asked."""

Source = str | Overlays
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
(_EXAMPLE,) = re.findall(
    r"^# +- ({name: distrff,.*})$", (chart.FILES / "images" / "kustomization.yaml").read_text(), re.MULTILINE
)
REGISTRY = yaml.safe_load(_EXAMPLE) | {"digest": f"sha256:{'5' * 64}"}
IMAGE = f"{REGISTRY['newName']}@{REGISTRY['digest']}"


class Pod(NamedTuple):
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.spec["containers"]
        return container

    @property
    def waiting(self) -> dict[str, Any]:
        """The container that a Job waits with, before it begins."""
        (container,) = self.spec["initContainers"]
        return container

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec["containers"], *self.spec.get("initContainers", [])]


@functools.cache
def _rendered(source: Source) -> str:
    """What kubectl makes of a source, which it needs no cluster for; once a session."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "deploy"
        shutil.copytree(chart.FILES, copy, ignore=shutil.ignore_patterns("private", "chart.yaml"))
        images = copy / "images" / "kustomization.yaml"
        names = [REGISTRY, REGISTRY | {"name": "distrff-notebook"}]
        images.write_text(yaml.safe_dump(yaml.safe_load(images.read_text()) | {"images": names}))
        folder = copy / "kubernetes" / source if isinstance(source, str) else copy / "helm" / "post-render"
        if not isinstance(source, str):
            (folder / "chart.yaml").write_text(yaml.safe_dump_all(chart.manifests(source)))
        command = ["kubectl", "kustomize", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def resources(source: Source, kind: str = "") -> list[Manifest]:
    """The resources of a source, or its resources of one kind; the caller may change them."""
    return [m for m in yaml.load_all(_rendered(source), LOADER) if kind in ("", m["kind"])]


def operated(source: str) -> Manifest:
    """The operator's resource of a folder."""
    (resource,) = (m for m in resources(source) if m["kind"] in ("DaskCluster", "DaskJob"))
    return resource


def pods(source: Source) -> dict[str, Pod]:
    """The pods that are made: `"job"`, `"scheduler"`, `"worker"`; of Deployments by their names."""
    found = {}
    for manifest in resources(source):
        if manifest["kind"] in ("Deployment", "Job"):
            template = manifest["spec"]["template"]
            name = "job" if manifest["kind"] == "Job" else manifest["metadata"]["name"]
            found[name] = Pod(template["metadata"]["labels"], template["spec"])
        elif manifest["kind"] in ("DaskCluster", "DaskJob"):
            found |= _pods_of_the_operator(manifest)
    return found


def _pods_of_the_operator(resource: Manifest) -> dict[str, Pod]:
    """With the labels and variables that it adds in its `controller.py`, where a container lacks them."""
    own, spec = resource["metadata"]["name"], resource["spec"]
    cluster = spec["cluster"]["spec"] if "cluster" in spec else spec
    address = {"DASK_SCHEDULER_ADDRESS": f"tcp://{own}-scheduler.default.svc.cluster.local:8786"}
    name = {"DASK_WORKER_NAME": f"{own}-default-worker-0123456789"}
    parts = {"scheduler": ({}, cluster["scheduler"], {}), "worker": ({}, cluster["worker"], address | name)}
    if "job" in spec:
        parts["job"] = (spec["job"]["metadata"]["labels"], spec["job"], address)
    found = {}
    for part, (labels, template, variables) in parts.items():
        component = "job-runner" if part == "job" else part
        added = {"dask.org/cluster-name": own, "dask.org/component": component}
        found[part] = Pod(labels | added, template["spec"])
        env = found[part].container["env"]
        known = {variable["name"] for variable in env}
        env += [{"name": key, "value": value} for key, value in variables.items() if key not in known]
    return found


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether Kubernetes would select a pod with these labels."""
    equal = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return equal and all(
        labels.get(rule["key"]) in rule["values"] if rule["operator"] == "In" else rule["key"] in labels
        for rule in selector.get("matchExpressions", [])
    )


# ---------------------------------------------------------------- schemas


def assert_valid(manifest: Mapping[str, Any], version: str = VERSIONS[0]) -> None:
    """Fail unless this version of Kubernetes, or the operator, knows everything in the manifest."""
    if manifest["apiVersion"].startswith("kubernetes.dask.org/"):
        jsonschema = pytest.importorskip("jsonschema", reason="the extra `test` has it")
        # Without a check of the schema itself, which takes seconds.
        jsonschema.Draft202012Validator(_definition(manifest["kind"])).validate(manifest)
    else:
        _validate(json.dumps(manifest, sort_keys=True), version)


@functools.cache
def _validate(text: str, version: str) -> None:
    # Its schemas take a third of a second each time, and most manifests come again.
    validator = pytest.importorskip("kubernetes_validate", reason="the extra `test` has it")
    validator.validate(json.loads(text), version, strict=True)


def operators_chart() -> Path:
    """Its folder, found without an import, which would take all that the operator works with."""
    spec = find_spec("dask_kubernetes")
    if spec is None or spec.origin is None:
        pytest.skip("the operator's chart is in the package dask-kubernetes, which is not installed")
    return Path(spec.origin).parent / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"


@functools.cache
def _definition(kind: str) -> dict[str, Any]:
    """The operator's schema of a kind, which here allows no word that it lacks."""
    file = operators_chart() / "crds" / f"{kind.lower()}.yaml"
    (version,) = yaml.load(file.read_text(), LOADER)["spec"]["versions"]
    definition = version["schema"]["openAPIV3Schema"]
    of_every_resource = {key: {} for key in ("apiVersion", "kind", "metadata")}
    return _closed(definition | {"properties": of_every_resource | definition["properties"]})


def _closed(schema: Any) -> Any:
    """The schema without room for unknown fields, which a cluster would drop without a word."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
