"""The Jobs, the policies, and what the operator makes a cluster of."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from distrff.cli import main
from distrff.cli.exits import NOT_CONVERGED, REFUSED
from tests.deploy import chart
from tests.deploy.chart import manifests_of
from tests.deploy.pods import Surroundings, arguments_of, container_of, containers_of
from tests.deploy.schemas import KUBERNETES_VERSIONS, assert_custom_resource_valid, assert_valid

FOLDER = chart.ROOT / "deploy" / "kubernetes"
JOBS = ("fit/job.yaml", "predict-job.yaml")


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / path).read_text()))


def test_no_file_is_forgotten():
    """What is not named here is not tested."""
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml")}
    operator = {"operator/dask-cluster.yaml", "operator/dask-job.yaml"}
    assert files == {
        *JOBS, *operator, "fit/network-policy.yaml", "fit/kustomization.yaml", "fit-tls/kustomization.yaml",
    }  # fmt: skip


@pytest.mark.parametrize("kubernetes", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("path", [*JOBS, "fit/network-policy.yaml"])
def test_kubernetes_takes_them(path, kubernetes):
    for manifest in documents(path):
        assert_valid(manifest, kubernetes)


def test_a_word_that_kubernetes_does_not_know_is_found():
    (job,) = documents("fit/job.yaml")
    job["spec"]["backofLimit"] = 3
    with pytest.raises(Exception, match="backofLimit"):
        assert_valid(job, KUBERNETES_VERSIONS[0])


@pytest.mark.parametrize("path", JOBS)
def test_the_command_line_takes_a_jobs_arguments(path):
    (job,) = documents(path)
    program, command, *words = arguments_of(container_of(job), Surroundings(Path(), {"distrff-storage": {}}))
    assert program == "distrff"
    parsed = main.get_command(main.make_context("distrff", ["--help"], resilient_parsing=True), command)
    assert parsed is not None
    context = parsed.make_context(command, list(words))
    assert context.params["scheduler"] == "tcp://dask-scheduler:8786"
    assert context.params["out"].startswith("s3://")


def test_a_fit_that_another_try_does_not_mend_is_not_tried_again():
    (job,) = documents("fit/job.yaml")
    rule = job["spec"]["podFailurePolicy"]["rules"][0]
    assert rule["action"] == "FailJob"
    assert set(rule["onExitCodes"]["values"]) == {NOT_CONVERGED, REFUSED}
    assert rule["onExitCodes"]["containerName"] == container_of(job)["name"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("path", JOBS)
def test_jobs_call_the_scheduler_by_the_name_of_its_service(path):
    (job,) = documents(path)
    (address,) = [v["value"] for v in container_of(job)["env"] if v["name"] == "SCHEDULER"]
    host, port = address.removeprefix("tcp://").split(":")
    service = manifests_of((), "Service")[host]
    assert int(port) in {port["port"] for port in service["spec"]["ports"]}


def secrets_of(container: Mapping[str, Any]) -> set[str]:
    by_value = [v["valueFrom"]["secretKeyRef"] for v in container.get("env", []) if "valueFrom" in v]
    return {ref["name"] for ref in [*by_value, *(e["secretRef"] for e in container.get("envFrom", []))]}


def test_jobs_and_workers_take_the_same_secrets():
    workers = secrets_of(containers_of(())["dask-worker"])
    for path in JOBS:
        (job,) = documents(path)
        assert secrets_of(container_of(job)) == workers == {"distrff-storage", "distrff-tls"}


# ---------------------------------------------------------------- the policy


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether Kubernetes would select a pod with these labels."""
    equal = all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
    return equal and all(
        labels.get(rule["key"]) in rule["values"] if rule["operator"] == "In" else rule["key"] in labels
        for rule in selector.get("matchExpressions", [])
    )


def test_the_scheduler_and_the_workers_are_closed_to_other_namespaces():
    chart_policy, operator_policy = (policy["spec"] for policy in documents("fit/network-policy.yaml"))
    closed = set()
    for name, deployment in manifests_of(chart.OVERLAYS, "Deployment").items():
        if is_selected(chart_policy["podSelector"], deployment["spec"]["template"]["metadata"]["labels"]):
            closed.add(name)
    assert closed == {"dask-scheduler", "dask-worker", "dask-worker-spot"}
    for policy in (chart_policy, operator_policy):
        assert policy["policyTypes"] == ["Ingress"]
    assert chart_policy["ingress"] == [{"from": [{"podSelector": {}}]}]
    for component in ("scheduler", "worker"):
        labels = {"dask.org/cluster-name": "distrff", "dask.org/component": component}
        assert is_selected(operator_policy["podSelector"], labels)
    labels = {"dask.org/cluster-name": "distrff", "dask.org/component": "job-runner"}
    assert not is_selected(operator_policy["podSelector"], labels)


