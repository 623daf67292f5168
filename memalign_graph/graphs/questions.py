"""The part of a graph that asks an expert back, where words are too vague to make a rule."""

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel

from memalign_graph.graphs.options import Graph
from memalign_graph.models import EmbeddingsLike
from memalign_graph.nodes.clarify import (
    ClarifyView,
    QuestionView,
    create_clarify_node,
    create_question_node,
)
from memalign_graph.types import Criterion


def add_questions(
    builder: Graph,
    criterion: Criterion,
    *,
    after: str,
    otherwise: Callable[[Mapping[str, Any]], str],
    ends: list[str],
    distil: str,
    model: BaseChatModel | str,
    embeddings: EmbeddingsLike,
    use_context_model: bool,
) -> None:
    """Put the question back between an expert's words and what learns from them."""
    question = create_question_node(
        criterion, model=model, embeddings=embeddings, use_context_model=use_context_model
    )
    clarify = create_clarify_node(criterion)
    builder.add_node("question_feedback", question, input_schema=QuestionView)
    builder.add_node("clarify_feedback", clarify, input_schema=ClarifyView)

    def after_feedback(state: Mapping[str, Any]) -> str:
        has_words = (state["feedback"] or {}).get("rationale") is not None
        return "question_feedback" if has_words else otherwise(state)

    def after_question(state: Mapping[str, Any]) -> str:
        return distil if state["clarification"] is None else "clarify_feedback"

    builder.add_conditional_edges(after, after_feedback, ["question_feedback", *ends])
    builder.add_conditional_edges("question_feedback", after_question, ["clarify_feedback", distil])
    builder.add_edge("clarify_feedback", distil)
