"""Guidelines that contradict each other, put to an expert: payload out, reply in."""

from collections.abc import Sequence
from typing import Any

from pydantic import RootModel

from memalign_graph.alignment.merging import Conflict, Side
from memalign_graph.hitl import Decision, hitl_request, read_decision, reply_model, unwrap
from memalign_graph.interrupts import escape
from memalign_graph.types import Criterion

ACTION = "settle_conflict"
"""The name of each action in the payload."""

CHOICES = ("first", "second", "both")
"""What can be decided: which guideline stays, or both."""

DECISIONS = ("approve", "edit", "reject")
"""The decisions of langchain's human-in-the-loop shape that are understood."""

_SHAPES = (
    "reply with an object such as {'C1': 'second'} that says for each conflict which guideline "
    "stays (first, second or both), with 'newer' for the newer word everywhere, or with one "
    "decision a conflict (approve, edit, reject)"
)


def conflicts_payload(criterion: Criterion, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Make what the interrupt shows."""
    actions = [
        {
            "name": ACTION,
            "args": {"conflict": one.id, "keep": one.newer},
            "description": _describe(criterion, one),
        }
        for one in conflicts
    ]
    return hitl_request(
        actions,
        allowed=DECISIONS,
        properties={
            "conflict": {"type": "string"},
            "keep": {"type": "string", "enum": list(CHOICES)},
        },
    )


def decisions_schema(conflicts: Sequence[Conflict]) -> type[RootModel[Any]]:
    """Make the schema that checks a reply to the interrupt."""
    native = {
        "title": "decisions",
        "description": "For each conflict, which guideline stays.",
        "type": "object",
        "properties": {
            one.id: {"type": "string", "enum": list(CHOICES), "default": one.newer}
            for one in conflicts
        },
        "required": [one.id for one in conflicts],
    }

    return reply_model(
        "the decisions on guidelines", native, lambda reply: read_decisions(reply, conflicts)
    )


def read_decisions(reply: Any, conflicts: Sequence[Conflict]) -> dict[str, str]:
    """Read any of the accepted replies."""
    decisions = unwrap(reply, _SHAPES)
    if decisions is not None:
        if len(decisions) != len(conflicts):
            raise ValueError(
                f"there are {len(conflicts)} conflicts, but the reply has {len(decisions)} "
                f"decisions: {_SHAPES}."
            )
        pairs = zip(conflicts, decisions, strict=True)
        return {one.id: _decided(decision, one) for one, decision in pairs}
    if isinstance(reply, str):
        return {one.id: _choice(reply, one) for one in conflicts}
    if not isinstance(reply, dict):
        raise ValueError(f"a reply of type {type(reply).__name__} is not understood: {_SHAPES}.")
    known = {one.id for one in conflicts}
    unknown = [key for key in reply if key not in known]
    missing = [one.id for one in conflicts if one.id not in reply]
    if unknown or missing:
        what = f"names {unknown[0]!r}, which is no conflict" if unknown else f"leaves {missing[0]}"
        raise ValueError(f"the reply {what}{'' if unknown else ' open'}: {_SHAPES}.")
    return {one.id: _choice(reply[one.id], one) for one in conflicts}


def _decided(given: Any, conflict: Conflict) -> str:
    decision = read_decision(given) if isinstance(given, dict) else None
    match decision:
        case Decision(kind="approve"):
            return conflict.newer
        case Decision(kind="ignore") | Decision(type="reject"):
            return "both"
        case Decision(kind="edit", args={"keep": keep}):
            return _choice(keep, conflict)
    raise ValueError(f"the decision on {conflict.id} is not understood: {_SHAPES}.")


def _choice(given: Any, conflict: Conflict) -> str:
    choice = given.strip().casefold() if isinstance(given, str) else given
    if choice == "newer":
        return conflict.newer
    if choice not in CHOICES:
        raise ValueError(f"{given!r} for {conflict.id} is not understood: {_SHAPES}.")
    return str(choice)


def _describe(criterion: Criterion, conflict: Conflict) -> str:
    newer = conflict.first if conflict.newer == "first" else conflict.second
    return "\n\n".join(
        [
            f"## {criterion.name}: two guidelines contradict each other",
            _side("First", conflict.first),
            _side("Second", conflict.second),
            f"The newer word is behind: {escape(newer.text)}",
            "Which stays? `first`, `second` or `both`.",
        ]
    )


def _side(title: str, side: Side) -> str:
    lines = [f"**{title}** (from {_count(side.episode_ids)}): {escape(side.text)}"]
    return "\n".join([*lines, *(f"- {escape(one)}" for one in side.said)])


def _count(episode_ids: Sequence[str]) -> str:
    number = len(episode_ids)
    return {0: "an expert's own hand", 1: "1 piece of feedback"}.get(
        number, f"{number} pieces of feedback"
    )
