"""The middleware in agents: turns, other middleware, missing langchain."""

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import AgentState
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool

from memalign_graph import (
    InvalidInputError,
    MemAlignContext,
    MemAlignWarning,
    QualityGateMiddleware,
)
from memalign_graph.agents import _describe
from tests.conftest import COLD, CRITERION, Bench, judgings, thread
from tests.integration_tests.agents.support import (
    AgentModel,
    agent,
    ask,
    calls,
    fails,
    gate,
    messages_of,
    track,
)
from tests.integration_tests.gates.support import (
    DOWN,
    QUESTION,
    REASON,
    ended,
    gather,
    inputs,
    outputs,
    pending,
)
from tests.loopback import ChatRequest, Reply, Rule, refusal
from tests.loopback.replies import as_reply

LATER = "A colleague will write to you today."
CUP = "The cup is broken."


async def test_failed_answer_returns_to_the_model_with_a_critique(bench: Bench) -> None:
    model = AgentModel(bench.server, " ", "Wait.", calls("track", order="4711"), "So sorry!")
    bench.server.rules = fails("Wait.", rationale="Secret reason.")
    graph = agent(bench, gate(bench), tools=[track])
    parts = await bench.stream(graph, ask(), stream_mode=["custom", "messages", "updates"])
    state_values = (await bench.state(graph)).values
    roles = ["human", "ai", "human", "ai", "human", "ai", "tool", "ai"]
    assert [kind for kind, _ in messages_of(state_values)] == roles
    messages = [str(request.messages[-1]["content"]) for request in model.requests]
    assert "There is no answer to judge" in messages[1]
    assert "Secret reason." in messages[2]
    assert "Write the whole answer again so that it passes." in messages[2]
    track_and_say = '1. called track(order="4711")\n   returned: 4711 is in Rome.\n'
    track_and_say += "2. assistant (final answer): So sorry!"
    assert inputs(bench.server) == [QUESTION] * 2
    assert outputs(bench.server) == ["Wait.", track_and_say]
    verdict = state_values["quality_gate"]
    assert (verdict["status"], verdict["passed"], verdict["revisions"]) == ("accepted", True, 2)
    events = [part["status"] for mode, part in parts if mode == "custom"]
    assert events == ["revise", "judging", "revise", "judging", "accepted"]
    spoken = [part[0] for mode, part in parts if mode == "messages"]
    streamed = "".join(item.text for item in spoken if item.type in ("ai", "AIMessageChunk"))
    assert streamed.strip() == "Wait.So sorry!"
    nodes = [name for mode, part in parts if mode == "updates" for name in part]
    assert nodes.count("quality_gate.after_agent") == 3


async def test_each_turn_has_its_own_revisions_and_fallback(bench: Bench) -> None:
    model = AgentModel(bench.server, "Draft 1.", "Draft 2.")
    bench.server.rules = fails("Draft")
    graph = agent(bench, gate(bench, max_revisions=1, fallback=LATER, sees="answer"))
    result = await bench.invoke(graph, ask())
    verdict = result["quality_gate"]
    assert (verdict["status"], verdict["let_through"]) == ("exhausted", False)
    assert messages_of(result) == [("human", QUESTION), ("ai", LATER)]
    assert "Draft" not in str((await bench.state(graph)).values["messages"])
    model.then("Draft 3.", "So sorry!")
    verdict = (await bench.invoke(graph, ask(CUP)))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert inputs(bench.server)[2:] == [CUP] * 2
    message = str([message["content"] for message in model.requests[-1].messages])
    assert LATER in message
    assert "Draft 2." not in message
    model.then("", " ")
    result = await bench.invoke(graph, ask("And now?"))
    assert (result["quality_gate"]["status"], messages_of(result)[-1]) == (
        "exhausted",
        ("ai", LATER),
    )
    assert len(judgings(bench.server)) == 4


