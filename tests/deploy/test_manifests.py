"""The manifests of `deploy/`: accepted, closed, and in agreement with each other, commands and planner."""

import itertools
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import dask.array as da
import distributed
import pytest
import yaml
from dask.utils import parse_bytes

from distrff import AutoFeatures, FourierFeatures, KernelRidge
from distrff.cli import NOT_CONVERGED, REFUSED, main
from distrff.cli.plan import _CLIENT_IDLE_BYTES
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused
from distrff.features.base import FeatureMap
from distrff.fitting.cost import Plan
from tests.deploy import chart
from tests.deploy.chart import containers_of, manifests_of
from tests.deploy.kubernetes import (
    APPLIED,
    ELSEWHERE,
    FOLDER,
    IMAGE,
    JOBS,
    OPERATED,
    PLAIN,
    VERSIONS,
    Source,
    assert_valid,
    is_selected,
    operated,
    operators_chart,
    pods,
    resources,
)
from tests.deploy.pods import Surroundings, arguments_of, environment_of

README = {name: (chart.FILES / name / "README.md").read_text() for name in ("docker", "helm", "kubernetes")}
POLICIES = [path for folder in (chart.HELM, FOLDER) for path in sorted(folder.glob("network-policy*.yaml"))]


def named(source: Source) -> str:
    return source if isinstance(source, str) else "+".join(("chart", *source))


SOURCES = pytest.mark.parametrize("source", [*APPLIED, *chart.CHOICES], ids=named)
CLUSTERS = [n for n in APPLIED if n.removeprefix("tls/") in (*OPERATED, "autoscaled")]


def variable(container: dict[str, Any], name: str) -> str:
    """What a container's variable is, without the content of secrets."""
    return environment_of(container, Surroundings(Path()))[name]


# ---------------------------------------------------------------- all of them


@SOURCES
def test_kubernetes_and_the_operator_take_everything(source):
    for version in VERSIONS:
        for resource in resources(source):
            assert_valid(resource, version)
        for pod in pods(source).values():
            manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod.spec}
            assert_valid(manifest, version)


def test_kubernetes_takes_the_policies_and_the_operators_services_and_a_misspelt_word_is_found():
    (fit,), cluster = resources("fit"), operated("dask-cluster")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    service["spec"] = cluster["spec"]["scheduler"]["service"]
    policies = [policy for path in POLICIES for policy in yaml.safe_load_all(path.read_text())]
    for version, manifest in itertools.product(VERSIONS, [service, *policies]):
        assert_valid(manifest, version)
    fit["spec"]["backofLimit"] = cluster["spec"]["worker"]["replica"] = 3
    for manifest, word in ((fit, "backofLimit"), (cluster, "replica")):
        with pytest.raises(Exception, match=word):
            assert_valid(manifest)


@SOURCES
def test_pods_are_of_the_registrys_image_write_to_their_mounts_alone_and_have_no_token(source):
    """What Kubernetes' own standard calls restricted; and by a digest, which one file names for all."""
    found = pods(source)
    for name, (_, spec) in found.items():
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        volumes = {v["name"]: v["emptyDir"]["sizeLimit"] for v in spec["volumes"] if "emptyDir" in v}
        for container in found[name].containers:
            assert container["image"] == IMAGE
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            more = {"worker": {"/scratch"}, "jupyter": {"/home/distrff"}}
            (role,) = [role for role in ("scheduler", "worker", "jupyter", "job") if role in name]
            assert {p for p, v in mounts.items() if v in volumes} == {"/tmp"} | more.get(role, set()), name
            for kind in ("limits", "requests"):  # more disk than its volumes take
                asked = parse_bytes(container["resources"][kind]["ephemeral-storage"])
                assert asked > sum(map(parse_bytes, volumes.values())), name


