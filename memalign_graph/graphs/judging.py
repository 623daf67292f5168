"""The graphs that judge one example: with what memory holds, and with an expert to ask."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph

from memalign_graph.context import (
    DEFAULT_K,
    Review,
    context_schema,
)
from memalign_graph.evidence.choosing import DEFAULT_SAMPLE_SHARE, DEFAULT_TARGET_AGREEMENT
from memalign_graph.graphs.options import (
    Graph,
    check_distill_model,
    check_flag,
    check_judging,
    run_settings,
)
from memalign_graph.graphs.questions import add_questions
from memalign_graph.graphs.reviewing import add_review, can_choose, check_choosing
from memalign_graph.judgment import Decide
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    EmbeddingsLike,
)
from memalign_graph.nodes import (
    create_assemble_node,
    create_commit_node,
    create_distill_node,
    create_judge_node,
    create_retrieve_node,
)
from memalign_graph.nodes.assemble import AssembleView
from memalign_graph.nodes.commit import CommitView
from memalign_graph.nodes.distill import DistillView
from memalign_graph.nodes.judge import JudgeView
from memalign_graph.nodes.retrieve import OnEmbeddingError, RetrieveView
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.state import (
    CitingJudgeOutput,
    CitingReviewOutput,
    ExampleInput,
    JudgeOutput,
    JudgeState,
    ReviewOutput,
    ReviewState,
)
from memalign_graph.types import Criterion, Feedback


def create_judge_graph(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    k: int = DEFAULT_K,
    use_guidelines: bool = True,
    use_episodes: bool = True,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
    on_embedding_error: OnEmbeddingError = "raise",
    swap: bool = False,
    cite_guidelines: bool = False,
    keep_judgments: timedelta | None = None,
    confidence: bool = False,
    samples: int = 0,
    decide: Decide = "verdict",
) -> Graph:
    """Create the graph that judges an example with what memory holds.

    `{inputs, outputs, reference_outputs?}` -> `{judgment}`.

    Args:
        criterion: What is judged.
        model: A chat model, or a `"provider:name"` string that is resolved when it is first called.
        embeddings: LangChain embeddings, a function from texts to vectors, or a string.
        k: How many similar examples the judge is shown, from 0 to 100.
        use_guidelines: False to judge without guidelines, for comparison.
        use_episodes: False to judge without episodes, for comparison.
        max_guideline_tokens: How much of the prompt guidelines may take; if they outgrow it,
            those that bear on the case are chosen, and the judgment says so.
        on_embedding_error: `raise`, or `guidelines` to judge by the guidelines alone when an
            embedding call fails; the judgment then says so.
        swap: True to judge two outputs in both orders, with two calls of the model: where the
            verdicts disagree it is a tie, if the scale has one, and the judgment says so.
        cite_guidelines: True to have the judge also name the guidelines that the outputs break;
            the graph then returns them as `broken_guidelines`, too.
        keep_judgments: How long a judgment is kept in memory for feedback that comes later, by
            its id (see `create_feedback_graph`); None to keep none.
        confidence: True to measure how sure the judge is, with one more short call: by the
            log-probabilities of the permitted values, calibrated on the experts' verdicts in
            memory once there are enough.
        samples: How many answers to ask for instead where the model gives no log-probabilities,
            up to 50; 0 for none.
        decide: `verdict`, or `evidence` to weigh the verdict against the experts' values of the
            most similar cases, where that foretells the experts better on the cases in memory;
            the judgment shows the parts, and which decided.

    Returns:
        The graph, to be compiled with a store.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If `confidence` or `decide="evidence"` is asked for without the extra
            `evidence`.
    """
    resolved = run_settings(criterion, model, k, "never", max_guideline_tokens)
    builder: Graph = StateGraph(
        JudgeState,
        context_schema=context_schema(k=resolved["k"], model=model, review="never"),
        input_schema=ExampleInput,
        output_schema=CitingJudgeOutput if cite_guidelines is True else JudgeOutput,
    )
    _add_judging(
        builder,
        criterion,
        resolved,
        model=model,
        embeddings=embeddings,
        use_guidelines=use_guidelines,
        use_episodes=use_episodes,
        max_guideline_tokens=max_guideline_tokens,
        on_embedding_error=on_embedding_error,
        swap=swap,
        cite_guidelines=cite_guidelines,
        keep_judgments=keep_judgments,
        confidence=confidence,
        samples=samples,
        decide=decide,
    )
    builder.add_edge("judge", END)
    return builder


def create_review_graph(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    distill_model: BaseChatModel | str | None = None,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    k: int = DEFAULT_K,
    review: Review = "always",
    use_guidelines: bool = True,
    use_episodes: bool = True,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
    on_embedding_error: OnEmbeddingError = "raise",
    swap: bool = False,
    cite_guidelines: bool = False,
    keep_judgments: timedelta | None = None,
    confidence: bool = False,
    samples: int = 0,
    decide: Decide = "verdict",
    clarify: bool = False,
    target_agreement: float = DEFAULT_TARGET_AGREEMENT,
    max_reviews_per_day: int | None = None,
    max_review_share: float | None = None,
    sample_share: float = DEFAULT_SAMPLE_SHARE,
) -> Graph:
    """Create the graph that judges an example, asks an expert, and learns from the answer.

    `{inputs, outputs, reference_outputs?}` -> `{judgment, feedback, learned}`.

    Args:
        criterion: What is judged.
        model: A chat model, or a `"provider:name"` string that is resolved when it is first called.
        distill_model: The model that distils feedback; the judge's own unless given.
        embeddings: LangChain embeddings, a function from texts to vectors, or a string.
        k: How many similar examples the judge is shown, from 0 to 100.
        review: When the expert is asked: `always`, `never`, a function of the `Judgment`, or
            `uncertain` to ask where the judge is likely to be wrong: its confidence is below what
            keeps agreement at the target, nothing in memory is like the case, or what is like it
            is contradictory; and always while there is too little feedback to tell. It needs
            `confidence`, `decide="evidence"` or both.
        use_guidelines: False to judge without guidelines, for comparison.
        use_episodes: False to judge without episodes, for comparison.
        max_guideline_tokens: How much of the prompt guidelines may take; if they outgrow it,
            those that bear on the case are chosen, and the judgment says so.
        on_embedding_error: `raise`, or `guidelines` to judge by the guidelines alone when an
            embedding call fails; the judgment then says so.
        swap: True to judge two outputs in both orders, with two calls of the model: where the
            verdicts disagree it is a tie, if the scale has one, and the judgment says so.
        cite_guidelines: True to have the judge also name the guidelines that the outputs break;
            the graph then returns them as `broken_guidelines`, too.
        keep_judgments: How long a judgment is kept in memory for feedback that comes later, by
            its id (see `create_feedback_graph`); None to keep none.
        confidence: True to measure how sure the judge is, with one more short call: by the
            log-probabilities of the permitted values, calibrated on the experts' verdicts in
            memory once there are enough.
        samples: How many answers to ask for instead where the model gives no log-probabilities,
            up to 50; 0 for none.
        decide: `verdict`, or `evidence` to weigh the verdict against the experts' values of the
            most similar cases, where that foretells the experts better on the cases in memory;
            the judgment shows the parts, and which decided.
        clarify: True to ask the expert one short question back, with an example, where the words
            are too vague to make a rule: one more call of the model that distils, and one more
            interrupt. The answer is kept with the words; approving it goes on without.
        target_agreement: With `uncertain`: how often a judgment that nobody is asked about is to
            agree with the experts. To show 0.9 takes 29 that all agree, 0.95 takes 59.
        max_reviews_per_day: With `uncertain`: how many questions a day (UTC) may bring. When they
            are spent nobody is asked, and the log says so; a fifth is kept for `sample_share`.
        max_review_share: The same as a share of the day's judgments.
        sample_share: With `uncertain`: the share of judgments asked about by chance, which shows
            whether the judge still agrees where nobody asks.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer to be resumed by.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    resolved = run_settings(criterion, model, k, review, max_guideline_tokens)
    check_distill_model(distill_model)
    check_flag("clarify", clarify)
    asking = check_choosing(
        review,
        confidence=confidence,
        decide=decide,
        target_agreement=target_agreement,
        max_reviews_per_day=max_reviews_per_day,
        max_review_share=max_review_share,
        sample_share=sample_share,
    )
    builder: Graph = StateGraph(
        ReviewState,
        context_schema=context_schema(k=resolved["k"], model=model, review=review),
        input_schema=ExampleInput,
        output_schema=CitingReviewOutput if cite_guidelines is True else ReviewOutput,
    )
    _add_judging(
        builder,
        criterion,
        resolved,
        model=model,
        embeddings=embeddings,
        use_guidelines=use_guidelines,
        use_episodes=use_episodes,
        max_guideline_tokens=max_guideline_tokens,
        on_embedding_error=on_embedding_error,
        swap=swap,
        cite_guidelines=cite_guidelines,
        keep_judgments=keep_judgments,
        confidence=confidence,
        samples=samples,
        decide=decide,
        stores_feedback=True,
    )
    add_review(
        builder,
        criterion,
        review=review,
        asking=asking,
        confidence=confidence,
        decide=decide,
        embeddings=embeddings,
        use_episodes=use_episodes,
    )
    add_learning(
        builder,
        criterion,
        after="collect_feedback",
        model=model,
        distill_model=distill_model,
        embeddings=embeddings,
        clarify=clarify,
    )
    return builder


