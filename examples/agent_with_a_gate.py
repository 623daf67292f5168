"""`create_agent` with a gate: the agent's answer is judged before anyone sees it.

What does not pass goes back to the model; when revisions run out the expert is asked, and memory
learns from the word. Needs the extra `agents`.
"""

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import Criterion, QualityGateMiddleware
from memalign_graph.models import models_from_environment, resolve_chat_model

CRITERION = Criterion(
    name="names_the_order",
    instructions="Does the reply begin with an apology and name the order number?",
)


def main() -> None:
    """Answer one customer, with an expert at hand."""
    model, embeddings = models_from_environment()
    gate = QualityGateMiddleware(
        CRITERION,
        model=model,
        embeddings=embeddings,
        max_revisions=1,
        review="exhausted",
        fallback="A colleague will write to you today.",
    )
    agent = create_agent(
        resolve_chat_model(model),
        system_prompt="You answer customers of a shop in two sentences.",
        middleware=[gate],
        store=InMemoryStore(),
        checkpointer=InMemorySaver(),
    )
    thread: RunnableConfig = {"configurable": {"thread_id": "4711"}}
    result = agent.invoke({"messages": [HumanMessage("My order 4711 never came.")]}, thread)
    if "__interrupt__" in result:
        print(result["__interrupt__"][0].value["action_requests"][0]["description"])
        word = {"value": False, "rationale": "It has to say sorry first.", "author": "ann"}
        result = agent.invoke(Command(resume=word), thread)
    for message in result["messages"]:
        print(f"\n{message.type}: {message.text}")
    verdict = result["quality_gate"]
    print(f"\n{verdict['status']} after {verdict['revisions']} revision(s)")


if __name__ == "__main__":
    main()
