"""What an evaluation found, as a page for people and as text for a pull request."""

from memalign_graph.evaluation.report.report import Report

__all__ = ["Report"]
