"""A gate beside langchain's own middleware."""

from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain_core.messages import AIMessage, RemoveMessage

from tests.conftest import Bench, judgings
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    calls,
    fails,
    gate,
    said,
)
from tests.integration_tests.gates.support import DOWN, QUESTION, inputs, outputs


class RewritesAfterModel(AgentMiddleware[Any, Any, Any]):
    """Signs what the model wrote, in a message of its own."""

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [RemoveMessage(id=last.id), AIMessage(f"{last.text} Signed: cold.")]}


class RewritesAfterAgent(AgentMiddleware[Any, Any, Any]):
    """Likewise, once the agent is done."""

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [RemoveMessage(id=last.id), AIMessage(f"{last.text} Signed: cold.")]}


class RewritesInPlace(AgentMiddleware[Any, Any, Any]):
    """Likewise, and the message keeps its id."""

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{last.text} Signed: cold.", id=last.id)]}


class Guard(AgentMiddleware[Any, Any, Any]):
    """Refuses what is asked for before the model has seen it."""

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if "harm" not in state["messages"][-1].text:
            return None
        return {"messages": [AIMessage("I may not help with that.")], "jump_to": "end"}


async def test_personal_data_is_taken_out_before_the_judge_sees_the_answer(bench: Bench) -> None:
    AgentModel(bench.server, "Write to ann@shop.example, sorry!")
    redacts = PIIMiddleware("email", strategy="redact", apply_to_output=True)
    for on, both in enumerate(([redacts, gate(bench)], [gate(bench), redacts])):
        given = await bench.invoke(agent(bench, *both), ask("I am bo@home.example."), str(on))
        AgentModel(bench.server, "Write to ann@shop.example, sorry!")
        assert given["quality_gate"]["status"] == "accepted"
        assert "@" not in "".join([*inputs(bench.server), *outputs(bench.server)])
        assert "REDACTED_EMAIL" in said(given)[-1][1]


async def test_to_do_list_beside_a_gate(bench: Bench) -> None:
    todo = {"content": "Look it up", "status": "in_progress"}
    bench.server.rules = fails("Wait.")
    AgentModel(bench.server, calls("write_todos", todos=[todo]), "Wait.", "So sorry!")
    given = await bench.invoke(agent(bench, TodoListMiddleware(), gate(bench)), ask())
    assert given["todos"] == [todo]
    assert given["quality_gate"]["revisions"] == 1
    assert outputs(bench.server) == ["Wait.", "So sorry!"]


async def test_conversation_that_is_summarised_is_judged_by_its_last_question(
    bench: Bench,
) -> None:
    model = AgentModel(bench.server, "First.", "Second.")
    summary = SummarizationMiddleware(
        bench.server.chat_model(max_retries=0), trigger=("messages", 5), keep=("messages", 1)
    )
    graph = agent(bench, summary, gate(bench))
    await bench.invoke(graph, ask("One?"))
    await bench.invoke(graph, ask("Two?"))
    model.then("They spoke of one and two.", "Third.")
    given = await bench.invoke(graph, ask("Three?"))
    assert "They spoke of one and two." in said(given)[0][1]
    assert inputs(bench.server) == ["One?", "Two?", "Three?"]
    assert outputs(bench.server) == ["First.", "Second.", "Third."]


async def test_summary_that_takes_the_question_away_is_not_judged_as_the_question(
    bench: Bench,
) -> None:
    summary = SummarizationMiddleware(
        bench.server.chat_model(max_retries=0), trigger=("messages", 3), keep=("messages", 1)
    )
    bench.server.rules = fails("Draft")
    model = AgentModel(bench.server, "Draft 1.", "They spoke of an order.", "So sorry!")
    given = await bench.invoke(agent(bench, summary, gate(bench)), ask())
    assert model.left == 0
    assert inputs(bench.server)[-1] == QUESTION
    assert given["quality_gate"]["status"] == "accepted"


async def test_model_is_not_called_beyond_its_limit_by_a_gate(bench: Bench) -> None:
    model = AgentModel(bench.server, "Draft 1.", "Draft 2.")
    bench.server.rules = fails("Draft", "limit")
    limit = ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")
    given = await bench.invoke(agent(bench, limit, gate(bench, max_revisions=5)), ask())
    assert len(model.requests) == 2
    assert given["quality_gate"]["let_through"] is False


