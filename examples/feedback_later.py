"""An expert who answers later: the judgment is kept, and the feedback names its id.

The judge graph has no interrupt, so nothing waits for the expert.
"""

from datetime import timedelta

from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, JudgeMemory, create_feedback_graph, create_judge_graph
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
CASE = {"inputs": "My order never came.", "outputs": "Check the tracking page."}


def main() -> None:
    """Judge now, and learn from the feedback that comes later."""
    model, embeddings = models_from_environment()
    store = InMemoryStore()
    judge = create_judge_graph(
        CRITERION, model=model, embeddings=embeddings, keep_judgments=timedelta(days=30)
    ).compile(store=store)
    judgment = judge.invoke(CASE)["judgment"]
    print("Judged:", judgment["value"])

    waiting = JudgeMemory(store, CRITERION, embeddings=embeddings).judgments(waiting=True)
    print("Waiting for feedback:", [kept.judgment.id == judgment["id"] for kept in waiting])

    feedback = create_feedback_graph(CRITERION, model=model, embeddings=embeddings).compile(
        store=store
    )
    reply = {"value": False, "rationale": "The reply must begin with an apology.", "author": "ann"}
    result = feedback.invoke({"judgment_id": judgment["id"], "reply": reply})
    print("Learned:", [change["text"] for change in result["learned"]["guidelines"]])


if __name__ == "__main__":
    main()