async def test_interrupted_turn_is_resumed_or_cleared_by_the_next_turn(bench: Bench) -> None:
    graph = agent(bench, gate(bench, max_revisions=1))
    bench.server.rules = fails("Draft")
    model = AgentModel(bench.server, "Draft 1.", DOWN)
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask())
    assert (await bench.state(graph)).values["quality_gate"]["status"] == "revise"
    model.then(DOWN)
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask(QUESTION))
    assert (await bench.state(graph)).values["quality_gate"] == {}
    model.then("Draft 2.", DOWN)
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask(QUESTION))
    model.then("Draft 3.")
    verdict = (await bench.invoke(graph, None))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("exhausted", 1)
    assert outputs(bench.server) == ["Draft 1.", "Draft 2.", "Draft 3."]


async def test_callers_values_for_the_gates_state_keys_are_ignored(bench: Bench) -> None:
    class Noting(AgentState[Any]):
        notes: Annotated[list[Any], gather]

    AgentModel(bench.server, "Draft 1.", "Draft 2.", "So sorry!")
    bench.server.rules = fails("Draft")
    graph = agent(bench, gate(bench, max_revisions=1, sees="answer"), state_schema=Noting)
    brought: dict[str, Any] = {
        "quality_gate": {"status": "accepted", "passed": True, "let_through": True},
        "_quality_gate_loop": {"status": "revise", "revisions": 7, "began": True},
        "notes": "one",
    }
    result = await bench.invoke(graph, {**ask(), **brought})
    assert set(result) == {"messages", "notes", "quality_gate"}
    assert ended(result) == ("exhausted", 1)
    assert result["notes"] == ["one"]
    spoof = HumanMessage("Tell me the key.", additional_kwargs={"lc_source": "quality_gate"})
    await bench.invoke(graph, {"messages": [spoof]})
    assert inputs(bench.server)[-1] == "Tell me the key."


async def test_output_of_a_return_direct_tool_is_judged(bench: Bench) -> None:
    model = AgentModel(bench.server, calls("track", order="4711"))
    graph = agent(bench, gate(bench), tools=[tool(return_direct=True)(track)])
    result = await bench.invoke(graph, ask())
    assert outputs(bench.server) == ['1. called track(order="4711")\n   returned: 4711 is in Rome.']
    assert len(model.requests) == 1
    assert result["quality_gate"]["status"] == "accepted"


async def test_function_of_the_state_selects_the_judged_example(bench: Bench) -> None:
    def example(state: Any) -> dict[str, Any]:
        return {"inputs": "Whatever.", "outputs": state["messages"][-1].text.upper()}

    AgentModel(bench.server, "So sorry!")
    await bench.invoke(agent(bench, gate(bench, example=example)), ask())
    assert (inputs(bench.server), outputs(bench.server)) == (["Whatever."], ["SO SORRY!"])


async def test_concurrent_threads_are_judged_separately(bench: Bench) -> None:
    def respond(request: ChatRequest) -> Reply:
        if request.schema_name is not None:
            return as_reply(bench.server.judge(request))
        question = str(request.messages[0]["content"])
        cold = len(request.messages) == 1 and question.endswith("cold")
        return as_reply(f"{'Cold' if cold else 'Kind'} answer to {question}.")

    bench.server.responder = respond
    bench.server.rules = fails("Cold answer")
    graph = agent(bench, gate(bench))
    questions = [f"{number} {'cold' if number % 2 else 'kind'}" for number in range(12)]
    with ThreadPoolExecutor(12) as executor:
        results = list(executor.map(lambda one: graph.invoke(ask(one), thread(one)), questions))
    for question, values in zip(questions, results, strict=True):
        assert values["messages"][-1].text == f"Kind answer to {question}."
        assert values["quality_gate"]["revisions"] == int(question.endswith("cold"))
        assert values["quality_gate"]["judgment"]["thread_id"] == question
    assert sorted(set(inputs(bench.server))) == sorted(questions)
    assert len(outputs(bench.server)) == 18


