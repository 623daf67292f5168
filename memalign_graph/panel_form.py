"""A panel's form: one interrupt about all criteria, and the parser of its reply."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from memalign_graph import interrupts
from memalign_graph.errors import InvalidInputError
from memalign_graph.types import Criterion, Example, Guideline, Judgment

PanelReply = dict[str, dict[str, Any]]
_RATIONALE = "_rationale"
_RESERVED = ("author", "type", "decisions", interrupts.JUDGMENT_ID)
_SHOWN_GUIDELINES = 5
_NUMBER = re.compile(r"[-+]?[\d.,]+")
_SHAPES = (
    "reply with an object by criterion, such as {'NAME': {'value': ..., 'rationale': ...}}, of "
    "any of the criteria, or with a decision (approve, edit)"
)


def check_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"criteria: two have the name {name!r}. Rename one of them.")
        if name in _RESERVED or f"{name}{_RATIONALE}" in names:
            raise InvalidInputError(
                f"criteria: the name {name!r} is reserved for the review form. Choose another."
            )


def panel_form(
    criteria: Mapping[str, Criterion],
    example: Example,
    judgments: Mapping[str, Judgment],
    *,
    errors: Mapping[str, str],
    guidelines: Mapping[str, Sequence[Guideline]],
    was_shown: bool = True,
) -> interrupts.Form[PanelReply | None]:
    """Ask about all criteria; a reply is parsed to the fields of a `Feedback` by criterion."""
    args, fields, properties = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    parts = ["## What was judged", *interrupts.describe_example(example)]
    for name, criterion in criteria.items():
        instructions = {"description": criterion.instructions}
        value = criterion.scale.value_schema()
        schemas = {"value": value, "rationale": interrupts.RATIONALE_SCHEMA}
        properties[name] = {**instructions, "type": "object", "properties": schemas}
        judgment = judgments.get(name)
        if judgment is None:
            parts += [f"### {name}: not judged", _quote(errors.get(name) or "")]
            continue
        schemas[interrupts.JUDGMENT_ID] = interrupts.judgment_id_schema(judgment.id)
        args |= {name: judgment.value, f"{name}{_RATIONALE}": judgment.rationale}
        fields |= {name: {**instructions, **value}, f"{name}{_RATIONALE}": {"type": "string"}}
        parts += _describe(criterion, judgment, guidelines.get(name, ()))
    if ids := _joined_ids(judgments):
        args[interrupts.JUDGMENT_ID] = ids
        fields[interrupts.JUDGMENT_ID] = interrupts.judgment_id_schema(ids)
    parts.append("Change what is wrong. What you do not change is not stored.")
    return interrupts.Form(
        action="review_panel",
        actions=[(args, parts)],
        args_schema=fields,
        title="review",
        description="What the values should be, and why; any of the criteria.",
        properties={**properties, "author": interrupts.AUTHOR_SCHEMA},
        case=interrupts.case_payload("panel", criteria.values(), example, judgments.values()),
        read=lambda reply: read_panel(reply, criteria, judgments if was_shown else None),
        # A comment alone does not say which criterion it is about.
        decisions=("approve", "edit"),
    )


def read_panel(
    reply: Any, criteria: Mapping[str, Criterion], judgments: Mapping[str, Judgment] | None
) -> PanelReply | None:
    """Parse a reply to a panel's form; None if it was ignored.

    Without judgments, since its expert has seen none, a reply is values and comments on the case.
    """
    parsed = interrupts.parse_answer(reply, _SHAPES, _joined_ids(judgments or {}))
    if parsed.kind == "ignore":
        return None
    if judgments is None and parsed.kind != "object":
        raise ValueError(f"{interrupts.NOT_SEEN}: give a value, a rationale or both by criterion.")
    judgments = judgments or {}
    replies = _replies_by_criterion(parsed, criteria, judgments)
    named = interrupts.parse_text(parsed.author, "author")
    author = {"author": named} if named else {}
    feedback: PanelReply = {}
    for name, criterion in criteria.items():
        judgment = judgments.get(name)
        fields = _parse_criterion(replies.get(name), criterion, judgment)
        is_edit = parsed.kind == "edit" and judgment is not None
        if fields and not (is_edit and fields == {"value": judgments[name].value}):
            feedback[name] = author | fields
    if not feedback and parsed.kind == "edit":
        raise ValueError("nothing in the form was changed: approve it, or change what is wrong.")
    if not feedback:
        raise ValueError(f"the reply has no feedback on any criterion: {_SHAPES}.")
    return feedback


def _joined_ids(judgments: Mapping[str, Judgment]) -> str | None:
    """Return the ids of a form's judgments as one text; None without judgments."""
    return " ".join(sorted(judgment.id for judgment in judgments.values())) or None


