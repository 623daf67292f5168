"""The part of a review graph that asks the expert, or finds that nobody has to be asked."""

from collections.abc import Mapping
from typing import Any

from langgraph.graph import END

from memalign_graph.context import CANT_CHOOSE, Review
from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.choosing import Asking, check_asking
from memalign_graph.graphs.options import Graph, asks
from memalign_graph.judgment import Decide, Judgment
from memalign_graph.models import EmbeddingsLike
from memalign_graph.nodes.decide_review import DecideReviewView, create_decide_review_node
from memalign_graph.nodes.review import ReviewView, create_review_node
from memalign_graph.types import Criterion


def can_choose(*, confidence: bool, decide: Decide) -> bool:
    """Tell whether a graph can choose what to ask about."""
    return confidence is True or decide == "evidence"


def check_choosing(review: Review, *, confidence: bool, decide: Decide, **asking: Any) -> Asking:
    """Check the settings of `review="uncertain"`."""
    checked = check_asking(**asking)
    if review == "uncertain":
        if not can_choose(confidence=confidence, decide=decide):
            raise InvalidInputError(CANT_CHOOSE)
        return checked
    blank = Asking()
    unused = [name for name in asking if getattr(checked, name) != getattr(blank, name)]
    if unused:
        raise InvalidInputError(
            f'{unused[0]}: it is for review="uncertain", and does nothing with any other: give '
            "that, or leave it out."
        )
    return checked


def add_review(
    builder: Graph,
    criterion: Criterion,
    *,
    review: Review,
    asking: Asking,
    confidence: bool,
    decide: Decide,
    embeddings: EmbeddingsLike,
    use_episodes: bool,
) -> None:
    """Add what asks the expert about the judgment."""
    builder.add_node("collect_feedback", create_review_node(criterion), input_schema=ReviewView)
    ends = ["collect_feedback", END]
    # Decided on the way out of nodes that run once, and not in the one that runs again.
    to_ask = asks(review, _judgment)
    if not can_choose(confidence=confidence, decide=decide):
        builder.add_conditional_edges("judge", to_ask, ends)
        return
    node = create_decide_review_node(
        criterion,
        embeddings=embeddings,
        decide=decide,
        use_episodes=use_episodes,
        target_agreement=asking.target_agreement,
        max_reviews_per_day=asking.max_reviews_per_day,
        max_review_share=asking.max_review_share,
        sample_share=asking.sample_share,
    )
    builder.add_node("decide_review", node, input_schema=DecideReviewView)

    def after_judge(state: Mapping[str, Any]) -> str:
        chooses = state["judge_settings"]["review"] == "uncertain"
        return "decide_review" if chooses else to_ask(state)

    builder.add_conditional_edges("judge", after_judge, ["decide_review", *ends])
    builder.add_conditional_edges("decide_review", _as_decided, ends)


def _as_decided(state: Mapping[str, Any]) -> str:
    review = _judgment(state).review
    return "collect_feedback" if review is not None and review.asks else END


def _judgment(state: Mapping[str, Any]) -> Judgment:
    return Judgment.model_validate(state["judgment"])