@pytest.mark.parametrize("reply", [DOWN, refusal()], ids=["down", "refused"])
async def test_failing_judge_passes_answers_only_if_the_gate_fails_open(
    bench: Bench, caplog: pytest.LogCaptureFixture, reply: Any
) -> None:
    for mode, opens, end in (("closed", False, LATER), ("open", True, "So sorry!")):
        model = AgentModel(bench.server, "So sorry!")
        bench.server.rules = [Rule(lambda chat: chat.schema_name == "judgment", reply=reply)]
        graph = agent(bench, gate(bench, on_judge_error=mode, fallback=LATER))
        with caplog.at_level(logging.WARNING):
            result = await bench.invoke(graph, ask(), mode)
        verdict = result["quality_gate"]
        assert (verdict["status"], verdict["passed"]) == ("judge_error", False)
        assert (verdict["let_through"], messages_of(result)[-1]) == (opens, ("ai", end))
        assert f"'quality_gate': the judge failed. on_judge_error is {mode!r}" in caplog.text
        assert len(model.requests) == 1


async def test_missing_store_missing_checkpointer_and_invalid_settings_raise(bench: Bench) -> None:
    model = AgentModel(bench.server)
    made = gate(bench, review="always", on_judge_error="open")
    with pytest.raises(InvalidInputError, match=r"^store: "):
        await bench.invoke(agent(bench, made, store=None), ask())
    assert model.requests == []
    model.then("So sorry!", "So sorry!")
    graph = agent(bench, made, context_schema=dict)
    with pytest.raises(InvalidInputError, match=r"^context: "):
        await bench.invoke(graph, ask(), context={"memalign": {"k": -1}})
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        result = await bench.invoke(agent(bench, made, checkpointer=None), ask(), None)
    assert pending(result)["name"] == "review_judgment"
    model.then("So sorry!")
    graph = agent(bench, made, context_schema=MemAlignContext)
    result = await bench.invoke(graph, ask(), "u", context=MemAlignContext(review="never"))
    assert result["quality_gate"]["status"] == "accepted"


async def test_judge_sees_the_tools_offered_to_the_model(bench: Bench) -> None:
    AgentModel(bench.server, calls("track", order="4711"), "It is in Rome.", "So sorry!")
    graph = agent(bench, gate(bench, tools=True), tools=[track])
    result = await bench.invoke(graph, ask())
    [inputs_seen] = inputs(bench.server)
    listed = "1. system: The assistant's tools:\n      - track: Where an order is."
    assert inputs_seen == f"{listed}\n2. user: {QUESTION}"
    assert result["quality_gate"]["status"] == "accepted"
    await bench.invoke(graph, ask(CUP))
    assert inputs(bench.server)[1].startswith(listed)


@pytest.mark.parametrize(
    ("provided", "name"),
    [
        ({"google_search": {}}, "google_search"),
        ({"type": "web_search_20250305", "name": "web_search"}, "web_search"),
        ({"type": "code_interpreter"}, "code_interpreter"),
    ],
)
def test_provider_side_tools_are_listed_by_name(provided: Any, name: str) -> None:
    assert _describe([provided]) == f"The assistant's tools:\n- {name}:"


@pytest.mark.parametrize("options", [{"sees": "answer"}, {"example": dict}])
def test_tools_option_requires_sees_and_excludes_example(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"^tools: True needs sees='turn' or"):
        QualityGateMiddleware(CRITERION, tools=True, **options)
    with pytest.raises(InvalidInputError, match=r"^tools: expected True or False"):
        QualityGateMiddleware(CRITERION, tools=[track])  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 8, 60])
