"""The graphs, uncompiled: judge, review, later feedback, alignment; and the nodes alone."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from langgraph.graph import END, START, StateGraph
from typing_extensions import Unpack

from memalign_graph.nodes.judge import assemble_guidelines, judge_example, retrieve_episodes
from memalign_graph.nodes.learn import commit_memory, distill_feedback
from memalign_graph.nodes.review import (
    clarify_feedback,
    collect_feedback,
    decide_review,
    find_the_judgment,
    question_feedback,
)
from memalign_graph.reading import decided
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY, Node, Parts
from memalign_graph.settings import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_REPLAY_CASES,
    Alignment,
    Guard,
    Judge,
    JudgeOptions,
    LearnFrom,
    MemAlignContext,
    OnConflict,
    Review,
    Reviewing,
    context_schema,
)
from memalign_graph.state import (
    AlignmentInput,
    AlignmentOutput,
    AlignmentState,
    ExampleInput,
    FeedbackState,
    JudgeOutput,
    JudgeState,
    LaterFeedback,
    ReviewOutput,
    ReviewState,
    returned,
)
from memalign_graph.types import Criterion, Feedback, Judgment

Graph = StateGraph[Any, Any, Any, Any]
"""A graph still to be compiled."""


class ParallelGraph(Graph):
    """A graph whose work runs concurrently also where the machine has few cores: it waits."""

    def compile(self, *args: Any, **options: Any) -> Any:
        """Compile the graph, as `StateGraph.compile` does."""
        compiled = super().compile(*args, **options)
        return compiled.with_config(max_concurrency=DEFAULT_MAX_CONCURRENCY)


class JudgeNodes:
    """The nodes of a review graph as Runnables, for a graph of one's own.

    `builder.add_node("judge", nodes.judge)`. The graph's state derives from
    `memalign_graph.state.ReviewState`, or from `JudgeState` where no expert is asked; a state that
    lacks their channels is refused. They run in the order of `create_review_graph`:
    `retrieve_episodes`, `assemble_guidelines`, `judge`, then `collect_feedback`, which asks the
    expert by an interrupt and leaves `feedback` None where the expert skipped; then
    `distill_feedback`, for feedback that does not merely agree, and `commit_memory`.

    Args:
        criterion: What is judged.
        judge: The options of a `Judge`.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If an extra is needed that is not installed.
    """

    def __init__(self, criterion: Criterion, **judge: Unpack[JudgeOptions]) -> None:
        parts = Parts(Judge(criterion=criterion, **judge), "always")
        self.retrieve_episodes = Node(retrieve_episodes, parts, is_first=True)
        self.assemble_guidelines = Node(assemble_guidelines, parts)
        self.judge = Node(judge_example, parts, name="judge")
        self.collect_feedback = Node(collect_feedback, parts)
        self.distill_feedback = Node(distill_feedback, parts)
        self.commit_memory = Node(commit_memory, parts)


def create_judge_graph(criterion: Criterion, **judge: Unpack[JudgeOptions]) -> Graph:
    """Create the graph that judges an example with what memory holds.

    `{inputs, outputs, reference_outputs?}` -> `{judgment}`, and `broken_guidelines` with
    `cite_guidelines=True`.

    Args:
        criterion: What is judged.
        judge: The options of a `Judge`.

    Returns:
        The graph, to be compiled with a store.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If an extra is needed that is not installed.
    """
    parts = Parts(Judge(criterion=criterion, **judge))
    output = returned(JudgeOutput, JudgeState, cites=parts.judge.cite_guidelines)
    builder = begin_graph(parts, JudgeState, ExampleInput, output, ["k", "model"])
    _add_judging(builder, parts)
    builder.add_edge("judge", END)
    return builder


def create_review_graph(
    criterion: Criterion,
    *,
    review: Review = "always",
    clarify: bool = False,
    **judge: Unpack[JudgeOptions],
) -> Graph:
    """Create the graph that judges an example, asks an expert, and learns from the answer.

    `{inputs, outputs, reference_outputs?}` -> `{judgment, feedback, learned}`, and
    `broken_guidelines` with `cite_guidelines=True`.

    Args:
        criterion: What is judged.
        review: When the expert is asked: `always`, `never`, a function of the `Judgment`, or
            `uncertain`, which is `Uncertain()`: where the judge is likely to be wrong. That needs
            `confidence`, `decide="evidence"` or both.
        clarify: True to ask the expert one short question back, with an example, where the words
            are too vague to make a rule: one more call of the model that distils, and one more
            interrupt. The answer is kept with the words; approving it goes on without.
        judge: The options of a `Judge`.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer to be resumed by.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If an extra is needed that is not installed.
    """
    asking = Reviewing(judge=Judge(criterion=criterion, **judge), review=review, clarify=clarify)
    parts = Parts(asking.judge, review)
    output = returned(ReviewOutput, ReviewState, cites=parts.judge.cite_guidelines)
    builder = begin_graph(parts, ReviewState, ExampleInput, output, ["k", "model", "review"])
    _add_judging(builder, parts)
    builder.add_node(Node(collect_feedback, parts))
    # Decided on the way out of nodes that run once, and not in the one that runs again.
    to_ask = asks(review, lambda state: Judgment.model_validate(state["judgment"]))
    ends = ["collect_feedback", END]
    if parts.judge.measures:
        builder.add_node(Node(decide_review, parts))
        builder.add_conditional_edges(
            "judge",
            lambda state: "decide_review" if _mode(state) == "uncertain" else to_ask(state),
            ["decide_review", *ends],
        )
        builder.add_conditional_edges("decide_review", _as_decided, ends)
    else:
        builder.add_conditional_edges("judge", to_ask, ends)
    add_learning(builder, parts, after="collect_feedback", clarify=clarify)
    return builder


def create_feedback_graph(criterion: Criterion, **judge: Unpack[JudgeOptions]) -> Graph:
    """Create the graph that learns from an expert who answers later, on any thread.

    The judgment is found by its id, for as long as the graph that made it keeps it (its option
    `keep_judgments`). `{judgment_id, reply}` -> `{judgment, feedback, learned}`; the reply is
    whatever a review interrupt takes for one.

    Args:
        criterion: What was judged.
        judge: The options of the `Judge`; the models and embeddings are what counts here.

    Returns:
        The graph, to be compiled with the store that holds the memory.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If an extra is needed that is not installed.
    """
    parts = Parts(Judge(criterion=criterion, **judge))
    builder = begin_graph(parts, FeedbackState, LaterFeedback, ReviewOutput, ["model"])
    builder.add_node(Node(find_the_judgment, parts, name="find_judgment", is_first=True))
    builder.add_edge(START, "find_judgment")
    add_learning(builder, parts, after="find_judgment")
    return builder


def create_alignment_graph(
    criterion: Criterion,
    *,
    learn_from: LearnFrom = "both",
    conflicts: OnConflict = "newest",
    guard: Guard | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    replay_cases: int = DEFAULT_REPLAY_CASES,
    judge_cases: bool = False,
    distill: bool = True,
    **judge: Unpack[JudgeOptions],
) -> Graph:
    """Create the graph that learns from much feedback at once.

    `{feedback: [...]}` -> `{report}`, an `AlignmentReport` as JSON. What memory knows already
    costs nothing; what an earlier run left pending is learned along. Progress is streamed as
    custom events of type `alignment_progress`, with `stage`, `done` and `of`. As many calls run
    concurrently as the run's `max_concurrency` allows, 32 unless told. If distilling fails the run
    fails; the feedback is kept as pending, and the answers already paid for are found again by the
    same call.

    Args:
        criterion: What is judged.
        learn_from: `both`, `labels` alone or `words` alone, for comparison: what of the feedback is
            stored and learned from.
        conflicts: Of guidelines that contradict each other the `newest` stays, or an expert is
            asked, once for all, by an interrupt (`ask`). The loser is kept as superseded.
        guard: `replay` judges seen cases again before anything is committed, as the judge does; a
            guideline that turns one against its expert is dropped, and reported.
        batch_size: How many pieces of feedback one call distils at most.
        replay_cases: How many seen cases the guard judges again at most.
        judge_cases: True to ask the judge about each case in memory that experts valued and no
            judge has judged, before anything is distilled, as if the case were new: a judgment a
            case, kept on its episodes. It is what `decide="evidence"`, calibrated confidence and
            `review="uncertain"` learn from, and feedback learned in bulk does not bring.
        distill: False to store and judge alone: what is new stays pending, for a later run.
        judge: The options of the `Judge` that is deployed: the guard and `judge_cases` judge so.

    Returns:
        The graph, to be compiled with a store, and with a checkpointer to be resumed by.

    Raises:
        InvalidInputError: If an option can't be used.
        ImportError: If an extra is needed that is not installed.
    """
    from memalign_graph.nodes.align import alignment_nodes  # it imports half the package

    options = Alignment(
        judge=Judge(criterion=criterion, **judge),
        learn_from=learn_from,
        conflicts=conflicts,
        guard=guard,
        batch_size=batch_size,
        replay_cases=replay_cases,
        judge_cases=judge_cases,
        distill=distill,
    )
    parts = Parts(options.judge)
    builder = begin_graph(
        parts, AlignmentState, AlignmentInput, AlignmentOutput, ["k", "model"], kind=ParallelGraph
    )
    nodes = alignment_nodes(parts, options)
    for node in nodes:
        builder.add_node(node)
    names = [START, *(node.name for node in nodes), END]
    # Each leads to the next, but nothing is distilled where nothing is pending, what failed is
    # distilled again, and nobody is asked where nothing contradicts.
    passed_by = {"distill_batches": ("batches", "commit_alignment")}
    if conflicts == "ask":
        passed_by["settle_conflicts"] = ("conflicts", names[names.index("settle_conflicts") + 1])
    for before, after in pairwise(names):
        if after in passed_by:
            key, otherwise = passed_by[after]
            builder.add_conditional_edges(
                before, _where_any(key, after, otherwise), [after, otherwise]
            )
        elif before == "distill_batches":
            builder.add_conditional_edges(before, _as_distilled, [before, after])
        else:
            builder.add_edge(before, after)
    return builder


def begin_graph(
    parts: Parts,
    state: type[Any],
    takes: type[Any],
    returns: type[Any],
    settings: Sequence[str],
    *,
    context: type[MemAlignContext] = MemAlignContext,
    kind: type[Graph] = StateGraph,
) -> Graph:
    """Begin a graph, with the settings that a run of it can have of its own."""
    model = parts.judge.model
    shown = {**parts.defaults, "model": model if isinstance(model, str) else None}
    return kind(
        state,
        context_schema=context_schema(context, **{name: shown[name] for name in settings}),
        input_schema=takes,
        output_schema=returns,
    )


def add_learning(builder: Graph, parts: Parts, *, after: str, clarify: bool = False) -> None:
    """Add what learns from the feedback that a node leaves in the state."""
    builder.add_node(Node(distill_feedback, parts))
    builder.add_node(Node(commit_memory, parts))
    builder.add_edge("distill_feedback", "commit_memory")
    builder.add_edge("commit_memory", END)
    ends = ["distill_feedback", "commit_memory", END]
    if not clarify:
        builder.add_conditional_edges(after, _after_feedback, ends)
        return
    builder.add_node(Node(question_feedback, parts))
    builder.add_node(Node(clarify_feedback, parts))

    def to_question(state: Mapping[str, Any]) -> str:
        has_words = (state["feedback"] or {}).get("rationale") is not None
        return "question_feedback" if has_words else _after_feedback(state)

    def after_question(state: Mapping[str, Any]) -> str:
        asks_back = "clarification" in state["judge_lesson"]
        return "clarify_feedback" if asks_back else "distill_feedback"

    builder.add_conditional_edges(after, to_question, ["question_feedback", *ends])
    builder.add_conditional_edges(
        "question_feedback", after_question, ["clarify_feedback", "distill_feedback"]
    )
    builder.add_edge("clarify_feedback", "distill_feedback")


def asks(
    review: Any, read: Callable[[Mapping[str, Any]], Any]
) -> Callable[[Mapping[str, Any]], str]:
    """Make the way out of judging: to the expert, or to the end."""

    def way_out(state: Mapping[str, Any]) -> str:
        mode = _mode(state)
        if mode is None and callable(review):
            wanted = decided(review(read(state)), "review")
        else:
            wanted = mode == "always"
        return "collect_feedback" if wanted else END

    return way_out


def _add_judging(builder: Graph, parts: Parts) -> None:
    builder.add_node(Node(retrieve_episodes, parts, is_first=True))
    builder.add_node(Node(assemble_guidelines, parts))
    builder.add_node(Node(judge_example, parts, name="judge"))
    builder.add_edge(START, "retrieve_episodes")
    builder.add_edge("retrieve_episodes", "assemble_guidelines")
    builder.add_edge("assemble_guidelines", "judge")


def _where_any(key: str, there: str, otherwise: str) -> Any:
    """Make the way to a node that has something to do only if the lesson holds something."""

    def way_out(state: Mapping[str, Any]) -> str:
        return there if state["judge_lesson"][key] else otherwise

    return way_out


def _as_distilled(state: Mapping[str, Any]) -> str:
    is_left = None in state["judge_lesson"]["proposals"]
    return "distill_batches" if is_left else "consolidate_guidelines"


def _mode(state: Mapping[str, Any]) -> str | None:
    mode: str | None = state["judge_run"]["settings"]["review"]
    return mode


def _as_decided(state: Mapping[str, Any]) -> str:
    review = Judgment.model_validate(state["judgment"]).review
    return "collect_feedback" if review is not None and review.asks else END


def _after_feedback(state: Mapping[str, Any]) -> str:
    if state["feedback"] is None:
        return END
    agrees = Feedback.model_validate(state["feedback"]).agrees
    return "commit_memory" if agrees else "distill_feedback"
