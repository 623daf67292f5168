"""The review interrupt: payload out, the expert's reply in. Pure functions and one schema.

The payload has the shape of langchain's `HITLRequest`, so that inboxes which know that shape show
it; to any other client it is plain JSON.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import RootModel

from memalign_graph.hitl import hitl_request, read_decision, reply_model, unwrap
from memalign_graph.identity import check_json
from memalign_graph.judgment import ReviewReason
from memalign_graph.scales import Value
from memalign_graph.types import Criterion, Episode, Example, Guideline, Judgment

ACTION = "review_judgment"
"""The name of the one action in the payload."""

DECISIONS = ("approve", "edit", "reject", "respond")
"""The decisions of langchain's human-in-the-loop shape, all allowed."""

_NATIVE_FIELDS = ("value", "rationale", "author", "id")
_SHAPES = (
    "reply with text, with an object that has `value`, `rationale` or both, or with a decision "
    "(approve, edit, reject, respond)"
)
_REASONS: Mapping[ReviewReason, str] = {
    "too_little_feedback": "there is too little feedback yet to tell how far the judge is right",
    "unsure": "the judge is not sure enough",
    "no_similar_episode": "memory holds nothing like this case",
    "episodes_disagree": "experts differ on the cases most like it",
    "sample": "it was drawn by chance, to see whether the judge is still right",
    "no_budget": "all other questions of the day are spent",
}
"""Why the expert is asked, in words."""

_MAX_SHOWN_CHARS = 4_000
_BACKTICKS = re.compile("`+")
_HEADING = re.compile(r"(?m)^#|^(?:=+|-+)(?=\s*$)")


def review_payload(
    criterion: Criterion,
    example: Example,
    judgment: Judgment,
    *,
    guidelines: Sequence[Guideline],
    episodes: Sequence[Episode],
) -> dict[str, Any]:
    """Make what the interrupt shows."""
    action = {
        "name": ACTION,
        "args": {"value": judgment.value, "rationale": judgment.rationale},
        "description": _describe(criterion, example, judgment, guidelines, episodes),
    }
    return hitl_request(
        [action],
        allowed=DECISIONS,
        properties={"value": criterion.scale.value_schema(), "rationale": {"type": "string"}},
    )


def reply_schema(criterion: Criterion, judgment: Judgment) -> type[RootModel[Any]]:
    """Make the schema that checks a reply to the interrupt."""
    native = {
        "title": "review",
        "description": (
            "What the value should be, why, or both. Text alone is a rationale; decisions of "
            "human-in-the-loop inboxes are understood, too."
        ),
        "type": "object",
        "properties": {
            "value": {"description": "What the value should be.", **criterion.scale.value_schema()},
            "rationale": {"type": "string", "description": "Why, in your own words."},
            "author": {"type": "string", "description": "Who you are."},
        },
    }

    return reply_model(
        "the reply to the review", native, lambda reply: read_reply(reply, criterion, judgment)
    )


def read_reply(
    reply: Any, criterion: Criterion, judgment: Judgment | None
) -> dict[str, Any] | None:
    """Read any of the accepted replies as the fields of one `Feedback`."""
    decisions = unwrap(reply, _SHAPES)
    if decisions is not None:
        if len(decisions) != 1:
            raise ValueError(
                f"there is one judgment to decide on, but the reply has {len(decisions)} "
                "decisions: send one."
            )
        [reply] = decisions
    if isinstance(reply, str):
        return {"rationale": read_words(reply, "the reply")}
    if not isinstance(reply, dict):
        raise ValueError(f"a reply of type {type(reply).__name__} is not understood: {_SHAPES}.")
    if "type" in reply:
        return _read_decision(reply, criterion, judgment)
    return read_fields(reply, criterion)


def _read_decision(
    given: dict[str, Any], criterion: Criterion, judgment: Judgment | None
) -> dict[str, Any] | None:
    if judgment is None:
        raise ValueError(
            "there is no judgment to decide on: give a `value`, a `rationale` or both."
        )
    decision = read_decision(given)
    if decision is None:
        raise ValueError(f"the decision {given['type']!r} is not known: {_SHAPES}.")
    match decision.kind:
        case "approve":
            fields = {"value": judgment.value, "rationale": decision.words}
            return read_fields(fields, criterion)
        case "edit":
            return read_edit(decision.args, criterion, judgment)
        case "reject":
            is_inbox = decision.type == "response"
            name = "the response" if is_inbox else f"the message of {decision.type!r}"
            return {"rationale": read_words(decision.words, name)}
        case "ignore":
            return None


def read_edit(args: Any, criterion: Criterion, judgment: Judgment) -> dict[str, Any]:
    """Read a judgment as an expert edited it."""
    if not isinstance(args, dict):
        raise ValueError("an edit needs the edited arguments: an object with `value`, `rationale`.")
    said = {"value": judgment.value, **args}
    if str(said.get("rationale") or "").strip() == judgment.rationale.strip():
        said.pop("rationale", None)
    return read_fields(said, criterion)


