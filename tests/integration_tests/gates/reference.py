"""A tiny model of a gate, written apart from it: what becomes of verdicts and faults."""

from dataclasses import dataclass, field
from typing import Any, Literal

Event = Literal["pass", "fail", "fault", "empty"]
"""What one draft meets: a verdict, a judge that fails, or no draft to judge."""

Reply = Literal["pass", "fail", "words", "ignore"]
"""What an expert says, when asked."""


@dataclass(frozen=True)
class Options:
    """How a gate was built."""

    max_revisions: int
    escalates: bool
    opens: bool
    review: str


@dataclass
class Outcome:
    """What became of the drafts."""

    statuses: list[str] = field(default_factory=list)
    drafts: int = 0
    judged: int = 0
    questions: int = 0


def expected(options: Options, events: list[Event], replies: list[Reply]) -> Outcome:
    """Say what a gate makes of a turn."""
    outcome = Outcome()
    words = list(replies)
    for event in events:
        sent_back = outcome.drafts
        outcome.drafts += 1
        if event == "fault":
            outcome.statuses.append("judge_error")
            return outcome
        passes = event == "pass"
        if event != "empty":
            outcome.judged += 1
            if asks(options, event, sent_back):
                outcome.questions += 1
                reply = words.pop(0)
                passes = {"pass": True, "ignore": passes}.get(reply, False)
        if passes:
            outcome.statuses.append("accepted")
            return outcome
        if sent_back == options.max_revisions:
            outcome.statuses.append("escalated" if options.escalates else "exhausted")
            return outcome
        outcome.statuses.append("revise")
    raise AssertionError("the script was too short")


def asks(options: Options, event: Event, sent_back: int) -> bool:
    """Say whether a gate asks the expert."""
    if options.review == "exhausted":
        return event == "fail" and sent_back == options.max_revisions
    return options.review == "always" or (options.review == "failing" and event == "fail")


def as_reply(reply: Reply) -> Any:
    """What an expert's client sends."""
    return {
        "pass": {"value": True},
        "fail": {"value": False},
        "words": "Say sorry first.",
        "ignore": {"type": "ignore"},
    }[reply]
