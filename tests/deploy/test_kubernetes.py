"""The Jobs, what the operator makes a cluster of, and their overlays."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml

from distrff.cli import NOT_CONVERGED, REFUSED, main
from tests.deploy import chart
from tests.deploy.chart import manifests_of
from tests.deploy.kubernetes import (
    CLOSED,
    FOLDER,
    JOBS,
    OPERATED,
    assert_disk_is_asked_for,
    built,
    containers,
    containers_in,
    is_selected,
    job,
    kubectl_kustomize,
    loaded,
    of_a_registry,
    operated,
    read_kustomization,
    resource_of,
    the_one,
    variable,
    waiting,
)
from tests.deploy.pods import Surroundings, arguments_of, containers_of
from tests.deploy.schemas import (
    KUBERNETES_VERSIONS,
    assert_custom_resource_valid,
    assert_valid,
    operators_values,
)

FOLDERS = (*JOBS, *OPERATED)
COMPONENTS = ("disruption", "spread", "autoscale")
ELSEWHERE = tuple(f"on-dask-cluster/{name}" for name in JOBS)
APPLIED = [name for each in (*FOLDERS, *ELSEWHERE, "autoscaled") for name in (each, f"tls/{each}")]


def test_no_file_is_forgotten_and_the_readmes_apply_folders_that_are_there():
    """What no folder named here leads to is not tested."""
    there = {path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yaml")}
    assert there == {".", *APPLIED, *COMPONENTS, "tls/component", "on-dask-cluster/component"}
    for name in (*FOLDERS, *COMPONENTS):
        beside = {path.name for path in (FOLDER / name).glob("*.yaml")} - {"kustomization.yaml"}
        assert set(read_kustomization(FOLDER / name).get("resources", [])) == beside
    applied = []
    for readme in (chart.ROOT / "deploy").rglob("README.md"):
        for path in re.findall(r"kubectl (?:apply|delete) -k ([\w/-]+)", readme.read_text()):
            applied.append(path)
            assert (chart.ROOT / path / "kustomization.yaml").exists(), path
    assert set(applied) >= {f"deploy/kubernetes/{name}" for name in APPLIED if "tls/" not in name}


def test_a_misspelt_word_is_found():
    fit = the_one("fit", "Job")
    fit["spec"]["backofLimit"] = 3
    with pytest.raises(Exception, match="backofLimit"):
        assert_valid(fit, KUBERNETES_VERSIONS[0])
    cluster = resource_of("dask-cluster")
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
    assert waiting(name)["env"] == job(name)["env"]
    # Of a DaskJob there is one try only, which waits longer.
    waits = [word.replace("=1800", "=600") for word in operated("dask-job")["wait-for-a-worker"]["args"]]
    assert waiting(name)["args"] == waits
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 300  # for the last checkpoint
    if name == "fit":  # that another try does not mend is not tried again
        rule = spec["podFailurePolicy"]["rules"][0]
        assert rule["action"] == "FailJob"
        assert set(rule["onExitCodes"]["values"]) == {NOT_CONVERGED, REFUSED}
        assert rule["onExitCodes"]["containerName"] == job("fit")["name"]


def secrets_of(container: Mapping[str, Any]) -> set[str]:
    by_value = [v["valueFrom"]["secretKeyRef"] for v in container.get("env", []) if "valueFrom" in v]
    return {ref["name"] for ref in [*by_value, *(e["secretRef"] for e in container.get("envFrom", []))]}


def test_all_run_the_image_of_the_chart_and_those_that_read_and_write_take_the_same_secrets():
    image = containers_of(())["dask-scheduler"]["image"]
    taken = containers() | {"chart/worker": containers_of(())["dask-worker"]}
    for name, container in taken.items():
        reads = not name.endswith(("scheduler", "wait-for-a-worker"))
        assert secrets_of(container) == {"distrff-tls"} | ({"distrff-storage"} if reads else set()), name
        assert container["image"] == image, name


def pod_specs() -> list[dict[str, Any]]:
    of_jobs = [the_one(name, "Job")["spec"]["template"]["spec"] for name in JOBS]
    cluster, dask_job = (resource_of(name)["spec"] for name in OPERATED)
    clusters = (cluster, dask_job["cluster"]["spec"])
    parts = [part[role]["spec"] for part in clusters for role in ("scheduler", "worker")]
    return [*of_jobs, *parts, dask_job["job"]["spec"]]


def test_no_pod_may_more_than_it_needs():
    """What Kubernetes' own standard calls restricted, and no token for its API."""
    for spec in pod_specs():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"]}
        assert_disk_is_asked_for(spec)
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            assert container["securityContext"] == CLOSED, container["name"]
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert mounts["/tmp"] in volumes, container["name"]


