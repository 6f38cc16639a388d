"""Whom the policies let in to a scheduler or a worker, among all pods that the files make."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.kubernetes import FOLDER, JOBS, is_selected, post_rendered, resource_of, the_one
from tests.deploy.schemas import KUBERNETES_VERSIONS, assert_valid

FILES = {
    "chart": chart.HELM / "network-policy.yaml",
    "operator": FOLDER / "network-policy.yaml",
    "chart/egress": chart.HELM / "network-policy-egress.yaml",
    "operator/egress": FOLDER / "network-policy-egress.yaml",
}
OPERATOR = {"kubernetes.io/metadata.name": "dask-operator"}

Labels = dict[str, str]


@functools.cache
def pods() -> dict[str, Labels]:
    """The labels of all pods, and of one that has nothing to do with Dask."""
    found = {"stranger": {"app": "shop"}}
    for manifest in post_rendered(chart.OVERLAYS):
        if manifest["kind"] == "Deployment":
            found[manifest["metadata"]["name"]] = manifest["spec"]["template"]["metadata"]["labels"]
    for name in JOBS:
        found[name] = the_one(name, "Job")["spec"]["template"]["metadata"]["labels"]
    dask_job = resource_of("dask-job")
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
    peers = peers_of(policy.get("ingress", []), "from", port)
    return {name for name, labels in every.items() if any(is_selected(peer, labels) for peer in peers)}


def peers_of(rules: list[dict[str, Any]], direction: str, port: int) -> list[dict[str, Any]]:
    """The selectors of the namespace's own pods that rules have for a port, {} where any place is meant."""
    rules = [r for r in rules if port in {p["port"] for p in r.get("ports", [{"port": port}])}]
    peers = [peer for rule in rules for peer in rule.get(direction, [{"podSelector": {}}])]
    return [p["podSelector"] for p in peers if "podSelector" in p and "namespaceSelector" not in p]


def let_out(which: str, of: str, port: int) -> set[str]:
    """The pods of the namespace that a pod may reach at a port where nothing else lets it out."""
    every = pods()
    found = [p for p in policies(f"{which}/egress") if is_selected(p["podSelector"], every[of])]
    assert all(policy["policyTypes"] == ["Egress"] for policy in found)
    peers = [peer for policy in found for peer in peers_of(policy["egress"], "to", port)]
    return {name for name, labels in every.items() if any(is_selected(peer, labels) for peer in peers)}


SCHEDULERS = {"chart": "dask-scheduler", "operator": "operator/scheduler"}


@pytest.mark.parametrize("which", SCHEDULERS)
def test_who_is_let_in_is_let_out_and_reaches_names_and_the_store(which):
    every, scheduler = pods(), SCHEDULERS[which]
    ours = {name for name in every if name.startswith("operator/") == (which == "operator")}
    workers = {name for name in ours if "worker" in name}
    for to, port in ((scheduler, 8786), *((worker, 40_000) for worker in workers)):
        allowed = let_in(which, to, port)
        assert allowed is not None
        assert {name for name in every if to in let_out(which, name, port)} == allowed, (to, port)
    clients = {*JOBS, "operator/job-runner", "dask-jupyter"}
    for name in {scheduler, *workers, *clients}:
        assert let_out(which, name, 53) == every.keys(), name
        everywhere = every.keys() if name != scheduler else workers
        assert let_out(which, name, 443) == everywhere, name
    for name in every.keys() - {scheduler, *workers, *clients}:
        assert let_out(which, name, 53) == set(), name


LABELLED = {*JOBS, "operator/job-runner"}
CHARTS_WORKERS = {"dask-worker", "dask-worker-spot"}
OPERATORS = {"operator/worker"}
LET_IN = [
    ("chart", "dask-scheduler", 8786, {*CHARTS_WORKERS, "dask-jupyter", *LABELLED}),
    ("chart", "dask-scheduler", 8787, set()),
    *(("chart", worker, 40_000, {*CHARTS_WORKERS, "dask-scheduler"}) for worker in sorted(CHARTS_WORKERS)),
    ("chart", "dask-jupyter", 8888, set()),
    ("operator", "operator/scheduler", 8786, {*OPERATORS, *LABELLED, "dask-jupyter"}),
    ("operator", "operator/scheduler", 8787, set()),
    ("operator", "operator/worker", 40_000, {*OPERATORS, "operator/scheduler"}),
    *(
        (which, name, 8888, None) for which in SCHEDULERS for name in sorted(LABELLED)
    ),  # no policy selects jobs
]


@pytest.mark.parametrize(("which", "to", "port", "expected"), LET_IN)
def test_workers_and_labelled_clients_alone_are_let_in(which, to, port, expected):
    assert let_in(which, to, port) == expected


def test_the_operator_itself_reaches_schedulers_alone_from_its_namespace():
    """By the label that its chart gives its pod: not every pod there is let in."""
    for policy in policies("operator"):
        peers = [(rule.get("ports"), peer) for rule in policy["ingress"] for peer in rule["from"]]
        outside = [(ports, peer) for ports, peer in peers if "namespaceSelector" in peer]
        if is_selected(policy["podSelector"], pods()["operator/scheduler"]):
            ((ports, peer),) = outside
            assert peer["namespaceSelector"] == {"matchLabels": OPERATOR}
            assert peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": operators_name()}}
            assert {port["port"] for port in ports} == {8786, 8787}
        else:
            assert not outside


def operators_name() -> str:
    """What the operator's chart calls its pod."""
    (name,) = [name for name in chart.VERSIONS if name.endswith("operator")]
    return name.removeprefix("dask/")


def test_a_notebook_has_the_label_of_clients_where_kustomize_can_give_it():
    found = [m["spec"] for m in post_rendered(chart.OVERLAYS) if m["kind"] == "Deployment"]
    labels = [spec["template"]["metadata"]["labels"] for spec in found]
    assert [each["component"] for each in labels if each.get("distrff/client") == "true"] == ["jupyter"]


@pytest.mark.parametrize("which", FILES)
def test_kubernetes_takes_the_policies(which):
    for policy in yaml.safe_load_all(FILES[which].read_text()):
        for version in KUBERNETES_VERSIONS:
            assert_valid(policy, version)
