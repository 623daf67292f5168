"""A panel's review: all criteria in one form, of which the expert fills in any.

The form has one action whose arguments are a criterion's value under its name, and the judge's
reason beside it. They are flat, since that is what inboxes can edit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import check_json
from memalign_graph.interrupts import (
    AUTHOR,
    Form,
    bullets,
    describe_example,
    escape,
    read_reply,
    read_review,
)
from memalign_graph.types import Criterion, Example, Guideline, Judgment

Said = dict[str, dict[str, Any]]
"""The fields of a `Feedback` by criterion."""

_REASON = "_rationale"
_SHOWN_GUIDELINES = 5
_SHAPES = (
    "reply with an object by criterion, such as {'NAME': {'value': ..., 'rationale': ...}}, for "
    "those you have something to say about, or with a decision (approve, edit)"
)


def check_names(criteria: Sequence[Criterion]) -> None:
    """Check that the criteria of a panel can be told apart in its form."""
    names = [criterion.name for criterion in criteria]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"criteria: two are named {name!r}: give each its own name.")
        if name in ("author", "type", "decisions") or f"{name}{_REASON}" in names:
            raise InvalidInputError(
                f"criteria: {name!r} is a name that the review form needs for itself, or makes "
                "another criterion's name ambiguous: choose another."
            )


def panel_form(
    criteria: Mapping[str, Criterion],
    example: Example,
    judgments: Mapping[str, Judgment],
    *,
    errors: Mapping[str, str],
    guidelines: Mapping[str, Sequence[Guideline]],
) -> Form[Said | None]:
    """Ask about all criteria at once; what is read are the fields of a `Feedback` by criterion."""
    args: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    parts = ["## What was judged", *describe_example(example)]
    for name, criterion in criteria.items():
        asked = {"description": criterion.instructions}
        value = criterion.scale.value_schema()
        reason = {"type": "string", "description": "Why, in your own words."}
        properties[name] = {
            **asked,
            "type": "object",
            "properties": {"value": value, "rationale": reason},
        }
        judgment = judgments.get(name)
        if judgment is None:
            parts += [f"### {name}: not judged", _quote(errors.get(name) or "")]
            continue
        args |= {name: judgment.value, f"{name}{_REASON}": judgment.rationale}
        fields |= {name: {**asked, **value}, f"{name}{_REASON}": {"type": "string"}}
        parts += _describe(criterion, judgment, guidelines.get(name, ()))
    parts.append("Change what is not right; what you leave as it is says nothing.")
    return Form(
        action="review_panel",
        actions=[{"args": args, "description": "\n\n".join(parts)}],
        fields=fields,
        reply={
            "title": "review",
            "description": "What the values should be, and why; any of the criteria.",
            "type": "object",
            "properties": {**properties, "author": AUTHOR},
        },
        read=lambda reply: read_panel(reply, criteria, judgments),
        # Words alone would not tell which criterion they are about.
        decisions=("approve", "edit"),
    )


def read_panel(
    reply: Any, criteria: Mapping[str, Criterion], judgments: Mapping[str, Judgment]
) -> Said | None:
    """Read what was replied to a panel's form; None if it was ignored."""
    given = read_reply(reply, _SHAPES, subject="form to decide on")
    nothing = f"the reply says nothing about any criterion: {_SHAPES}."
    by: dict[str, str] = {}
    match given.kind:
        case "object":
            _check_known(given.content, [*criteria, "author"])
            replies, by = given.content, _read_author(given.content.get("author"))
        case "edit":
            replies = _split(given.edited(), criteria, judgments)
            nothing = (
                "nothing in the form was changed: approve it to confirm every value, or change "
                "what is not right."
            )
        case "approve" if not given.content:
            replies = {name: {"type": "approve"} for name in judgments}
        case "ignore":
            return None
        case "text":
            raise ValueError(f"a reply of type str is not understood: {_SHAPES}.")
        case _:
            raise ValueError(
                "words alone do not tell which criterion they are about: edit the form, or "
                f"{_SHAPES}."
            )
    said: Said = {}
    for name, criterion in criteria.items():
        judgment = judgments.get(name)
        fields = _read_one(replies.get(name), criterion, judgment)
        is_unchanged = given.kind == "edit" and judgment and fields == {"value": judgment.value}
        if fields and not is_unchanged:
            said[name] = {**by, **fields}
    if not said:
        raise ValueError(nothing)
    return said


def _split(
    args: Mapping[str, Any], criteria: Mapping[str, Criterion], judgments: Mapping[str, Judgment]
) -> dict[str, Any]:
    """Make of the edited form a reply to each criterion."""
    _check_known(args, [f"{name}{end}" for name in criteria for end in ("", _REASON)])
    replies: dict[str, Any] = {}
    for name in criteria:
        edited = {"value": args.get(name), "rationale": args.get(f"{name}{_REASON}")}
        filled = {field: given for field, given in edited.items() if not _is_blank(given)}
        is_edit = filled and name in judgments
        replies[name] = {"type": "edit", "args": filled} if is_edit else filled
    return replies


def _read_author(author: Any) -> dict[str, str]:
    if author is not None and not isinstance(author, str):
        raise ValueError(f"`author` is text, not a value of type {type(author).__name__}.")
    check_json(author, "`author`")
    return {"author": author} if author else {}


def _read_one(given: Any, criterion: Criterion, judgment: Judgment | None) -> dict[str, Any]:
    """Read what was said of one criterion; the error names it."""
    if _is_blank(given):
        return {}
    try:
        if not isinstance(given, dict | list):
            try:
                return {"value": criterion.scale.validate_value(given)}
            except ValueError:
                if not isinstance(given, str) or _is_number(given):
                    raise
        return read_review(given, criterion, judgment) or {}
    except ValueError as error:
        raise ValueError(f"{criterion.name}: {error}") from error


def _is_number(text: str) -> bool:
    """Tell whether a text is a number, so that it is no expert's words."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_blank(given: Any) -> bool:
    """Tell whether nothing was filled in."""
    if isinstance(given, dict) and "type" not in given and "decisions" not in given:
        return all(_is_blank(field) for field in given.values())
    return given is None or (isinstance(given, str) and not given.strip())


def _check_known(fields: Iterable[str], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise ValueError(f"the reply has {name!r}, which is no criterion: {_SHAPES}.")


def _describe(
    criterion: Criterion, judgment: Judgment, guidelines: Sequence[Guideline]
) -> list[str]:
    scale = criterion.scale
    parts = [
        f"### {criterion.name}: {scale.show(judgment.value)}",
        f"{criterion.instructions.strip()} The value is {scale.describe()}",
    ]
    if judgment.value != judgment.verdict:
        parts.append(
            "That is the evidence: the judge's verdict weighed against similar cases. The judge "
            f"itself says {scale.show(judgment.verdict)}, because:"
        )
    parts.append(_quote(judgment.rationale))
    rules = [escape(rule.text) for rule in guidelines if rule.id in judgment.guideline_ids]
    if rules:
        more = len(rules) - _SHOWN_GUIDELINES
        rules[_SHOWN_GUIDELINES:] = [f"and {more} more"] if more > 0 else []
        parts.append(f"Guidelines it was given:\n\n{bullets(rules)}")
    return parts + [_quote(f"Note: {warning}") for warning in judgment.warnings]


def _quote(text: str) -> str:
    """Show a text as a quotation, so that it makes no heading of the form's."""
    return "\n".join(f"> {line}" for line in escape(text).splitlines())
