"""What kustomize makes of the folders of `deploy/kubernetes`, and the operator of its resources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart import ROOT, Manifest
from tests.deploy.pods import container_of

FOLDER = ROOT / "deploy" / "kubernetes"
JOBS = ("fit", "predict")
OPERATED = ("dask-cluster", "dask-job")


def built(name: str) -> list[Manifest]:
    """The resources of a folder's kustomization, as its components change them."""
    folder = FOLDER / name
    kustomization = read_kustomization(folder)
    resources: list[Manifest] = []
    for path in kustomization["resources"]:
        there = folder / path
        if there.is_dir():
            resources += built(str(there.resolve().relative_to(FOLDER)))
        else:
            # By way of JSON, which has no aliases: what is changed in one place stays in another.
            resources += json.loads(json.dumps(list(yaml.safe_load_all(there.read_text()))))
    for component in kustomization.get("components", []):
        for patch in read_kustomization(folder / component)["patches"]:
            for resource in resources:
                if resource["kind"] == patch["target"]["kind"]:
                    apply(patch["patch"], resource)
    return resources


def read_kustomization(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def apply(patch: str, resource: Manifest) -> None:
    """Carry out those operations of a JSON patch (RFC 6902) that the files have."""
    for operation in yaml.safe_load(patch):
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
            case other:
                raise NotImplementedError(other)


def the_one(name: str, kind: str) -> Manifest:
    """The only resource of a kind among those of a folder."""
    (found,) = [manifest for manifest in built(name) if manifest["kind"] == kind]
    return found


def job(name: str) -> dict[str, Any]:
    """The container of a folder's Job."""
    return container_of(the_one(name, "Job"))


def operated(name: str) -> dict[str, dict[str, Any]]:
    """Containers of the pods that the operator makes of a folder's resource, by their names.

    With the variables that it adds in `controller.py`, where a container does not have them.
    """
    (resource,) = built(name)
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
    jobs = {name: job(name) for name in JOBS}
    return jobs | {f"{name}/{own}": c for name in OPERATED for own, c in operated(name).items()}
