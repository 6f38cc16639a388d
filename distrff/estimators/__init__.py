"""Machines with scikit-learn's interface; the only place where sweeps meet solvers."""
