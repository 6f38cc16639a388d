"""The values: the chart reads them, Kubernetes takes what comes out, and the planner agrees."""

from __future__ import annotations

import itertools
import re
from typing import Any

import dask.array as da
import pytest
import yaml
from dask.utils import parse_bytes

from distrff.cli.plan import _CLIENT_IDLE_BYTES
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused
from distrff.estimators.ridge import KernelRidge
from distrff.features.base import FeatureMap
from distrff.features.fourier import FourierFeatures
from distrff.features.search.candidates import AutoFeatures
from distrff.fitting.cost import Plan
from tests.deploy import chart
from tests.deploy.chart import manifests_of
from tests.deploy.kubernetes import job
from tests.deploy.pods import container_of, containers_of
from tests.deploy.schemas import KUBERNETES_VERSIONS, assert_valid

# What a deployment has to think of; what is left to the chart is set to its default, beside a reason.
ON_PURPOSE = (
    "scheduler.image", "scheduler.env", "scheduler.extraArgs", "scheduler.resources",
    "scheduler.livenessProbe", "scheduler.readinessProbe", "scheduler.serviceType", "webUI.ingress",
    "worker.image", "worker.image.dask_worker", "worker.replicas", "worker.resources",
    "worker.threads_per_worker", "worker.env", "worker.extraArgs", "worker.mounts", "worker.livenessProbe",
    "worker.custom_scheduler_url", "additional_worker_groups", "jupyter.enabled", "jupyter.image",
    "jupyter.env", "jupyter.extraConfig", "jupyter.mounts", "jupyter.password", "jupyter.resources",
)  # fmt: skip


def named(overlays: chart.Overlays) -> str:
    return "+".join(["values", *overlays])


def test_what_is_stored_was_rendered_from_these_values():
    """Else: python -m tests.deploy.chart FOLDER."""
    for overlays in chart.KEPT:
        version, values = chart.stored_file(overlays).read_text().splitlines()[:2]
        assert version.endswith(f"of version {chart.VERSIONS['dask/dask']}")
        assert values.endswith(chart.digest_of_values()), "a values file changed since the chart was rendered"


@pytest.mark.skipif(not chart.chart_folder(), reason=f"{chart.VARIABLE} names no folder of the chart")
def test_what_is_stored_is_what_the_chart_renders():
    folder = chart.chart_folder()
    assert folder is not None
    assert chart.version_of(folder) == chart.VERSIONS["dask/dask"]
    for overlays in chart.KEPT:
        stored = list(yaml.safe_load_all(chart.stored_file(overlays).read_text()))
        assert stored == chart.rendered(folder, overlays)
    assert chart.KEYS.read_text().split() == chart.keys_read(folder)


