"""`distrff plan --as-helm-values`: what it prints is what the planner then accepts, and not more."""

from __future__ import annotations

import re

import pytest
import yaml
from dask.utils import parse_bytes

from distrff.cli import main
from distrff.engine.execution import PlannedWorkers
from distrff.errors import PlanRefused
from distrff.estimators.ridge import KernelRidge
from distrff.features.fourier import FourierFeatures
from distrff.io.open import open_dataset

_STEP = 256 * 2**20


@pytest.fixture
def planned(runner, rows, monkeypatch):
    """Runs the command on the session's rows, for which no cluster may be started."""
    monkeypatch.setattr("distrff.engine.cluster.connect", None)

    def run(*words):
        arguments = ["plan", str(rows.zarr), "--as-helm-values", *map(str, words)]
        return runner.invoke(main, arguments, prog_name="distrff")

    return run


def worker_of(done) -> dict:
    assert done.exit_code == 0, done.stderr
    return yaml.safe_load(done.stdout)["worker"]


def plan_again(rows, worker, n_components, memory_limit):
    """The plan for workers as the chart starts them from these values."""
    workers = PlannedWorkers(3, worker["threads_per_worker"], memory_limit)
    machine = KernelRidge(FourierFeatures(None, n_components), alpha="cv", scale="standard")
    return machine.plan_for(workers, open_dataset(str(rows.zarr)))


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("n_components", [64, 4096, 8192])
def test_the_memory_is_what_the_fastest_plan_needs(planned, rows, n_components, threads):
    worker = worker_of(planned("--n-components", n_components, "--threads-per-worker", threads))
    assert worker["threads_per_worker"] == threads
    assert worker["resources"]["limits"] == worker["resources"]["requests"]
    assert worker["resources"]["limits"]["cpu"] == threads
    memory = parse_bytes(worker["resources"]["limits"]["memory"])
    assert plan_again(rows, worker, n_components, memory).folds_per_task == 5
    if memory > 4 * 2**30:  # beyond rounding and the planner's hundredth
        try:
            assert plan_again(rows, worker, n_components, int(0.98 * memory) - _STEP).folds_per_task == 1
        except PlanRefused as refused:
            assert "memory limit" in str(refused)


def test_the_client_of_standard_deviations_has_room_for_their_factor(planned):
    plain, more = (
        yaml.safe_load(planned("--n-components", 8192, *words).stdout)["jupyter"]["resources"]["limits"][
            "memory"
        ]
        for words in ((), ("--include-std",))
    )
    assert parse_bytes(more) - parse_bytes(plain) == 3 * 8 * 8192**2


def test_a_limit_makes_folds_wait(planned, rows):
    most = worker_of(planned("--n-components", 8192))["resources"]["limits"]["memory"]
    done = planned("--n-components", 8192, "--memory-limit", "16GiB")
    memory = parse_bytes(worker_of(done)["resources"]["limits"]["memory"])
    assert memory <= 16 * 2**30 < parse_bytes(most)
    assert "1 a task" in done.stdout
    assert plan_again(rows, worker_of(done), 8192, memory).folds_per_task == 1


def test_a_limit_below_the_plan_is_refused(planned):
    done = planned("--n-components", 8192, "--memory-limit", "2GiB")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "smallest changes that fit: a memory limit of" in done.stderr


def test_a_limit_is_not_rounded_up(planned):
    """Where all of it is needed it is printed to the MiB."""
    done = planned("--n-components", 8192, "--memory-limit", "2GiB")
    needed = float(done.stderr.split("a memory limit of ")[1].split(" GB")[0]) * 1e9
    limit = int(1.01 * needed) // 2**20
    worker = worker_of(planned("--n-components", 8192, "--memory-limit", f"{limit}MiB"))
    assert parse_bytes(worker["resources"]["limits"]["memory"]) <= limit * 2**20


def test_one_thread_leaves_the_cores_to_blas(planned):
    worker = worker_of(planned("--threads-per-worker", 1, "--workers", 7))
    assert worker["replicas"] == 7
    assert "cpu" not in worker["resources"]["limits"]


def test_values_for_the_client(planned):
    """Its memory grows with the model that it receives."""
    words = ("--memory-limit", "1000TiB", "--n-components")
    of = [yaml.safe_load(planned(*words, D).stdout)["jupyter"]["resources"] for D in (64, 2_000_000)]
    sizes = [parse_bytes(resources["limits"]["memory"]) for resources in of]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("words", [(), ("--alpha", 1), ("--alpha", 1, "--solver", "cg")], ids=str)
def test_one_thread_that_needs_far_less_is_told(planned, words):
    """What the note says is what is printed for one thread, which has nothing more to say."""
    words = ("--n-components", 8192, *words)
    of_four, of_one = planned(*words), planned(*words, "--threads-per-worker", 1)
    memory = [worker_of(done)["resources"]["limits"]["memory"] for done in (of_one, of_four)]
    assert f"note: with --threads-per-worker 1 a worker needs {memory[0]} in place of {memory[1]}:" in (
        of_four.stderr
    )
    assert "note:" not in of_four.stdout + of_one.stderr


@pytest.mark.parametrize(
    "words", [("--n-components", 1024), ("--n-components", 200_000, "--alpha", 1)], ids=str
)
def test_threads_that_hardly_matter_are_not_spoken_of(planned, words):
    """The Gram is small, or there is none."""
    assert "note:" not in planned(*words).stderr


def test_more_than_nodes_have_is_refused_with_what_would_do(planned):
    refused = planned("--n-components", 200_000)
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "--memory-limit is 1TiB where it is not given" in refused.stderr
    fewer = int(re.search(r"--n-components (\d+)", refused.stderr)[1])
    assert planned("--n-components", fewer).exit_code == 0
    assert planned("--n-components", fewer + 2).exit_code == 4
    given = planned("--n-components", 200_000, "--alpha", 1)
    memory = worker_of(given)["resources"]["limits"]["memory"]
    assert f"a given --alpha needs {memory} a worker (conjugate gradients" in refused.stderr


def test_a_limit_that_is_given_is_not_questioned(planned):
    memory = worker_of(planned("--n-components", 200_000, "--memory-limit", "0"))["resources"]["limits"]
    assert parse_bytes(memory["memory"]) > 2**40
    refused = planned("--n-components", 200_000, "--memory-limit", "2TiB")
    assert refused.exit_code == 4
    assert "where it is not given" not in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "svc", "--C", "cv"), "a given --C needs"),
        (("--model", "pca"), "--n-components "),
        (("--solver", "gram"), "--n-components "),
    ],
    ids=str,
)
def test_each_refusal_names_what_would_do(runner, stored, rows, words, said):
    data = stored("classes.zarr", X=rows.X, y=rows.y > 0)
    done = runner.invoke(main, ["plan", str(data), "--as-helm-values", "--n-components", "200000", *words])
    assert (done.exit_code, done.stdout) == (4, "")
    assert said in done.stderr
    assert ("a given" in done.stderr) == ("svc" in words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json",), "prints YAML; give it or --json"),
        (("--scheduler", "tcp://127.0.0.1:1"), "leave out --scheduler"),
        (("--memory-limit", "lots"), "--memory-limit must be a size"),
        (("--threads-per-worker", 0), "--threads-per-worker"),
    ],
    ids=str,
)
def test_wrong_usage(planned, words, said):
    done = planned(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_threads_are_for_values_alone(runner, rows):
    done = runner.invoke(main, ["plan", str(rows.zarr), "--threads-per-worker", "2"])
    assert done.exit_code == 2
    assert "--threads-per-worker goes with --as-helm-values" in done.stderr
