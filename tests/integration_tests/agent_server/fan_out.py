"""A parent graph that reviews all of its cases concurrently."""

from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from memalign_graph import Criterion, create_review_graph
from memalign_graph.models import models_from_environment


def gather(old: list[Any], new: Any) -> list[Any]:
    """Collect the result of each review."""
    return [*old, *(new if isinstance(new, list) else [new])]


class Reviews(TypedDict):
    """State with cases and the results of their reviews."""

    cases: list[dict[str, Any]]
    judgment: Annotated[list[Any], gather]
    feedback: Annotated[list[Any], gather]
    learned: Annotated[list[Any], gather]


class Settings(TypedDict, total=False):
    """An application's context with settings of the reviews."""

    memalign: dict[str, Any]


_model, _embeddings = models_from_environment()
_criterion = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
_review = create_review_graph(_criterion, model=_model, embeddings=_embeddings).compile()

_builder = StateGraph(Reviews, context_schema=Settings)
_builder.add_node("review", _review)
_builder.add_conditional_edges(
    START, lambda state: [Send("review", case) for case in state["cases"]], ["review"]
)
_builder.add_edge("review", END)

graph = _builder.compile()
