"""The Jobs, the policies, and what the operator makes a cluster of."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from distrff.cli import NOT_CONVERGED, REFUSED, main
from tests.deploy import chart
from tests.deploy.chart import manifests_of
from tests.deploy.kubernetes import (
    FOLDER,
    JOBS,
    OPERATED,
    built,
    containers,
    job,
    operated,
    read_kustomization,
    the_one,
)
from tests.deploy.pods import Surroundings, arguments_of, containers_of
from tests.deploy.schemas import KUBERNETES_VERSIONS, assert_custom_resource_valid, assert_valid

FOLDERS = (*JOBS, *OPERATED)
PLAIN_AND_TLS = [name for folder in FOLDERS for name in (folder, f"tls/{folder}")]
POLICIES = FOLDER / "fit" / "network-policy.yaml"


def test_no_file_is_forgotten_and_the_readmes_apply_folders_that_are_there():
    """What no folder named here leads to is not tested."""
    there = {path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yaml")}
    assert there == {*PLAIN_AND_TLS, "tls/component"}
    for name in FOLDERS:
        beside = {path.name for path in (FOLDER / name).glob("*.yaml")} - {"kustomization.yaml"}
        assert set(read_kustomization(FOLDER / name)["resources"]) == beside
    applied = []
    for readme in (chart.ROOT / "deploy").rglob("README.md"):
        for path in re.findall(r"kubectl apply -k ([\w/-]+)", readme.read_text()):
            applied.append(path)
            places = [place / path / "kustomization.yaml" for place in (chart.ROOT, readme.parent)]
            assert any(place.exists() for place in places), path
    assert len(applied) > 3


def test_a_misspelt_word_is_found():
    fit = the_one("fit", "Job")
    fit["spec"]["backofLimit"] = 3
    with pytest.raises(Exception, match="backofLimit"):
        assert_valid(fit, KUBERNETES_VERSIONS[0])
    (cluster,) = built("dask-cluster")
    cluster["spec"]["worker"]["replica"] = 3
    with pytest.raises(Exception, match="replica"):
        assert_custom_resource_valid(cluster)


@pytest.mark.parametrize("name", JOBS)
def test_a_job(name):
    """Its arguments are a command's, its scheduler is a service, and a pod that is moved has not failed.

    With a policy for failures Kubernetes begins the next pod when the last one is gone, and not before.
    """
    program, command, *words = arguments_of(job(name), Surroundings(Path()))
    assert program == "distrff"
    parsed = main.get_command(main.make_context("distrff", ["--help"], resilient_parsing=True), command)
    assert parsed is not None
    context = parsed.make_context(command, list(words))
    assert context.params["scheduler"] == "tcp://dask-scheduler:8786"
    assert context.params["out"].startswith("s3://")
    host, port = variable(job(name), "SCHEDULER").removeprefix("tcp://").split(":")
    ports = manifests_of((), "Service")[host]["spec"]["ports"]
    assert int(port) in {port["port"] for port in ports}
    spec = the_one(name, "Job")["spec"]
    moved = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert moved in spec["podFailurePolicy"]["rules"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    if name == "fit":  # that another try does not mend is not tried again
        rule = spec["podFailurePolicy"]["rules"][0]
        assert rule["action"] == "FailJob"
        assert set(rule["onExitCodes"]["values"]) == {NOT_CONVERGED, REFUSED}
        assert rule["onExitCodes"]["containerName"] == job("fit")["name"]


def variable(container: Mapping[str, Any], name: str) -> str:
    (value,) = [v["value"] for v in container["env"] if v["name"] == name]
    return value


def secrets_of(container: Mapping[str, Any]) -> set[str]:
    by_value = [v["valueFrom"]["secretKeyRef"] for v in container.get("env", []) if "valueFrom" in v]
    return {ref["name"] for ref in [*by_value, *(e["secretRef"] for e in container.get("envFrom", []))]}


def test_all_run_the_image_of_the_chart_and_those_that_read_and_write_take_the_same_secrets():
    (image,) = {container["image"] for container in containers_of(chart.OVERLAYS).values()}
    taken = containers() | {"chart/worker": containers_of(())["dask-worker"]}
    for name, container in taken.items():
        reads = not name.endswith(("scheduler", "wait-for-a-worker"))
        assert secrets_of(container) == {"distrff-tls"} | ({"distrff-storage"} if reads else set()), name
        assert container["image"] == image, name


def pod_specs() -> list[dict[str, Any]]:
    of_jobs = [the_one(name, "Job")["spec"]["template"]["spec"] for name in JOBS]
    cluster, dask_job = (built(name)[0]["spec"] for name in OPERATED)
    clusters = (cluster, dask_job["cluster"]["spec"])
    parts = [part[role]["spec"] for part in clusters for role in ("scheduler", "worker")]
    return [*of_jobs, *parts, dask_job["job"]["spec"]]


def test_no_pod_may_more_than_it_needs():
    """What Kubernetes' own standard calls restricted, and no token for its API."""
    for spec in pod_specs():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container["securityContext"] == closed, container["name"]


