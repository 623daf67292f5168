"""What langchain documents of its middleware, done by its own and by ours, compared."""

from functools import partial
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime
from langgraph.types import Command

from memalign_graph import ApprovalMiddleware, InvalidInputError
from tests.conftest import Bench, thread
from tests.integration_tests.agents.support import AgentModel, Calls
from tests.integration_tests.agents.support import agent as agent_with
from tests.integration_tests.approvals.support import APPROVE, CRITERION, Shop, ask
from tests.integration_tests.gates.support import models

REFUND = ("refund", {"order": "A7", "amount": 20})
EMAIL = ("send_email", {"to": "bob@example.com", "body": "Hello."})
LOOK_UP = ("look_up", {"name": "Bob"})
REJECT = {"type": "reject", "message": "Not this one."}
RESPOND = {"type": "respond", "message": "The bank is closed."}


def describe(tool_call: Any, state: Any, runtime: Any) -> str:
    return f"{tool_call['name']} after {len(state['messages'])} messages"


def only(*allowed: str, **more: Any) -> dict[str, Any]:
    return {"refund": {"allowed_decisions": list(allowed), **more}}


def edit(tool: str, /, **args: Any) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": tool, "args": args}}


def is_large(request: Any) -> bool:
    return bool(request.tool_call["args"]["amount"] > 100)


EDIT = edit("refund", order="A7", amount=5)
CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "approve": ({"refund": True}, [REFUND], [APPROVE]),
    "edit": ({"refund": True}, [REFUND], [EDIT]),
    "reject": ({"refund": True}, [REFUND], [REJECT]),
    "reject without a word": ({"refund": True}, [REFUND], [{"type": "reject"}]),
    "respond": ({"refund": True}, [REFUND], [RESPOND]),
    "not asked about": ({"refund": False}, [REFUND], []),
    "only some decisions": (only("approve", "reject"), [REFUND], [APPROVE]),
    "one decision": (only("respond"), [REFUND], [RESPOND]),
    "a decision that is not allowed": (only("approve"), [REFUND], [REJECT]),
    "several, in order": (
        {"refund": True, "send_email": True},
        [REFUND, LOOK_UP, EMAIL],
        [EDIT, REJECT],
    ),
    "a description": (only("approve", description="Look twice."), [REFUND], [APPROVE]),
    "a function that describes": (only("approve", description=describe), [REFUND], [APPROVE]),
    "a condition": (
        {**only("approve", when=is_large), "send_email": True},
        [REFUND, EMAIL],
        [APPROVE],
    ),
}


WRONG: dict[str, list[Any]] = {
    "too few": [],
    "too many": [APPROVE, APPROVE],
    "a type that is not known": [{"type": "postpone"}],
    "no type": [{"message": "Yes."}],
    "no decision": ["yes"],
    "a response without words": [{"type": "respond"}],
    "an edit without a call": [{"type": "edit"}],
    "an edit to another tool": [edit("look_up", name="Bob")],
    "an edit to a tool that is not there": [edit("pay")],
    "an edit with arguments of other types": [edit("refund", order="A7")],
}


def outcome(run: Any) -> Any:
    """Return what came of a call, or the error it raised."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever langchain raises
        return type(error).__name__, str(error)


def agent(bench: Bench, middleware: Any, shop: Shop, calls: list[Any]) -> Any:
    AgentModel(bench.server, Calls(*calls), *["Done."] * 3)
    return agent_with(bench, middleware, tools=shop.tools, checkpointer=InMemorySaver())


def run(bench: Bench, middleware: Any, calls: list[Any], *replies: list[Any]) -> list[Any]:
    """Return what is asked; and what ran, what came of it and what is next after each reply."""
    shop = Shop()
    graph = agent(bench, middleware, shop, calls)
    result = graph.invoke(ask(), thread("t"))
    asked = result.get("__interrupt__", ())
    asked = sorted(asked, key=lambda interrupt: interrupt.value.get("tool_call_id", ""))
    seen: list[Any] = [[(each.value, getattr(each, "response_schema", None)) for each in asked]]
    for decisions in replies:
        reply: Any = {"decisions": decisions}
        if asked and "action_requests" not in asked[0].value:
            is_paired = len(decisions) == len(asked)
            each = decisions if is_paired else [decisions]
            reply = {question.id: item for question, item in zip(asked, each, strict=True)}
        if asked:
            result = outcome(partial(graph.invoke, Command(resume=reply), thread("t")))
        if isinstance(result, dict):
            result = [(message.type, message.text) for message in result["messages"]]
        after = [node.rpartition(".")[2] for node in graph.get_state(thread("t")).next]
        seen.append([result, sorted(map(str, shop.ran)), after])
    return seen


@pytest.mark.parametrize("case", [*CASES, *WRONG])
def test_questions_and_decisions_are_as_langchains(bench: Bench, mode: str, case: str) -> None:
    """Also if the first answer is wrong, and the second is right."""
    wrong = ({"refund": True}, [REFUND], WRONG.get(case), [APPROVE])
    interrupt_on, calls, *replies = CASES.get(case, wrong)
    options: dict[str, Any] = {"interrupt_on": interrupt_on, "interrupt_mode": mode}
    theirs = run(bench, HumanInTheLoopMiddleware(**options), calls, *replies)
    ours = run(bench, ApprovalMiddleware(CRITERION, **options, **models(bench)), calls, *replies)
    assert ours == theirs


@pytest.mark.parametrize(
    "edited",
    [None, "refund", {"name": "refund"}, {"name": 5, "args": {}}, {"name": "refund", "args": "5"}],
)
def test_an_edit_that_is_not_a_call_runs_and_teaches_nothing(bench: Bench, edited: Any) -> None:
    """Langchain runs the original call where the edited one is None."""
    shop = Shop()
    options: dict[str, Any] = {"interrupt_on": {"refund": True}, **models(bench)}
    graph = agent(bench, ApprovalMiddleware(CRITERION, **options), shop, [REFUND, REFUND])
    graph.invoke(ask(), thread("t"))
    decisions = [APPROVE, {"type": "edit", "edited_action": edited}]
    with pytest.raises(InvalidInputError, match="edited_action"):
        graph.invoke(Command(resume={"decisions": decisions}), thread("t"))
    assert (shop.ran, bench.memory(CRITERION).episodes()) == ([], [])


@pytest.mark.parametrize(
    "options",
    [
        {"interrupt_on": {"refund": {}}},
        {"interrupt_on": {"refund": True}, "interrupt_mode": "each"},
        {"interrupt_on": ["refund"]},
    ],
)
def test_a_wrong_configuration_is_refused(bench: Bench, options: dict[str, Any]) -> None:
    theirs = outcome(lambda: HumanInTheLoopMiddleware(**options))
    ours = outcome(lambda: ApprovalMiddleware(CRITERION, **options, **models(bench)))
    assert ours == theirs
    assert isinstance(ours, tuple)


def test_it_is_one_of_langchains_and_may_be_called_without_an_agent(bench: Bench) -> None:
    config: Any = {"allowed_decisions": ["approve"], "when": lambda _: False}
    made = ApprovalMiddleware(CRITERION, {"refund": config}, **models(bench))
    assert isinstance(made, HumanInTheLoopMiddleware)
    assert made.interrupt_on == {"refund": config}
    assert made.interrupt_mode == "batched"
    for name, args in (LOOK_UP, REFUND):
        call = {"name": name, "args": args, "id": "1"}
        state = {"messages": [HumanMessage("Hello"), AIMessage("", tool_calls=[call])]}
        assert made.after_model(state, Runtime()) is None
    assert made.after_model({"messages": []}, Runtime()) is None
