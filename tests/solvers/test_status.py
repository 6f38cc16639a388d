"""Statuses and lockstep: several solver generators, one call that responds to all."""

from __future__ import annotations

from distrff.solvers.status import Status, in_lockstep


def counting(n):
    total = 0
    for _ in range(n):
        total += yield total
    return total


def test_all_get_responses_together_until_the_last_is_done():
    requested = []

    def respond(requests):
        requested.append(dict(requests))
        return dict.fromkeys(requests, 10)

    results = in_lockstep({key: counting(key) for key in (0, 1, 3)}, respond)
    assert results == {0: 0, 1: 10, 3: 30}
    assert requested == [{1: 0, 3: 0}, {3: 10}, {3: 20}]


def test_a_solver_that_rests_is_resumed_by_the_next_call():
    def resting():
        first = yield "before"
        yield None
        second = yield "after"
        return first + second

    requested, solvers = [], {"rests": resting(), "ends": counting(2)}

    def respond(requests):
        requested.append(dict(requests))
        return dict.fromkeys(requests, 10)

    assert in_lockstep(solvers, respond) == {"ends": 20}
    assert requested == [{"rests": "before", "ends": 0}, {"ends": 10}]
    assert in_lockstep({"rests": solvers["rests"]}, respond) == {"rests": 20}


def test_status_values_are_sentences_with_a_remedy():
    assert all(len(status.value.split()) > 4 for status in Status)
