"""An agent that checks its own work, asks an expert if it fails, and learns.

It writes an SQL query. If the judge rejects the query, the agent writes another with the critique.
When no revision is left, the expert is asked. The comment becomes a guideline for the judge and for
the agent, so the second question is answered at the first attempt.
"""

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import Categorical, Criterion, JudgeMemory, add_quality_gate
from memalign_graph.models import models_from_environment, resolve_chat_model

CRITERION = Criterion(
    name="copy_of_the_data",
    instructions=(
        "Which copy of the data does the query read: raw, or certified by the finance team?"
    ),
    scale=Categorical(choices=("raw", "certified")),
)
EXPERT = {
    "value": "raw",
    "rationale": "The query must read finance.certified_orders, which is the certified copy.",
    "author": "ann",
}
QUESTIONS = ("How many orders are there?", "What is the highest total of an order?")
WRITER = "You write SQL on the table orders(id, customer, total). Reply with the query alone."


class State(TypedDict):
    """What the agent works on."""

    question: str
    query: str
    critique: str


def main() -> None:
    """Answer two questions, with an expert at hand."""
    model, embeddings = models_from_environment()
    store = InMemoryStore()
    writer = resolve_chat_model(model)
    memory = JudgeMemory(store, CRITERION, embeddings=embeddings)

    def write(state: State) -> dict[str, str]:
        prompt = state["question"]
        guidelines = "\n".join(f"- {guideline.text}" for guideline in memory.guidelines())
        if guidelines:
            prompt += f"\n\nOur experts say:\n{guidelines}"
        if state.get("critique"):
            prompt += f"\n\nYour last query was {state['query']}\n{state['critique']}"
        query = writer.invoke([SystemMessage(WRITER), HumanMessage(prompt)]).text.strip()
        print(f"\nwrites: {query}")
        return {"query": query}

    builder = StateGraph(State)
    builder.add_node("write", write)
    builder.add_edge(START, "write")
    add_quality_gate(
        builder,
        CRITERION,
        after="write",
        revise="write",
        passes="certified",
        max_revisions=1,
        review="exhausted",
        example=lambda state: {"inputs": state["question"], "outputs": state["query"]},
        critique_key="critique",
        model=model,
        embeddings=embeddings,
    )
    agent = builder.compile(store=store, checkpointer=InMemorySaver())
    for question in QUESTIONS:
        print(f"\n== {question}")
        answer(agent, question)
    print("\nGuidelines:", *(f"\n- {guideline.text}" for guideline in memory.guidelines()))


def answer(agent: Any, question: str) -> None:
    """Answer one question; if the gate asks, reply as the expert."""
    thread: RunnableConfig = {"configurable": {"thread_id": question}}
    graph_input: Any = {"question": question}
    while True:
        for event in agent.stream(graph_input, thread, stream_mode="custom"):
            if event["status"] not in ("judging", "asking"):
                print(f"{event['status']}: {event['critique'] or 'it passed.'}")
        if not agent.get_state(thread).interrupts:
            return
        print(f"\nasks the expert, who says: {EXPERT['rationale']}")
        graph_input = Command(resume=EXPERT)


if __name__ == "__main__":
    main()
