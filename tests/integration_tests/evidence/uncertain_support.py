"""What tests of `review="uncertain"` share: a judge that tells how sure it is, and what it asks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memalign_graph import Example, Feedback, Judgment, Uncertain
from memalign_graph.memory import judgments
from tests.conftest import CRITERION, Bench, Graph
from tests.loopback import LETTER_ALONE, ChatRequest, Rule, with_logprobs


class Clock(datetime):
    """A clock that stands still, and can be put forward."""

    at = datetime(2025, 1, 31, 12, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.at.astimezone(tz)

    @classmethod
    def forward(cls, **by: float) -> None:
        cls.at += timedelta(**by)


@pytest.fixture(name="clock")
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    """The log's clock."""
    monkeypatch.setattr(Clock, "at", Clock.at)
    monkeypatch.setattr(judgments, "datetime", Clock)
    return Clock


def case(number: int) -> dict[str, Any]:
    """One of many cases that are alike."""
    return {"inputs": f"My order {number} never came.", "outputs": "Check the tracking page."}


def is_value_alone(chat: ChatRequest) -> bool:
    """Whether the request is for a value without a rationale, to tell how sure the judge is."""
    return chat.schema is None and LETTER_ALONE in chat.text


def sure(share: float) -> list[Rule]:
    """A judge that says yes, and holds it likely by so much."""
    reply = with_logprobs("A", [("A", {"A": share, "B": 1 - share})])
    return [Rule(is_value_alone, reply=reply)]


def uncertain_graph(bench: Bench, **options: Any) -> Graph:
    """A graph that asks where it is not sure; nothing is drawn by chance unless told."""
    asking = {name: options.pop(name) for name in Uncertain.model_fields if name in options}
    uncertain = Uncertain(**{"sample_share": 0, **asking})
    return bench.review_graph(**{"review": uncertain, "confidence": True, **options})


def judged_feedback(number: int, *, value: bool = True, held: float = 0.95) -> Feedback:
    """An expert's value on a case of which the judge had said yes, as sure as it was."""
    example = Example.model_validate(case(number))
    judgment = Judgment(
        criterion=CRITERION.name,
        example_id=example.id,
        value=True,
        rationale="It is fine.",
        memory_version="0" * 32,
        probabilities={"true": held, "false": 1 - held},
    )
    return Feedback(example=example, value=value, judgment=judgment)


async def teach(bench: Bench, count: int = 60, *, doubtful: int = 20, **options: Any) -> None:
    """Fill memory: sure verdicts that the experts confirm, and doubtful ones of which half fail."""
    given = [judged_feedback(number, held=0.9 + number / 1000) for number in range(count)]
    given += [
        judged_feedback(1000 + number, value=number % 2 == 0, held=0.55)
        for number in range(doubtful)
    ]
    memory = bench.memory(**options)
    if bench.awaits:
        await memory.aremember(given)
    else:
        memory.remember(given)


def review_of(given: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether an expert was asked, and why; as the judgment tells, and as the graph does."""
    review = given["judgment"]["review"]
    assert review["asks"] == ("__interrupt__" in given)
    return review["asks"], review["reasons"]


def description(given: dict[str, Any]) -> str:
    """What the expert is shown."""
    [interrupt] = given["__interrupt__"]
    return str(interrupt.value["action_requests"][0]["description"])


async def report(bench: Bench, **options: Any) -> Any:
    """The report on what was asked."""
    memory = bench.memory()
    if bench.awaits:
        return await memory.areview_report(**options)
    return memory.review_report(**options)


async def log(bench: Bench) -> list[dict[str, Any]]:
    """The items of the log, as they lie in the store."""
    from langgraph.store.base import SearchOp

    ops = [SearchOp(("memalign", CRITERION.name, "reviews"), limit=10_000)]
    [found] = await bench.store.abatch(ops) if bench.awaits else bench.store.batch(ops)
    return [one.value for one in found]  # type: ignore[union-attr]
