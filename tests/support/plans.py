"""Plans of a size that tests give."""

from distrff.engine.tasks import Workers
from distrff.fitting.cost import Plan, Size, first_that_fits, with_kept
from distrff.fitting.fit import Solver, solver
from distrff.fitting.light import MarginSize


def solver_of(name: str, size: Size) -> Solver:
    """The solver whose plans have this name; those of margin losses are counted as "gram" and "cg"."""
    return solver("margins" if isinstance(size, MarginSize) and name != "sgd" else name)


def count(name: str, size: Size, workers: Workers) -> Plan:
    """The first of a solver's plans that fits in memory, else the one of least memory."""
    if name == "sgd" and not isinstance(size, MarginSize):  # which its evaluations are
        size = MarginSize(**vars(size))
    return first_that_fits(solver_of(name, size).cost(size, workers))


def kept(plan: Plan, wish: str | bool, workers: Workers) -> Plan:
    """The plan with what stays in memory between the passes of its solver."""
    passes = solver_of(plan.solver, plan.size).light_passes(plan)
    return with_kept(plan, wish, workers, *passes)
