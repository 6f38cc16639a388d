"""Rows that the tests of fits use."""

from tests.support.problems import one_blas_thread as one_blas_thread
from tests.support.problems import problem as problem