@SOURCES
def test_all_have_the_secret_of_tls_and_who_reads_or_writes_rows_that_of_the_store(source):
    for name, pod in pods(source).items():
        for container in pod.containers:
            sources = [v["valueFrom"] for v in container.get("env", []) if "valueFrom" in v]
            references = [found["secretKeyRef"] for found in sources if "secretKeyRef" in found]
            references += [found["secretRef"] for found in container.get("envFrom", [])]
            secrets = {reference["name"] for reference in references} - {"distrff-jupyter"}
            reads = "scheduler" not in name and container["name"] != "wait-for-a-worker"
            assert secrets == {"distrff-tls"} | ({"distrff-storage"} if reads else set()), container["name"]
            keys = {ref["key"] for ref in references if ref["name"] == "distrff-storage" and "key" in ref}
            assert keys in (set(), set(re.findall(r"\bAWS_\w+", README["helm"])))


@pytest.mark.parametrize("source", [*CLUSTERS, *chart.CHOICES], ids=named)
def test_no_scheduler_is_evicted_workers_one_at_a_time_and_they_are_spread(source):
    found = pods(source)
    budgets = [m["spec"] for m in resources(source, "PodDisruptionBudget")]
    assert {budget["unhealthyPodEvictionPolicy"] for budget in budgets} == {"AlwaysAllow"}
    workers = {name for name in found if "worker" in name}
    for name, pod in found.items():
        chosen = [budget for budget in budgets if is_selected(budget["selector"], pod.labels)]
        rules = [{k: v for k, v in b.items() if k in ("maxUnavailable", "minAvailable")} for b in chosen]
        # The operator's job belongs to no controller: for such pods minAvailable alone counts.
        wanted = [{"minAvailable": 1}] if name == "job" else [{"maxUnavailable": int(name in workers)}]
        assert rules == ([] if "jupyter" in name else wanted), name
        constraints = pod.spec.get("topologySpreadConstraints", [])
        assert len(constraints) == (name in workers), name
        for constraint in constraints:
            selector = constraint["labelSelector"]
            assert {other for other in found if is_selected(selector, found[other].labels)} == workers
            assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"


# ---------------------------------------------------------------- Jobs and the operator