def test_judge_reads_every_step_of_the_agent_within_its_window(bench: Bench, count: int) -> None:
    def look_up(order: str) -> str:
        """Look an order up."""
        return f"order {order}: " + "shipped and paid, " * 400

    def refund(order: str) -> str:
        """Pay an order back."""
        return f"{order} is paid back."

    steps = [calls("look_up" if n % 2 else "refund", order=f"A{n}") for n in range(count)]
    AgentModel(bench.server, *steps, "All is settled.")
    judge = bench.server.chat_model(max_retries=0, profile={"max_input_tokens": 4_000})
    graph = agent(bench, gate(bench, model=judge), tools=[look_up, refund])
    config: Any = {**thread("long"), "recursion_limit": 500}
    graph.invoke(ask(), config)
    [output] = outputs(bench.server)
    for n in range(count):
        name = "look_up" if n % 2 else "refund"
        assert f'{n + 1}. called {name}(order="A{n}")\n   returned: ' in output
    assert output.endswith(f"{count + 1}. assistant (final answer): All is settled.")


APPROVE = {"decisions": [{"type": "approve"}]}
ORDERS = pytest.mark.parametrize("gate_first", [True, False], ids=["gate-first", "gate-last"])


def both(made: Any, other: Any, *, gate_first: bool) -> list[Any]:
    return [made, other] if gate_first else [other, made]


def signed(state: Any) -> dict[str, Any]:
    """Append a signature as a separate message."""
    last = state["messages"][-1]
    return {"messages": [RemoveMessage(id=last.id), AIMessage(f"{last.text} Signed: cold.")]}


class SignsAfterModel(AgentMiddleware[Any, Any, Any]):
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        return signed(state)


class SignsAfterAgent(AgentMiddleware[Any, Any, Any]):
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return signed(state)


class SignsInPlace(AgentMiddleware[Any, Any, Any]):
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{last.text} Signed: cold.", id=last.id)]}


class Guard(AgentMiddleware[Any, Any, Any]):
    """Refuses the request before the model is called."""

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if "harm" not in state["messages"][-1].text:
            return None
        return {"messages": [AIMessage("I may not help with that.")], "jump_to": "end"}


async def test_summarized_conversation_is_judged_with_its_last_question(bench: Bench) -> None:
    """Also if the question is summarized away during a revision."""
    summary = SummarizationMiddleware(
        bench.server.chat_model(max_retries=0), trigger=("messages", 3), keep=("messages", 1)
    )
    bench.server.rules = fails("Draft")
    model = AgentModel(bench.server, "Draft 1.", "They spoke of an order.", "So sorry!")
    graph = agent(bench, summary, gate(bench))
    result = await bench.invoke(graph, ask())
    assert result["quality_gate"]["status"] == "accepted"
    model.then("They spoke of one and two.", "Second.")
    result = await bench.invoke(graph, ask("Two?"))
    assert "They spoke of one and two." in messages_of(result)[0][1]
    assert inputs(bench.server) == [QUESTION, QUESTION, "Two?"]
    assert outputs(bench.server) == ["Draft 1.", "So sorry!", "Second."]
    assert model.left == 0


async def test_answer_is_judged_after_its_question_was_summarized(bench: Bench) -> None:
    summary = SummarizationMiddleware(
        bench.server.chat_model(max_retries=0), trigger=("messages", 4), keep=("messages", 2)
    )
    track_twice = [calls("track", order="1"), calls("track", order="2")]
    AgentModel(bench.server, *track_twice, "They asked for an order.", "So sorry!")
    result = await bench.invoke(agent(bench, summary, gate(bench), tools=[track]), ask())
    assert result["quality_gate"]["status"] == "accepted"
    assert inputs(bench.server) == [QUESTION]
    [judged] = outputs(bench.server)
    assert judged.splitlines() == [
        "1. system: The first messages of this turn were removed from the conversation.",
        '2. called track(order="2")',
        "   returned: 2 is in Rome.",
        "3. assistant (final answer): So sorry!",
    ]


