"""The question back: payload out, the expert's answer in, and both joined to one word.

It is put where an expert's words are too vague to make a rule. Pure functions and one schema. The
payload has the shape of all interrupts here: see `hitl`.
"""

from typing import Any

from pydantic import RootModel

from memalign_graph.hitl import hitl_request, read_decision, reply_model, unwrap
from memalign_graph.interrupts import (
    DECISIONS,
    describe_example,
    escape,
    read_fields,
    read_words,
    show_block,
)
from memalign_graph.prompts.clarify import Question
from memalign_graph.types import Criterion, Episode, Feedback

ACTION = "clarify_feedback"
"""The name of the one action in the payload."""

_SHAPES = (
    "reply with text, with an object that has `rationale`, `value` or both, or with a decision "
    "(respond, edit, reject, or approve to go on with the words as they are)"
)
_INSTEAD = "approve to go on with the words as they are"
_WHY = (
    "A model asks this, since the words name nothing yet that a judge could look for in another "
    "case. Approve to go on with them as they are."
)
_ASKED = '\n(Asked back: "'
_END = '")\n'


def clarify_payload(criterion: Criterion, feedback: Feedback, question: Question) -> dict[str, Any]:
    """Make what the interrupt shows."""
    action = {
        "name": ACTION,
        "args": {"rationale": ""},
        "description": _describe(criterion, feedback, question),
    }
    answer = {"type": "string", "description": "Your answer, in your own words."}
    return hitl_request([action], allowed=DECISIONS, properties={"rationale": answer})


def clarify_reply_schema(criterion: Criterion, feedback: Feedback) -> type[RootModel[Any]]:
    """Make the schema that checks a reply to the interrupt."""
    native = {
        "title": "clarification",
        "description": (
            "The answer to the question. Text alone is one, too; decisions of human-in-the-loop "
            "inboxes are understood: approve goes on with the words as they are."
        ),
        "type": "object",
        "properties": {
            "rationale": {"type": "string", "description": "Your answer, in your own words."},
            "value": {"description": "What the value should be.", **criterion.scale.value_schema()},
            "author": {"type": "string", "description": "Who you are."},
        },
    }
    return reply_model(
        "the reply to the question",
        native,
        lambda reply: read_clarification(reply, criterion, feedback),
    )


def read_clarification(reply: Any, criterion: Criterion, feedback: Feedback) -> dict[str, Any]:
    """Read any of the accepted replies."""
    decisions = unwrap(reply, _SHAPES)
    if decisions is not None:
        if len(decisions) != 1:
            raise ValueError(
                f"there is one question to answer, but the reply has {len(decisions)} decisions: "
                "send one."
            )
        [reply] = decisions
    if isinstance(reply, str):
        return {"rationale": read_words(reply, "the reply", instead=_INSTEAD)}
    if not isinstance(reply, dict):
        raise ValueError(f"a reply of type {type(reply).__name__} is not understood: {_SHAPES}.")
    if "type" in reply:
        return _read_decision(reply, criterion, feedback)
    return _read_fields(reply, criterion, feedback)


def clarified(feedback: Feedback, question: Question, said: dict[str, Any]) -> Feedback:
    """Join the answer to the words it makes clear."""
    fields = feedback.to_json()
    for name in ("author", "id"):
        if fields[name] is None and name in said:
            fields[name] = said[name]
    if "value" in said:
        fields["value"] = said["value"]
    if "rationale" in said:
        asked = question.text.replace('"', "'")
        fields["rationale"] = f"{feedback.rationale}{_ASKED}{asked}{_END}{said['rationale']}"
    return Feedback.model_validate(fields)


def said_before(feedback: Feedback, stored: Episode | None) -> Feedback | None:
    """Return what an expert said earlier in the same words on the same example, if so."""
    if stored is None or stored.rationale is None:
        return None
    if feedback.value not in (None, stored.value):
        return None
    if stored.rationale.startswith(f"{feedback.rationale}{_ASKED}"):
        return feedback.model_copy(update={"rationale": stored.rationale})
    is_known = stored.rationale == feedback.rationale and stored.status == "distilled"
    return feedback if is_known else None


def _read_decision(
    given: dict[str, Any], criterion: Criterion, feedback: Feedback
) -> dict[str, Any]:
    decision = read_decision(given)
    if decision is None:
        raise ValueError(f"the decision {given['type']!r} is not known: {_SHAPES}.")
    match decision.kind:
        case "approve":
            said = {"rationale": decision.words}
            return _read_fields(said, criterion, feedback) if decision.words else {}
        case "edit":
            if not isinstance(decision.args, dict):
                raise ValueError(
                    "an edit needs the edited arguments: an object with `rationale`, the answer."
                )
            return _read_fields(decision.args, criterion, feedback)
        case "reject":
            is_inbox = decision.type == "response"
            name = "the response" if is_inbox else f"the message of {decision.type!r}"
            return {"rationale": read_words(decision.words, name, instead=_INSTEAD)}
        case "ignore":
            return {}


def _read_fields(
    fields: dict[str, Any], criterion: Criterion, feedback: Feedback
) -> dict[str, Any]:
    said = read_fields(fields, criterion, shapes=_SHAPES)
    if feedback.author is not None and said.get("author", feedback.author) != feedback.author:
        raise ValueError(
            f"`author`: {feedback.author!r} said these words and is asked what they mean: leave "
            f"`author` out, or {_INSTEAD}; the word of another expert is a review of its own."
        )
    return said


def _describe(criterion: Criterion, feedback: Feedback, question: Question) -> str:
    scale = criterion.scale
    value = "" if feedback.value is None else f": {scale.show(feedback.value)}"
    parts = [
        f"## {criterion.name}: a question back",
        _WHY,
        "### Question",
        *(escape(part) for part in (question.question, question.example) if part),
        f"### The expert said{value}",
        show_block(feedback.rationale),
        *describe_example(feedback.example),
    ]
    judgment = feedback.judgment
    if judgment is not None:
        rationale = escape(judgment.rationale)
        parts.append(f"### The judge said: {scale.show(judgment.value)}\n\n{rationale}")
    return "\n\n".join(parts)
