"""Random gates compared with a reference model."""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END

from memalign_graph import GateVerdict, Judgment
from tests.conftest import CRITERION, Bench, Graph, judgings
from tests.integration_tests.gates.support import (
    DOWN,
    Gathered,
    Writer,
    asked,
    gate_on,
    judge_rule,
    writing,
)
from tests.loopback import Rule

Event = Literal["pass", "fail", "fault", "empty"]
"""What one draft meets: a verdict, a judge that fails, or no draft to judge."""

Reply = Literal["pass", "fail", "words", "ignore"]
"""An expert's replies."""


@dataclass(frozen=True)
class Options:
    """The options of a gate."""

    max_revisions: int
    escalates: bool
    opens: bool
    review: str


@dataclass
class Outcome:
    """The outcome of a turn."""

    statuses: list[str] = field(default_factory=list)
    drafts: int = 0
    judged: int = 0
    questions: int = 0


def expected(options: Options, events: list[Event], replies: list[Reply]) -> Outcome:
    """Compute the expected outcome of a turn."""
    outcome = Outcome()
    reply_names = list(replies)
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
                reply = reply_names.pop(0)
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
    """Whether a gate interrupts for review."""
    if options.review == "exhausted":
        return event == "fail" and sent_back == options.max_revisions
    return options.review == "always" or (options.review == "failing" and event == "fail")


def as_reply(reply: Reply) -> Any:
    """The reply that a client sends."""
    return {
        "pass": {"value": True},
        "fail": {"value": False},
        "words": "Say sorry first.",
        "ignore": {"type": "ignore"},
    }[reply]


EVENTS: tuple[Event, ...] = ("pass", "fail", "fail", "fail", "fault", "empty")
REPLIES: tuple[Reply, ...] = ("pass", "fail", "words", "ignore")
TURNS = 2
LATER = "A colleague will write to you."
REVIEWS = ("never", "exhausted", "always", "failing")
WAYS_BUILT = list(itertools.product([True, False], [True, False], range(4)))


def failing(judgment: Judgment) -> bool:
    return judgment.value is False


class ScriptedWriter:
    """Writes a draft for each scripted event."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.written = 0

    def __call__(self, _state: Any) -> dict[str, Any]:
        event = self.events[self.written]
        self.written += 1
        text = "" if event == "empty" else f"A draft to {event}, number {self.written}."
        return {"messages": [AIMessage(text)]}


def build(bench: Bench, writer: ScriptedWriter, options: Options) -> tuple[Graph, Writer, Writer]:
    publish, boss = Writer("Published."), Writer("A person will call you.")
    builder = writing(writer, Gathered)
    builder.add_node("publish", publish)
    builder.add_node("boss", boss)
    builder.add_edge("publish", END)
    builder.add_edge("boss", END)
    arguments: dict[str, Any] = {
        "accept": "publish",
        "escalate": "boss" if options.escalates else None,
        "max_revisions": options.max_revisions,
        "on_judge_error": "open" if options.opens else "closed",
        "review": failing if options.review == "failing" else options.review,
        "fallback": None if options.escalates else LATER,
        "use_episodes": False,
        "use_guidelines": False,
    }
    graph = gate_on(bench, builder, CRITERION, sees="answer", **arguments)
    return bench.compile(graph), publish, boss


def check_sense(verdict: GateVerdict, options: Options) -> None:
    """Check the invariants of a verdict."""
    assert verdict["passed"] is (verdict["status"] == "accepted")
    failed = verdict["status"] == "judge_error"
    assert verdict["let_through"] is (verdict["passed"] or (failed and options.opens))
    assert bool(verdict["error"]) is failed
    assert bool(verdict["critique"]) is (not verdict["passed"] and not failed)
    assert verdict["revisions"] <= options.max_revisions
    if verdict["passed"]:
        assert verdict["value"] is True
        assert verdict["judgment"] is not None
    assert (verdict["decided_by"] == "expert") is (verdict["feedback"] is not None)


@pytest.mark.parametrize("review", REVIEWS)
async def test_gate_matches_its_reference_model(bench: Bench, review: str) -> None:
    dice = random.Random(review)  # noqa: S311 - not for secrets
    bench.server.rules = [
        Rule(lambda chat: chat.schema_name != "judgment", reply={"operations": []}),
        Rule(lambda chat: "draft to fault" in chat.text, reply=DOWN),
        judge_rule("draft to fail", False),
        judge_rule("draft to pass", True),
    ]
    for number, (escalates, opens, most) in enumerate(WAYS_BUILT):
        options = Options(most, escalates, opens, review)
        writer = ScriptedWriter()
        graph, publish, boss = build(bench, writer, options)
        bench.server.chats.clear()
        seen: list[Outcome] = []
        final: Any = {}
        for _ in range(TURNS):
            events = dice.choices(EVENTS, k=most + 1)
            replies = dice.choices(REPLIES, k=most + 1)
            before = writer.written
            writer.events = [*writer.events[:before], *events]
            final, questions = await carry_out(bench, graph, replies, str(number))
            want = expected(options, events, replies)
            seen.append(want)
            assert final["quality_gate"][-1]["status"] == want.statuses[-1], (
                options,
                events,
                replies,
            )
            assert questions == want.questions, (options, events, replies)
            assert writer.written - before == want.drafts
        verdict = final["quality_gate"]
        assert [other["status"] for other in verdict] == [s for turn in seen for s in turn.statuses]
        for other in verdict:
            check_sense(other, options)
        faults = sum(turn.statuses[-1] == "judge_error" for turn in seen)
        assert len(judgings(bench.server)) == sum(turn.judged for turn in seen) + faults
        texts = [message.text for message in final["messages"]]
        ended = [turn.statuses[-1] for turn in seen]
        replaced = sum(
            status != "accepted" and not (opens and status == "judge_error") for status in ended
        )
        assert texts.count(LATER) == (0 if escalates else replaced)
        let_through = sum(other["let_through"] for other in verdict)
        assert len(publish.seen) == let_through
        closed = 0 if opens else faults
        escalations = sum(turn.statuses[-1] == "escalated" for turn in seen)
        assert len(boss.seen) == (escalations + closed if escalates else 0)


async def carry_out(bench: Bench, graph: Graph, replies: list[Reply], name: str) -> tuple[Any, int]:
    result = await bench.invoke(graph, asked(), name)
    questions = 0
    while "__interrupt__" in result:
        questions += 1
        result = await bench.resume(graph, as_reply(replies[questions - 1]), name)
    return result, questions
