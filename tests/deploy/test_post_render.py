"""What kustomize puts into the chart's manifests, and that it is all that it changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.chart import manifests_of
from tests.deploy.kubernetes import (
    CLOSED,
    assert_disk_is_asked_for,
    by_name,
    containers_in,
    is_selected,
    kubectl_kustomize,
    loaded,
    of_a_registry,
    post_rendered,
    read_kustomization,
)
from tests.deploy.pods import container_of, containers_of
from tests.deploy.schemas import KUBERNETES_VERSIONS, assert_valid

FOLDER = chart.HELM / "post-render"
CHOICES = pytest.mark.parametrize("overlays", chart.available(), ids="+".join)


def deployments(overlays: chart.Overlays) -> dict[str, chart.Manifest]:
    found = [m for m in post_rendered(overlays) if m["kind"] == "Deployment"]
    return {manifest["metadata"]["name"]: manifest for manifest in found}


def labels_of(deployment: chart.Manifest) -> dict[str, str]:
    return deployment["spec"]["template"]["metadata"]["labels"]


def test_every_component_is_used():
    components = {path.parent.name for path in FOLDER.glob("*/kustomization.yaml")}
    assert set(read_kustomization(FOLDER)["components"]) == {*components, "../../images"}


def test_the_file_that_says_where_images_come_from_says_it_for_the_chart_too(tmp_path):
    folder, wanted = of_a_registry(tmp_path)
    made = folder / "helm" / "post-render"
    (made / "chart.yaml").write_text(yaml.safe_dump_all(chart.manifests(chart.OVERLAYS)))
    found = list(containers_in(loaded(kubectl_kustomize(made))))
    assert [container["image"] for container in found] == [wanted] * 4


@CHOICES
def test_kubernetes_takes_it(overlays):
    for version in KUBERNETES_VERSIONS:
        for manifest in post_rendered(overlays):
            assert_valid(manifest, version)


@CHOICES
def test_containers_write_to_their_mounts_alone_and_pods_have_no_token(overlays):
    after = deployments(overlays)
    assert after.keys() == manifests_of(overlays, "Deployment").keys()
    for name, deployment in after.items():
        spec, container = deployment["spec"]["template"]["spec"], container_of(deployment)
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"], name
        assert container["securityContext"] == CLOSED, name
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        writable = {path for path, volume in mounts.items() if "emptyDir" in volumes[volume]}
        wanted = {"dask-scheduler": {"/tmp"}, "dask-jupyter": {"/tmp", "/home/distrff"}}
        assert writable == wanted.get(name, {"/tmp", "/scratch"}), name
        assert_disk_is_asked_for(spec)


def without_what_is_put_in(manifest: chart.Manifest) -> chart.Manifest:
    manifest = copy.deepcopy(manifest)
    template: dict[str, Any] = manifest["spec"]["template"]
    template["metadata"]["labels"].pop("distrff/client", None)
    for key in ("automountServiceAccountToken", "topologySpreadConstraints"):
        template["spec"].pop(key, None)
    (container,) = template["spec"]["containers"]
    container.pop("securityContext", None)
    component = template["metadata"]["labels"]["component"]
    if component == "scheduler":
        manifest["spec"].pop("strategy")
    elif component == "worker":
        container.pop("readinessProbe", None)
    for place, key in ((template["spec"], "volumes"), (container, "volumeMounts")):
        place[key] = [entry for entry in place.get(key, []) if entry["name"] not in ("tmp", "home")]
    return manifest


@CHOICES
def test_nothing_else_is_changed(overlays):
    before, after = manifests_of(overlays, "Deployment"), deployments(overlays)
    for name in before:
        assert without_what_is_put_in(after[name]) == without_what_is_put_in(before[name])
    others = [m for m in post_rendered(overlays) if m["kind"] not in ("Deployment", "PodDisruptionBudget")]
    assert by_name(others) == by_name(m for m in chart.manifests(overlays) if m["kind"] != "Deployment")


@CHOICES
def test_no_scheduler_is_evicted_and_workers_one_at_a_time(overlays):
    budgets = [m["spec"] for m in post_rendered(overlays) if m["kind"] == "PodDisruptionBudget"]
    assert {budget["unhealthyPodEvictionPolicy"] for budget in budgets} == {"AlwaysAllow"}
    allowed = {
        name: [b["maxUnavailable"] for b in budgets if is_selected(b["selector"], labels_of(deployment))]
        for name, deployment in deployments(overlays).items()
    }
    workers = {name: [1] for name in allowed if name.startswith("dask-worker")}
    notebooks = {name: [] for name in allowed if name == "dask-jupyter"}
    assert allowed == {"dask-scheduler": [0], **workers, **notebooks}


@CHOICES
def test_a_roll_out_ends_a_scheduler_before_the_next_and_a_worker_after(overlays):
    """Else one service would lead to two schedulers; the probe asks what the one for liveness asks."""
    for name, deployment in deployments(overlays).items():
        container = container_of(deployment)
        if name == "dask-scheduler":
            assert deployment["spec"]["strategy"] == {"type": "Recreate"}
        elif name.startswith("dask-worker"):
            assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
            probe = containers_of(overlays)["dask-worker"]["livenessProbe"]
            assert container["readinessProbe"]["httpGet"] == probe["httpGet"]
        if not name.endswith("jupyter"):  # as long silent as one that is alive may be
            ready = container["readinessProbe"]
            assert ready["periodSeconds"] * ready["failureThreshold"] == 120


@CHOICES
def test_workers_of_all_groups_are_spread_together(overlays):
    every = deployments(overlays)
    for name, deployment in every.items():
        constraints = deployment["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
        assert len(constraints) == name.startswith("dask-worker"), name
        for constraint in constraints:
            counted = {o for o in every if is_selected(constraint["labelSelector"], labels_of(every[o]))}
            assert counted == {o for o in every if o.startswith("dask-worker")}
            assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
