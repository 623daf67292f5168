"""A guideline as a yes/no question about one case, and the prompt for those that have none."""

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from memalign_graph.memory.operations import MAX_QUESTION_CHARS
from memalign_graph.prompts.fences import closed_schema, defuse, render_criterion
from memalign_graph.types import Criterion

QUESTION = (
    "The same rule as a yes/no question about one case, where yes means that the case meets it; "
    "empty if it can't be asked so."
)

WHAT_A_QUESTION_IS = """\
A "question" asks the same as its rule of one case alone, in the expert's language and terms: it \
is short, is answered by reading the case, and yes means that the case is as the experts want it."""

_SYSTEM = """\
A judge applies one criterion by rules that experts taught it. Write each rule as a question that \
can be asked of a case.

{criterion}

{what}

Answer with a JSON object that has "questions": a list with a question for each rule, in their \
order; an empty string for a rule that can't be asked as a yes/no question."""


def questions_schema(count: int) -> dict[str, Any]:
    question = {"type": "string", "description": QUESTION}
    questions = {"type": "array", "items": question, "minItems": count, "maxItems": count}
    head = {"title": "guideline_questions", "description": "The rules as questions."}
    return closed_schema({"questions": questions}, **head)


def question_prompt(criterion: Criterion, texts: Sequence[str]) -> list[BaseMessage]:
    lines = "\n".join(f"{number}. {defuse(text)}" for number, text in enumerate(texts, start=1))
    shown = _SYSTEM.format(criterion=render_criterion(criterion), what=WHAT_A_QUESTION_IS)
    closing = f'Answer with a JSON object that has "questions", a list of {len(texts)} texts.'
    return [SystemMessage(shown), HumanMessage(f"The rules:\n{lines}\n\n{closing}")]


def read_questions(answer: dict[str, Any], count: int) -> list[str]:
    questions = answer.get("questions")
    if not isinstance(questions, list) or len(questions) != count:
        raise ValueError(f'it has no list of {count} "questions", one for each rule')
    return list(map(read_question, questions))


def read_question(given: Any) -> str:
    """Put a question on one line; empty where there is none that can be asked."""
    question = " ".join(given.split()) if isinstance(given, str) else ""
    return question if len(question) <= MAX_QUESTION_CHARS else ""