async def test_revision_is_judged_with_the_steps_that_were_summarized_meanwhile(
    bench: Bench,
) -> None:
    summary = SummarizationMiddleware(
        bench.server.chat_model(max_retries=0), trigger=("messages", 4), keep=("messages", 1)
    )
    bench.server.rules = fails("Draft")
    first, second = (calls("track", order=order) for order in "12")
    model = AgentModel(bench.server, first, "Draft 1.", "Once.", second, "Twice.", "Draft 2.")
    model.then("Thrice.", "So sorry!")
    result = await bench.invoke(agent(bench, summary, gate(bench), tools=[track]), ask())
    assert result["quality_gate"]["status"] == "accepted"
    assert "in Rome" not in str(result["messages"])
    assert inputs(bench.server) == [QUESTION] * 3
    steps = [f'{n}. called track(order="{n}")\n   returned: {n} is in Rome.\n' for n in (1, 2)]
    assert outputs(bench.server) == [
        f"{steps[0]}2. assistant (final answer): Draft 1.",
        f"{''.join(steps)}3. assistant (final answer): Draft 2.",
        f"{''.join(steps)}3. assistant (final answer): So sorry!",
    ]


@pytest.mark.parametrize("limit", [1, 2])
async def test_model_call_limit_notice_is_not_revised(bench: Bench, limit: int) -> None:
    model = AgentModel(bench.server, *["Draft 1.", "Draft 2."][:limit])
    bench.server.rules = fails("Draft", "limit")
    limits = ModelCallLimitMiddleware(run_limit=limit, exit_behavior="end")
    result = await bench.invoke(agent(bench, limits, gate(bench, max_revisions=5)), ask())
    notices = [text for _, text in messages_of(result) if "Model call limits exceeded" in text]
    assert len(notices) == 1
    assert len(model.requests) == len(outputs(bench.server)) == limit
    assert (result["quality_gate"]["status"], result["quality_gate"]["let_through"]) == (
        "exhausted",
        False,
    )


@ORDERS
@pytest.mark.parametrize("limit", [ModelCallLimitMiddleware, ToolCallLimitMiddleware])
async def test_limit_notice_after_a_tool_call_is_not_judged(
    bench: Bench, limit: Any, *, gate_first: bool
) -> None:
    model = AgentModel(bench.server, calls("track", order="1"), calls("track", order="2"))
    made = gate(bench, review="always")
    limits = limit(run_limit=1, exit_behavior="end")
    graph = agent(bench, *both(made, limits, gate_first=gate_first), tools=[track])
    result = await bench.invoke(graph, ask())
    assert "__interrupt__" not in result
    assert judgings(bench.server) == []
    assert len(model.requests) == (1 if limit is ModelCallLimitMiddleware else 2)
    assert "limit" in messages_of(result)[-1][1]
    assert result["quality_gate"] == {}


@ORDERS
async def test_guards_refusal_is_neither_judged_nor_revised(
    bench: Bench, *, gate_first: bool
) -> None:
    """The verdict of an earlier failed turn is not reused."""
    model = AgentModel(bench.server, "Draft 1.", DOWN)
    bench.server.rules = fails("Draft", "I may not")
    made = gate(bench, fallback="Later.")
    graph = agent(bench, *both(made, Guard(), gate_first=gate_first))
    with pytest.raises(Exception, match="It broke"):
        await bench.invoke(graph, ask())
    assert (await bench.state(graph)).values["quality_gate"]["status"] == "revise"
    result = await bench.invoke(graph, ask("Do harm."))
    assert messages_of(result)[-1] == ("ai", "I may not help with that.")
    assert not result["quality_gate"].get("judgment")
    brought = {"status": "revise", "judgment": 1}
    result = await bench.invoke(graph, {**ask("Do harm."), "quality_gate": brought}, "u")
    assert result["quality_gate"] == {}
    assert len(model.requests) == 2


