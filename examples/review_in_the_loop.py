"""An expert in the loop: the graph stops and asks, and continues when the reply comes.

The interrupt has the judge's verdict in a form that inboxes show; this example prints its
description. An invalid reply leaves the interrupt pending.
"""

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import is_invalid_resume
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import ValidationError

from memalign_graph import Categorical, Criterion, JudgeMemory, create_review_graph
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="refund_reply",
    instructions="How well does the reply handle the refund request?",
    scale=Categorical(choices=("poor", "fair", "good"), ordered=True),
)
CASE = {
    "inputs": {"customer": "I want my money back, the lamp arrived in pieces."},
    "outputs": {"reply": "Refunds take 14 days."},
}


def main() -> None:
    """Judge, send an invalid reply and a valid one, and print what was learned."""
    model, embeddings = models_from_environment()
    store = InMemoryStore()
    graph = create_review_graph(CRITERION, model=model, embeddings=embeddings).compile(
        store=store, checkpointer=InMemorySaver()
    )
    thread: RunnableConfig = {"configurable": {"thread_id": "lamp"}}
    result = graph.invoke(CASE, thread)
    [interrupt] = result["__interrupt__"]
    print(interrupt.value["action_requests"][0]["description"])

    try:
        graph.invoke(Command(resume={"value": "awful"}), thread)
    except ValidationError as error:
        if not is_invalid_resume(error):
            raise
        print("\nRefused:", error.errors()[0]["msg"])

    reply = {
        "value": "poor",
        "rationale": "A refund reply names the next step the customer has to take.",
        "author": "ann",
    }
    result = graph.invoke(Command(resume=reply), thread)
    print("\nLearned:", [change["text"] for change in result["learned"]["guidelines"]])

    memory = JudgeMemory(store, CRITERION, embeddings=embeddings)
    for guideline in memory.guidelines():
        print("Guideline:", guideline.text, "from", guideline.episode_ids)


if __name__ == "__main__":
    main()
