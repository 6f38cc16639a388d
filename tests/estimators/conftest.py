"""Rows that the tests of the estimators fit."""

from tests.support.problems import one_blas_thread as one_blas_thread
from tests.support.problems import problem as problem
