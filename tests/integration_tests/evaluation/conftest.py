"""Fixtures of the tests of evaluations."""

from tests.integration_tests.evaluation.support import call

__all__ = ["call"]
