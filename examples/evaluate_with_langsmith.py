"""Evaluate an application with LangSmith and a judge that learned from an expert: offline, no key.

The evaluator works in any of LangSmith's evaluations. With a key and `upload_results=True` (the
default) the results are in LangSmith, and `feedback_from_langsmith` imports people's feedback.
"""

import warnings
from typing import Any
from uuid import uuid4

import langsmith
from langgraph.store.memory import InMemoryStore
from langsmith.schemas import Example

from memalign_graph import Criterion, Feedback, JudgeMemory, create_judge_graph
from memalign_graph.integrations import as_evaluator
from memalign_graph.models import models_from_environment

# LangSmith warns that the option that keeps an evaluation offline is in beta.
warnings.filterwarnings("ignore", message=r"'upload_\w+' parameter is in beta")

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
QUESTIONS = ["My order never came.", "The cup arrived broken.", "Where is my invoice?"]
DATA = [
    Example(id=uuid4(), dataset_id=uuid4(), inputs={"question": question}, outputs=None)
    for question in QUESTIONS
]


def application(inputs: dict[str, Any]) -> dict[str, Any]:
    """Answer a customer. Your application goes here."""
    return {"answer": f"About '{inputs['question']}': look at the tracking page."}


def evaluate(evaluator: Any) -> None:
    """Evaluate, and print a line for each question."""
    rows = langsmith.evaluate(application, data=DATA, evaluators=[evaluator], upload_results=False)
    for row in rows:
        for result in row["evaluation_results"]["results"]:
            metadata = result.metadata or {}
            question = (row["example"].inputs or {})["question"]
            print(
                f"  {question:26} {result.key} = {result.score}, with "
                f"{len(metadata['guideline_ids'])} guideline(s) and "
                f"{len(metadata['episode_ids'])} episode(s)"
            )


def main() -> None:
    """Evaluate before and after an expert's feedback."""
    model, embeddings = models_from_environment()
    store = InMemoryStore()
    graph = create_judge_graph(CRITERION, model=model, embeddings=embeddings).compile(store=store)
    evaluator = as_evaluator(graph)
    print("Before:")
    evaluate(evaluator)
    memory = JudgeMemory(store, CRITERION, embeddings=embeddings)
    question = {"question": QUESTIONS[0]}
    comment = {"value": False, "rationale": "Too cold: it must say sorry before anything else."}
    memory.remember(
        Feedback.model_validate({"inputs": question, "outputs": application(question), **comment})
    )
    memory.add_guideline("A reply about something lost or broken says sorry first.", author="ann")
    print("After:")
    evaluate(evaluator)


if __name__ == "__main__":
    main()
