"""A panel's review: all criteria in one form, of which the expert fills in any. Pure functions.

The payload has one action whose arguments are the form: a criterion's value under its name, and
the judge's reason beside it. They are flat, since that is what inboxes can edit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import RootModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.hitl import hitl_request, read_decision, reply_model, unwrap
from memalign_graph.identity import check_json
from memalign_graph.interrupts import describe_example, escape, read_edit, read_reply
from memalign_graph.types import Criterion, Example, Guideline, Judgment

ACTION = "review_panel"
"""The name of the one action in the payload."""

DECISIONS = ("approve", "edit")
"""The decisions that are offered: words alone would not tell which criterion they are about."""

Said = dict[str, dict[str, Any]]
"""The fields of a `Feedback` by criterion."""

_AUTHOR = "author"
_RESERVED = (_AUTHOR, "type", "decisions")
_REASON = "_rationale"
_SHOWN_GUIDELINES = 5
_SHAPES = (
    "reply with an object by criterion, such as {'NAME': {'value': ..., 'rationale': ...}}, for "
    "those you have something to say about, or with a decision (approve, edit)"
)


def check_names(criteria: Sequence[Criterion]) -> None:
    """Check that the criteria of a panel can be told apart in its form."""
    names = [one.name for one in criteria]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"criteria: two are named {name!r}: give each its own name.")
        if name in _RESERVED or f"{name}{_REASON}" in names:
            raise InvalidInputError(
                f"criteria: {name!r} is a name that the review form needs for itself, or makes "
                "another criterion's name ambiguous: choose another."
            )


def panel_payload(
    criteria: Sequence[Criterion],
    example: Example,
    judgments: Mapping[str, Judgment],
    *,
    errors: Mapping[str, str],
    guidelines: Mapping[str, Sequence[Guideline]],
) -> dict[str, Any]:
    """Make what the interrupt shows."""
    args: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for criterion in criteria:
        judgment = judgments.get(criterion.name)
        if judgment is not None:
            reason = f"{criterion.name}{_REASON}"
            args |= {criterion.name: judgment.value, reason: judgment.rationale}
            value = {"description": criterion.instructions, **criterion.scale.value_schema()}
            properties |= {criterion.name: value, reason: {"type": "string"}}
    parts = ["## What was judged", *describe_example(example)]
    for criterion in criteria:
        parts += _describe(
            criterion,
            judgments.get(criterion.name),
            error=errors.get(criterion.name),
            guidelines=guidelines.get(criterion.name, ()),
        )
    parts.append("Change what is not right; what you leave as it is says nothing.")
    action = {"name": ACTION, "args": args, "description": "\n\n".join(parts)}
    return hitl_request([action], allowed=DECISIONS, properties=properties)


def panel_reply_schema(
    criteria: Sequence[Criterion], judgments: Mapping[str, Judgment]
) -> type[RootModel[Any]]:
    """Make the schema that checks a reply to the interrupt."""
    properties = {
        one.name: {
            "description": one.instructions,
            "type": "object",
            "properties": {
                "value": one.scale.value_schema(),
                "rationale": {"type": "string", "description": "Why, in your own words."},
            },
        }
        for one in criteria
    }
    author = {"type": "string", "description": "Who you are."}
    native = {
        "title": "review",
        "description": "What the values should be, and why; any of the criteria.",
        "type": "object",
        "properties": {**properties, _AUTHOR: author},
    }
    return reply_model(
        "the reply to the review",
        native,
        lambda reply: read_panel_reply(reply, criteria, judgments),
    )


def read_panel_reply(
    reply: Any, criteria: Sequence[Criterion], judgments: Mapping[str, Judgment]
) -> Said | None:
    """Read any of the accepted replies."""
    decisions = unwrap(reply, _SHAPES)
    if decisions is not None:
        if len(decisions) != 1:
            raise ValueError(
                f"there is one form to decide on, but the reply has {len(decisions)} decisions: "
                "send one."
            )
        [reply] = decisions
    if not isinstance(reply, dict):
        raise ValueError(f"a reply of type {type(reply).__name__} is not understood: {_SHAPES}.")
    if "type" in reply:
        return _read_decision(reply, criteria, judgments)
    said = _read_fields(reply, criteria, judgments)
    if not said:
        raise ValueError(f"the reply says nothing about any criterion: {_SHAPES}.")
    return said


def _read_decision(
    given: dict[str, Any], criteria: Sequence[Criterion], judgments: Mapping[str, Judgment]
) -> Said | None:
    decision = read_decision(given)
    if decision is None:
        raise ValueError(f"the decision {given['type']!r} is not known: {_SHAPES}.")
    match decision.kind:
        case "ignore":
            return None
        case "approve" if not decision.words:
            return {name: {"value": judgment.value} for name, judgment in judgments.items()}
        case "edit":
            said = _read_form(decision.args, criteria, judgments)
            if not said:
                raise ValueError(
                    "nothing in the form was changed: approve it to confirm every value, or change "
                    "what is not right."
                )
            return said
    raise ValueError(
        f"words alone do not tell which criterion they are about: edit the form, or {_SHAPES}."
    )


def _read_form(args: Any, criteria: Sequence[Criterion], judgments: Mapping[str, Judgment]) -> Said:
    if not isinstance(args, dict):
        raise ValueError("an edit needs the edited arguments: an object with the form's fields.")
    known = {name for one in criteria for name in (one.name, f"{one.name}{_REASON}")}
    _check_known(args, known)
    said: Said = {}
    for criterion in criteria:
        judgment = judgments.get(criterion.name)
        value = _filled(args.get(criterion.name))
        reason = _filled(args.get(f"{criterion.name}{_REASON}"))
        if judgment is None:
            fields = {"value": value, "rationale": reason}
            if value is not None or reason is not None:
                said[criterion.name] = _named(criterion, fields, None)
        elif not _is_unchanged(criterion, judgment, value, reason):
            edited = {
                "value": judgment.value if value is None else value,
                "rationale": judgment.rationale if reason is None else reason,
            }
            try:
                said[criterion.name] = read_edit(edited, criterion, judgment)
            except ValueError as error:
                raise ValueError(f"{criterion.name}: {error}") from error
    return said


def _is_unchanged(criterion: Criterion, judgment: Judgment, value: Any, reason: Any) -> bool:
    if reason is not None and str(reason).strip() != judgment.rationale.strip():
        return False
    if value is None:
        return True
    try:
        return bool(criterion.scale.validate_value(value) == judgment.value)
    except ValueError:
        return False


def _read_fields(
    reply: dict[str, Any], criteria: Sequence[Criterion], judgments: Mapping[str, Judgment]
) -> Said:
    _check_known(reply, {*(one.name for one in criteria), _AUTHOR})
    author = reply.get(_AUTHOR)
    if author is not None and not isinstance(author, str):
        raise ValueError(f"`author` is text, not a value of type {type(author).__name__}.")
    check_json(author, "`author`")
    said: Said = {}
    for criterion in criteria:
        given = _filled(reply.get(criterion.name))
        if given is None:
            continue
        fields = _named(criterion, given, judgments.get(criterion.name))
        if fields:
            said[criterion.name] = {**({_AUTHOR: author} if author else {}), **fields}
    return said


def _named(criterion: Criterion, given: Any, judgment: Judgment | None) -> dict[str, Any]:
    """Read what was said of one criterion; the error names it."""
    if not isinstance(given, dict | list):
        try:
            return {"value": criterion.scale.validate_value(given)}
        except ValueError as error:
            if not isinstance(given, str) or _is_number(given):
                raise ValueError(f"{criterion.name}: {error}") from error
    try:
        return read_reply(given, criterion, judgment) or {}
    except ValueError as error:
        raise ValueError(f"{criterion.name}: {error}") from error


def _is_number(text: str) -> bool:
    """Tell whether a text is a number, so that it is no expert's words."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _filled(given: Any) -> Any:
    """Return what was filled in; None for what was left blank."""
    if isinstance(given, dict) and "type" not in given and "decisions" not in given:
        return given if any(_filled(one) is not None for one in given.values()) else None
    return None if isinstance(given, str) and not given.strip() else given


