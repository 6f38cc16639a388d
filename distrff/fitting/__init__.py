"""Fits: problems, plans, solvers, and the sums over rows that they pass for."""

from distrff.features.trigonometry import compile_loops
from distrff.utils.jit import before_first_task
from distrff.utils.linalg import compile_products

before_first_task(compile_loops)
before_first_task(compile_products)
