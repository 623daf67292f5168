"""`create_agent` with a gate: each answer of the agent is judged before anyone sees it.

An answer that does not pass goes back to the model. When no revision is left, the expert is asked,
and the memory learns from the reply. Needs the extra `agents`.
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
    name="leaves_out_cancelled",
    instructions="Does the query leave out cancelled orders, by status <> 'cancelled'?",
)


def main() -> None:
    """Answer one question, with an expert at hand."""
    model, embeddings = models_from_environment()
    gate = QualityGateMiddleware(
        CRITERION,
        model=model,
        embeddings=embeddings,
        max_revisions=1,
        review="exhausted",
        fallback="I have no reliable query for this.",
    )
    agent = create_agent(
        resolve_chat_model(model),
        system_prompt="You write SQL on the table orders(id, total, status). Reply with the query.",
        middleware=[gate],
        store=InMemoryStore(),
        checkpointer=InMemorySaver(),
    )
    thread: RunnableConfig = {"configurable": {"thread_id": "revenue"}}
    result = agent.invoke({"messages": [HumanMessage("What was the revenue?")]}, thread)
    if "__interrupt__" in result:
        print(result["__interrupt__"][0].value["action_requests"][0]["description"])
        is_right = "<> 'cancelled'" in result["messages"][-1].text
        reason = "A query that says status <> 'cancelled' leaves cancelled orders out."
        reply = {"value": is_right, "rationale": reason, "author": "ann"}
        result = agent.invoke(Command(resume=reply), thread)
    for message in result["messages"]:
        print(f"\n{message.type}: {message.text}")
    verdict = result["quality_gate"]
    print(f"\n{verdict['status']}, as the {verdict['decided_by']} decided")


if __name__ == "__main__":
    main()
