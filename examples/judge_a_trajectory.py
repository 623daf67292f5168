"""Judge what an agent did: its answer is right, but the tool call before it is wrong.

An expert explains why one run is wrong, and the next runs are judged by that. The judge reads each
tool call with its result.
"""

from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import Criterion, create_review_graph
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="refund_right",
    instructions="Did the agent do what the customer wanted, and nothing that it must not do?",
)


def call(name: str, result: str, **args: Any) -> list[AnyMessage]:
    """Make a tool call and its result."""
    called = {"name": name, "args": args, "id": f"call_{name}", "type": "tool_call"}
    return [AIMessage("", tool_calls=[called]), ToolMessage(result, tool_call_id=called["id"])]


# What was asked before is part of the inputs: "Yes." alone says nothing.
REQUEST = [
    HumanMessage("I want my money back for order A7."),
    AIMessage("Shall I refund order A7?"),
    HumanMessage("Yes."),
]
HASTY = [
    *call("refund", "Paid back: 89 EUR.", order="A7"),
    AIMessage("Done, your order is refunded."),
]
CAREFUL = [
    *call("look_up", '{"order": "A7", "status": "delivered", "paid": 89}', order="A7"),
    *call("refund", "Paid back: 89 EUR.", order="A7"),
    AIMessage("Done, your order is refunded."),
]


def main() -> None:
    """Judge a run, learn from the expert, and judge two more."""
    model, embeddings = models_from_environment()
    builder = create_review_graph(CRITERION, model=model, embeddings=embeddings)
    graph = builder.compile(store=InMemoryStore(), checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "first"}}
    result = graph.invoke({"inputs": REQUEST, "outputs": HASTY}, thread)
    print(result["__interrupt__"][0].value["action_requests"][0]["description"])
    reason = "It must look the order up before it pays anything back."
    result = graph.invoke(Command(resume={"value": False, "rationale": reason}), thread)
    for change in result["learned"]["guidelines"]:
        print(f"\nLearned: {change['text']}")
    for name, run in {"hasty": HASTY, "careful": CAREFUL}.items():
        thread = {"configurable": {"thread_id": name}}
        context = {"review": "never"}
        other = [HumanMessage("Please refund order A7.")]
        judged = graph.invoke({"inputs": other, "outputs": run}, thread, context=context)
        print(f"\n{name}: {judged['judgment']['value']} - {judged['judgment']['rationale']}")


if __name__ == "__main__":
    main()
