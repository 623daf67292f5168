"""`decide_review`: whether an expert is asked, with `review="uncertain"`."""

from memalign_graph.evidence.choosing import (
    DEFAULT_SAMPLE_SHARE,
    DEFAULT_TARGET_AGREEMENT,
    check_asking,
)
from memalign_graph.evidence.reviewing import choose_review
from memalign_graph.io import IO
from memalign_graph.judgment import Decide, Judgment
from memalign_graph.memory.recall import known_vector
from memalign_graph.memory.reviews import log_review, now
from memalign_graph.models import DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.base import Memories, OperationNode, Run, State, Update
from memalign_graph.state import JudgeOutput, Retrieved
from memalign_graph.types import Criterion


class DecideReviewView(Retrieved, JudgeOutput):
    """What the node reads of the state."""


def create_decide_review_node(
    criterion: Criterion,
    *,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    decide: Decide = "verdict",
    use_episodes: bool = True,
    target_agreement: float = DEFAULT_TARGET_AGREEMENT,
    max_reviews_per_day: int | None = None,
    max_review_share: float | None = None,
    sample_share: float = DEFAULT_SAMPLE_SHARE,
) -> OperationNode:
    """Create the node that decides whether an expert is asked about a judgment, and logs it.

    It stands before the interrupt, whose node runs again from its top when the reply comes: what is
    decided and logged here is so once.

    Args:
        criterion: The criterion.
        embeddings: What the memory embeds with.
        decide: What the judge's values come from, as its own node was made.
        use_episodes: Whether the judge is shown similar cases.
        target_agreement: How often a judgment that nobody is asked about is to agree.
        max_reviews_per_day: How many questions a day may bring, in UTC; None for no bound.
        max_review_share: How large a share of a day's judgments may be asked about; None likewise.
        sample_share: The share of judgments that experts are asked about by chance.

    Returns:
        The node; it reads `DecideReviewView` and writes `judgment`, with its `review` filled in.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    memories = Memories(criterion, embeddings)
    asking = check_asking(
        target_agreement=target_agreement,
        max_reviews_per_day=max_reviews_per_day,
        max_review_share=max_review_share,
        sample_share=sample_share,
    )

    async def decide_review(io: IO, state: State, run: Run) -> Update:
        judgment = Judgment.model_validate(state["judgment"])
        access = memories.get(run, state["judge_settings"])
        at = now()
        choice = await choose_review(
            io,
            access,
            judgment,
            asking=asking,
            decide=decide,
            vector=known_vector(state.get("recall_vector")),
            looked=decide == "evidence" or (use_episodes and state["judge_settings"]["k"] > 0),
            at=at,
        )
        await log_review(io, access, judgment, choice, at)
        return {"judgment": judgment.model_copy(update={"review": choice}).to_json()}

    return OperationNode("decide_review", decide_review)