def add_learning(
    builder: Graph,
    criterion: Criterion,
    *,
    after: str,
    model: BaseChatModel | str,
    distill_model: BaseChatModel | str | None = None,
    embeddings: EmbeddingsLike,
    clarify: bool = False,
) -> None:
    """Add what learns from the feedback that a node leaves in the state."""
    distilling: dict[str, Any] = {
        "model": distill_model or model,
        "embeddings": embeddings,
        "use_context_model": distill_model is None,
    }
    distill = create_distill_node(criterion, **distilling)
    commit = create_commit_node(criterion, embeddings=embeddings)
    builder.add_node("distill_feedback", distill, input_schema=DistillView)
    builder.add_node("commit_memory", commit, input_schema=CommitView)
    ends = ["distill_feedback", "commit_memory", END]
    if clarify:
        add_questions(
            builder,
            criterion,
            after=after,
            otherwise=_after_feedback,
            ends=ends,
            distil="distill_feedback",
            **distilling,
        )
    else:
        builder.add_conditional_edges(after, _after_feedback, ends)
    builder.add_edge("distill_feedback", "commit_memory")
    builder.add_edge("commit_memory", END)


def _add_judging(
    builder: Graph,
    criterion: Criterion,
    settings: Mapping[str, Any],
    *,
    model: BaseChatModel | str,
    embeddings: EmbeddingsLike,
    use_guidelines: bool,
    use_episodes: bool,
    max_guideline_tokens: int,
    on_embedding_error: OnEmbeddingError,
    swap: bool,
    cite_guidelines: bool,
    keep_judgments: timedelta | None,
    confidence: bool,
    samples: int,
    decide: Decide,
    stores_feedback: bool = False,
) -> None:
    check_judging(
        criterion,
        embeddings=embeddings,
        use_guidelines=use_guidelines,
        use_episodes=use_episodes,
        on_embedding_error=on_embedding_error,
        swap=swap,
        cite_guidelines=cite_guidelines,
        keep_judgments=keep_judgments,
        confidence=confidence,
        samples=samples,
        decide=decide,
    )
    retrieve = create_retrieve_node(
        criterion,
        embeddings=embeddings,
        settings=settings,
        use_episodes=use_episodes,
        stores_feedback=stores_feedback,
        on_embedding_error=on_embedding_error,
        swap=swap,
        embeds=decide == "evidence",
        chooses=can_choose(confidence=confidence, decide=decide),
    )
    assemble = create_assemble_node(
        criterion, embeddings=embeddings, settings=settings, use_guidelines=use_guidelines
    )
    judge = create_judge_node(
        criterion,
        model=model,
        embeddings=embeddings,
        max_guideline_tokens=max_guideline_tokens,
        swap=swap,
        cite_guidelines=cite_guidelines,
        keep_judgments=keep_judgments,
        confidence=confidence,
        samples=samples,
        decide=decide,
    )
    builder.add_node("retrieve_episodes", retrieve, input_schema=RetrieveView)
    builder.add_node("assemble_guidelines", assemble, input_schema=AssembleView)
    builder.add_node("judge", judge, input_schema=JudgeView)
    builder.add_edge(START, "retrieve_episodes")
    builder.add_edge(START, "assemble_guidelines")
    builder.add_edge(["retrieve_episodes", "assemble_guidelines"], "judge")


def _after_feedback(state: Mapping[str, Any]) -> str:
    if state["feedback"] is None:
        return END
    agrees = Feedback.model_validate(state["feedback"]).agrees
    return "commit_memory" if agrees else "distill_feedback"
