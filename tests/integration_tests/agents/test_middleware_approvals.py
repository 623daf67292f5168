"""A gate beside `HumanInTheLoopMiddleware`: two kinds of questions on one thread."""

from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.types import Command
from typing_extensions import TypedDict

from tests.conftest import COLD, Bench, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    Calls,
    agent,
    ask,
    calls,
    gate,
    pending,
    said,
)
from tests.integration_tests.gates.support import outputs

APPROVE = {"decisions": [{"type": "approve"}]}
ORDERS = pytest.mark.parametrize("gate_first", [True, False], ids=["gate-first", "gate-last"])


class Shop:
    """A tool that must not run unasked."""

    def __init__(self) -> None:
        self.refunded: list[str] = []

    def refund(self, order: str) -> str:
        """Pay an order back."""
        self.refunded.append(order)
        return f"{order} is paid back."


class Context(TypedDict):
    """A context of the application's own."""

    memalign: dict[str, Any]


def shop_agent(bench: Bench, shop: Shop, *, gate_first: bool, **options: Any) -> Any:
    asks = HumanInTheLoopMiddleware({"refund": True})
    context = options.pop("context_schema", None)
    judges = gate(bench, review="always", **options)
    both = [judges, asks] if gate_first else [asks, judges]
    return agent(bench, *both, tools=[shop.refund], context_schema=context)


@ORDERS
async def test_approval_and_review_follow_each_other_on_one_thread(
    bench: Bench, *, gate_first: bool
) -> None:
    shop = Shop()
    graph = shop_agent(bench, shop, gate_first=gate_first)
    model = AgentModel(bench.server, calls("refund", order="4711"), "Paid back. Sorry!")
    given = await bench.invoke(graph, ask())
    assert pending(given)["name"] == "refund"
    assert (shop.refunded, judgings(bench.server)) == ([], [])
    given = await bench.resume(graph, APPROVE)
    assert pending(given)["name"] == "review_judgment"
    assert shop.refunded == ["4711"]
    given = await bench.resume(graph, {"value": True, "rationale": "Kind."})
    assert "__interrupt__" not in given
    assert given["quality_gate"]["status"] == "accepted"
    assert given["quality_gate"]["decided_by"] == "expert"
    assert outputs(bench.server) == ["Paid back. Sorry!"]
    assert (len(model.requests), len(judgings(bench.server))) == (2, 1)
    assert shop.refunded == ["4711"]


@ORDERS
async def test_revision_that_needs_approval_again_is_asked_about(
    bench: Bench, *, gate_first: bool
) -> None:
    shop = Shop()
    graph = shop_agent(bench, shop, gate_first=gate_first, max_revisions=1)
    model = AgentModel(bench.server, "Wait.", calls("refund", order="1"), "Sorry!")
    given = await bench.invoke(graph, ask())
    given = await bench.resume(graph, COLD)
    assert pending(given)["name"] == "refund"
    given = await bench.resume(graph, APPROVE)
    assert pending(given)["name"] == "review_judgment"
    given = await bench.resume(graph, {"value": False})
    verdict = given["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("exhausted", 1)
    assert outputs(bench.server) == ["Wait.", "Sorry!"]
    assert (len(model.requests), len(judgings(bench.server))) == (3, 2)
    assert shop.refunded == ["1"]


@ORDERS
async def test_rejected_call_leads_to_an_answer_that_is_judged(
    bench: Bench, *, gate_first: bool
) -> None:
    shop = Shop()
    graph = shop_agent(bench, shop, gate_first=gate_first)
    AgentModel(bench.server, calls("refund", order="1"), "I may not, sorry!")
    await bench.invoke(graph, ask())
    reply = {"decisions": [{"type": "reject", "message": "No refunds today."}]}
    given = await bench.resume(graph, reply)
    assert pending(given)["args"]["value"] is True
    given = await bench.resume(graph, APPROVE)
    assert [one for one, _ in said(given)] == ["human", "ai", "tool", "ai"]
    assert outputs(bench.server) == ["I may not, sorry!"]
    assert shop.refunded == []


async def test_each_call_approved_alone_and_then_the_answer_reviewed(bench: Bench) -> None:
    shop = Shop()
    asks = HumanInTheLoopMiddleware({"refund": True}, interrupt_mode="per_call")
    graph = agent(bench, gate(bench, review="always"), asks, tools=[shop.refund])
    AgentModel(
        bench.server, Calls(("refund", {"order": "1"}), ("refund", {"order": "2"})), "Sorry!"
    )
    given = await bench.invoke(graph, ask())
    answers = {one.id: {"type": "approve"} for one in given["__interrupt__"]}
    assert len(answers) == 2
    given = await bench.invoke(graph, Command(resume=answers))
    assert pending(given)["name"] == "review_judgment"
    given = await bench.resume(graph, APPROVE)
    assert given["quality_gate"]["status"] == "accepted"
    assert sorted(shop.refunded) == ["1", "2"]
    assert len(judgings(bench.server)) == 1


@ORDERS
async def test_namespace_of_the_run_holds_also_where_a_tool_is_approved_first(
    bench: Bench, *, gate_first: bool
) -> None:
    shop = Shop()
    options: dict[str, Any] = {"context_schema": Context, "max_revisions": 0}
    graph = shop_agent(bench, shop, gate_first=gate_first, **options)
    AgentModel(bench.server, calls("refund", order="4711"), "Paid back.")
    await bench.invoke(graph, ask(), context={"memalign": {"namespace": ["team-a"]}})
    await bench.resume(graph, APPROVE)
    await bench.resume(graph, COLD)
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 1


async def test_reply_meant_for_the_other_question_is_refused(bench: Bench) -> None:
    shop = Shop()
    graph = shop_agent(bench, shop, gate_first=True)
    AgentModel(bench.server, calls("refund", order="1"), "Sorry!")
    await bench.invoke(graph, ask())
    await bench.resume(graph, APPROVE)
    reply = {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    assert "one judgment to decide on" in await bench.refuse(graph, reply)
    given = await bench.resume(graph, APPROVE)
    assert given["quality_gate"]["status"] == "accepted"
    assert len(judgings(bench.server)) == 1
