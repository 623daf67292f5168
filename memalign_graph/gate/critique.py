"""The critique: what a writer is told to change."""

from collections.abc import Sequence
from uuid import uuid4

from langchain_core.messages import HumanMessage

from memalign_graph.gate.example import GATE, GATE_SOURCE, SOURCE
from memalign_graph.types import Criterion, Feedback, Guideline, Judgment


def critique_text(
    criterion: Criterion,
    judgment: Judgment,
    *,
    broken: Sequence[Guideline],
    feedback: Feedback | None,
    wanted: str | None = None,
    outweighed: bool = False,
) -> str:
    """Write a critique: what was asked, the reason, and the guidelines broken."""
    value = judgment.value if feedback is None else feedback.value
    asked = criterion.instructions.strip()
    result = "" if value is None else f"\nThe result is: {criterion.scale.render(value)}."
    result += f" It has to be: {wanted}." if result and wanted else ""
    parts = [f"The answer did not pass. It was checked for this: {asked}{result}"]
    if feedback is not None and feedback.rationale:
        parts.append(f"An expert says: {feedback.rationale}")
    elif judgment.value != value:
        # What the judge says speaks for the answer.
        parts.append("An expert decided so, and gave no reason.")
    elif outweighed:
        parts.append("Experts did not accept the answers most like this one.")
    elif judgment.rationale:
        parts.append(f"The review says: {judgment.rationale}")
    if broken and judgment.value == value and not outweighed:
        lines = "\n".join(f"- {one.text}" for one in broken)
        parts.append(f"What it has to heed:\n{lines}")
    return "\n\n".join(parts)


def critique_message(critique: str, name: str) -> HumanMessage:
    """Make the message that asks a writer for another answer."""
    return HumanMessage(
        f"{critique}\n\nWrite the whole answer again so that it passes. Reply with the new answer "
        "alone, without a word about this review.",
        additional_kwargs={SOURCE: GATE_SOURCE, GATE: name},
        id=str(uuid4()),
    )
