"""The shape of human-in-the-loop requests, as langchain's middleware and inboxes know it.

One place for what every interrupt here has in common: the payload (`HITLRequest` in
`langchain.agents.middleware.human_in_the_loop`), the decisions that come back, as langchain, Agent
Chat UI and Agent Inbox write them, and the schema that checks a reply. Pure functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, RootModel, model_validator

Kind = Literal["approve", "edit", "reject", "ignore"]
"""What a decision comes to; responding is rejecting with words."""

_KINDS: Mapping[str, Kind] = {
    "approve": "approve",
    "accept": "approve",
    "edit": "edit",
    "reject": "reject",
    "respond": "reject",
    "response": "reject",
    "ignore": "ignore",
}


@dataclass(frozen=True)
class Decision:
    """What a human decided on one action."""

    type: str
    """As the client wrote it."""

    kind: Kind
    """What it comes to."""

    words: Any
    """What was said with it; text, if the client keeps to the shape."""

    args: Any
    """The arguments as edited; an object, if the client keeps to the shape."""


def hitl_request(
    actions: Sequence[Mapping[str, Any]],
    *,
    allowed: Sequence[str],
    properties: Mapping[str, Any],
) -> dict[str, Any]:
    """Make the payload of an interrupt."""
    return {
        "action_requests": [dict(action) for action in actions],
        "review_configs": [
            {
                "action_name": actions[0]["name"],
                "allowed_decisions": list(allowed),
                "args_schema": {"type": "object", "properties": dict(properties)},
            }
        ],
    }


def unwrap(reply: Any, shapes: str) -> list[Any] | None:
    """Take the decisions out of what a client wraps them in."""
    if isinstance(reply, dict) and "decisions" in reply:
        reply = reply["decisions"]
        if not isinstance(reply, list) and not (isinstance(reply, dict) and "type" in reply):
            kind = type(reply).__name__
            raise ValueError(f"`decisions` is a list, not a value of type {kind}: {shapes}.")
    if isinstance(reply, list):
        return reply
    return [reply] if isinstance(reply, dict) and "type" in reply else None


def read_decision(decision: Mapping[str, Any]) -> Decision | None:
    """Read one decision."""
    kind = _KINDS.get(str(decision.get("type")))
    if kind is None:
        return None
    action = decision.get("edited_action", decision.get("args"))
    if isinstance(action, dict) and isinstance(action.get("args"), dict):
        action = action["args"]
    words = decision.get("message")
    if kind == "reject" and not words:
        words = decision.get("args")
    return Decision(type=decision["type"], kind=kind, words=words, args=action)


def reply_model(
    title: str, native: Mapping[str, Any], read: Callable[[Any], Any]
) -> type[RootModel[Any]]:
    """Make the schema that checks the reply to an interrupt."""
    shown = dict(native)

    class Reply(RootModel[Any]):
        model_config = ConfigDict(
            title=title,
            hide_input_in_errors=True,
            json_schema_extra=lambda schema: (schema.clear(), schema.update(shown))[0],
        )

        @model_validator(mode="before")
        @classmethod
        def _read(cls, reply: Any) -> Any:
            return read(reply)

    return Reply