# ---------------------------------------------------------------- kustomize


def differences(one: Any, other: Any, path: str = "") -> dict[str, Any]:
    """What the other one has else, by its place."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {k: v for key in one for k, v in differences(one[key], other[key], f"{path}/{key}").items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) <= len(other):
        pairs = itertools.zip_longest(one, other)
        return {k: v for i, pair in enumerate(pairs) for k, v in differences(*pair, f"{path}/{i}").items()}
    return {} if one == other else {path: other}


@pytest.mark.parametrize("name", [*JOBS, *ELSEWHERE])
def test_tls_changes_nothing_of_a_job_but_the_scheme(name):
    (plain,), (tls,) = built(name), built(f"tls/{name}")
    assert list(differences(plain, tls).values()) == ["tls", "tls"]
    for container in (job(f"tls/{name}"), waiting(f"tls/{name}")):
        assert variable(container, "SCHEDULER") == variable(job(name), "SCHEDULER").replace("tcp", "tls")


@pytest.mark.parametrize("name", JOBS)
def test_a_job_elsewhere_is_the_same_on_the_operators_cluster(name):
    (plain,), (elsewhere,) = built(name), built(f"on-dask-cluster/{name}")
    cluster = resource_of("dask-cluster")["metadata"]["name"]
    assert list(differences(plain, elsewhere).values()) == [f"$(SCHEME)://{cluster}-scheduler:8786"] * 2
    for container in (job(f"on-dask-cluster/{name}"), waiting(f"on-dask-cluster/{name}")):
        assert variable(container, "SCHEDULER") == f"tcp://{cluster}-scheduler:8786"


@pytest.mark.parametrize("name", APPLIED)
def test_one_file_says_where_the_images_of_all_pods_come_from(name, tmp_path):
    """And by which digest, which the README says to do."""
    folder, wanted = of_a_registry(tmp_path)
    found = list(containers_in(loaded(kubectl_kustomize(folder / "kubernetes" / name))))
    assert [container["image"] for container in found] == [wanted] * len(found)
    assert len(found) == len(list(containers_in(built(name)))) > 0


@pytest.mark.parametrize("name", OPERATED)
def test_tls_changes_protocol_and_addresses_of_the_operators_pods(name):
    resource = resource_of(name)
    address = f"tls://{resource['metadata']['name']}-scheduler:8786"
    plain, tls = operated(name), operated(f"tls/{name}")
    assert plain.keys() == tls.keys()
    assert tls["scheduler"]["args"] == [*plain["scheduler"]["args"], "--protocol=tls"]
    assert variable(tls["worker"], "DASK_SCHEDULER_ADDRESS") == address
    for client in tls.keys() - {"scheduler", "worker"}:
        assert list(differences(plain[client], tls[client]).values()) == ["tls"]
        assert variable(tls[client], "SCHEDULER") == address


# ---------------------------------------------------------------- the operator


@pytest.mark.parametrize("kubernetes", KUBERNETES_VERSIONS)
def test_kubernetes_takes_the_jobs_and_what_is_in_the_resources_that_the_operator_takes(kubernetes):
    for name in APPLIED:
        for resource in built(name):
            if resource["apiVersion"].startswith("kubernetes.dask.org/"):
                assert_custom_resource_valid(resource)
            else:
                assert_valid(resource, kubernetes)
    for spec in pod_specs():
        assert_valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}, kubernetes)
    cluster, dask_job = (resource_of(name)["spec"] for name in OPERATED)
    for part in (cluster, dask_job["cluster"]["spec"]):
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
        assert_valid(service | {"spec": part["scheduler"]["service"]}, kubernetes)


def test_the_operators_chart_has_the_values_that_the_readme_names_and_what_is_said_of_them():
    """`restricted` asks for no more than the one that is set."""
    values, text = operators_values(), (FOLDER / "README.md").read_text()
    assert "--set podSecurityContext.seccompProfile.type=RuntimeDefault" in text
    assert values["podSecurityContext"] == {}
    context = values["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    for path in ("rbac.cluster=false", "kopfArgs={--namespace=NAMESPACE}"):
        assert path in text
    assert values["rbac"]["cluster"] is True
    assert values["kopfArgs"] == ["--all-namespaces"]
    assert values["resources"] == {}


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
    cluster, dask_job = map(resource_of, OPERATED)
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


# ---------------------------------------------------------------- overlays


def pods_of_the_operator(name: str) -> dict[str, dict[str, str]]:
    """Labels of the pods that the operator makes of a folder's resources, by their parts."""
    own = {"dask.org/cluster-name": "distrff-fit" if "job" in name else "distrff"}
    parts = ("scheduler", "worker", *(["job-runner"] if "job" in name else []))
    return {part: own | {"dask.org/component": part} for part in parts}


