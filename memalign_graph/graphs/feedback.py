"""The graph that takes an expert's word on an earlier judgment."""

from langchain_core.language_models import BaseChatModel
from langgraph.graph import START, StateGraph

from memalign_graph.context import DEFAULT_K, context_schema
from memalign_graph.graphs.judging import add_learning
from memalign_graph.graphs.options import (
    Graph,
    check_distill_model,
    check_embeddings,
    run_settings,
)
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes.find_judgment import FindView, create_find_judgment_node
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.state import LaterFeedback, ReviewOutput, ReviewState
from memalign_graph.types import Criterion


class FeedbackState(ReviewState, LaterFeedback):
    """All channels of the feedback graph."""


def create_feedback_graph(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    distill_model: BaseChatModel | str | None = None,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
) -> Graph:
    """Create the graph that learns from an expert who answers later, on any thread.

    The judgment is found by its id, for as long as the graph that made it keeps it (its option
    `keep_judgments`). `{judgment_id, reply}` -> `{judgment, feedback, learned}`; the reply is
    whatever a review interrupt takes for one.

    Args:
        criterion: What was judged.
        model: The judge's chat model, or a `"provider:name"` string.
        distill_model: The model that distils; the judge's own unless given.
        embeddings: What the memory embeds with.

    Returns:
        The graph, to be compiled with the store that holds the memory.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    resolved = run_settings(criterion, model, DEFAULT_K, "never", DEFAULT_MAX_GUIDELINE_TOKENS)
    check_distill_model(distill_model)
    check_embeddings(embeddings)
    builder: Graph = StateGraph(
        FeedbackState,
        context_schema=context_schema(k=resolved["k"], model=model, review="never"),
        input_schema=LaterFeedback,
        output_schema=ReviewOutput,
    )
    find = create_find_judgment_node(criterion, embeddings=embeddings, settings=resolved)
    builder.add_node("find_judgment", find, input_schema=FindView)
    builder.add_edge(START, "find_judgment")
    add_learning(
        builder,
        criterion,
        after="find_judgment",
        model=model,
        distill_model=distill_model,
        embeddings=embeddings,
    )
    return builder