# ---------------------------------------------------------------- the policy


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether Kubernetes would select a pod with these labels."""
    equal = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return equal and all(
        labels.get(rule["key"]) in rule["values"] if rule["operator"] == "In" else rule["key"] in labels
        for rule in selector.get("matchExpressions", [])
    )


def test_the_scheduler_and_the_workers_are_closed_to_other_namespaces():
    chart_policy, operator_policy = (policy["spec"] for policy in yaml.safe_load_all(POLICIES.read_text()))
    closed = {
        name
        for name, deployment in manifests_of(chart.OVERLAYS, "Deployment").items()
        if is_selected(chart_policy["podSelector"], deployment["spec"]["template"]["metadata"]["labels"])
    }
    assert closed == {"dask-scheduler", "dask-worker", "dask-worker-spot"}
    for policy in (chart_policy, operator_policy):
        assert policy["policyTypes"] == ["Ingress"]
    assert chart_policy["ingress"] == [{"from": [{"podSelector": {}}]}]
    for component, is_closed in (("scheduler", True), ("worker", True), ("job-runner", False)):
        labels = {"dask.org/cluster-name": "distrff", "dask.org/component": component}
        assert is_selected(operator_policy["podSelector"], labels) == is_closed


# ---------------------------------------------------------------- kustomize


@pytest.mark.parametrize("name", PLAIN_AND_TLS)
def test_kustomize_makes_of_a_folder_what_is_tested(name):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    command = ["kubectl", "kustomize", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    def by_name(manifests):
        return sorted(manifests, key=lambda manifest: manifest["metadata"]["name"])

    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(built(name))


def differences(one: Any, other: Any, path: str = "") -> dict[str, Any]:
    """What the other one has else, by its place."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {k: v for key in one for k, v in differences(one[key], other[key], f"{path}/{key}").items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) <= len(other):
        pairs = itertools.zip_longest(one, other)
        return {k: v for i, pair in enumerate(pairs) for k, v in differences(*pair, f"{path}/{i}").items()}
    return {} if one == other else {path: other}


@pytest.mark.parametrize("name", JOBS)
def test_tls_changes_nothing_of_a_job_but_the_address(name):
    plain, tls = the_one(name, "Job"), the_one(f"tls/{name}", "Job")
    assert list(differences(plain, tls).values()) == ["tls://dask-scheduler:8786"]
    assert variable(job(f"tls/{name}"), "SCHEDULER") == "tls://dask-scheduler:8786"
    others = [m for m in built(name) if m["kind"] != "Job"]
    assert others == [m for m in built(f"tls/{name}") if m["kind"] != "Job"]