def differences(one: Any, other: Any, path: str = "") -> dict[str, Any]:
    """What the other one has else, by its place."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {k: v for key in one for k, v in differences(one[key], other[key], f"{path}/{key}").items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) <= len(other):
        pairs = itertools.zip_longest(one, other)
        return {k: v for i, pair in enumerate(pairs) for k, v in differences(*pair, f"{path}/{i}").items()}
    return {} if one == other else {path: other}


@pytest.mark.parametrize("name", PLAIN)
def test_tls_changes_protocol_and_addresses_alone(name):
    pairs = zip(resources(name), resources(f"tls/{name}"), strict=True)
    found = [value for pair in pairs for value in differences(*pair).values()]
    schemes = ["tls", "tls"] if "job" in pods(name) else []
    if "scheduler" in pods(name):
        address = f"tls://{operated(name)['metadata']['name']}-scheduler:8786"
        schemes += ["--protocol=tls", {"name": "DASK_SCHEDULER_ADDRESS", "value": address}]
    assert sorted(map(str, found)) == sorted(map(str, schemes))


@pytest.mark.parametrize(
    "name", [n for n in APPLIED if n.removeprefix("tls/") in (*JOBS, *ELSEWHERE, "dask-job")]
)
def test_a_job_reaches_the_scheduler_of_its_cluster_by_a_command_that_there_is(name):
    """A pod that is moved has not failed; what another try does not mend is not tried again."""
    pod = pods(name)["job"]
    service = "dask-scheduler"
    if "dask" in name:
        service = operated("dask-job" if "job" in name else "dask-cluster")["metadata"]["name"] + "-scheduler"
    address = f"{'tls' if 'tls' in name else 'tcp'}://{service}:8786"
    program, command, *words = arguments_of(pod.container, Surroundings(Path()))
    assert program == "distrff"
    parsed = main.get_command(main.make_context("distrff", ["--help"], resilient_parsing=True), command)
    assert parsed is not None
    context = parsed.make_context(command, list(words))
    assert context.params["scheduler"] == variable(pod.waiting, "SCHEDULER") == address
    assert context.params["out"].startswith("s3://")
    assert pod.spec["restartPolicy"] == "Never"
    assert pod.spec["terminationGracePeriodSeconds"] >= 300  # for the last checkpoint
    (plain,) = pods("fit")["job"].waiting["args"][2:]
    seconds = "=1800" if name.endswith("dask-job") else "=600"  # of a DaskJob there is one try only
    assert pod.waiting["args"][2] == plain.replace("=600", seconds)
    for job in resources(name, "Job"):
        rules = job["spec"]["podFailurePolicy"]["rules"]
        moved = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert rules[-1] == moved
        if command == "fit":
            codes = {"operator": "In", "values": [NOT_CONVERGED, REFUSED]}
            assert rules[0] == {"action": "FailJob", "onExitCodes": codes | {"containerName": "distrff"}}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_elsewhere_is_the_same_on_the_operators_cluster(name):
    (plain,), (elsewhere,) = resources(name), resources(f"on-dask-cluster/{name}")
    cluster = operated("dask-cluster")["metadata"]["name"]
    assert list(differences(plain, elsewhere).values()) == [f"$(SCHEME)://{cluster}-scheduler:8786"] * 2


def test_the_operators_cluster_is_the_charts_and_dask_takes_the_arguments_of_both_parts():
    for overlays, name in (((), "dask-cluster"), (chart.OVERLAYS, "tls/dask-cluster")):
        ours, scheduler = containers_of(overlays)["dask-scheduler"], pods(name)["scheduler"].container
        program, *words = ours["args"]
        assert scheduler["args"] == [*program.split("-"), *words]
        assert [v for v in ours["env"] if "TLS" in v["name"]] == scheduler["env"]
    ours, parts = containers_of(())["dask-worker"], pods("dask-cluster")
    for kind, sizes in ours["resources"].items():  # the operator's definition takes quantities as text only
        assert parts["worker"].container["resources"][kind] == {k: str(v) for k, v in sizes.items()}
    words = dict(itertools.pairwise(ours["args"]))
    for option in ("--nthreads", "--memory-limit", "--local-directory", "--death-timeout"):
        assert f"{option}={words[option]}" in parts["worker"].container["args"]
    for part in ("scheduler", "worker"):
        program, command, *words = parts[part].container["args"]
        assert (program, command) == ("dask", part)
        context = import_module(f"distributed.cli.dask_{part}").main.make_context(command, words)
        assert context.params["dashboard_address"] in (":8787", ":8790")


def test_the_operators_job_is_the_fit_on_the_same_cluster_under_its_own_name():
    cluster, dask_job = map(operated, OPERATED)
    alone, inside = cluster["spec"], dask_job["spec"]["cluster"]["spec"]
    for resource, spec in ((cluster, alone), (dask_job, inside)):
        own = resource["metadata"]["name"]
        selector = {"dask.org/cluster-name": own, "dask.org/component": "scheduler"}
        assert spec["scheduler"]["service"].pop("selector") == selector
    assert alone == inside
    fit, ours = pods("fit")["job"].container, pods("dask-job")["job"].container
    assert ours["args"] == fit["args"]
    names = {variable["name"] for variable in fit["env"]}
    assert {variable["name"] for variable in ours["env"]} == names | {"DASK_SCHEDULER_ADDRESS"}


def test_the_autoscaler_is_of_the_cluster_that_jobs_elsewhere_use_and_asks_a_route_that_is_there():
    for name in ("autoscaled", "tls/autoscaled"):
        (autoscaler,), cluster = resources(name, "DaskAutoscaler"), operated(name)
        own = operated("dask-cluster")["metadata"]["name"]
        assert autoscaler["spec"]["cluster"] == cluster["metadata"]["name"] == own
        bounds = autoscaler["spec"]["minimum"], autoscaler["spec"]["maximum"]
        assert 1 <= bounds[0] <= cluster["spec"]["worker"]["replicas"] <= bounds[1]
    key = "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"
    routes = yaml.safe_load(variable(pods("autoscaled")["scheduler"].container, key))
    # The file itself: a process that has read it may have changed its settings since.
    defaults = yaml.safe_load(Path(distributed.__file__).with_name("distributed.yaml").read_text())
    wanted = defaults["distributed"]["scheduler"]["http"]["routes"]
    assert routes == [*wanted, "distributed.http.scheduler.api"]


def test_the_operators_chart_has_the_values_that_the_readme_names_and_what_is_said_of_them():
    """`restricted` asks for no more than the one that is set."""
    values, text = yaml.safe_load((operators_chart() / "values.yaml").read_text()), README["kubernetes"]
    context = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert values["securityContext"].items() >= context.items()
    assert values["podSecurityContext"] == values["resources"] == {}
    assert (values["rbac"]["cluster"], values["kopfArgs"]) == (True, ["--all-namespaces"])
    seccomp = "--set podSecurityContext.seccompProfile.type=RuntimeDefault"
    for words in (seccomp, "rbac.cluster=false", "kopfArgs={--namespace=NAMESPACE}"):
        assert words in text


# ---------------------------------------------------------------- the chart and its values


@pytest.mark.parametrize("overlays", chart.CHOICES, ids=named)
def test_kustomize_changes_nothing_else_of_the_chart(overlays):
    """A roll-out ends a scheduler before the next, else one service would lead to two; a worker after."""
    changed = {m["metadata"]["name"]: m for m in resources(overlays, "Deployment")}
    for name, before in manifests_of(overlays, "Deployment").items():
        after, probes = changed[name], containers_of(overlays)["dask-worker"]["livenessProbe"]
        template = after["spec"]["template"]
        (container,), (was,) = (m["spec"]["template"]["spec"]["containers"] for m in (after, before))
        assert was["image"] == f"distrff{'-notebook' * ('jupyter' in name)}:{chart.PROJECT['version']}"
        assert before["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"], name
        container["image"] = was["image"]
        del container["securityContext"], template["spec"]["automountServiceAccountToken"]
        assert (template["metadata"]["labels"].pop("distrff/client", None) == "true") == ("jupyter" in name)
        template["spec"].pop("topologySpreadConstraints", None)
        if "jupyter" not in name:  # as long silent as one that is alive may be
            ready = container["readinessProbe"]
            assert ready["periodSeconds"] * ready["failureThreshold"] == 120
        if "worker" in name:
            assert after["spec"]["strategy"]["type"] == "RollingUpdate"
            assert container.pop("readinessProbe")["httpGet"] == probes["httpGet"]
            was.pop("readinessProbe", None)
        elif "scheduler" in name:
            assert after["spec"].pop("strategy") == {"type": "Recreate"}
            before["spec"].pop("strategy")
        for part in (template["spec"], container, before["spec"]["template"]["spec"], was):
            for key in ("volumes", "volumeMounts"):
                part[key] = [entry for entry in part.get(key, []) if entry["name"] not in ("tmp", "home")]
        assert after == before, name
    kinds = ("Deployment", "PodDisruptionBudget")
    others = (
        [m for m in found if m["kind"] not in kinds]
        for found in (resources(overlays), chart.manifests(overlays))
    )
    one, other = (sorted(found, key=lambda m: (m["kind"], m["metadata"]["name"])) for found in others)
    assert one == other


def test_what_is_stored_was_rendered_from_these_values():
    """Else: python -m tests.deploy.chart FOLDER."""
    for overlays in chart.KEPT:
        assert chart.stored_file(overlays).read_text().startswith(chart.head_of(overlays))


# What a deployment has to think of; what is left to the chart is set to its default, beside a reason.
ON_PURPOSE = (
    "scheduler.image", "scheduler.env", "scheduler.extraArgs", "scheduler.resources",
    "scheduler.livenessProbe", "scheduler.readinessProbe", "scheduler.serviceType", "webUI.ingress",
    "worker.image", "worker.image.dask_worker", "worker.replicas", "worker.resources",
    "worker.threads_per_worker", "worker.env", "worker.extraArgs", "worker.mounts", "worker.livenessProbe",
    "worker.custom_scheduler_url", "additional_worker_groups", "jupyter.enabled", "jupyter.image",
    "jupyter.env", "jupyter.extraConfig", "jupyter.mounts", "jupyter.password", "jupyter.resources",
)  # fmt: skip


def test_the_chart_reads_every_key_and_each_is_set_or_left_out_on_purpose():
    """It has no schema and passes over what it does not know, a misspelt word for one."""
    read = (chart.STORED / "keys.txt").read_text().split()

    def not_read(values: dict[str, Any]) -> list[str]:
        pairs = {key: [(f"{key}.", f"{known}.") for known in read] for key in chart.keys_used(values)}
        return [
            key for key, each in pairs.items() if not any(a.startswith(b) or b.startswith(a) for a, b in each)
        ]

    values = [chart.read_values(overlay) for overlay in ("", *chart.OVERLAYS)]
    assert [not_read(part) for part in values] == [[]] * 5
    assert not_read({"worker": {"replica": 3, "replicas": 3}}) == ["worker.replica"]
    used = {path for part in values for path in chart.keys_used(part)}
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
    for one, other in itertools.combinations(values.values(), 2):
        assert not lists_of(one).keys() & lists_of(other).keys()
        assert chart.merged(one, other) == chart.merged(other, one)
    before = lists_of(chart.read_values(""))
    for overlay, path, entries in ((o, *item) for o in values for item in lists_of(values[o]).items()):
        lost = [entry for entry in before.get(path, []) if entry not in entries]
        assert not lost, f"{path} of values.yaml had {lost}, which {overlay} lacks"


def plan_of_ridge(worker: dict[str, Any], features: FeatureMap, dtype: str = "float64") -> Plan:
    """The plan of a ridge fit, with a checkpoint, to ten million rows of 50 columns; none is ever read."""
    words = dict(itertools.pairwise(worker["args"]))
    memory = worker["resources"]["limits"]["memory"]
    assert words["--memory-limit"] == memory == worker["resources"]["requests"]["memory"]
    model = KernelRidge(features, alpha="cv", scale="standard", dtype=dtype)
    rows = da.zeros((10_000_000, 50), chunks=(65_536, 50), dtype="float64")
    workers = Workers(3, int(words["--nthreads"]), parse_bytes(memory))
    return model.plan_for(workers, rows, rows[:, 0], checkpoint="s3://bucket/kept")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sizes_that_the_files_speak_of(dtype):
    usual, large = (containers_of(overlays)["dask-worker"] for overlays in chart.KEPT)
    for worker, n_components, n_folds in (
        (usual, 4096, 5), (usual, 6144, 1), (large, 8192, 5), (large, 16384, 1)
    ):  # fmt: skip
        for features in (FourierFeatures(None, n_components), AutoFeatures(n_components)):
            assert plan_of_ridge(worker, features, dtype).folds_per_task == n_folds
    with pytest.raises(PlanRefused, match="memory limit"):
        plan_of_ridge(usual, FourierFeatures(None, 16384), dtype)


def test_the_job_has_the_memory_that_its_client_needs():
    """As `distrff plan --as-helm-values` counts it."""
    fit = pods("fit")["job"].container
    (size,) = [word.partition("=")[2] for word in fit["args"] if word.startswith("--n-components=")]
    plan = plan_of_ridge(containers_of(())["dask-worker"], AutoFeatures(int(size)))
    needed = plan.client_peak_bytes + _CLIENT_IDLE_BYTES
    for kind in ("limits", "requests"):
        assert 0.25 < needed / parse_bytes(fit["resources"][kind]["memory"]) <= 1


def test_without_overlays():
    """The service is where everybody looks for it, and there is no notebook."""
    service, found = manifests_of((), "Service")["dask-scheduler"]["spec"], containers_of(())
    assert service["type"] == "ClusterIP"
    assert {port["port"] for port in service["ports"]} == {8786, 80}
    worker = found["dask-worker"]
    assert worker["args"][1] == "dask-scheduler:8786"
    words = dict(itertools.pairwise(worker["args"]))
    assert int(words["--nthreads"]) == worker["resources"]["limits"]["cpu"]
    assert found.keys() == {"dask-scheduler", "dask-worker"}
    assert not manifests_of((), "ConfigMap") | manifests_of((), "RoleBinding")


def test_with_overlays():
    """BLAS has the cores, spot workers are the others on other nodes, a notebook is entered by a token."""
    found = containers_of(chart.OVERLAYS)
    spot, usual = found["dask-worker-spot"], found["dask-worker"]
    for key in ("args", "env", "resources", "image", "volumeMounts"):
        assert spot[key] == usual[key]
    (blas,) = [v for v in usual["env"] if v["name"] == "OPENBLAS_NUM_THREADS"]
    assert dict(itertools.pairwise(usual["args"]))["--nthreads"] == "1"
    assert blas["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
    deployment = manifests_of(chart.OVERLAYS, "Deployment")["dask-worker-spot"]["spec"]["template"]["spec"]
    assert deployment["tolerations"]
    assert deployment["affinity"]
    assert int(variable(found["dask-scheduler"], "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES")) > 3
    assert "--protocol=tls" in found["dask-scheduler"]["args"]
    assert usual["args"][1] == "tls://dask-scheduler:8786"
    assert "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=tls" in found["dask-jupyter"]["command"]
    (token,) = [v for v in found["dask-jupyter"]["env"] if v["name"] == "JUPYTER_TOKEN"]
    assert not token["valueFrom"]["secretKeyRef"].get("optional")
    (config,) = manifests_of(chart.OVERLAYS, "ConfigMap").values()
    text = config["data"]["jupyter_notebook_config.py"]
    compile(text, "jupyter_notebook_config.py", "exec")
    assert "c.NotebookApp.password = 'unusable'" in text
    assert 'c.IdentityProvider.token = os.environ["JUPYTER_TOKEN"]' in text
    assert not manifests_of(chart.OVERLAYS, "RoleBinding")  # no right to change other deployments


# ---------------------------------------------------------------- READMEs and files


def commands(text: str) -> list[list[str]]:
    """The words of each command in the fenced blocks, without variables that it sets."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    shell = (block.replace("\\\n", " ") for language, block in blocks if language != "ini")
    lines = [line for block in shell for line in block.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] if "=" in words[0] else words for words in found if words]


