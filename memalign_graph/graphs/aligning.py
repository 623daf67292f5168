"""The graph that learns from much feedback at once."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START
from langgraph.types import Send

from memalign_graph.alignment.batches import DEFAULT_BATCH_SIZE
from memalign_graph.alignment.replay import DEFAULT_REPLAY_CASES
from memalign_graph.context import DEFAULT_K, context_schema
from memalign_graph.graphs.options import (
    Graph,
    ParallelGraph,
    check_choice,
    check_count,
    check_distill_model,
    check_embeddings,
    check_evidence,
    check_flag,
    check_swap,
    run_settings,
)
from memalign_graph.judgment import Decide
from memalign_graph.models import DEFAULT_CHAT_MODEL, DEFAULT_EMBEDDINGS, EmbeddingsLike
from memalign_graph.nodes import (
    create_commit_alignment_node,
    create_consolidate_node,
    create_distill_again_node,
    create_distill_batch_node,
    create_judge_cases_node,
    create_remember_node,
    create_replay_node,
    create_settle_node,
)
from memalign_graph.nodes.commit_alignment import CommitAlignmentView
from memalign_graph.nodes.consolidate import ConsolidateView
from memalign_graph.nodes.distill_batch import (
    DistillAgainView,
    DistillBatchView,
    create_collect_node,
)
from memalign_graph.nodes.judge_cases import JudgeCasesView
from memalign_graph.nodes.remember import LearnFrom, RememberView
from memalign_graph.nodes.replay import ReplayView
from memalign_graph.nodes.settle import SettleView
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.state import AlignmentInput, AlignmentOutput, AlignmentState
from memalign_graph.types import Criterion

OnConflict = Literal["newest", "ask"]
"""What decides between guidelines that contradict each other: the newest word, or an expert."""

Guard = Literal["replay"]
"""What keeps guidelines from breaking what worked: seen cases judged again."""


def create_alignment_graph(
    criterion: Criterion,
    *,
    model: BaseChatModel | str = DEFAULT_CHAT_MODEL,
    distill_model: BaseChatModel | str | None = None,
    embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
    k: int = DEFAULT_K,
    learn_from: LearnFrom = "both",
    conflicts: OnConflict = "newest",
    guard: Guard | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    replay_cases: int = DEFAULT_REPLAY_CASES,
    use_guidelines: bool = True,
    use_episodes: bool = True,
    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS,
    swap: bool = False,
    judge_cases: bool = False,
    confidence: bool = False,
    samples: int = 0,
    decide: Decide = "verdict",
    distill: bool = True,
) -> Graph:
    """Create the graph that learns from much feedback at once.

    `{feedback: [...]}` -> `{report}`, an `AlignmentReport` as JSON. What memory knows already
    costs nothing; what an earlier run left pending is learned along. Progress is streamed as
    custom events of type `alignment_progress`, with `stage`, `done` and `of`. Batches run side by
    side, as many as the run's `max_concurrency` allows, 32 unless told. If distilling fails the
    run fails; the feedback is kept as pending, and the answers already paid for are found again by
    the same call.

    Args:
        criterion: What is judged.
        model: A chat model, or a `"provider:name"` string that is resolved when it is first called.
        distill_model: The model that distils and compares guidelines; the judge's own unless given.
        embeddings: LangChain embeddings, a function from texts to vectors, or a string.
        k: How many similar examples the judge is shown when cases are judged here.
        learn_from: `both`, `labels` alone or `words` alone, for comparison: what of the feedback is
            stored and learned from.
        conflicts: Of guidelines that contradict each other the `newest` stays, or an expert is
            asked, once for all, by an interrupt (`ask`). The loser is kept as superseded.
        guard: `replay` judges seen cases again before anything is committed; a guideline that
            turns one against its expert is dropped.
        batch_size: How many pieces of feedback one call distils at most.
        replay_cases: How many seen cases the guard judges again at most.
        use_guidelines: False to judge without guidelines, for comparison; like the options after
            it, for the guard and `judge_cases` alone: give what the judge's own graph is given.
        use_episodes: False to judge without episodes, for comparison.
        max_guideline_tokens: How much of the judge's prompt guidelines may take.
        swap: True to judge two outputs in both orders.
        judge_cases: True to ask the judge about each case in memory that experts valued and no
            judge has judged, before anything is distilled, as if the case were new: a judgment a
            case, kept on its episodes. It is what `decide="evidence"`, calibrated confidence and
            `review="uncertain"` learn from, and feedback learned in bulk does not bring.
        confidence: True to measure how sure the judge is, with one more short call a judgment.
        samples: How many answers to ask for instead where the model gives no log-probabilities.
        decide: `evidence` if the judge's own graph decides so: the guard then does, too.
        distill: False to store and judge alone: what is new stays pending, for a later run.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer to be resumed by.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If `confidence` or `decide="evidence"` is asked for without the extra
            `evidence`.
    """
    resolved = run_settings(criterion, model, k, "never", max_guideline_tokens)
    check_distill_model(distill_model)
    check_embeddings(embeddings)
    check_choice("learn_from", learn_from, get_args(LearnFrom))
    check_choice("conflicts", conflicts, get_args(OnConflict))
    check_choice("guard", guard, (*get_args(Guard), None))
    check_count("batch_size", batch_size)
    check_count("replay_cases", replay_cases)
    check_flag("judge_cases", judge_cases)
    check_flag("distill", distill)
    _check_judging(
        criterion,
        use_guidelines=use_guidelines,
        use_episodes=use_episodes,
        swap=swap,
        confidence=confidence,
        samples=samples,
        decide=decide,
    )
    judging: dict[str, Any] = {
        "model": model,
        "embeddings": embeddings,
        "use_guidelines": use_guidelines,
        "use_episodes": use_episodes,
        "max_guideline_tokens": max_guideline_tokens,
        "swap": swap,
        "confidence": confidence,
        "samples": samples,
    }
    builder: Graph = ParallelGraph(
        AlignmentState,
        context_schema=context_schema(k=resolved["k"], model=model, review="never"),
        input_schema=AlignmentInput,
        output_schema=AlignmentOutput,
    )
    shared: dict[str, Any] = {
        "model": distill_model or model,
        "embeddings": embeddings,
        "use_context_model": distill_model is None,
    }
    builder.add_node(
        "remember_feedback",
        create_remember_node(
            criterion,
            settings=resolved,
            learn_from=learn_from,
            batch_size=batch_size,
            distill=distill,
            **shared,
        ),
        input_schema=RememberView,
    )
    first = "remember_feedback"
    one_batch = create_distill_batch_node(criterion, **shared)
    again = create_distill_again_node(criterion, **shared)
    builder.add_node("distill_batch", one_batch, input_schema=DistillBatchView)
    builder.add_node("distill_again", again, input_schema=DistillAgainView)
    builder.add_node("collect_proposals", create_collect_node(), input_schema=DistillAgainView)
    builder.add_node(
        "consolidate_guidelines",
        create_consolidate_node(criterion, always=conflicts == "ask", **shared),
        input_schema=ConsolidateView,
    )
    commit = create_commit_alignment_node(criterion, embeddings=embeddings)
    builder.add_node("commit_alignment", commit, input_schema=CommitAlignmentView)
    builder.add_edge(START, first)
    if judge_cases:
        judge = create_judge_cases_node(criterion, **judging)
        builder.add_node("judge_cases", judge, input_schema=JudgeCasesView)
        builder.add_edge(first, "judge_cases")
        first = "judge_cases"
    builder.add_conditional_edges(first, _send_batches, ["distill_batch", "commit_alignment"])
    builder.add_edge("distill_batch", "collect_proposals")
    builder.add_conditional_edges(
        "collect_proposals", _after_batches, ["distill_again", "consolidate_guidelines"]
    )
    builder.add_edge("distill_again", "consolidate_guidelines")
    last = "consolidate_guidelines"
    if conflicts == "ask":
        builder.add_node("settle_conflicts", create_settle_node(criterion), input_schema=SettleView)
        after = "commit_alignment" if guard is None else "replay_cases"
        builder.add_conditional_edges(
            last,
            lambda state: "settle_conflicts" if state["merged"]["conflicts"] else after,
            ["settle_conflicts", after],
        )
        last = "settle_conflicts"
    if guard is not None:
        replay = create_replay_node(criterion, cases=replay_cases, decide=decide, **judging)
        builder.add_node("replay_cases", replay, input_schema=ReplayView)
        builder.add_edge(last, "replay_cases")
        last = "replay_cases"
    builder.add_edge(last, "commit_alignment")
    builder.add_edge("commit_alignment", END)
    return builder


def _check_judging(
    criterion: Criterion, *, use_guidelines: Any, use_episodes: Any, swap: Any, **evidence: Any
) -> None:
    check_flag("use_guidelines", use_guidelines)
    check_flag("use_episodes", use_episodes)
    check_swap(swap, criterion)
    check_evidence(**evidence)


def _send_batches(state: Mapping[str, Any]) -> list[Send] | str:
    settings = state["judge_settings"]
    sends = [
        Send("distill_batch", {"judge_settings": settings, "batch": batch})
        for batch in state["batches"]
    ]
    return sends or "commit_alignment"


def _after_batches(state: Mapping[str, Any]) -> str:
    failed = any("error" in one for one in state["proposals"].values())
    return "distill_again" if failed else "consolidate_guidelines"