@pytest.mark.parametrize("name", [n for n in APPLIED if n.removeprefix("tls/") in (*OPERATED, "autoscaled")])
def test_a_cluster_has_budgets_and_spread_workers(name):
    resource = resource_of(name)
    budgets = {m["metadata"]["name"]: m["spec"] for m in built(name) if m["kind"] == "PodDisruptionBudget"}
    pods = pods_of_the_operator(name)
    for part, rule in (("scheduler", {"maxUnavailable": 0}), ("worker", {"maxUnavailable": 1})):
        (budget,) = [b for b in budgets.values() if is_selected(b["selector"], pods[part])]
        assert budget.items() >= (rule | {"unhealthyPodEvictionPolicy": "AlwaysAllow"}).items()
    runner = budgets["distrff-fit-runner"]
    assert is_selected(runner["selector"], pods_of_the_operator("dask-job")["job-runner"])
    assert runner["minAvailable"] == 1
    spec = resource["spec"].get("cluster", resource)["spec"]
    (constraint,) = spec["worker"]["spec"].pop("topologySpreadConstraints")
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert is_selected(constraint["labelSelector"], pods["worker"])
    assert not is_selected(constraint["labelSelector"], pods["scheduler"])


@pytest.mark.parametrize("name", ["autoscaled", "tls/autoscaled"])
def test_the_autoscaler_is_of_the_cluster_that_jobs_elsewhere_use(name):
    cluster, autoscaler = the_one(name, "DaskCluster"), the_one(name, "DaskAutoscaler")["spec"]
    assert autoscaler["cluster"] == cluster["metadata"]["name"]
    assert cluster["metadata"]["name"] == resource_of("dask-cluster")["metadata"]["name"]
    assert 1 <= autoscaler["minimum"] <= cluster["spec"]["worker"]["replicas"] <= autoscaler["maximum"]


def test_the_autoscalers_scheduler_has_dasks_default_routes_and_the_one_that_the_operator_asks():
    scheduler = the_one("autoscaled", "DaskCluster")["spec"]["scheduler"]["spec"]["containers"][0]
    routes = yaml.safe_load(variable(scheduler, "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"))
    assert routes[:-1] == dask.config.get("distributed.scheduler.http.routes")
    assert routes[-1] == "distributed.http.scheduler.api"
