"""Whom the policies let in to a scheduler or a worker, among all pods that the files make."""

import functools
from typing import Any

import pytest
import yaml

from tests.deploy import chart
from tests.deploy.kubernetes import FOLDER, JOBS, is_selected, pods

Labels = dict[str, str]


@functools.cache
def every_pod() -> dict[str, Labels]:
    """The labels of all pods, and of one that has nothing to do with Dask."""
    found = {name: pod.labels for name, pod in pods(chart.OVERLAYS).items()}
    found |= {name: pods(name)["job"].labels for name in JOBS}
    found |= {f"operator/{name}": pod.labels for name, pod in pods("dask-job").items()}
    return {**found, "stranger": {"app": "shop"}}


def policies(which: str, kind: str) -> list[dict[str, Any]]:
    folder, name = {"chart": chart.HELM, "operator": FOLDER}[which], "network-policy"
    file = folder / (f"{name}.yaml" if kind == "Ingress" else f"{name}-egress.yaml")
    found = [policy["spec"] for policy in yaml.safe_load_all(file.read_text())]
    assert all(policy["policyTypes"] == [kind] for policy in found)
    return found


def reached(rules: list[dict[str, Any]], direction: str, port: int) -> set[str]:
    """The pods of the namespace that rules name for a port."""
    rules = [rule for rule in rules if port in {p["port"] for p in rule.get("ports", [{"port": port}])}]
    peers = [peer for rule in rules for peer in rule.get(direction, [{"podSelector": {}}])]
    selectors = [p["podSelector"] for p in peers if "podSelector" in p and "namespaceSelector" not in p]
    pairs = ((name, selector) for name in every_pod() for selector in selectors)
    return {name for name, selector in pairs if is_selected(selector, every_pod()[name])}


def let_in(which: str, to: str, port: int) -> set[str] | None:
    """The pods of the namespace that reach a port of a pod, None where no policy selects it."""
    found = [p for p in policies(which, "Ingress") if is_selected(p["podSelector"], every_pod()[to])]
    assert len(found) < 2
    return reached(found[0].get("ingress", []), "from", port) if found else None


def let_out(which: str, of: str, port: int) -> set[str]:
    """The pods of the namespace that a pod may reach at a port where nothing else lets it out."""
    found = [p for p in policies(which, "Egress") if is_selected(p["podSelector"], every_pod()[of])]
    return set().union(*(reached(policy["egress"], "to", port) for policy in found))


CLIENTS = {*JOBS, "operator/job", "dask-jupyter"}
WORKERS = {"chart": {"dask-worker", "dask-worker-spot"}, "operator": {"operator/worker"}}
SCHEDULERS = {"chart": "dask-scheduler", "operator": "operator/scheduler"}


@pytest.mark.parametrize("which", SCHEDULERS)
def test_workers_and_labelled_clients_alone_are_let_in(which):
    scheduler, workers = SCHEDULERS[which], WORKERS[which]
    assert let_in(which, scheduler, 8786) == workers | CLIENTS
    assert let_in(which, scheduler, 8787) == set()
    for worker in workers:
        assert let_in(which, worker, 40_000) == {*workers, scheduler}
    assert let_in("chart", "dask-jupyter", 8888) == set()
    for job in CLIENTS - {"dask-jupyter"}:  # no policy selects jobs
        assert let_in(which, job, 8888) is None


@pytest.mark.parametrize("which", SCHEDULERS)
def test_who_is_let_in_is_let_out_and_reaches_names_and_the_store(which):
    every, scheduler, workers = every_pod(), SCHEDULERS[which], WORKERS[which]
    for to, port in ((scheduler, 8786), *((worker, 40_000) for worker in workers)):
        assert {name for name in every if to in let_out(which, name, port)} == let_in(which, to, port)
    ours = {scheduler, *workers, *CLIENTS}
    for name in every:
        assert let_out(which, name, 53) == (every.keys() if name in ours else set()), name
    for name in ours:
        assert let_out(which, name, 443) == (workers if name == scheduler else every.keys()), name


def test_the_operator_itself_reaches_schedulers_alone_from_its_namespace():
    """By the label that its chart gives its pod: not every pod there is let in."""
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "dask-operator"}}
    pod = {"matchLabels": {"app.kubernetes.io/name": "dask-kubernetes-operator"}}
    for policy in policies("operator", "Ingress"):
        peers = [(rule.get("ports"), peer) for rule in policy["ingress"] for peer in rule["from"]]
        outside = [(ports, peer) for ports, peer in peers if "namespaceSelector" in peer]
        if is_selected(policy["podSelector"], every_pod()["operator/scheduler"]):
            ((ports, peer),) = outside
            assert peer == {"namespaceSelector": namespace, "podSelector": pod}
            assert {port["port"] for port in ports} == {8786, 8787}
        else:
            assert not outside
