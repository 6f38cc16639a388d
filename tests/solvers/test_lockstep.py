"""Several conversations, one answer to all."""

from __future__ import annotations

from distrff.solvers.status import in_lockstep


def counting(n):
    total = 0
    for _ in range(n):
        total += yield total
    return total


def test_all_are_answered_together_until_the_last_is_done():
    asked = []

    def answer(questions):
        asked.append(dict(questions))
        return dict.fromkeys(questions, 10)

    results = in_lockstep({key: counting(key) for key in (0, 1, 3)}, answer)
    assert results == {0: 0, 1: 10, 3: 30}
    assert asked == [{1: 0, 3: 0}, {3: 10}, {3: 20}]


def test_a_solver_that_rests_goes_on_with_the_next_call():
    def resting():
        first = yield "before"
        yield None
        second = yield "after"
        return first + second

    asked, solvers = [], {"rests": resting(), "ends": counting(2)}

    def answer(questions):
        asked.append(dict(questions))
        return dict.fromkeys(questions, 10)

    assert in_lockstep(solvers, answer) == {"ends": 20}
    assert asked == [{"rests": "before", "ends": 0}, {"ends": 10}]
    assert in_lockstep({"rests": solvers["rests"]}, answer) == {"rests": 20}
