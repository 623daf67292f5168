"""`commit_alignment`: what was learned from much feedback, written at once, and the report."""

from dataclasses import dataclass
from typing import Any

from memalign_graph.alignment.redistill import learn_again
from memalign_graph.alignment.report import AlignmentReport, compare_guidelines, total_cost
from memalign_graph.io import IO
from memalign_graph.memory.forgetting import clear_drafts
from memalign_graph.memory.learning import GuidelineOperation
from memalign_graph.memory.lessons import learn
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update
from memalign_graph.nodes.consolidate import in_order, to_commit
from memalign_graph.nodes.measured import measured_node, progress
from memalign_graph.state import (
    Consolidated,
    JudgedCases,
    Measured,
    Proposed,
    Received,
    Replayed,
    Settled,
)
from memalign_graph.types import Criterion, Guideline

_SHOWN_IDS = 5

_NAMES = ("guideline_id", "superseded_by")


class CommitAlignmentView(
    Received, JudgedCases, Proposed, Consolidated, Settled, Replayed, Measured
):
    """What the node reads of the state."""


def create_commit_alignment_node(
    criterion: Criterion, *, embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS
) -> OperationNode:
    """Create the node that commits what was learned, and reports.

    Running it again changes nothing more.

    Args:
        criterion: The criterion.
        embeddings: What the memory embeds with; nothing is embedded here.

    Returns:
        The node; it reads `CommitAlignmentView` and writes `report`.
    """
    memories = Memories(criterion, embeddings)

    async def commit_alignment(io: IO, state: State, run: Run) -> Update:
        access = memories.get(run, state["judge_settings"])
        answers = in_order(state["proposals"])
        planned = to_commit(state)
        operations, rewordings = planned.operations, planned.rewordings
        guarded = state.get("guarded")
        if guarded:
            operations = [GuidelineOperation.model_validate(one) for one in guarded["operations"]]
            rewordings = [GuidelineOperation.model_validate(one) for one in guarded["rewordings"]]
        reworded = {
            key: word for one in answers if "rewording" in one for key, word in one["read"].items()
        }
        read = {
            key: word for one in answers if "operations" in one for key, word in one["read"].items()
        }
        learned: list[dict[str, Any]] = []
        if rewordings:
            again = await learn_again(io, access, rewordings, reworded)
            learned += again["guidelines"]
        if read or operations:
            new = await learn(io, access, operations, read, reason="align")
            learned += new["guidelines"]
        await clear_drafts(io, access)
        progress(run, "commit", 1, 1)
        view = await access.refresh(io)
        before = [Guideline.model_validate(one) for one in state["guidelines_before"]]
        of_run = _OfRun(
            guidelines={one[name] for one in learned for name in _NAMES if one.get(name)},
            episodes={*state["new_ids"], *read, *reworded},
        )
        judged = state.get("judged") or {"cases": 0, "warnings": []}
        received = dict(state["received"])
        outdated = received.pop("warnings")
        report = AlignmentReport(
            **received,
            guidelines=compare_guidelines(
                [one for one in before if of_run.has(one)],
                [one for one in (await access.every_guideline(io)) if of_run.has(one)],
            ),
            conflicts=planned.conflicts,
            decisions=state.get("decisions"),
            replay=guarded["replay"] if guarded else None,
            judged_cases=judged["cases"],
            batches=len(state["batches"]),
            cost=total_cost(state["usage"]),
            memory_version_after=view.version,
            warnings=[
                *outdated,
                *judged["warnings"],
                *_warnings([key for one in answers for key in one.get("cut", [])]),
                *(warning for one in answers for warning in one.get("refused", [])),
            ],
        )
        return {"report": report.to_json()}

    return measured_node("commit_alignment", commit_alignment)


@dataclass(frozen=True)
class _OfRun:
    """What belongs to a run: others may change the memory while it asks or waits."""

    guidelines: set[str]
    episodes: set[str]

    def has(self, guideline: Guideline) -> bool:
        named = not self.episodes.isdisjoint(guideline.episode_ids)
        return named or guideline.id in self.guidelines


def _warnings(cut: list[str]) -> list[str]:
    if not cut:
        return []
    shown = ", ".join(cut[:_SHOWN_IDS]) + (", ..." if len(cut) > _SHOWN_IDS else "")
    sentence = (
        f"{len(cut)} record(s) were too long to be distilled whole: the middle of their longest "
        f"texts was left out ({shown})."
    )
    return [sentence]
