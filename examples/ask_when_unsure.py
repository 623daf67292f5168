"""A judge that decides by its memory and asks the expert only if it is unsure.

The expert wants an apology if something went wrong. The judge asks about each of the first replies,
because its agreement with the expert is unknown. Then it asks only about those that are likely to
be wrong.
"""

from itertools import product
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import Criterion, JudgeMemory, Uncertain, create_review_graph
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
TROUBLES = ("order never came", "cup arrived broken", "bill is wrong", "parcel lay in the rain")
THINGS = ("plates", "lamp", "chair", "books", "tent", "shoes")
REPLIES = ("Sorry! We send a new one today.", "Please fill in the form on our site.")


def expert(reply: str) -> bool:
    """Judge a reply as the expert does."""
    return reply.startswith("Sorry")


def main() -> None:
    """Review all replies, and print how many the expert was asked about."""
    model, embeddings = models_from_environment()
    store = InMemoryStore()
    graph = create_review_graph(
        CRITERION,
        model=model,
        embeddings=embeddings,
        confidence=True,
        review=Uncertain(target_agreement=0.75),
    ).compile(store=store, checkpointer=InMemorySaver())
    questions = 0
    last: dict[str, Any] = {}
    cases = product(THINGS, TROUBLES, REPLIES)
    for number, (thing, trouble, reply) in enumerate(cases):
        config: Any = {"configurable": {"thread_id": str(number)}}
        example = {"inputs": f"The {thing}: my {trouble}.", "outputs": reply}
        result = graph.invoke(example, config)
        if "__interrupt__" in result:
            questions += 1
            result = graph.invoke(Command(resume={"value": expert(reply)}), config)
        last = result["judgment"]
    print(f"Judged {number + 1} replies and asked about {questions} of them.")
    print(f"The last one: {last['value']}, confidence {last['confidence']:.2f}", end=" ")
    print(f"by {last['confidence_source']}, calibrated on {last['calibrated_on']} cases.")
    print(last["evidence"]["reason"])
    memory = JudgeMemory(store, CRITERION, embeddings=embeddings)
    trust = memory.trust(target_agreement=0.75)
    print(f"From confidence {trust.threshold} on nobody is asked: {trust.coverage:.0%} of cases,")
    print(f"agreement {trust.agreement}, at least {trust.bound:.2f} on new ones.")


if __name__ == "__main__":
    main()
