"""A gate in a graph of your own: an answer that does not pass goes back with a critique.

The writer here is a function without a model. Your agent goes there.
"""

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, add_quality_gate
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="names_the_order",
    instructions="Does the reply begin with an apology and name the order number?",
)
DRAFTS = (
    "Please look at the tracking page.",
    "I am sorry that order 4711 never came. We send a new one today, and you need not do anything.",
)


def write(state: MessagesState) -> dict[str, Any]:
    """Write a reply; a better one after a critique."""
    drafts = sum(isinstance(message, AIMessage) for message in state["messages"])
    return {"messages": [AIMessage(DRAFTS[min(drafts, 1)])]}


def call_a_person(state: MessagesState) -> dict[str, Any]:
    """Hand over to a person, if no revision passes."""
    request = state["messages"][0].text
    return {"messages": [AIMessage(f"A colleague will write to you today about: {request}")]}


def main() -> None:
    """Answer one customer."""
    model, embeddings = models_from_environment()
    builder = StateGraph(MessagesState)
    builder.add_node("writer", write)
    builder.add_node("person", call_a_person)
    builder.add_edge(START, "writer")
    builder.add_edge("person", END)
    add_quality_gate(
        builder,
        CRITERION,
        after="writer",
        accept=END,
        revise="writer",
        escalate="person",
        model=model,
        embeddings=embeddings,
    )
    graph = builder.compile(store=InMemoryStore())
    request: Any = {"messages": [("human", "My order 4711 never came.")]}
    events: Any = graph.stream(request, stream_mode=["custom", "values"])
    for mode, event in events:
        if mode == "custom" and event["type"] == "quality_gate" and event["critique"]:
            print(f"{event['status']}: {event['critique']}\n")
    print(f"{event['quality_gate']['status']}: {event['messages'][-1].text}")


if __name__ == "__main__":
    main()
