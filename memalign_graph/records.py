"""Types of what graphs and memories return, for annotations and for parsing results."""

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.evidence.drift import Drift
from memalign_graph.evidence.threshold import Trust
from memalign_graph.gate import GateStatus
from memalign_graph.memory.history import Commit, MemoryDiff, Snapshot
from memalign_graph.memory.judgments import KeptJudgment
from memalign_graph.memory.purge import Forgotten
from memalign_graph.memory.reports import PassRate, ReviewReport
from memalign_graph.panel import AggregateResult
from memalign_graph.settings import GateReview
from memalign_graph.types import Check, Evidence, Neighbour, ReviewChoice, Worth

__all__ = [
    "AggregateResult",
    "AlignmentReport",
    "Check",
    "Commit",
    "Drift",
    "Evidence",
    "Forgotten",
    "GateReview",
    "GateStatus",
    "KeptJudgment",
    "MemoryDiff",
    "Neighbour",
    "PassRate",
    "ReviewChoice",
    "ReviewReport",
    "Snapshot",
    "Trust",
    "Worth",
]