@pytest.mark.parametrize("kubernetes", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlays", chart.available(), ids=named)
def test_kubernetes_takes_what_is_rendered_for_the_image_of_this_version(overlays, kubernetes):
    for manifest in chart.manifests(overlays):
        assert_valid(manifest, kubernetes)
    for name, manifest in manifests_of(overlays, "Deployment").items():
        image = "distrff-notebook" if name == "dask-jupyter" else "distrff"
        assert container_of(manifest)["image"] == f"{image}:{chart.project()['version']}", name
        assert manifest["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"], name


def not_read(values: dict[str, Any]) -> list[str]:
    """The keys of values that the chart does not read."""
    folder = chart.chart_folder()
    read = chart.keys_read(folder) if folder else chart.KEYS.read_text().split()

    def is_read(key: str) -> bool:
        below = any(key == known or key.startswith(f"{known}.") for known in read)
        return below or any(known.startswith(f"{key}.") for known in read)  # a section left empty

    return [key for key in chart.keys_used(values) if not is_read(key)]


def test_the_chart_reads_every_key_and_each_is_set_or_left_out_on_purpose():
    """It has no schema and passes over what it does not know, a misspelt word for one."""
    values = {overlay: chart.read_values(overlay) for overlay in ("", *chart.OVERLAYS)}
    assert not {overlay: keys for overlay in values if (keys := not_read(values[overlay]))}
    assert not_read({"worker": {"replica": 3, "replicas": 3}}) == ["worker.replica"]
    used = {path for part in values.values() for path in chart.keys_used(part)}
    assert not [key for key in ON_PURPOSE if not any(f"{path}.".startswith(f"{key}.") for path in used)]


def lists_of(values: Any, path: str = "") -> dict[str, list[Any]]:
    """The lists among values, by their paths."""
    if isinstance(values, list):
        return {path: values}
    parts = values.items() if isinstance(values, dict) else ()
    return {k: v for key, part in parts for k, v in lists_of(part, f"{path}.{key}").items()}


def test_overlays_go_together_in_any_order():
    """Helm replaces whole lists, so no two overlays set the same, and scalars that two set are equal."""
    values = {overlay: chart.read_values(overlay) for overlay in chart.OVERLAYS}
    for one, other in itertools.combinations(values, 2):
        assert not lists_of(values[one]).keys() & lists_of(values[other]).keys(), (one, other)
        both = [chart.merged(values[a], values[b]) for a, b in ((one, other), (other, one))]
        assert both[0] == both[1], (one, other)
    before = lists_of(chart.read_values(""))
    for overlay, path, entries in ((o, *item) for o in values for item in lists_of(values[o]).items()):
        lost = [entry for entry in before.get(path, []) if entry not in entries]
        assert not lost, f"{path} of values.yaml had {lost}, which {overlay} lacks"


def test_the_readme_names_the_keys_that_are_taken_of_the_stores_secret():
    named = set(re.findall(r"\bAWS_\w+", (chart.HELM / "README.md").read_text()))
    for overlays, name in (((), "worker"), (chart.OVERLAYS, "worker"), (chart.OVERLAYS, "jupyter")):
        sources = [v.get("valueFrom", {}) for v in containers_of(overlays)[f"dask-{name}"]["env"]]
        references = [source["secretKeyRef"] for source in sources if "secretKeyRef" in source]
        assert {ref["key"] for ref in references if ref["name"] == "distrff-storage"} == named


# ---------------------------------------------------------------- memory and threads


def memory_and_threads(worker: dict[str, Any]) -> tuple[int, int]:
    """What the chart tells a worker, which is what Kubernetes gives it."""
    words = dict(itertools.pairwise(worker["args"]))
    limits, requests = worker["resources"]["limits"], worker["resources"]["requests"]
    assert limits == requests
    assert words["--memory-limit"] == limits["memory"]
    return parse_bytes(limits["memory"]), int(words["--nthreads"])


def plan_of_ridge(worker: dict[str, Any], features: FeatureMap, dtype: str) -> Plan:
    """The plan of a ridge fit, with a checkpoint, to ten million rows of 50 columns; none is ever read."""
    memory, threads = memory_and_threads(worker)
    model = KernelRidge(features, alpha="cv", scale="standard", dtype=dtype)
    rows = da.zeros((10_000_000, 50), chunks=(65_536, 50), dtype="float64")
    return model.plan_for(Workers(3, threads, memory), rows, rows[:, 0], checkpoint="s3://bucket/kept")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sizes_that_the_files_speak_of(dtype):
    usual = containers_of(())["dask-worker"]
    large = containers_of(chart.OVERLAYS)["dask-worker"]
    for worker, n_components, n_folds in (
        (usual, 4096, 5), (usual, 6144, 1), (large, 8192, 5), (large, 16384, 1)
    ):  # fmt: skip
        assert plan_of_ridge(worker, FourierFeatures(None, n_components), dtype).folds_per_task == n_folds
        assert plan_of_ridge(worker, AutoFeatures(n_components), dtype).folds_per_task == n_folds
    with pytest.raises(PlanRefused, match="memory limit"):
        plan_of_ridge(usual, FourierFeatures(None, 16384), dtype)


def test_the_job_has_the_memory_that_its_client_needs():
    """As `distrff plan --as-helm-values` counts it."""
    fit = job("fit")
    (size,) = [word.partition("=")[2] for word in fit["args"] if word.startswith("--n-components=")]
    plan = plan_of_ridge(containers_of(())["dask-worker"], AutoFeatures(int(size)), "float64")
    needed = plan.client_peak_bytes + _CLIENT_IDLE_BYTES
    for kind in ("limits", "requests"):
        assert 0.25 < needed / parse_bytes(fit["resources"][kind]["memory"]) <= 1


# ---------------------------------------------------------------- what the overlays are for


def test_without_overlays():
    """The service is where everybody looks for it, and there is no notebook."""
    service = manifests_of((), "Service")["dask-scheduler"]["spec"]
    assert service["type"] == "ClusterIP"
    assert {port["port"] for port in service["ports"]} == {8786, 80}
    pods = containers_of(())
    assert pods["dask-worker"]["args"][1] == "dask-scheduler:8786"
    assert memory_and_threads(pods["dask-worker"])[1] == pods["dask-worker"]["resources"]["limits"]["cpu"]
    assert "dask-jupyter" not in pods
    assert not manifests_of((), "ConfigMap")
    assert not manifests_of((), "RoleBinding")


def test_with_overlays():
    """BLAS has the cores, spot workers are the others on other nodes, and nothing is in the clear."""
    pods = containers_of(chart.OVERLAYS)
    spot, usual = pods["dask-worker-spot"], pods["dask-worker"]
    for key in ("args", "env", "resources", "image", "volumeMounts"):
        assert spot[key] == usual[key]
    (blas,) = [v for v in usual["env"] if v["name"] == "OPENBLAS_NUM_THREADS"]
    assert memory_and_threads(usual)[1] == 1
    assert blas["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
    deployment = manifests_of(chart.OVERLAYS, "Deployment")["dask-worker-spot"]["spec"]["template"]["spec"]
    assert deployment["tolerations"]
    assert deployment["affinity"]
    failures = {v["name"]: v.get("value") for v in pods["dask-scheduler"]["env"]}
    assert int(failures["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"]) > 3
    assert "--protocol=tls" in pods["dask-scheduler"]["args"]
    assert usual["args"][1] == "tls://dask-scheduler:8786"
    assert "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=tls" in pods["dask-jupyter"]["command"]


def test_a_notebook_is_entered_by_a_token_from_a_secret_alone():
    variables = containers_of(chart.OVERLAYS)["dask-jupyter"]["env"]
    (token,) = [v for v in variables if v["name"] == "JUPYTER_TOKEN"]
    assert not token["valueFrom"]["secretKeyRef"].get("optional")
    (config,) = manifests_of(chart.OVERLAYS, "ConfigMap").values()
    text = config["data"]["jupyter_notebook_config.py"]
    compile(text, "jupyter_notebook_config.py", "exec")
    assert "c.NotebookApp.password = 'unusable'" in text
    assert 'c.IdentityProvider.token = os.environ["JUPYTER_TOKEN"]' in text
    assert not manifests_of(chart.OVERLAYS, "RoleBinding")  # no right to change other deployments
