"""The form of a case, the reply in a filled form, and the feedback in a reply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memalign_graph.errors import InvalidInputError
from memalign_graph.interrupts import JUDGMENT_ID, RATIONALE_SCHEMA, parse_review
from memalign_graph.prompts.clarify import merge_clarification
from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale
from memalign_graph.types import Criterion, Feedback, Judgment

CasePayload = dict[str, Any]
"""The case of a task: `interrupts.case_payload`."""

_MAX_BUTTONS = 11
_KEYS = "1234567890"
_VALUE, _WHY = "Your answer", RATIONALE_SCHEMA["description"].removesuffix(".")


class Option(NamedTuple):
    """One option of a choice."""

    value: str
    label: str
    hint: str
    key: str  # its keyboard shortcut


@dataclass(frozen=True)
class Field:
    """A field of a form: a choice, a number, or a comment."""

    name: str
    label: str
    kind: str
    options: list[Option] = field(default_factory=list)
    minimum: float | None = None
    maximum: float | None = None
    step: str = "any"
    value: str = ""


def fields_of(case: Mapping[str, Any], filled: Mapping[str, str]) -> list[Field]:
    """Return the fields of a case's form, with the values filled in before."""
    if case["kind"] == "question":
        return [Field("rationale", _VALUE, "comment", value=filled.get("rationale", ""))]
    criteria, in_panel = criteria_of(case).values(), case["kind"] == "panel"
    return [
        field
        for criterion in criteria
        for field in answer_fields(criterion, filled, in_panel=in_panel)
    ]


def answer_fields(
    criterion: Criterion, filled: Mapping[str, str], *, in_panel: bool = False
) -> list[Field]:
    """Return the fields of an answer: its value and its comment."""
    prefix, about = (f"{criterion.name}.", f"{criterion.name}: ") if in_panel else ("", "")
    value, why = f"{prefix}value", f"{prefix}rationale"
    return [
        _value_field(value, f"{about}{_VALUE}", criterion.scale, filled.get(value, "")),
        Field(why, f"{about}{_WHY}", "comment", value=filled.get(why, "")),
    ]


def _value_field(name: str, label: str, scale: Scale, chosen: str) -> Field:
    choices = _choices(scale)
    if not choices and isinstance(scale, Numeric):
        limits, step = (scale.minimum, scale.maximum), "1" if scale.integer else "any"
        return Field(name, label, "number", [], *limits, step, value=chosen)
    digits = [value if len(value) == 1 else "" for value, *_ in choices]
    keys = iter(digits if isinstance(scale, Numeric) else _KEYS)
    options = [Option(*choice, key=next(keys, "")) for choice in choices]
    return Field(name, label, "choice", options, value=chosen)


def parse_form(case: Mapping[str, Any], filled: Mapping[str, str], author: str) -> dict[str, Any]:
    """Return the reply in a filled form; raises InvalidInputError if it cannot be used."""
    kind, texts = case["kind"], {name: text.strip() for name, text in filled.items()}
    if kind == "question":
        if not texts.get("rationale"):
            raise InvalidInputError(
                "Write a sentence, such as 'Nothing to add.', or skip the case."
            )
        return {"rationale": texts["rationale"], "author": author}
    reply: dict[str, Any] = {}
    for name, criterion in criteria_of(case).items():
        prefix = f"{name}." if kind == "panel" else ""
        fields = {key: texts.get(f"{prefix}{key}") or None for key in ("value", "rationale")}
        if any(fields.values()):
            _check_judgment(case["judgments"].get(name), texts.get(f"{prefix}{JUDGMENT_ID}"))
            try:
                reply[name] = parse_review(fields, criterion, None)
            except ValueError as error:
                problem = str(error).replace("`value`", f"`{prefix}value`")
                raise InvalidInputError(problem) from error
    if not reply:
        raise InvalidInputError("Choose a value, write why, or both.")
    return {**(reply if kind == "panel" else next(iter(reply.values()))), "author": author}


def _check_judgment(judgment: Mapping[str, Any] | None, seen_id: str | None) -> None:
    """Refuse a form that was shown for an earlier judgment of the case."""
    if seen_id and (judgment is None or judgment["id"] != seen_id):
        raise InvalidInputError(
            "The judge has judged this case again since you opened it. Look at the case again, and "
            "send your answer again."
        )


def answers_another(case: CasePayload, reply: Mapping[str, Any]) -> bool:
    """Return whether a reply answers the question about another expert's comment."""
    said = case.get("said") or {}
    return case["kind"] == "question" and said.get("author") not in (None, reply.get("author"))


def feedback_of(case: CasePayload, reply: Mapping[str, Any]) -> dict[str, Feedback]:
    feedback: dict[str, Feedback] = {}
    for name in case["criteria"]:
        about = {"example": case["example"], "judgment": case["judgments"].get(name)}
        answer = reply.get(name) if case["kind"] == "panel" else reply
        if case["kind"] == "question":
            earlier = Feedback.model_validate({**case["said"], **about})
            question = " ".join(case["asked"])
            if answers_another(case, reply):
                fields = {**reply, **about, "rationale": f"{question}\n{reply['rationale']}"}
                feedback[name] = Feedback.model_validate(fields)
            else:
                scale = criteria_of(case)[name].scale
                feedback[name] = merge_clarification(earlier, question, reply, scale)
        elif answer:
            fields = {"author": reply.get("author"), **answer, **about}
            feedback[name] = Feedback.model_validate(fields)
    return feedback


def shown_judgments(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the judge's verdicts on a case, as experts read them."""
    criteria = criteria_of(case)
    judgments = [Judgment.model_validate(fields) for fields in case["judgments"].values()]
    return [
        {
            "criterion": judgment.criterion,
            "verdict": shown_value(criteria[judgment.criterion].scale, judgment.verdict),
            "value": shown_value(criteria[judgment.criterion].scale, judgment.value),
            "rationale": judgment.rationale,
            "confidence": None if judgment.confidence is None else f"{judgment.confidence:.0%}",
        }
        for judgment in judgments
    ]


def shown_value(scale: Scale, value: Any) -> str:
    """Return a value as experts read it."""
    labels = {choice: label for choice, label, _ in _choices(scale)}
    text = scale.show(value)
    return labels.get(text, text)


def criteria_of(case: Mapping[str, Any]) -> dict[str, Criterion]:
    return {name: Criterion.model_validate(fields) for name, fields in case["criteria"].items()}


def _choices(scale: Scale) -> list[tuple[str, str, str]]:
    """Return the value, label and hint of each choice; empty if the scale has too many."""
    match scale:
        case Boolean():
            return [("true", "Yes", "it is met"), ("false", "No", "it is not")]
        case Pairwise():
            tie = [("tie", "Tie", "no difference")] if "tie" in scale.choices else []
            return [("A", "A", "the first is better"), ("B", "B", "the second is better"), *tie]
        case Categorical():
            return [(choice, choice, "") for choice in scale.choices]
        case Numeric() if scale.integer and scale.maximum - scale.minimum < _MAX_BUTTONS:
            numbers = range(int(scale.minimum), int(scale.maximum) + 1)
            return [(str(number), str(number), "") for number in numbers]
    return []
