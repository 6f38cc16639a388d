"""Several conversations, one answer to all."""

from __future__ import annotations

from distrff.solvers.lockstep import in_lockstep


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