# ---------------------------------------------------------------- kustomize


@functools.cache
def kustomized(name: str) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    command = ["kubectl", "kustomize", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return sorted(yaml.safe_load_all(done.stdout), key=lambda manifest: manifest["metadata"]["name"])


def test_a_kustomization_names_the_files_beside_it():
    (kustomization,) = documents("fit/kustomization.yaml")
    beside = {path.name for path in (FOLDER / "fit").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == beside


def test_kustomize_changes_nothing_but_the_address():
    plain, tls = kustomized("fit"), kustomized("fit-tls")
    there = [m for path in ("fit/job.yaml", "fit/network-policy.yaml") for m in documents(path)]
    assert plain == sorted(there, key=lambda manifest: manifest["metadata"]["name"])
    differences = [
        (one["name"], one["value"], other["value"])
        for before, after in zip(plain, tls, strict=True)
        if before["kind"] == "Job"
        for one, other in itertools.product(container_of(before)["env"], container_of(after)["env"])
        if one["name"] == other["name"] and one != other
    ]
    assert differences == [("SCHEDULER", "tcp://dask-scheduler:8786", "tls://dask-scheduler:8786")]


# ---------------------------------------------------------------- the operator


def operator_resources() -> tuple[dict[str, Any], dict[str, Any]]:
    (cluster,), (job,) = documents("operator/dask-cluster.yaml"), documents("operator/dask-job.yaml")
    return cluster, job


def test_the_operator_takes_its_resources():
    for resource in operator_resources():
        assert_custom_resource_valid(resource)


def test_a_word_that_the_operator_does_not_know_is_found():
    cluster, _ = operator_resources()
    cluster["spec"]["worker"]["replica"] = 3
    with pytest.raises(Exception, match="replica"):
        assert_custom_resource_valid(cluster)


@pytest.mark.parametrize("kubernetes", KUBERNETES_VERSIONS)
def test_kubernetes_takes_the_pods_and_services_in_them(kubernetes):
    cluster, job = operator_resources()
    parts = [cluster["spec"], job["spec"]["cluster"]["spec"]]
    pods = [part[name]["spec"] for part in parts for name in ("worker", "scheduler")]
    for spec in [*pods, job["spec"]["job"]["spec"]]:
        assert_valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}, kubernetes)
    for part in parts:
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
        assert_valid(service | {"spec": part["scheduler"]["service"]}, kubernetes)


def test_both_have_the_same_cluster_under_their_own_names():
    cluster, job = operator_resources()
    alone, inside = cluster["spec"], job["spec"]["cluster"]["spec"]
    for resource, spec in ((cluster, alone), (job, inside)):
        selector = spec["scheduler"]["service"].pop("selector")
        assert selector["dask.org/cluster-name"] == resource["metadata"]["name"]
        assert selector["dask.org/component"] == "scheduler"
    assert alone == inside


def test_the_operators_cluster_is_the_charts():
    cluster, job = operator_resources()
    ours = containers_of(())["dask-worker"]
    worker = container_of(cluster["spec"]["worker"])
    for kind in ("limits", "requests"):  # the operator's definition takes quantities as text only
        assert worker["resources"][kind] == {k: str(v) for k, v in ours["resources"][kind].items()}
    words = dict(itertools.pairwise(ours["args"]))
    for option in ("--nthreads", "--memory-limit", "--local-directory", "--death-timeout"):
        assert f"{option}={words[option]}" in worker["args"]
    (fit,) = documents("fit/job.yaml")
    assert container_of(job["spec"]["job"])["args"] == container_of(fit)["args"]


@pytest.mark.parametrize("part", ["scheduler", "worker"])
def test_dask_takes_the_arguments_of_the_operators_cluster(part):
    cluster, _ = operator_resources()
    program, command, *words = container_of(cluster["spec"][part])["args"]
    assert (program, command) == ("dask", part)
    context = import_module(f"distributed.cli.dask_{part}").main.make_context(command, words)
    assert context.params["dashboard_address"] in (":8787", ":8790")


def test_the_operators_job_calls_its_own_scheduler():
    """The operator starts the job with the cluster: it waits for a worker first."""
    _, job = operator_resources()
    spec = job["spec"]["job"]["spec"]
    address = {"name": "SCHEDULER", "value": f"tcp://{job['metadata']['name']}-scheduler:8786"}
    for container in (*spec["containers"], *spec["initContainers"]):
        assert address in container["env"]
    (wait,) = spec["initContainers"]
    compile(wait["args"][-1], wait["name"], "exec")