def read_fields(
    fields: dict[str, Any], criterion: Criterion, *, shapes: str = _SHAPES
) -> dict[str, Any]:
    """Read a reply's plain form."""
    unknown = [name for name in fields if name not in _NATIVE_FIELDS]
    if unknown:
        raise ValueError(
            f"the reply has {', '.join(map(repr, unknown))}, which is not known: {shapes}."
        )
    said: dict[str, Any] = {}
    if fields.get("value") is not None:
        said["value"] = _on_scale(fields["value"], criterion)
    for name in ("rationale", "author", "id"):
        text = fields.get(name)
        if text is not None and not isinstance(text, str):
            raise ValueError(f"`{name}` is text, not a value of type {type(text).__name__}.")
        if text is not None and text.strip():
            check_json(text, f"`{name}`")
            said[name] = text.strip()
    if "value" not in said and "rationale" not in said:
        raise ValueError(f"the reply has neither a value nor a rationale: {shapes}.")
    return said


def _on_scale(value: Any, criterion: Criterion) -> Value:
    try:
        return criterion.scale.validate_value(value)
    except ValueError as error:
        raise ValueError(f"`value`: {error}") from error


def read_words(text: Any, name: str, *, instead: str = "give a `value`") -> str:
    """Read what an expert says."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} is empty: say why in a sentence, or {instead}.")
    check_json(text, name)
    return text.strip()


def _describe(
    criterion: Criterion,
    example: Example,
    judgment: Judgment,
    guidelines: Sequence[Guideline],
    episodes: Sequence[Episode],
) -> str:
    scale = criterion.scale
    parts = [f"## {criterion.name}", criterion.instructions.strip(), *describe_example(example)]
    rationale = escape(judgment.rationale)
    parts.append(f"### The judge says: {scale.show(judgment.verdict)}\n\n{rationale}")
    parts += [*_outweighed(judgment, criterion), *_doubt(judgment)]
    if guidelines:
        lines = "\n".join(f"- {escape(one.text)}" for one in guidelines)
        parts.append(f"### Guidelines it was given\n\n{lines}")
    if episodes:
        lines = "\n".join(f"- {_line(one, criterion)}" for one in episodes)
        parts.append(f"### Earlier cases it was shown\n\n{lines}")
    if judgment.warnings:
        lines = "\n".join(f"- {one}" for one in judgment.warnings)
        parts.append(f"### Note\n\n{lines}")
    parts.append(f"Is that right? The value is {scale.describe()}")
    return "\n\n".join(parts)


def _outweighed(judgment: Judgment, criterion: Criterion) -> list[str]:
    """Show what was decided, where that is something else than what the judge says."""
    if judgment.evidence is None or judgment.value == judgment.verdict:
        return []
    shown = criterion.scale.show(judgment.value)
    told = (
        "That is the judge's verdict weighed against the experts' values of the "
        f"{len(judgment.evidence.neighbours)} most similar cases, and the value you are asked "
        "about."
    )
    return [f"### The evidence says: {shown}\n\n{told}"]


def _doubt(judgment: Judgment) -> list[str]:
    """Say how sure the judge is, and why the expert is asked, as far as that is known."""
    parts = []
    if judgment.confidence is not None:
        known = judgment.calibrated_on
        rests = "not calibrated yet" if known is None else f"calibrated on {known} cases"
        parts.append(f"Confidence: {judgment.confidence:.0%} ({rests}).")
    if judgment.review is not None and judgment.review.reasons:
        said = [_REASONS[reason] for reason in judgment.review.reasons]
        parts.append(f"You are asked because {'; '.join(said)}.")
    return [" ".join(parts)] if parts else []


def describe_example(example: Example) -> list[str]:
    """Show an example in Markdown, its texts fenced so that they stay text."""
    parts = [
        f"### Inputs\n\n{show_block(example.inputs)}",
        f"### Outputs\n\n{show_block(example.outputs)}",
    ]
    if example.reference_outputs is not None:
        parts.append(f"### Reference outputs\n\n{show_block(example.reference_outputs)}")
    return parts


def _line(episode: Episode, criterion: Criterion) -> str:
    value = "no value" if episode.value is None else criterion.scale.show(episode.value)
    words = f": {escape(_one_line(episode.rationale))}" if episode.rationale else ""
    outputs = _one_line(_text(episode.example.outputs))
    ticks = "`" * (1 + _longest_run(outputs))
    return f"{ticks} {outputs} {ticks} (expert: {value}{words})"


def escape(text: str) -> str:
    """Take from a text what Markdown would make a link, a picture, a tag or a heading of."""
    harmless = text.replace("[", "\\[").replace("<", "&lt;").replace("`", "'")
    return _HEADING.sub(r"\\\g<0>", harmless)


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def show_block(value: Any) -> str:
    """Show a JSON value in Markdown as it is, fenced so that it stays text."""
    text = _text(value)
    if len(text) > _MAX_SHOWN_CHARS:
        text = f"{text[:_MAX_SHOWN_CHARS]}\n[... {len(text) - _MAX_SHOWN_CHARS:,} more characters]"
    # A fence longer than any in the text keeps the text from ending it.
    ticks = "`" * max(3, 1 + _longest_run(text))
    return f"{ticks}\n{text}\n{ticks}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _one_line(text: str, limit: int = 160) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[:limit]}…"