def _replies_by_criterion(
    parsed: interrupts.Reply, names: Iterable[str], judgments: Mapping[str, Judgment]
) -> Mapping[str, Any]:
    """Split a reply to the form into replies that `parse_review` reads."""
    match parsed.kind:
        case "object":
            _check_known(parsed.content, [*names, "author"])
            return parsed.content  # type: ignore[no-any-return] # an object
        case "edit":
            args = parsed.edited()
            _check_known(args, [f"{name}{end}" for name in names for end in ("", _RATIONALE)])
            replies = {}
            for name in names:
                fields = {"value": args.get(name), "rationale": args.get(f"{name}{_RATIONALE}")}
                filled = {field: value for field, value in fields.items() if not _is_blank(value)}
                is_edit = filled and name in judgments
                # A value that was cleared is not the judge's.
                cleared = {"value": None} if name in args else {}
                replies[name] = {"type": "edit", "args": cleared | filled} if is_edit else filled
            return replies
        case "approve" if not parsed.content:
            return {name: {"type": "approve"} for name in judgments}
        case "text":
            raise ValueError(f"a reply of type str is not understood: {_SHAPES}.")
    raise ValueError(
        f"a comment alone does not say which criterion it is about: edit the form, or {_SHAPES}."
    )


def _parse_criterion(reply: Any, criterion: Criterion, judgment: Judgment | None) -> dict[str, Any]:
    """Parse the reply on one criterion; an error names it."""
    if _is_blank(reply):
        return {}
    is_comment = isinstance(reply, str) and not _NUMBER.fullmatch(reply.strip())
    try:
        if not isinstance(reply, dict | list):
            with suppress(ValueError) if is_comment else nullcontext():
                return {"value": criterion.scale.validate_value(reply)}
        return interrupts.parse_review(reply, criterion, judgment) or {}
    except ValueError as error:
        raise ValueError(f"{criterion.name}: {error}") from error


def _is_blank(reply: Any) -> bool:
    if isinstance(reply, dict) and "type" not in reply and "decisions" not in reply:
        return all(_is_blank(part) for key, part in reply.items() if key != interrupts.JUDGMENT_ID)
    return reply is None or (isinstance(reply, str) and not reply.strip())


def _check_known(fields: Iterable[str], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise ValueError(f"the reply has {name!r}, which is not a criterion: {_SHAPES}.")


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
            "This is the evidence's value: it weighs the judge's verdict against similar cases. "
            f"The judge itself says {scale.show(judgment.verdict)}, because:"
        )
    parts.append(_quote(judgment.rationale))
    texts = [
        interrupts.escape(guideline.text)
        for guideline in guidelines
        if guideline.id in judgment.guideline_ids
    ]
    if texts:
        more = len(texts) - _SHOWN_GUIDELINES
        texts[_SHOWN_GUIDELINES:] = [f"and {more} more"] if more > 0 else []
        parts.append(f"Guidelines it was given:\n\n{interrupts.bullets(texts)}")
    return parts + [_quote(f"Note: {warning}") for warning in judgment.warnings]


def _quote(text: str) -> str:
    """Format a text as a quotation, so that it can't add a heading to the form."""
    return interrupts.escape("\n".join(f"> {line}" for line in text.splitlines()))