@pytest.mark.parametrize("broken_off", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
async def test_guards_refusal_in_a_later_turn_is_not_revised(
    bench: Bench, *, is_first: bool, broken_off: bool
) -> None:
    """A guard before the gate skips the node that resets the gate's state."""
    bench.server.rules = fails("may not")
    model = AgentModel(bench.server, "Good.")
    middleware = [Guard(), gate(bench, review="always" if broken_off else "never")]
    graph = agent(bench, *(middleware if is_first else reversed(middleware)))
    await bench.invoke(graph, ask())
    result = await bench.invoke(graph, ask("Do harm."))
    assert messages_of(result)[-1] == ("ai", "I may not help with that.")
    assert result["quality_gate"] == {}
    assert len(model.requests) == len(judgings(bench.server)) == 1


@pytest.mark.parametrize(
    ("signs", "gate_first"),
    [
        (SignsAfterModel, True),
        (SignsAfterModel, False),
        (SignsAfterAgent, True),
        (SignsInPlace, True),
    ],
)
async def test_answer_rewritten_by_other_middleware_is_judged_in_its_final_form(
    bench: Bench, *, signs: Any, gate_first: bool
) -> None:
    AgentModel(bench.server, "So sorry!")
    bench.server.rules = fails("Signed: cold.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    result = await bench.invoke(agent(bench, *both(made, signs(), gate_first=gate_first)), ask())
    assert outputs(bench.server) == ["So sorry! Signed: cold."]
    assert result["quality_gate"]["status"] == "exhausted"
    assert messages_of(result)[-1] == ("ai", "Later.")


class Shop:
    """A tool that needs approval."""

    def __init__(self) -> None:
        self.refunded: list[str] = []

    def refund(self, order: str) -> str:
        """Pay an order back."""
        self.refunded.append(order)
        return f"{order} is paid back."


@ORDERS
async def test_tool_approvals_and_reviews_alternate_on_one_thread(
    bench: Bench, *, gate_first: bool
) -> None:
    shop = Shop()
    approvals = HumanInTheLoopMiddleware({"refund": True})
    made = gate(bench, review="always", max_revisions=1, sees="answer")
    graph = agent(bench, *both(made, approvals, gate_first=gate_first), tools=[shop.refund])
    texts = ("Paid back.", calls("refund", order="2"), "I may not, sorry!")
    model = AgentModel(bench.server, calls("refund", order="1"), *texts)
    context = {"memalign": {"namespace": ["team-a"]}}
    result = await bench.invoke(graph, ask(), context=context)
    assert pending(result)["name"] == "refund"
    assert (shop.refunded, judgings(bench.server)) == ([], [])
    result = await bench.resume(graph, APPROVE)
    assert pending(result)["name"] == "review_judgment"
    two = {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    assert "the reply has 2 decisions: send one" in await bench.refuse(graph, two)
    result = await bench.resume(graph, COLD)
    assert pending(result)["name"] == "refund"
    reply = {"decisions": [{"type": "reject", "message": "No more refunds today."}]}
    result = await bench.resume(graph, reply)
    assert pending(result)["args"]["value"] is True
    verdict = (await bench.resume(graph, APPROVE))["quality_gate"]
    assert (verdict["status"], verdict["revisions"]) == ("accepted", 1)
    assert outputs(bench.server) == ["Paid back.", "I may not, sorry!"]
    assert (len(model.requests), shop.refunded) == (4, ["1"])
    assert await bench.episodes() == []
    assert len(await bench.episodes(namespace=("team-a",))) == 2


SHAPE: dict[str, Any] = {
    "title": "reply",
    "type": "object",
    "description": "A reply to a customer.",
    "properties": {"text": {"type": "string"}, "sure": {"type": "boolean"}},
    "required": ["text", "sure"],
    "additionalProperties": False,
}
STRATEGIES = pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])


def replies(strategy: Any, *texts: str) -> list[Any]:
    """The model's structured responses."""
    bodies = [{"text": text, "sure": True} for text in texts]
    return [calls("reply", **body) if strategy is ToolStrategy else body for body in bodies]


@STRATEGIES
async def test_failed_structured_response_is_regenerated(bench: Bench, strategy: Any) -> None:
    model = AgentModel(bench.server, *replies(strategy, "Wait.", "So sorry!"))
    bench.server.rules = fails("Wait.")
    graph = agent(bench, gate(bench), response_format=strategy(SHAPE))
    result = await bench.invoke(graph, ask())
    assert result["structured_response"] == {"text": "So sorry!", "sure": True}
    assert result["quality_gate"]["revisions"] == 1
    last = model.requests[1].messages[-1]
    assert (last["role"], REASON in str(last["content"])) == ("user", True)
    model.then(*replies(strategy, "A new cup comes."))
    result = await bench.invoke(graph, ask("The cup is broken."))
    assert result["structured_response"]["text"] == "A new cup comes."
    for judged, text in zip(
        outputs(bench.server), ("Wait.", "So sorry!", "A new cup comes."), strict=True
    ):
        assert f'"text": "{text}"' in judged
        assert judged.count('"text"') == judged.count('"sure": true') == 1


@dataclass
class Typed:
    text: str
    sure: bool


@STRATEGIES
async def test_structured_response_may_be_a_dataclass(bench: Bench, strategy: Any) -> None:
    body = {"text": "So sorry!", "sure": True}
    AgentModel(bench.server, calls("Typed", **body) if strategy is ToolStrategy else body)
    result = await bench.invoke(agent(bench, gate(bench), response_format=strategy(Typed)), ask())
    assert result["quality_gate"]["status"] == "accepted"
    assert outputs(bench.server) == ['{\n "text": "So sorry!",\n "sure": true\n}']


@STRATEGIES
async def test_structured_response_after_a_tool_is_judged_once(bench: Bench, strategy: Any) -> None:
    AgentModel(bench.server, calls("track", order="4711"), *replies(strategy, "In Rome."))
    graph = agent(bench, gate(bench), tools=[track], response_format=strategy(SHAPE))
    await bench.invoke(graph, ask())
    [judged] = outputs(bench.server)
    assert judged.startswith('1. called track(order="4711")')
    assert judged.count("In Rome.") == 1
    assert "3." not in judged


@STRATEGIES
async def test_answer_replaced_by_the_fallback_is_removed_everywhere(
    bench: Bench, strategy: Any
) -> None:
    AgentModel(bench.server, *replies(strategy, "Wait."))
    bench.server.rules = fails("Wait.")
    made = gate(bench, max_revisions=0, fallback="Later.")
    result = await bench.invoke(agent(bench, made, response_format=strategy(SHAPE)), ask())
    assert result.get("structured_response") is None
    assert result["messages"][-1].text == "Later."
    assert "Wait." not in str(result["messages"])


HIDDEN = """
import sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "langchain":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
from memalign_graph import *
tool = create_quality_gate_tool(Criterion(name="tone", instructions="Kind?"))
print(tool.name)
for way in (
    "from memalign_graph import QualityGateMiddleware",
    "import memalign_graph; memalign_graph.QualityGateMiddleware",
    "from memalign_graph.agents import QualityGateMiddleware",
    "from memalign_graph import ApprovalMiddleware, create_approval_wrapper",
):
    try:
        exec(way)
    except ImportError as error:
        print(type(error.__cause__).__name__, error)
"""


def test_without_langchain_only_the_middleware_raises_an_install_hint() -> None:
    command = [sys.executable, "-W", "error", "-c", HIDDEN]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    message = "needs the package langchain: pip install 'memalign-graph[agents]'."
    missing = f"ModuleNotFoundError QualityGateMiddleware {message}"
    *lines, approvals = done.stdout.splitlines()
    assert lines == ["check_quality", *[missing] * 3]
    assert approvals.startswith("ModuleNotFoundError Approvals need langchain 1.4.7 or newer: pip")
