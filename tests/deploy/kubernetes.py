"""What kustomize makes of the folders of `deploy/kubernetes`, and the operator of its resources."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from dask.utils import parse_bytes

from tests.deploy.chart import HELM, ROOT, Manifest, Overlays, manifests
from tests.deploy.pods import Surroundings, container_of, environment_of

FOLDER = ROOT / "deploy" / "kubernetes"
JOBS = ("fit", "predict")
OPERATED = ("dask-cluster", "dask-job")
CLOSED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""What each container's security context is."""

MERGED_BY = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""Lists whose entries a patch finds by one of their fields; others it replaces."""


def built(name: str) -> list[Manifest]:
    """The resources of a folder's kustomization, as its components and patches change them."""
    return kustomized(FOLDER / name)


def kustomized(folder: Path, given: Mapping[str, list[Manifest]] = MappingProxyType({})) -> list[Manifest]:
    """What kustomize makes of a folder, where `given` stands for files that are not there."""
    resources: list[Manifest] = []
    accumulate(folder, resources, given)
    return resources


def accumulate(folder: Path, resources: list[Manifest], given: Mapping[str, list[Manifest]]) -> None:
    """Add a folder's resources, let its components change them all, and then its own patches."""
    kustomization = read_kustomization(folder)
    for path in kustomization.get("resources", []):
        there = folder / path
        if there.is_dir():
            resources += kustomized(there)
        else:
            manifests = given[path] if path in given else yaml.safe_load_all(there.read_text())
            # By way of JSON, which has no aliases: what is changed in one place stays in another.
            resources += json.loads(json.dumps(list(manifests)))
    for component in kustomization.get("components", []):
        accumulate(folder / component, resources, given)
    for patch in kustomization.get("patches", []):
        for resource in resources:
            if is_target(patch["target"], resource):
                apply(yaml.safe_load(patch["patch"]), resource)
    for image in kustomization.get("images", []):
        for container in containers_in(resources):
            rename(container, image)


def read_kustomization(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def is_target(target: Mapping[str, str], resource: Manifest) -> bool:
    wanted = [pair.split("=") for pair in target.get("labelSelector", "").split(",") if pair]
    labels = resource["metadata"].get("labels", {})
    return resource["kind"] == target["kind"] and all(labels.get(name) == value for name, value in wanted)


def apply(patch: Any, resource: Manifest) -> None:
    """Carry out a patch: a list of operations of JSON, or a part of a resource."""
    if isinstance(patch, list):
        for operation in patch:
            operate(operation, resource)
    else:
        merge({key: part for key, part in patch.items() if key == "spec"}, resource)


def operate(operation: Mapping[str, Any], resource: Manifest) -> None:
    """Carry out one of those operations of a JSON patch (RFC 6902) that the files have."""
    *path, last = operation["path"].removeprefix("/").split("/")
    place: Any = resource
    for word in path:
        place = place[int(word) if isinstance(place, list) else word]
    match operation["op"], last:
        case "test", _:
            assert place[last] == operation["value"], operation
        case "replace", _:
            assert last in place, operation
            place[last] = operation["value"]
        case "add", "-":
            place.append(operation["value"])
        case "add", _:
            assert isinstance(place, dict), operation
            place[last] = operation["value"]
        case other:
            raise NotImplementedError(other)


def merge(part: Mapping[str, Any], whole: dict[str, Any]) -> None:
    """Put a part of a resource into it as Kubernetes' strategic merge does; what is new in lists is first."""
    for key, value in part.items():
        if isinstance(value, Mapping):
            merge(value, whole.setdefault(key, {}))
        elif key in MERGED_BY:
            name, entries = MERGED_BY[key], whole.setdefault(key, [])
            for entry in reversed(value):
                known = [one for one in entries if one[name] == entry[name]]
                merge(entry, known[0]) if known else entries.insert(0, dict(entry))
        else:
            whole[key] = value


def containers_in(part: Any) -> Iterator[dict[str, Any]]:
    """All containers in resources, at whatever place: a DaskCluster has them where Kubernetes has none."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from value if key in ("containers", "initContainers") else containers_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from containers_in(value)


def rename(container: dict[str, Any], image: Mapping[str, str]) -> None:
    """Give a container the tag of an entry of `images`, where it has an image of its name."""
    assert image.keys() == {"name", "newTag"}, image
    if container["image"].partition(":")[0] == image["name"]:
        container["image"] = f"{image['name']}:{image['newTag']}"


def assert_disk_is_asked_for(spec: Mapping[str, Any]) -> None:
    """Fail unless each container of a pod asks for, and is limited to, more disk than its volumes take."""
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume]
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        for kind in ("limits", "requests"):
            asked = container["resources"][kind]["ephemeral-storage"]
            assert parse_bytes(asked) > sum(map(parse_bytes, sizes)), container["name"]


def of_a_registry(folder: Path) -> tuple[Path, str]:
    """A copy of deploy/ that takes the images as its example does, and what it should make of `distrff`."""
    copy = folder / "deploy"
    shutil.copytree(ROOT / "deploy", copy, ignore=shutil.ignore_patterns("private", "chart.yaml"))
    images = copy / "images" / "kustomization.yaml"
    (example,) = re.findall(r"^# +- ({name: distrff,.*})$", images.read_text(), re.MULTILINE)
    image = yaml.safe_load(example) | {"digest": f"sha256:{secrets.token_hex(32)}"}
    others = [{**image, "name": "distrff-notebook"}]
    images.write_text(yaml.safe_dump(yaml.safe_load(images.read_text()) | {"images": [image, *others]}))
    return copy, f"{image['newName']}@{image['digest']}"


def kubectl_kustomize(folder: Path) -> list[Manifest]:
    """What kubectl makes of a folder, which it needs no cluster for."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(done.stdout))


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


def post_rendered(overlays: Overlays) -> list[Manifest]:
    """What kustomize makes of the chart's manifests."""
    return kustomized(HELM / "post-render", {"chart.yaml": manifests(overlays)})


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
