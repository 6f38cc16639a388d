"""Objectives as sums over rows: what a solver may ask for, and what shows how good its answer is."""

from distrff.objective.margin_sums import MarginSums, Sided
from distrff.objective.ridge_system import RidgeSystem, held_out_error, ridge_system
from distrff.objective.solution import Status

__all__ = [
    "MarginSums",
    "RidgeSystem",
    "Sided",
    "Status",
    "held_out_error",
    "ridge_system",
]
