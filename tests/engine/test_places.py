"""On which workers the calls of a fit run."""

import numpy as np
from distributed import get_worker

from distrff.engine.run import begin_run
from tests.support.commands import wait_until


def address_of(held, number):
    return get_worker().address


def test_calls_of_known_costs_run_on_all_workers(client):
    """Whoever has what they take: Dask itself would run all of them there."""
    run = begin_run()
    held = run.submit(np.zeros, 2**22)
    run.gather([run.submit(len, held)])
    found = run.map(address_of, [(held, i) for i in range(4)], costs=[1.0] * 4)
    threads = run.execution.workers.running_threads()
    assert set(found) == set(threads)
    assert [found.count(worker) for worker in threads] == [2, 2]
    # Three dear ones here, two dear ones and all that are cheap there.
    found = run.map(address_of, [(held, i) for i in range(9)], costs=[5.0] * 5 + [1.0] * 4)
    assert found[0] == found[2] == found[4] != found[1]
    assert set(found[5:]) == {found[1]} == {found[3]}


def test_what_calls_took_is_freed_while_their_values_stay(cluster, client):
    run = begin_run()
    held = run.submit(np.zeros, 2**16)
    values = run.submit_all(np.sum, [(held,), (held,)], costs=[1.0, 2.0])
    assert run.gather(values) == [0.0, 0.0]
    task = cluster.scheduler.tasks[held.made.key]
    assert task.who_has
    del held
    wait_until(lambda: not task.who_has)
    assert run.gather(values) == [0.0, 0.0]