def test_no_file_is_forgotten():
    """What no folder named here leads to is not tested."""
    there = {path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yaml")}
    components = {"disruption", "spread", "autoscale"}
    assert there == {".", *APPLIED, *components, "tls/component", "on-dask-cluster/component"}
    for folder in (FOLDER / name for name in (*JOBS, *OPERATED, *components)):
        beside = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
        read = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert set(read.get("resources", [])) == beside
    used = yaml.safe_load((chart.HELM / "post-render" / "kustomization.yaml").read_text())["components"]
    there = {path.parent.name for path in (chart.HELM / "post-render").glob("*/kustomization.yaml")}
    assert set(used) == {*there, "../../images"}
    images = yaml.safe_load((chart.FILES / "images" / "kustomization.yaml").read_text())["images"]
    names = ("distrff", "distrff-notebook")
    assert images == [{"name": name, "newTag": chart.PROJECT["version"]} for name in names]


def test_commands_name_files_that_are_there_and_git_ignores_what_they_make():
    """Keys and certificates among it. Seen from the top folder."""
    ignored = (chart.ROOT / ".gitignore").read_text().split()
    assert "*" in (chart.FILES / "private" / ".gitignore").read_text().split()
    applied, made = set(), set()
    for text in README.values():
        assert commands(text)
        for words in commands(text):
            for flag, name in itertools.pairwise(words):
                takes_file = flag == "-f" and words[0] in ("helm", "kubectl", "docker") and words[1] != "logs"
                if (flag == "-k" or takes_file) and name != "deploy/private/planned.yaml":
                    assert (chart.ROOT / name).exists(), (words, name)
                    applied |= {name}
                if flag in (">", "-keyout", "-out", "--untardir"):
                    made |= {name}
    assert applied >= {f"deploy/kubernetes/{name}" for name in PLAIN}
    assert not [name for name in made if not name.startswith("deploy/private") and name not in ignored]
    assert len(made) > 5


def test_every_command_names_the_version_of_its_chart():
    """For values.yaml the one whose renderings the tests look at."""
    files = [*chart.FILES.rglob("README.md"), *chart.FILES.rglob("*.yaml")]
    text = "\n".join(
        path.read_text() for path in files if path.name != "chart.yaml" and "private" not in path.parts
    )
    found = re.findall(r"helm (?:upgrade|install|template|pull)\b[^\n`]*?(dask/[\w-]+)([^\n`]*)", text)
    assert {name for name, _ in found} == chart.VERSIONS.keys()
    for name, rest in found:
        assert f"--version {chart.VERSIONS[name]}" in rest, (name, rest)
