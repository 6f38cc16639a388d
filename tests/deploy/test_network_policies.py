"""Whom the policies let in to a scheduler or a worker, among all pods that the files make."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.kubernetes import FOLDER, JOBS, built, is_selected, post_rendered, the_one
from tests.deploy.schemas import KUBERNETES_VERSIONS, assert_valid

FILES = {"chart": chart.HELM / "network-policy.yaml", "operator": FOLDER / "network-policy.yaml"}
OPERATOR = {"kubernetes.io/metadata.name": "dask-operator"}

Labels = dict[str, str]


def pods() -> dict[str, Labels]:
    """The labels of all pods, and of one that has nothing to do with Dask."""
    found = {"stranger": {"app": "shop"}}
    for manifest in chart.manifests(chart.OVERLAYS):
        if manifest["kind"] == "Deployment":
            found[manifest["metadata"]["name"]] = manifest["spec"]["template"]["metadata"]["labels"]
    for name in JOBS:
        found[name] = the_one(name, "Job")["spec"]["template"]["metadata"]["labels"]
    (dask_job,) = built("dask-job")
    runner = dask_job["spec"]["job"]["metadata"]["labels"]
    for part, labels in (("scheduler", {}), ("worker", {}), ("job-runner", runner)):
        own = {"dask.org/cluster-name": "distrff-fit", "dask.org/component": part}  # as controller.py has it
        found[f"operator/{part}"] = own | labels
    return found


def policies(which: str) -> list[dict[str, Any]]:
    return [policy["spec"] for policy in yaml.safe_load_all(FILES[which].read_text())]


def let_in(which: str, to: str, port: int) -> set[str] | None:
    """The pods of the namespace that reach a port of a pod, None where no policy selects it."""
    every = pods()
    (policy,) = [p for p in policies(which) if is_selected(p["podSelector"], every[to])] or [None]
    if policy is None:
        return None
    assert policy["policyTypes"] == ["Ingress"]
    rules = [r for r in policy["ingress"] if port in {p["port"] for p in r.get("ports", [{"port": port}])}]
    peers = [peer["podSelector"] for rule in rules for peer in rule["from"] if "podSelector" in peer]
    return {name for name, labels in every.items() if any(is_selected(peer, labels) for peer in peers)}


def test_the_charts_scheduler_lets_in_its_workers_its_notebook_and_labelled_clients_alone():
    workers = {"dask-worker", "dask-worker-spot"}
    labelled = {*JOBS, "operator/job-runner"}
    assert let_in("chart", "dask-scheduler", 8786) == {*workers, "dask-jupyter", *labelled}
    assert let_in("chart", "dask-scheduler", 8787) == set()
    for worker in workers:
        assert let_in("chart", worker, 40_000) == {*workers, "dask-scheduler"}


def test_the_operators_scheduler_lets_in_its_workers_and_labelled_clients_alone():
    labelled = {*JOBS, "operator/job-runner"}
    assert let_in("operator", "operator/scheduler", 8786) == {"operator/worker", *labelled}
    assert let_in("operator", "operator/scheduler", 8787) == set()
    assert let_in("operator", "operator/worker", 40_000) == {"operator/worker", "operator/scheduler"}


def test_the_operator_itself_reaches_schedulers_alone_from_its_namespace():
    for policy in policies("operator"):
        peers = [(rule.get("ports"), peer) for rule in policy["ingress"] for peer in rule["from"]]
        outside = [(ports, p["namespaceSelector"]) for ports, p in peers if "namespaceSelector" in p]
        if is_selected(policy["podSelector"], pods()["operator/scheduler"]):
            ((ports, selector),) = outside
            assert selector == {"matchLabels": OPERATOR}
            assert {port["port"] for port in ports} == {8786, 8787}
        else:
            assert not outside


def test_no_policy_selects_jobs_or_notebooks():
    for which in FILES:
        for name in (*JOBS, "dask-jupyter", "operator/job-runner"):
            assert let_in(which, name, 8888) is None


def test_a_notebook_has_the_label_of_clients_where_kustomize_can_give_it():
    found = [m["spec"] for m in post_rendered(chart.OVERLAYS) if m["kind"] == "Deployment"]
    labels = [spec["template"]["metadata"]["labels"] for spec in found]
    assert [each["component"] for each in labels if each.get("distrff/client") == "true"] == ["jupyter"]


@pytest.mark.parametrize("which", FILES)
def test_kubernetes_takes_the_policies(which):
    for policy in yaml.safe_load_all(FILES[which].read_text()):
        for version in KUBERNETES_VERSIONS:
            assert_valid(policy, version)
