"""What kustomize makes of the folders of `deploy/kubernetes`, and the operator of its resources."""

from __future__ import annotations

import functools
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from dask.utils import parse_bytes

from tests.deploy.chart import HELM, ROOT, Manifest, Overlays, manifests
from tests.deploy.pods import Surroundings, container_of, environment_of

FOLDER = ROOT / "deploy" / "kubernetes"
JOBS = ("fit", "predict")
OPERATED = ("dask-cluster", "dask-job")
DROPPED = {"drop": ["ALL"]}
CLOSED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": DROPPED}
"""What each container's security context is."""


@functools.cache
def _kustomized(folder: Path, overlays: Overlays | None) -> str:
    """A folder as kubectl renders it, once a session; with overlays it patches the chart's output."""
    if overlays is None:
        return kubectl_kustomize(folder)
    with tempfile.TemporaryDirectory() as place:
        copy = copy_of_deploy(Path(place)) / folder.relative_to(ROOT / "deploy")
        (copy / "chart.yaml").write_text(yaml.safe_dump_all(manifests(overlays)))
        return kubectl_kustomize(copy)


def built(name: str) -> list[Manifest]:
    """The resources of a folder's kustomization, as its components and patches change them."""
    return loaded(_kustomized(FOLDER / name, None))


def post_rendered(overlays: Overlays) -> list[Manifest]:
    """What kustomize makes of the chart's manifests."""
    return loaded(_kustomized(HELM / "post-render", overlays))


def loaded(text: str) -> list[Manifest]:
    """Manifests of a caller's own, which it may change."""
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_kustomization(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def containers_in(part: Any) -> Iterator[dict[str, Any]]:
    """All containers in resources, at whatever place: a DaskCluster has them where Kubernetes has none."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from value if key in ("containers", "initContainers") else containers_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from containers_in(value)


def assert_disk_is_asked_for(spec: Mapping[str, Any]) -> None:
    """Fail unless each container of a pod asks for, and is limited to, more disk than its volumes take."""
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume]
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        for kind in ("limits", "requests"):
            asked = container["resources"][kind]["ephemeral-storage"]
            assert parse_bytes(asked) > sum(map(parse_bytes, sizes)), container["name"]


def of_a_registry(folder: Path) -> tuple[Path, str]:
    """A copy of deploy/ that takes the images as its example does, and what it should make of `distrff`."""
    copy = copy_of_deploy(folder)
    images = copy / "images" / "kustomization.yaml"
    (example,) = re.findall(r"^# +- ({name: distrff,.*})$", images.read_text(), re.MULTILINE)
    image = yaml.safe_load(example) | {"digest": f"sha256:{secrets.token_hex(32)}"}
    others = [{**image, "name": "distrff-notebook"}]
    images.write_text(yaml.safe_dump(yaml.safe_load(images.read_text()) | {"images": [image, *others]}))
    return copy, f"{image['newName']}@{image['digest']}"


def copy_of_deploy(folder: Path) -> Path:
    copy = folder / "deploy"
    return shutil.copytree(ROOT / "deploy", copy, ignore=shutil.ignore_patterns("private", "chart.yaml"))


def kubectl_kustomize(folder: Path) -> str:
    """What kubectl makes of a folder, which it needs no cluster for."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    command = ["kubectl", "kustomize", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def by_name(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"]))


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether Kubernetes would select a pod with these labels."""
    equal = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return equal and all(
        labels.get(rule["key"]) in rule["values"] if rule["operator"] == "In" else rule["key"] in labels
        for rule in selector.get("matchExpressions", [])
    )


def the_one(name: str, kind: str) -> Manifest:
    """The only resource of a kind among those of a folder."""
    (found,) = [manifest for manifest in built(name) if manifest["kind"] == kind]
    return found


def job(name: str) -> dict[str, Any]:
    """The container of a folder's Job."""
    return container_of(the_one(name, "Job"))


def waiting(name: str) -> dict[str, Any]:
    """The container that a folder's Job waits with, before it begins."""
    (container,) = the_one(name, "Job")["spec"]["template"]["spec"]["initContainers"]
    return container


def resource_of(name: str) -> Manifest:
    """The operator's resource, a DaskCluster or a DaskJob, among those of a folder."""
    (resource,) = [m for m in built(name) if m["kind"] in ("DaskCluster", "DaskJob")]
    return resource


def variable(container: Mapping[str, Any], name: str) -> str:
    """What a container's variable is, without the content of secrets."""
    return environment_of(container, Surroundings(Path()))[name]


def hardened(overlays: Overlays) -> dict[str, dict[str, Any]]:
    """Containers of the chart's Deployments as kustomize changes them."""
    found = [m for m in post_rendered(overlays) if m["kind"] == "Deployment"]
    return {manifest["metadata"]["name"]: container_of(manifest) for manifest in found}


def operated(name: str) -> dict[str, dict[str, Any]]:
    """Containers of the pods that the operator makes of a folder's resource, by their names.

    With the variables that it adds in `controller.py`, where a container does not have them.
    """
    resource = resource_of(name)
    own, spec = resource["metadata"]["name"], resource["spec"]
    cluster = spec["cluster"]["spec"] if "cluster" in spec else spec
    address = {"DASK_SCHEDULER_ADDRESS": f"tcp://{own}-scheduler.default.svc.cluster.local:8786"}
    worker = {"DASK_WORKER_NAME": f"{own}-default-worker-0123456789"} | address
    found = [container_of(cluster["scheduler"]), with_default(container_of(cluster["worker"]), worker)]
    if "job" in spec:
        found += spec["job"]["spec"]["initContainers"]
        found.append(with_default(container_of(spec["job"]), address))
    return {container["name"]: container for container in found}


def with_default(container: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    known = {variable["name"] for variable in container["env"]}
    added = [{"name": name, "value": value} for name, value in variables.items() if name not in known]
    return {**container, "env": [*container["env"], *added]}


def containers() -> dict[str, dict[str, Any]]:
    """All containers of all folders, by folder and name."""
    jobs = {name: job(name) for name in JOBS} | {f"{name}/wait-for-a-worker": waiting(name) for name in JOBS}
    return jobs | {f"{name}/{own}": c for name in OPERATED for own, c in operated(name).items()}