def _check_known(fields: Mapping[str, Any], known: set[str]) -> None:
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"the reply has {unknown[0]!r}, which is no criterion: {_SHAPES}.")


def _describe(
    criterion: Criterion,
    judgment: Judgment | None,
    *,
    error: str | None,
    guidelines: Sequence[Guideline],
) -> list[str]:
    if judgment is None:
        return [f"### {criterion.name}: not judged", _quote(error or "")]
    shown = set(judgment.guideline_ids)
    given = [one for one in guidelines if one.id in shown]
    lines = [f"- {escape(one.text)}" for one in given[:_SHOWN_GUIDELINES]]
    if len(given) > _SHOWN_GUIDELINES:
        lines.append(f"- and {len(given) - _SHOWN_GUIDELINES} more")
    return [
        f"### {criterion.name}: {criterion.scale.show(judgment.value)}",
        f"{criterion.instructions.strip()} The value is {criterion.scale.describe()}",
        *([] if judgment.value == judgment.verdict else [_outweighed(criterion, judgment)]),
        _quote(judgment.rationale),
        *(["Guidelines it was given:\n\n" + "\n".join(lines)] if lines else []),
        *(_quote(f"Note: {one}") for one in judgment.warnings),
    ]


def _outweighed(criterion: Criterion, judgment: Judgment) -> str:
    own = criterion.scale.show(judgment.verdict)
    return (
        "That is the evidence: the judge's verdict weighed against similar cases. The judge itself "
        f"says {own}, because:"
    )


def _quote(text: str) -> str:
    """Show a text as a quotation, so that it makes no heading of the form's."""
    return "\n".join(f"> {line}" for line in escape(text).splitlines())
