"""`collect_feedback`: the interrupt that asks the expert."""

from typing import Any

from langgraph.types import interrupt

from memalign_graph.interrupts import reply_schema, review_payload
from memalign_graph.io import IO
from memalign_graph.nodes.base import (
    OperationNode,
    Run,
    State,
    Update,
    example_of,
    warn_without_checkpointer,
)
from memalign_graph.state import Assembled, JudgeOutput, Retrieved
from memalign_graph.types import Criterion, Feedback, Guideline, Judgment, RecalledExample


class ReviewView(Retrieved, Assembled, JudgeOutput):
    """What the node reads of the state."""


def create_review_node(criterion: Criterion) -> OperationNode:
    """Create the node that asks the expert about the judgment and waits for the reply.

    Nothing is done before the interrupt, so that it does no harm that LangGraph runs the node
    again from its top when the reply comes.

    Args:
        criterion: The criterion.

    Returns:
        The node; it reads `ReviewView` and writes `feedback`: None where the expert skipped. It
        clears the `learning_warnings` of an earlier run on the same thread.
    """

    async def collect_feedback(_io: IO, state: State, run: Run) -> Update:
        warn_without_checkpointer(run, "review")
        example = example_of(state)
        judgment = Judgment.model_validate(state["judgment"])
        shown = set(judgment.guideline_ids)
        guidelines = [Guideline.model_validate(one) for one in state["guidelines"]]
        recalled = [RecalledExample.model_validate(one) for one in state["recalled"]]
        used = set(judgment.episode_ids)
        payload = review_payload(
            criterion,
            example,
            judgment,
            guidelines=[one for one in guidelines if one.id in shown],
            episodes=[e for one in recalled for e in one.episodes if e.id in used],
        )
        reply: Any = interrupt(payload, response_schema=reply_schema(criterion, judgment))
        if reply.root is None:
            return {"feedback": None, "learning_warnings": []}
        feedback = Feedback(
            example=example, judgment=judgment, thread_id=run.thread_id, **reply.root
        )
        return {"feedback": feedback.to_json(), "learning_warnings": []}

    return OperationNode("collect_feedback", collect_feedback)