async def test_notice_that_the_limit_is_reached_is_not_sent_back_again_and_again(
    bench: Bench,
) -> None:
    AgentModel(bench.server, "Draft 1.")
    bench.server.rules = fails("Draft", "limit")
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
    given = await bench.invoke(agent(bench, limit, gate(bench, max_revisions=3)), ask())
    notices = [text for _, text in said(given) if "Model call limits exceeded" in text]
    assert len(notices) == 1
    assert outputs(bench.server) == ["Draft 1."]


async def test_refusal_of_a_guard_is_not_sent_to_the_model_it_was_kept_from(bench: Bench) -> None:
    model = AgentModel(bench.server, *["Here is how."] * 3)
    bench.server.rules = fails("I may not")
    for number, both in enumerate(([Guard(), gate(bench)], [gate(bench), Guard()])):
        given = await bench.invoke(agent(bench, *both), ask("Do harm."), str(number))
        assert model.requests == []
        assert said(given)[-1] == ("ai", "I may not help with that.")


async def test_turn_that_a_guard_ends_has_no_verdict_of_one_that_broke_off(bench: Bench) -> None:
    AgentModel(bench.server, "Draft 1.", DOWN)
    bench.server.rules = fails("Draft")
    graph = agent(bench, Guard(), gate(bench, fallback="Later."))
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask())
    assert (await bench.state(graph)).values["quality_gate"]["status"] == "revise"
    given = await bench.invoke(graph, ask("Do harm."))
    assert said(given)[-1] == ("ai", "I may not help with that.")
    assert not given["quality_gate"].get("judgment")


@pytest.mark.parametrize(
    ("rewrites", "gate_first"),
    [(RewritesAfterModel, True), (RewritesAfterModel, False), (RewritesAfterAgent, True)],
    ids=["model-gate-first", "model-gate-last", "agent-gate-first"],
)
async def test_answer_that_another_middleware_rewrites_is_judged_as_it_will_be_read(
    bench: Bench, *, rewrites: Any, gate_first: bool
) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = fails("Signed: cold.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    both = [made, rewrites()] if gate_first else [rewrites(), made]
    given = await bench.invoke(agent(bench, *both), ask())
    assert outputs(bench.server) == ["So sorry! Signed: cold."]
    assert given["quality_gate"]["status"] == "exhausted"
    assert said(given)[-1] == ("ai", "Later.")


async def test_rewriting_that_keeps_the_answers_id_is_judged_too(bench: Bench) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = fails("Signed: cold.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    given = await bench.invoke(agent(bench, made, RewritesInPlace()), ask())
    assert outputs(bench.server) == ["So sorry! Signed: cold."]
    assert said(given)[-1] == ("ai", "Later.")


async def test_notice_that_no_tool_may_be_called_any_more_ends_the_turn(bench: Bench) -> None:
    def track(order: str) -> str:
        """Where an order is."""
        return f"{order} is in Rome."

    model = AgentModel(bench.server, calls("track", order="1"), calls("track", order="2"))
    limit = ToolCallLimitMiddleware(run_limit=1, exit_behavior="end")
    bench.server.rules = fails("limit")
    given = await bench.invoke(agent(bench, limit, gate(bench), tools=[track]), ask())
    assert len(model.requests) == 2
    assert "limit" in said(given)[-1][1]
    assert given["quality_gate"].get("passed") is not True


async def test_notice_that_the_limit_is_reached_after_a_tool_was_called_is_no_answer(
    bench: Bench,
) -> None:
    def track(order: str) -> str:
        """Where an order is."""
        return f"{order} is in Rome."

    for number, gate_first in enumerate((True, False)):
        model = AgentModel(bench.server, calls("track", order="1"))
        limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
        made = gate(bench, review="always")
        both = [made, limit] if gate_first else [limit, made]
        given = await bench.invoke(agent(bench, *both, tools=[track]), ask(), str(number))
        assert "__interrupt__" not in given
        assert judgings(bench.server) == []
        assert len(model.requests) == 1
        assert "limit" in said(given)[-1][1]


async def test_model_that_is_asked_again_after_a_failure(bench: Bench) -> None:
    model = AgentModel(bench.server, DOWN, "So sorry!")
    again = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)
    given = await bench.invoke(agent(bench, again, gate(bench)), ask())
    assert given["quality_gate"]["status"] == "accepted"
    assert (len(model.requests), len(judgings(bench.server))) == (2, 1)
