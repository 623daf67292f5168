"""Approvals that teach: a person decides on refunds, and a judge learns which ones may run.

The agent is a node without a model that calls `refund` with what the user asks for. At first the
person is asked about each call. Later, calls similar to approved ones run without a question. Needs
the extra `agents`. In an agent made with `create_agent`, use `ApprovalMiddleware`.
"""

from itertools import product
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send

from memalign_graph import Criterion, JudgeMemory, create_approval_wrapper
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="refund_right", instructions="May this refund be paid without asking the team?"
)
THINGS = ("plates", "lamp", "chair", "books", "tent", "shoes", "cup", "coat")
TROUBLES = ("never came", "broke", "has the wrong color", "is too small", "got wet")
AMOUNTS = (20, 25, 900)
LIMIT = 100


@tool
def refund(thing: str, amount: int) -> str:
    """Pay an amount back."""
    return f"Paid {amount} EUR back for the {thing}."


def agent(state: MessagesState) -> dict[str, Any]:
    """Call `refund` with what the user asks for."""
    _, thing, *_, amount = state["messages"][-1].text.split()
    call = {"name": "refund", "args": {"thing": thing, "amount": int(amount)}, "id": "call_1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def decide(question: dict[str, Any]) -> dict[str, Any]:
    """Decide as the person does."""
    if question["args"]["amount"] <= LIMIT:
        return {"type": "approve"}
    return {"type": "reject", "message": f"The team approves refunds above {LIMIT} EUR itself."}


def main() -> None:
    """Ask for refunds, decide on those that are asked about, and report."""
    model, embeddings = models_from_environment()
    store = InMemoryStore()
    approve = create_approval_wrapper(
        CRITERION,
        {"refund": {"allowed_decisions": ["approve", "reject"]}},
        target_agreement=0.6,  # so low that a few decisions show it; the default is 0.95
        model=model,
        embeddings=embeddings,
    )
    builder = StateGraph(MessagesState)
    builder.add_node(agent)
    builder.add_node("tools", ToolNode([refund], wrap_tool_call=approve))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges(
        "agent",
        lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls],
        ["tools"],
    )
    graph = builder.compile(store=store, checkpointer=InMemorySaver())
    asked = wrong = 0
    for number, (thing, trouble) in enumerate(product(THINGS, TROUBLES)):
        amount = AMOUNTS[number % len(AMOUNTS)]
        config: Any = {"configurable": {"thread_id": str(number)}}
        request = HumanMessage(f"The {thing} {trouble}. Refund {amount}")
        result = graph.invoke({"messages": [request]}, config)
        if "__interrupt__" in result:
            asked += 1
            decision = decide(result["__interrupt__"][0].value)
            result = graph.invoke(Command(resume=decision), config)
        elif amount > LIMIT:
            wrong += 1
    print("The last one:", result["messages"][-1].text)
    print(f"Of {number + 1} calls {asked} were asked about; {wrong} ran that should not have.")
    memory = JudgeMemory(store, CRITERION, embeddings=embeddings)
    report = memory.review_report()
    print(f"Without a question: {report.unasked}. Marked wrong since: {report.unasked_wrong}.")
    print("Learned:", [guideline.text for guideline in memory.guidelines()][:1])


if __name__ == "__main__":
    main()