@pytest.mark.parametrize("name", OPERATED)
def test_tls_changes_protocol_and_addresses_of_the_operators_pods(name):
    (resource,) = built(name)
    address = f"tls://{resource['metadata']['name']}-scheduler:8786"
    plain, tls = operated(name), operated(f"tls/{name}")
    assert plain.keys() == tls.keys()
    assert tls["scheduler"]["args"] == [*plain["scheduler"]["args"], "--protocol=tls"]
    assert variable(tls["worker"], "DASK_SCHEDULER_ADDRESS") == address
    for client in tls.keys() - {"scheduler", "worker"}:
        assert list(differences(plain[client], tls[client]).values()) == [address]


# ---------------------------------------------------------------- the operator


@pytest.mark.parametrize("kubernetes", KUBERNETES_VERSIONS)
def test_kubernetes_takes_the_jobs_and_what_is_in_the_resources_that_the_operator_takes(kubernetes):
    for name in (*JOBS, *(f"tls/{name}" for name in JOBS)):
        for manifest in built(name):
            assert_valid(manifest, kubernetes)
    for name in (*OPERATED, *(f"tls/{name}" for name in OPERATED)):
        for resource in built(name):
            assert_custom_resource_valid(resource)
    for spec in pod_specs():
        assert_valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}, kubernetes)
    cluster, dask_job = (built(name)[0]["spec"] for name in OPERATED)
    for part in (cluster, dask_job["cluster"]["spec"]):
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
        assert_valid(service | {"spec": part["scheduler"]["service"]}, kubernetes)


@pytest.mark.parametrize(("overlays", "name"), [((), "dask-cluster"), (chart.OVERLAYS, "tls/dask-cluster")])
def test_the_operators_scheduler_is_the_charts(overlays, name):
    """Where one of them runs, the other does."""
    ours, scheduler = containers_of(overlays)["dask-scheduler"], operated(name)["scheduler"]
    program, *words = ours["args"]
    assert scheduler["args"] == [*program.split("-"), *words]
    assert [v for v in ours["env"] if "TLS" in v["name"]] == scheduler["env"]


def test_the_operators_worker_is_the_charts_and_dask_takes_the_arguments_of_both_parts():
    ours, parts = containers_of(())["dask-worker"], operated("dask-cluster")
    for kind in ("limits", "requests"):  # the operator's definition takes quantities as text only
        expected = {k: str(v) for k, v in ours["resources"][kind].items()}
        assert parts["worker"]["resources"][kind] == expected
    words = dict(itertools.pairwise(ours["args"]))
    for option in ("--nthreads", "--memory-limit", "--local-directory", "--death-timeout"):
        assert f"{option}={words[option]}" in parts["worker"]["args"]
    for part in ("scheduler", "worker"):
        program, command, *words = parts[part]["args"]
        assert (program, command) == ("dask", part)
        context = import_module(f"distributed.cli.dask_{part}").main.make_context(command, words)
        assert context.params["dashboard_address"] in (":8787", ":8790")


def test_the_operators_job_is_the_fit_on_the_same_cluster_under_its_own_name():
    """The operator starts the job with the cluster: it waits for a worker first."""
    (cluster,), (dask_job,) = map(built, OPERATED)
    alone, inside = cluster["spec"], dask_job["spec"]["cluster"]["spec"]
    for resource, spec in ((cluster, alone), (dask_job, inside)):
        selector = spec["scheduler"]["service"].pop("selector")
        assert selector["dask.org/cluster-name"] == resource["metadata"]["name"]
        assert selector["dask.org/component"] == "scheduler"
    assert alone == inside
    pods = operated("dask-job")
    fit, ours = job("fit"), pods["distrff"]
    assert ours["args"] == fit["args"]
    names = {variable["name"] for variable in fit["env"]}
    assert {variable["name"] for variable in ours["env"]} == names | {"DASK_SCHEDULER_ADDRESS"}
    for container in (pods["wait-for-a-worker"], ours):
        address = f"tcp://{dask_job['metadata']['name']}-scheduler:8786"
        assert variable(container, "SCHEDULER") == address
