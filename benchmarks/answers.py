"""What the benchmark's model answers: pure functions from a request's schema to its content."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from tests.loopback.judge_double import instance

GUIDELINES_PER_CALL = 5
"""How many guidelines a call to distil brings."""

GUIDELINES_PER_RECORD = 2
"""How many at most for each record in it: one record alone does not teach five rules."""

_SOURCES_PER_GUIDELINE = 2

_RATIONALE = (
    "The reply names what was asked for and the step that follows, but leaves out the date by "
    "which the customer can expect it."
)

_TOPICS = (
    "a refund for a damaged parcel", "a late delivery", "a cancelled subscription",
    "a double charge", "an expired voucher", "a broken zip", "a missing invoice",
    "a locked account", "a wrong size", "a lost password", "a recalled battery",
    "a change of address", "a gift that came too late", "an unreadable manual",
    "a noisy fan", "a failed card payment", "a delayed spare part", "a warranty claim",
    "a faulty charger", "a price that changed overnight", "an unanswered letter",
    "a returned lamp", "a crashed update", "a wrong colour", "a swollen package",
    "an overdue repair", "a customs fee", "a stolen parcel", "a closed shop",
    "a discount that was not applied", "a blocked download", "a scratched screen",
)  # fmt: skip

_DEMANDS = (
    "names the day by which it is settled", "says sorry before it asks for anything",
    "gives the amount in the customer's currency", "offers a person to call",
    "links the form instead of describing it", "does not blame the carrier",
    "repeats the order number", "keeps to five sentences", "says who pays the postage",
    "tells what happens if nobody answers", "states the legal period of return",
    "asks for at most one photo", "promises nothing without a date",
    "thanks for the patience only once", "lists the steps in their order",
    "mentions the voucher as a choice, not as the answer", "avoids every abbreviation",
    "quotes the rule it relies on", "says when the shop will write again",
    "admits the mistake in plain words", "gives the opening hours of the counter",
    "leaves out advertisements", "names the part that is replaced",
    "confirms the address before sending", "tells how to follow the parcel",
    "uses the name the customer signed with", "answers every question that was asked",
    "explains the fee with one example", "warns about data that will be lost",
    "says which receipt is needed",
)  # fmt: skip

_ROLES = ("", "first ", "written ", "final ")

_LENGTHS = range(60, 111)

_TEXTS = sorted(
    (
        text
        for role, demand, topic in itertools.product(_ROLES, _DEMANDS, _TOPICS)
        if len(text := f"A {role}reply about {topic} {demand}, else it is false.") in _LENGTHS
    ),
    key=len,
)

_STRIDE = 1_009
"""A prime, so that steps of it reach every text before one comes again."""


def guideline_text(number: int) -> str:
    """Write a guideline of 60 to 110 characters.

    Any five in a row hold one of each fifth by length: calls take about equally long.

    Args:
        number: Which one; thousands of numbers in a row give different texts.

    Returns:
        The text.
    """
    fifth = len(_TEXTS) // GUIDELINES_PER_CALL
    turn, place = divmod(number, GUIDELINES_PER_CALL)
    return _TEXTS[place * fifth + turn * _STRIDE % fifth]


class Answers:
    """Answers requests by the shape of the schema they bring, each call to distil anew."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def content(self, schema: dict[str, Any] | None, prompt: str) -> Any:
        """Answer a request.

        Args:
            schema: The JSON Schema it asks for, if any.
            prompt: The text of its messages.

        Returns:
            A JSON value that the schema allows.
        """
        if schema is None:
            return {"rationale": _RATIONALE, "value": True}
        properties = schema.get("properties", {})
        content: Any = instance(schema)
        if "rationale" in properties:
            content["rationale"] = _RATIONALE
        if "operations" in properties:
            content["operations"] = list(self._operations(properties["operations"]))
        if "guidelines" in properties:
            content["guidelines"] = list(self._guidelines(prompt))
        return content

    def _operations(self, operations: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield operations of this package's distiller."""
        item = operations["items"]
        handles = item["properties"].get("feedback", {}).get("items", {}).get("enum", [])
        for place in range(_count(len(handles))):
            made = {
                "action": "add",
                "guideline": "none",
                "text": self._next_text(),
                "feedback": _some(handles, place),
            }
            yield {name: made[name] for name in item["properties"]}

    def _guidelines(self, prompt: str) -> Iterator[dict[str, Any]]:
        """Yield guidelines as the peer's distiller asks for them."""
        ids = [int(number) for number in re.findall(r'^\s*"id": (\d+),', prompt, re.MULTILINE)]
        for place in range(_count(len(ids))):
            yield {"guideline_text": self._next_text(), "source_trace_ids": _some(ids, place)}

    def _next_text(self) -> str:
        return guideline_text(next(self._numbers))


def _count(records: int) -> int:
    return min(GUIDELINES_PER_CALL, GUIDELINES_PER_RECORD * max(1, records))


def _some(sources: list[Any], place: int) -> list[Any]:
    """Choose the sources of the guideline at a place, spread over all there are."""
    if not sources:
        return []
    step = max(1, len(sources) // (GUIDELINES_PER_CALL * _SOURCES_PER_GUIDELINE))
    first = place * _SOURCES_PER_GUIDELINE
    chosen = [sources[(first + one) * step % len(sources)] for one in range(_SOURCES_PER_GUIDELINE)]
    return list(dict.fromkeys(chosen))
